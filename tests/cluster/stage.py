"""What stories are told with: a plane, a kubelet, jobs made of orders, and a record of all that could be seen."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from scheduler.adapters.argo.shape import Shape
from scheduler.adapters.argo.workflow import workflows
from scheduler.adapters.kube import names, objects
from scheduler.adapters.kube.api import MERGE, STRATEGIC, Refused
from scheduler.adapters.kube.objects import Pod
from scheduler.errors import Unavailable
from scheduler.jobs.job import JobId, TaskName
from scheduler.jobs.order import JobOrder, TaskOrder
from tests.cluster.fakelet import Fakelet, NodeShape
from tests.cluster.follow import Follow, Raw
from tests.cluster.plane import FakePlane, Plane
from tests.cluster.waiting import until

WORKFLOWS = "/apis/argoproj.io/v1alpha1/namespaces/{}/workflows"
# Ends as training does: it saves, and says so with 143. It says when it can be asked to.
POLITE = (
    "import signal,sys,time\nsignal.signal(signal.SIGTERM,lambda *_:(print('saved',flush=True),sys.exit({code})))\n"
    "print('ready',flush=True)\ntime.sleep(300)"
)


def polite(code: int = 143) -> tuple[str, ...]:
    return sys.executable, "-c", POLITE.format(code=code)


def exits(code: int) -> tuple[str, ...]:
    return sys.executable, "-c", f"raise SystemExit({code})"


def task(
    name: str,
    *command: str,
    needs: Sequence[str] = (),
    gpus: int = 1,
    nodes: int = 1,
    step: str = "",
    any_: bool = False,
) -> TaskOrder:
    return TaskOrder(
        name=TaskName(name),
        step=step or name,
        needs=tuple(needs),
        any=any_,
        gpus=(gpus,),
        nodes=nodes,
        image="train:1",
        command=command or exits(0),
        env={"GPUJOB_TASK": name},
        outputs={},
    )


class Record:
    """Follows the pods of the jobs as our own code does, and keeps what it saw of each uid, in order."""

    def __init__(self, plane: Plane) -> None:
        self._follow = Follow(plane.api(), f"/api/v1/namespaces/{plane.namespace}/pods", self._list, self._event)
        self._lock = threading.Lock()
        self.now: dict[str, Pod] = {}
        self.seen: dict[str, list[Pod]] = {}  # by uid, every version
        self.gone: set[str] = set()

    def start(self) -> None:
        self._follow.start()

    def stop(self) -> None:
        self._follow.stop()

    def _list(self, listed: Sequence[Raw]) -> None:
        there = {one["metadata"]["uid"] for one in listed}
        with self._lock:
            lost = [pod for uid, pod in self.now.items() if uid not in there]
        for pod in lost:
            self._keep("DELETED", pod)
        for raw in listed:
            self._keep("ADDED", objects.pod(raw))

    def _event(self, kind: str, raw: Raw) -> None:
        self._keep(kind, objects.pod(raw))

    def _keep(self, kind: str, pod: Pod) -> None:
        with self._lock:
            self.seen.setdefault(pod.uid, []).append(pod)
            self.now[pod.uid] = pod
            if kind == "DELETED":
                self.gone.add(pod.uid)
                self.now.pop(pod.uid, None)

    def pods(self) -> list[Pod]:
        with self._lock:
            return sorted(self.now.values(), key=lambda pod: (pod.created_at, pod.name))

    def story(self, label: str) -> list[str]:
        """One line for each pod of a job, by task and rank, in the order of their births."""
        with self._lock:
            lines = [(self.seen[uid][0], _life(self.seen[uid], uid in self.gone)) for uid in self.seen]
        mine = [(pod, life) for pod, life in lines if pod.labels.get(names.JOB) == label]
        mine.sort(key=lambda line: (line[0].labels[names.TASK], line[0].labels.get(names.RANK, "0")))
        return [f"{pod.labels[names.TASK]}{_rank(pod)}: {life}" for pod, life in mine]


def _rank(pod: Pod) -> str:
    return f"/{pod.labels[names.RANK]}" if names.RANK in pod.labels else ""


def _life(versions: Sequence[Pod], gone: bool) -> str:
    words: list[str] = []
    for pod in versions:
        for word in _words(pod):
            if word not in words:
                words.append(word)
    # A terminal pod may be gone or not when the story is over: that is the janitor's business.
    ended = any(word.startswith("ended") for word in words)
    return ", ".join([*words, *(["gone"] if gone and not ended else [])])


def _words(pod: Pod) -> list[str]:
    found = ["gated"] if names.GATE in pod.gates else []
    if pod.phase == "Running":
        found.append("running")
    if pod.disrupted:
        found.append(pod.disrupted)
    if pod.terminal:
        code = "?" if pod.ended is None else str(pod.ended.exit_code)
        why = pod.message or pod.reason or (pod.ended.reason if pod.ended else "")
        found.append(f"ended {code} {why[:60].strip()}".strip())
    return found


class Stage:
    """Our own hands on a plane, by raw calls: the shapes that were proven, each with its guards."""

    def __init__(self, plane: Plane, nodes: Mapping[str, int], folder: Path, *, grace_s: float = 5.0) -> None:
        self.plane, self.api, self.admin = plane, plane.api(), plane.api("admin")
        shapes = [NodeShape(name=name, gpus=gpus) for name, gpus in nodes.items()]
        self.kubelet = Fakelet(plane.api("admin"), shapes, folder / "kubelet", tls=plane.tls)
        self.record = Record(plane)
        self.shape = Shape(namespace=plane.namespace, grace_s=grace_s)
        self.slow = not isinstance(plane, FakePlane)  # it takes seconds for what the fake does at once
        self._made: list[str] = []

    def __enter__(self) -> Self:
        self.kubelet.start()
        self.record.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._clean()
        self.record.stop()
        self.kubelet.stop()

    # jobs

    def submit(self, job: int, *tasks: TaskOrder, retries: int = 0) -> str:
        order = JobOrder(job=JobId(job), name="story", spec_hash="abc", tasks=tasks, retries=retries)
        for part in workflows(order, self.shape):
            self.api.create(WORKFLOWS.format(self.plane.namespace), part.body)
            self._made.append(part.name)
        return f"job-{job}"

    def workflow(self, name: str) -> Any:
        return self.admin.get(f"{WORKFLOWS.format(self.plane.namespace)}/{name}")

    def phase(self, name: str) -> str:
        return str((self.workflow(name).get("status") or {}).get("phase", ""))

    def ends(self, name: str, phase: str, seconds: float = 60.0) -> None:
        until(lambda: self.phase(name) in ("Succeeded", "Failed", "Error"), seconds, lambda: self.told(name))
        assert self.phase(name) == phase, self.told(name)

    def told(self, name: str) -> str:
        """Everything, for a test that fails."""
        lines = "\n".join(self.record.story(name))
        nodes = (self.workflow(name).get("status") or {}).get("nodes") or {}
        rows = "\n".join(f"{n['name']} {n['type']} {n['phase']} {n.get('message', '')}" for n in nodes.values())
        return f"\n{lines}\n{rows}\n{json.dumps(self.workflow(name).get('status', {}).get('message', ''))}"

    # pods

    def pod(self, job: str, task: str, look: Callable[[Pod], object], rank: str = "", seconds: float = 30.0) -> Pod:
        """The newest pod of a task that looks so."""

        def find() -> Pod | None:
            mine = [
                pod
                for pod in self.record.pods()
                if pod.labels.get(names.JOB) == job
                and pod.labels.get(names.TASK) == task
                and pod.labels.get(names.RANK, "") == rank
                and look(pod)
            ]
            return mine[-1] if mine else None

        found = until(find, seconds, lambda: self.told(job))
        assert found is not None
        return found

    def gated(self, job: str, task: str, rank: str = "", but: Sequence[str] = ()) -> Pod:
        def look(pod: Pod) -> bool:
            return names.GATE in pod.gates and not pod.terminal and pod.uid not in but and pod.leaving_at is None

        return self.pod(job, task, look, rank)

    def running(self, job: str, task: str, rank: str = "") -> Pod:
        """Once its program can be asked to end, and Argo knows that it runs: else its attempt is used again."""
        found = self.pod(job, task, lambda pod: pod.phase == "Running", rank)
        if self.kubelet.process_of(found.name) is not None:
            until(lambda: b"ready" in (self.kubelet.log_of(found.namespace, found.name, "main") or b""), 10.0)
        node = found.annotations[names.NODE_ID]
        until(lambda: self.workflow(job)["status"]["nodes"].get(node, {}).get("phase") == "Running", 15.0)
        return found

    def seen(self, uid: str, look: Callable[[Pod], object]) -> Pod:
        """The first version of a pod that looked so, gone since or not."""

        def find() -> Pod | None:
            return next((pod for pod in list(self.record.seen.get(uid, ())) if look(pod)), None)

        found = until(find, 30.0, lambda: [_words(pod) for pod in self.record.seen.get(uid, ())])
        assert found is not None
        return found

    def stays(self, look: Callable[[], bool], seconds: float) -> None:
        """Fails as soon as it is so no more."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert look()
            time.sleep(0.02)

    def release(self, pod: Pod, node: str = "", **sim: str) -> None:
        """The one patch; `sim` are the kubelet's annotations, without `sim/` and with _ for -."""
        scripted = {f"sim/{key.replace('_', '-')}": value for key, value in sim.items()}
        meta = {"uid": pod.uid, "annotations": {names.RUN: pod.attempt, **scripted}}
        gate = {"$patch": "delete", "name": names.GATE}
        selector = {"nodeSelector": {names.HOSTNAME: node}} if node else {}
        self.api.patch(pod.key, {"metadata": meta, "spec": {"schedulingGates": [gate], **selector}}, STRATEGIC)

    def evict(self, pod: Pod) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        self.api.create(f"{pod.key}/eviction", body)

    def delete(self, pod: Pod) -> None:
        self.api.delete(pod.key, {"preconditions": {"uid": pod.uid}})

    def settle(self, pod: Pod, phase: str, message: str) -> None:
        """Fuse (Failed) or skip (Succeeded) of a gated pod."""
        body = {"metadata": {"uid": pod.uid}, "status": {"phase": phase, "message": message}}
        self.api.patch(f"{pod.key}/status", body, STRATEGIC)

    def cancel(self, name: str) -> None:
        body = {"spec": {"shutdown": "Terminate", "suspend": False}}
        self.api.patch(f"{WORKFLOWS.format(self.plane.namespace)}/{name}", body, MERGE)

    # serving

    def serve(self, name: str, replicas: int, gpus: int) -> None:
        limits = {"nvidia.com/gpu": str(gpus)}
        container = {"name": "vllm", "image": "vllm:1", "resources": {"limits": limits}}
        body = {
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
                },
            },
        }
        self.admin.create(f"/apis/apps/v1/namespaces/{self.plane.serving}/deployments", body)

    def ready_replicas(self, name: str) -> int:
        path = f"/apis/apps/v1/namespaces/{self.plane.serving}/deployments/{name}"
        return int((self.admin.get(path).get("status") or {}).get("readyReplicas") or 0)

    def _clean(self) -> None:
        for name in self._made:
            try:
                self.admin.delete(f"{WORKFLOWS.format(self.plane.namespace)}/{name}")
            except (Refused, Unavailable):
                continue
