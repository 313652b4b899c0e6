"""A kubelet for tests: it runs real processes for pods. It speaks only the API, so it serves the real plane as well.

Pods bound to its nodes get a thread each: ContainerCreating, Running, on deletion SIGTERM to main's process group, the
grace, SIGKILL, the terminal status by exit codes, the end of the object. Annotations script a pod (times in seconds):

    sim/mode            process or script (no process); without it: script if one of the next six, or no command
    sim/run-for         how long main runs; absent: until it is told to end
    sim/exit-code       of main when it ends by itself (0); sim/reason overrides Completed / Error (OOMKilled)
    sim/term-exit-code  of main after SIGTERM (143)
    sim/term-after      how long main needs after SIGTERM (0.05); more than the grace: 137
    sim/ignore-term     true: main never ends on SIGTERM
    sim/start-delay     from bound to running (0.02)
    sim/wait-exit-code  of the other containers (0); sim/wait-lag: they end so much later than main
    sim/reject          "Reason: message": the kubelet refuses the pod
    sim/stuck           a reason such as ImagePullBackOff: main never starts; init:REASON: not even its init containers
    sim/pending-delete  vanish: a pod deleted before it runs goes without a terminal status
    sim/vanish          true: on deletion the object goes at once, without a terminal status
    sim/gone-delay      from the terminal status to the object's end (0.7 on a real node; Fakelet's gone_delay_s here)
    sim/task-result     off, or never-complete: what became of the WorkflowTaskResult
    sim/outputs         JSON for its outputs
"""

from __future__ import annotations

import itertools
import os
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from scheduler.adapters.kube.api import MERGE, STRATEGIC, Api, Refused
from scheduler.adapters.kube.objects import requested
from scheduler.errors import Unavailable
from tests.cluster.fake_store import stamp
from tests.cluster.follow import Follow
from tests.cluster.pod_play import PodPlay

