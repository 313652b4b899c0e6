"""One real node of this computer: containerd, runc and kubelet, with GPUs that only its numbers know of. Needs root."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.cluster.component import Component, free_port
from tests.cluster.control_plane import ControlPlane
from tests.node.images import PAUSE, make_images

NAME = "node-1"
GPUS = 8
ADDRESS = "10.99.0.1"  # of the node; it never leaves this computer, and kubelet takes no loopback
SERVICE = "10.0.0.1"  # of the API server, as pods know it
_BRIDGE, _SUBNET = "gpujob-test0", "10.99.1.0/24"
_TOOLS = ("containerd", "runc", "ctr", "ip", "openssl", "ldd")
_CNI = Path("/usr/lib/cni")
_BUSYBOX = Path("/bin/busybox")
# Kubelet sets these; they are put back.
_SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")


def what_is_missing() -> str:
    """Why there can be no node here; "" = nothing."""
    if os.geteuid() != 0:
        return "a real node needs root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    missing += [str(path) for path in (_CNI / "bridge", _CNI / "host-local", _BUSYBOX) if not path.exists()]
    if missing:
        return (
            f"a real node needs {', '.join(missing)}; on Debian: "
            "apt-get install containerd runc containernetworking-plugins busybox-static iproute2"
        )
    return ""


class Node:
    """A node that has joined a control plane. `timings` are seconds of its start."""

    def __init__(self, plane: ControlPlane, folder: Path, programs: Path) -> None:
        self.timings: dict[str, float] = {}
        self._plane, self._folder, self._programs = plane, folder, programs
        self._socket = folder / "containerd.sock"
        self._parts: list[Component] = []
        self._doors: list[Door] = []
        self._sysctls = {name: Path("/proc/sys", name).read_text() for name in _SYSCTLS}

    def __enter__(self) -> Node:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def open_door(self, port: int, to_port: int | None = None) -> str:
        """Pods reach what listens on a loopback port of this computer; the address that they use."""
        self._doors.append(Door((SERVICE, port), ("127.0.0.1", to_port or port)))
        return f"{SERVICE}:{port}"

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for address in (ADDRESS, SERVICE):
            subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], capture_output=True)
        self.open_door(443, int(self._plane.address.rpartition(":")[2]))
        with self._timed("containerd"):
            self._begin_containerd()
        with self._timed("images"):
            self._import_images()
        with self._timed("kubelet"):
            self._begin_kubelet()
            self._give_gpus()

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.timings[what] = round(time.monotonic() - began, 1)

    def _begin_containerd(self) -> None:
        (self._folder / "cni").mkdir(exist_ok=True)
        ranges = {"type": "host-local", "ranges": [[{"subnet": _SUBNET}]], "routes": [{"dst": "0.0.0.0/0"}]}
        ranges["dataDir"] = str(self._folder / "addresses")
        bridge = {"type": "bridge", "bridge": _BRIDGE, "isGateway": True, "ipMasq": False, "ipam": ranges}
        network = {"cniVersion": "0.4.0", "name": "test", "plugins": [bridge]}
        (self._folder / "cni" / "10-test.conflist").write_text(json.dumps(network))
        (self._folder / "containerd.toml").write_text(_CONTAINERD.format(folder=self._folder, pause=PAUSE, cni=_CNI))
        words = ["containerd", "--config", str(self._folder / "containerd.toml")]
        self._run(Component("containerd", words, self._folder / "containerd.log", lambda: self._ctr("version")))

    def _import_images(self) -> None:
        for archive in make_images(self._folder / "images", self._programs / "argoexec", _BUSYBOX):
            self._ctr("images", "import", str(archive))
            archive.unlink()

    def _begin_kubelet(self) -> None:
        keys = self._folder / "keys"
        make_key(self._plane.keys, keys, ADDRESS)
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            "port": free_port(),
            "healthzPort": free_port(),
            "tlsCertFile": str(keys / "node.crt"),
            "tlsPrivateKeyFile": str(keys / "node.key"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._plane.keys / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "imageServiceEndpoint": f"unix://{self._socket}",
            "podLogsDir": str(self._folder / "podlogs"),
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "enforceNodeAllocatable": ["pods"],
            "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "5s",
            "oomScoreAdj": 0,
        }
        (self._folder / "kubelet.json").write_text(json.dumps(settings))
        words = [
            str(self._programs / "kubelet"),
            f"--config={self._folder / 'kubelet.json'}",
            f"--kubeconfig={self._plane.kubeconfig('node')}",
            f"--root-dir={self._folder / 'kubelet'}",
            f"--cert-dir={keys}",
            f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}",
        ]
        self._run(Component("kubelet", words, self._folder / "kubelet.log", self._is_ready))

    def _is_ready(self) -> bool:
        node = self._plane.api("admin").get(f"/api/v1/nodes/{NAME}")
        return any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"]["conditions"])

    def _give_gpus(self) -> None:
        """An extended resource of the node object: kubelet keeps what it does not know, and makes it allocatable."""
        admin = self._plane.api("admin")
        count = {"nvidia.com/gpu": str(GPUS)}
        labels = {"labels": {"nvidia.com/gpu.present": "true"}}
        admin.patch(f"/api/v1/nodes/{NAME}", {"metadata": labels})
        admin.patch(f"/api/v1/nodes/{NAME}/status", {"status": {"capacity": count}})
        for _ in range(100):
            if admin.get(f"/api/v1/nodes/{NAME}")["status"]["allocatable"].get("nvidia.com/gpu") == str(GPUS):
                return
            time.sleep(0.2)
        raise AssertionError("kubelet does not offer the GPUs")

    def _run(self, part: Component) -> None:
        self._parts.append(part)
        part.start()
        part.wait(60)

    def _ctr(self, *words: str) -> Sequence[str]:
        command = ["ctr", "--address", str(self._socket), "-n", "k8s.io", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.split()

    def stop(self) -> None:
        """Everything that was started here is ended, and what was set is as it was."""
        for part in reversed(self._parts):
            if part.name == "containerd":
                self._end_containers()
            part.kill()
        for door in self._doors:
            door.close()
        self._unmount()
        for name, value in self._sysctls.items():
            Path("/proc/sys", name).write_text(value)
        for address in (ADDRESS, SERVICE):
            subprocess.run(["ip", "addr", "del", f"{address}/32", "dev", "lo"], capture_output=True)
        subprocess.run(["ip", "link", "del", _BRIDGE], capture_output=True)
        for group in Path("/sys/fs/cgroup").glob("**/kubepods"):
            for folder in sorted(group.rglob("*/"), reverse=True):
                with suppress(OSError):
                    folder.rmdir()
            with suppress(OSError):
                group.rmdir()

    def _end_containers(self) -> None:
        with suppress(subprocess.SubprocessError, OSError):
            for task in self._ctr("tasks", "ls", "-q"):
                with suppress(subprocess.SubprocessError):
                    self._ctr("tasks", "kill", "-s", "KILL", task)
            time.sleep(0.5)
            for task in self._ctr("tasks", "ls", "-q"):
                with suppress(subprocess.SubprocessError):
                    self._ctr("tasks", "rm", "-f", task)

    def _unmount(self) -> None:
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((one for one in mounts if one.startswith(f"{self._folder}/")), reverse=True):
            subprocess.run(["umount", "-l", mount], capture_output=True)


class Door:
    """Hands connections on, as kube-proxy would for a Service with one endpoint."""

    def __init__(self, here: tuple[str, int], there: tuple[str, int]) -> None:
        self._there = there
        self._listening = socket.create_server(here)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                came, _ = self._listening.accept()
                threading.Thread(target=self._carry, args=[came], daemon=True).start()

    def _carry(self, came: socket.socket) -> None:
        with came:
            try:
                on = socket.create_connection(self._there, timeout=5)
            except OSError:
                return
            with on:
                on.settimeout(None)
                back = threading.Thread(target=_copy, args=[came, on], daemon=True)
                back.start()
                _copy(on, came)
                back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
    for end in (source, target):  # one that has ended ends the other way too
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def make_key(authority: Path, folder: Path, address: str) -> None:
    """node.crt and node.key, for a server at this address."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "node.ext").write_text(f"subjectAltName=IP:{address}\nextendedKeyUsage=serverAuth")
    for words in (
        "ecparam -name prime256v1 -genkey -noout -out node.key",
        "req -new -key node.key -subj /CN=node -out node.csr",
        f"x509 -req -in node.csr -CA {authority}/ca.crt -CAkey {authority}/ca.key -CAcreateserial -days 30 "
        "-extfile node.ext -out node.crt",
    ):
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)


_CONTAINERD = """version = 2
root = "{folder}/containerd"
state = "{folder}/containerd.run"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  stream_server_address = "127.0.0.1"
  restrict_oom_score_adj = true   # where nothing may go below its own score
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""
