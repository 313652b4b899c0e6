"""Jobs on a real node, through our executor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from scheduler.adapters.argo.executor import ArgoExecutor
from scheduler.adapters.argo.shape import Shape
from scheduler.adapters.kube.objects import Pod
from scheduler.adapters.kube.watching import Watching
from scheduler.jobs import jobfile, templates
from scheduler.jobs.job import JobId, Uid
from scheduler.jobs.reports import Phase, Report
from scheduler.wiring import clock
from tests.cluster.control_plane import ControlPlane
from tests.node.images import PAUSE
from tests.node.node import NAME, Node
from tests.object_storage import KEY, SECRET, ObjectStorage

GRACE_S = 20
_SECRET = "storage"
_FIRST_JOB = 101  # those of a cycle begin at 1
T = TypeVar("T")


class Bench:
    """Everything that a job needs: node, storage, the Secret of the storage, and the executor with its watches."""

    def __init__(self, plane: ControlPlane, node: Node, storage: ObjectStorage) -> None:
        self.plane, self.storage, self.admin = plane, storage, plane.api("admin")
        port = int(storage.endpoint.rpartition(":")[2])
        environment = {**storage.environment, "AWS_ENDPOINT_URL": f"http://{node.open_door(port)}"}
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        self.admin.create(
            f"/api/v1/namespaces/{plane.namespace}/secrets", {"metadata": {"name": _SECRET}, "stringData": keys}
        )
        shape = Shape(
            namespace=plane.namespace,
            grace_s=GRACE_S,
            env={key: value for key, value in environment.items() if key not in keys},
            secrets={key: f"{_SECRET}/{key}" for key in keys},
        )
        self.watching = Watching(plane.api(), plane.namespace, [plane.serving])
        self.watching.start(30.0)
        self.executor = ArgoExecutor(plane.api(), self.watching.pods, shape, clock)
        self.jobs: dict[JobId, set[Uid]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self.jobs:
            self.executor.cancel(job, 0.0)
        self.executor.close()
        self.watching.stop()

    def submit(self, text: str) -> JobId:
        parsed = jobfile.parse(text)
        assert parsed.spec is not None, parsed.errors
        job = JobId(_FIRST_JOB + len(self.jobs))
        self.jobs[job] = set()
        self.executor.submit(templates.fill(parsed.spec, job, self.storage.root))
        return job

    def start(self, job: JobId, task: str) -> Uid:
        """Opens the gate of a task's next attempt, and waits until its program runs."""
        report = self.until(lambda: self._find(job, task, Phase.GATED), 60)
        self.jobs[job].add(report.uid)
        self.executor.release(report.uid, {NAME: report.gpus or 0})
        return report.uid

    def report(self, job: JobId, uid: Uid) -> Report:
        return next(one for one in self._reports(job) if one.uid == uid)

    def ended(self, job: JobId, uid: Uid, seconds: float = 120) -> Report:
        def look() -> Report | None:
            report = self.report(job, uid)
            return report if report.phase is Phase.ENDED else None

        return self.until(look, seconds)

    def gated_again(self, job: JobId, task: str) -> Report:
        return self.until(lambda: self._find(job, task, Phase.GATED), 60)

    def pod(self, uid: Uid) -> Pod | None:
        return next((pod for pod in self.watching.pods.items().values() if pod.attempt == uid), None)

    def serve(self, name: str, gpus: int) -> None:
        """A pod of a service."""
        container = {"name": "vllm", "image": PAUSE, "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
        self.admin.create(self._serving(), {"metadata": {"name": name}, "spec": spec})

    def served(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.admin.get(f"{self._serving()}/{name}")
        return found

    def bound(self, app: str) -> int:
        """Pods of a Deployment that have a node."""
        pods = self.admin.get(self._serving(), labelSelector=f"app={app}")["items"]
        return sum(1 for pod in pods if pod["spec"].get("nodeName"))

    def leave(self, name: str) -> None:
        self.admin.delete(f"{self._serving()}/{name}")

    def until(self, look: Callable[[], T | None], seconds: float) -> T:
        end = time.monotonic() + seconds
        while not (found := look()):
            assert time.monotonic() < end, (
                f"not within {seconds} s; reports: {[self._reports(job) for job in self.jobs]}"
            )
            time.sleep(0.2)
        return found

    def _find(self, job: JobId, task: str, phase: Phase) -> Report | None:
        return next((one for one in self._reports(job) if one.task == task and one.phase is phase), None)

    def _reports(self, job: JobId) -> tuple[Report, ...]:
        return self.executor.reports({job: frozenset(self.jobs[job])}, clock())

    def _serving(self) -> str:
        return f"/api/v1/namespaces/{self.plane.serving}/pods"