Raw = Mapping[str, Any]
LABEL = "sim/fakelet"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_UNREACHABLE = "node.kubernetes.io/unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """One node."""

    name: str
    gpus: int = 8
    resource: str = "nvidia.com/gpu"
    cpu: str = "64"
    memory: str = "512Gi"
    pods: str = "250"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Raw] = ()

    @property
    def capacity(self) -> dict[str, str]:
        plain = {"cpu": self.cpu, "memory": self.memory, "pods": self.pods}
        return plain | ({self.resource: str(self.gpus)} if self.gpus else {})


class Fakelet:
    """All nodes of one test. `violations` says when a GPU was in two hands."""

    _addresses = itertools.count(1)  # of all pods of this process: their servers listen on real addresses

    def __init__(
        self,
        api: Api,
        nodes: Sequence[NodeShape] | Mapping[str, int],
        folder: Path,
        *,
        tls: tuple[Path, Path] | None = None,  # certificate and key of the log server; None = plain HTTP
        gone_delay_s: float = 0.05,
        heartbeat_s: float = 5.0,
    ) -> None:
        shapes = (
            [NodeShape(name=name, gpus=gpus) for name, gpus in nodes.items()] if isinstance(nodes, Mapping) else nodes
        )
        self.api, self.folder, self.gone_delay_s, self.heartbeat_s = api, folder, gone_delay_s, heartbeat_s
        self.nodes = {one.name: one for one in shapes}
        self.violations: list[str] = []
        self.started: list[tuple[str, str, str]] = []  # (node, pod, uid) in the order of admission
        self.stopping = threading.Event()
        self._lock = threading.RLock()
        self._plays: dict[str, PodPlay] = {}
        self._devices: dict[str, dict[int, str]] = {name: {} for name in self.nodes}  # node -> device -> uid
        self._folders: dict[tuple[str, str], Path] = {}
        self._lost: set[str] = set()
        self._server = _log_server(self.log_of, tls)
        self._pods = Follow(api, "/api/v1/pods", self._see_all, self._see)
        self._threads: list[threading.Thread] = []

    # life

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        for target in (lambda: self._server.serve_forever(0.05), self._heartbeats):
            self._threads.append(threading.Thread(target=target, daemon=True, name="fakelet"))
        for shape in self.nodes.values():
            self._make_node(shape)
        for thread in self._threads:
            thread.start()
        self._pods.start()
        return self

    def stop(self) -> None:
        """Ends every process that it started."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self._pods.stop()
        with self._lock:
            plays = list(self._plays.values())
        for play in plays:
            play.gone()
        for play in plays:
            play.join(5.0)
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join(5.0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # faults

    def lose(self, node: str, *, noticed: bool = True) -> None:
        """The node is cut off: its processes go on, nothing of them is heard. `noticed` = as by the node controller."""
        self._lost.add(node)
        if noticed:
            at = {"lastHeartbeatTime": stamp(), "lastTransitionTime": stamp()}
            why = "Kubelet stopped posting node status."
            unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": why} | at
            self.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [unknown]}}, STRATEGIC)
            taints = [{"key": _UNREACHABLE, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
            self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": taints}}, MERGE)

    def find(self, node: str) -> None:
        """The node is back."""
        self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": list(self.nodes[node].taints) or None}}, MERGE)
        self._beat(self.nodes[node])
        self._lost.discard(node)

    def die(self, node: str) -> None:
        """The machine is off: its processes are gone, and nobody says so."""
        self.lose(node)
        with self._lock:
            plays = [one for one in self._plays.values() if one.node == node]
        for play in plays:
            if play.process is not None:
                play.process.signal(9)

    # looking

    def held(self, node: str) -> int:
        """GPUs of a node that are in somebody's hands now."""
        with self._lock:
            return len(self._devices[node])

    def running(self) -> list[tuple[str, str]]:
        """(pod, node) of all pods that are played now."""
        with self._lock:
            return sorted((one.pod["metadata"]["name"], one.node) for one in self._plays.values())

    def process_of(self, pod: str) -> int | None:
        """The process id of a pod's main."""
        with self._lock:
            plays = [one for one in self._plays.values() if one.pod["metadata"]["name"] == pod and one.process]
        return plays[0].process.pid if plays and plays[0].process else None

    def log_of(self, namespace: str, pod: str, container: str) -> bytes | None:
        """What a container wrote; None = unknown."""
        folder = self._folders.get((namespace, pod))
        path = folder / f"{container}.log" if folder else None
        return path.read_bytes() if path is not None and path.exists() else (b"" if folder else None)

    # for the plays

    def is_lost(self, node: str) -> bool:
        return node in self._lost

    def admit(self, play: PodPlay) -> str:
        """Gives a pod its devices, or says why the kubelet refuses it."""
        shape = self.nodes[play.node]
        need = requested(play.pod["spec"]).get(shape.resource, 0)
        with self._lock:
            taken = self._devices[play.node]
            free = [one for one in range(shape.gpus) if one not in taken]
            self.started.append((play.node, play.pod["metadata"]["name"], play.uid))
            if need > len(free):
                holders = sorted(
                    {self._plays[uid].pod["metadata"]["name"] for uid in taken.values() if uid in self._plays}
                )
                self.violations.append(
                    f"{play.node}: {play.pod['metadata']['name']} came for {need} GPUs while {', '.join(holders)} "
                    f"held {len(taken)} of {shape.gpus}"
                )
                return (
                    f"UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for "
                    f"{shape.resource}. Requested: {need}, Available: {len(free)}, which is unexpected"
                )
            play.devices = tuple(free[:need])
            taken |= dict.fromkeys(play.devices, play.uid)
        return ""

    def release_devices(self, play: PodPlay) -> None:
        with self._lock:
            taken = self._devices[play.node]
            for device in [one for one, uid in taken.items() if uid == play.uid]:
                del taken[device]

    def folder_of(self, play: PodPlay) -> Path:
        folder: Path = self.folder / play.uid
        folder.mkdir(parents=True, exist_ok=True)
        meta = play.pod["metadata"]
        self._folders[meta["namespace"], meta["name"]] = folder
        return folder

    def forget(self, play: PodPlay) -> None:
        self.release_devices(play)
        with self._lock:
            if self._plays.get(play.uid) is play:
                del self._plays[play.uid]

    # pods

    def _see_all(self, pods: Sequence[Raw]) -> None:
        there = {one["metadata"]["uid"] for one in pods}
        with self._lock:
            gone = [one for uid, one in self._plays.items() if uid not in there]
        for play in gone:
            play.gone()
        for pod in pods:
            self._see("ADDED", pod)

    def _see(self, kind: str, pod: Raw) -> None:
        meta = pod["metadata"]
        if pod["spec"].get("nodeName") not in self.nodes:
            return
        with self._lock:
            play = self._plays.get(meta["uid"])
            if play is None:
                over = pod["status"].get("phase") in ("Succeeded", "Failed") and "deletionTimestamp" not in meta
                if kind != "DELETED" and not over:
                    self._plays[meta["uid"]] = play = PodPlay(self, pod, self._address())
                    play.start()
                return
        if kind == "DELETED":
            play.gone()
        else:
            play.see(pod)

    def _address(self) -> str:
        n = next(Fakelet._addresses)
        # Another process plays pods of its own, on the same ports.
        return f"127.{16 + os.getpid() % 230}.{1 + n // 250 % 250}.{1 + n % 250}"

    # nodes

    def _make_node(self, shape: NodeShape) -> None:
        labels = {"kubernetes.io/hostname": shape.name, "kubernetes.io/os": "linux", LABEL: "true", **shape.labels}
        if shape.gpus:
            labels.setdefault("nvidia.com/gpu.present", "true")
        taints = {"taints": list(shape.taints)} if shape.taints else {}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": shape.name, "labels": labels}, "spec": taints}
        try:
            self.api.create("/api/v1/nodes", body)
        except Refused as error:
            if error.status != 409:
                raise
        self._beat(shape)

    def _heartbeats(self) -> None:
        while not self.stopping.wait(self.heartbeat_s):
            for name, shape in self.nodes.items():
                if name not in self._lost:
                    try:
                        self._beat(shape)
                    except (Unavailable, Refused):
                        continue  # the next beat comes soon

    def _beat(self, shape: NodeShape) -> None:
        kinds = (("Ready", "True"), ("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False"))
        conditions = [
            {"type": kind, "status": is_so, "reason": "Fakelet", "message": "played", "lastHeartbeatTime": stamp()}
            for kind, is_so in kinds
        ]
        status = {
            "capacity": shape.capacity,
            "allocatable": shape.capacity,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": shape.name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
            "nodeInfo": {"kubeletVersion": "v1.34.4-fakelet", "operatingSystem": "linux", "architecture": "amd64"},
        }
        self.api.patch(f"/api/v1/nodes/{shape.name}/status", {"status": status}, STRATEGIC)
        renewed = stamp().replace("Z", ".000000Z")
        spec = {"holderIdentity": shape.name, "leaseDurationSeconds": 40, "renewTime": renewed}
        try:
            self.api.patch(f"{_LEASES}/{shape.name}", {"spec": spec}, MERGE)
        except Refused as error:
            if error.status != 404:
                raise
            self.api.create(_LEASES, {"metadata": {"name": shape.name}, "spec": spec})


def _log_server(log_of: Callable[[str, str, str], bytes | None], tls: tuple[Path, Path] | None) -> ThreadingHTTPServer:
    """The one road of a kubelet that the API server takes here: containerLogs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            split = urlsplit(self.path)
            words = split.path.strip("/").split("/")
            found = log_of(*words[1:]) if len(words) == 4 and words[0] == "containerLogs" else None
            query = parse_qs(split.query)
            data = b"" if found is None else found
            if "tailLines" in query:
                count = int(query["tailLines"][0])
                data = b"".join(data.splitlines(keepends=True)[-count:]) if count else b""
            if "limitBytes" in query:
                data = data[: int(query["limitBytes"][0])]
            self.send_response_only(404 if found is None else 200)
            self.send_header("content-type", "text/plain")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that left

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server
