"""The executor on a plane, with pods that run as real processes: the twin of tests/local_bench.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from scheduler.adapters.argo.executor import ArgoExecutor
from scheduler.adapters.argo.shape import Shape
from scheduler.adapters.kube import objects
from scheduler.adapters.kube.mirror import Mirror
from scheduler.adapters.kube.objects import Pod
from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.jobs.order import JobOrder, TaskOrder
from scheduler.jobs.reports import Phase, Report
from tests.cluster.fakelet import Fakelet, NodeShape
from tests.cluster.plane import Plane
from tests.cluster.waiting import until

_PATIENCE_S = 40.0
NODES = {"gpu-0": 8, "gpu-1": 8}


class ArgoBench:
    """One scheduler's view of the plane; `restart` makes a new one that remembers nothing."""

    def __init__(self, plane: Plane, folder: Path, nodes: Mapping[str, int] = NODES, *, grace_s: float = 5.0) -> None:
        self.plane, self.nodes = plane, nodes
        self.admin = plane.api("admin")
        self.shape = Shape(namespace=plane.namespace, grace_s=grace_s)
        self.later = timedelta()  # by which its clock is ahead
        shapes = [NodeShape(name=name, gpus=gpus) for name, gpus in nodes.items()]
        self.kubelet = Fakelet(plane.api("admin"), shapes, folder / "kubelet", tls=plane.tls)
        self._follow()

    def __enter__(self) -> Self:
        self.kubelet.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        self.kubelet.stop()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.later

    def restart(self) -> None:
        self._leave()
        self._follow()

    def _follow(self) -> None:
        api = self.plane.api()
        self.pods: Mirror[Pod] = Mirror(api, "/api/v1/pods", objects.pod, "pods")
        self.executor = ArgoExecutor(api, self.pods, self.shape, self.now)
        self.pods.start()
        until(lambda: self.pods.synced)

    def _leave(self) -> None:
        self.executor.close()
        self.pods.stop()

    def submit(
        self, *tasks: TaskOrder, job: int = 1, retries: int = 0, ended: Mapping[TaskName, bool] | None = None
    ) -> None:
        self.executor.submit(an_order(*tasks, job=job, retries=retries), ended or {})

    def reports(self, live: Collection[Uid] = (), job: int = 1) -> tuple[Report, ...]:
        return self.executor.reports({JobId(job): live}, self.now())

    def see(
        self,
        task: str,
        phase: Phase,
        live: Collection[Uid] = (),
        but: Collection[Uid] = (),
        again: Callable[[], object] = bool,
    ) -> Report:
        """The newest report of a task, once it is in that phase.

        `again` is asked at each look, as a turn asks again for what the one before meant: a request may meet a write
        of Argo's.
        """

        def look() -> Report | None:
            again()
            mine = [one for one in self.reports(live) if one.task == task and one.uid not in but and not one.whole_task]
            return mine[-1] if mine and mine[-1].phase is phase else None

        found = until(look, _PATIENCE_S, lambda: f"{self.reports(live)}\n{self.told()}")
        assert found is not None
        return found

    def gated(self, task: str = "train", but: Collection[Uid] = ()) -> Report:
        return self.see(task, Phase.GATED, but=but)

    def start(self, task: str = "train", node: str = "gpu-0", **sim: str) -> Report:
        """Release the gated attempt of a task, and see it run."""
        report = self.gated(task)
        if sim:
            self.script(report.uid, **sim)
        return self.see(
            task,
            Phase.RUNNING,
            live=[report.uid],
            again=lambda: self.executor.release(report.uid, {node: report.gpus or 0}),
        )

    def script(self, uid: Uid, **sim: str) -> None:
        """Tell the kubelet how the pod will go."""
        notes = {f"sim/{key.replace('_', '-')}": value for key, value in sim.items()}
        self.admin.patch(self.pod(uid).key, {"metadata": {"annotations": notes}})

    def pod(self, uid: Uid) -> Pod:
        """As the API server has it now."""
        own = uid.rpartition("/")[2]
        listed = self.admin.get(f"/api/v1/namespaces/{self.plane.namespace}/pods")["items"]
        return next(objects.pod(raw) for raw in listed if raw["metadata"]["uid"] == own)

    def workflows(self) -> str:
        return f"/apis/argoproj.io/v1alpha1/namespaces/{self.plane.namespace}/workflows"

    def argo_nodes(self, name: str = "job-1") -> Mapping[str, Mapping[str, Any]]:
        """The status of a Workflow's nodes, as Argo wrote it."""
        return self.admin.get(f"{self.workflows()}/{name}").get("status", {}).get("nodes", {})

    def until(self, look: Callable[[], object]) -> None:
        """Generous, as a busy machine may be slow; if it is never so, the plane tells what it knows."""
        until(look, _PATIENCE_S, self.told)

    def told(self) -> str:
        """What Argo, the pods and our own executor say."""
        flows = self.admin.get(self.workflows())["items"]
        pods = self.admin.get(f"/api/v1/namespaces/{self.plane.namespace}/pods")["items"]
        parts = getattr(self.plane, "parts", {})
        log = parts["workflow-controller"].log if "workflow-controller" in parts else None
        return "\n".join(
            [
                *(f"workflow {one['metadata']['name']}: {one.get('status')}" for one in flows),
                *(
                    f"pod {one['metadata']['name']}: gates {one['spec'].get('schedulingGates')}, "
                    f"node {one['spec'].get('nodeName')}, {one['metadata'].get('finalizers')}, {one['status']}"
                    for one in pods
                ),
                *(log.read_text(errors="replace").splitlines()[-40:] if log is not None and log.exists() else ()),
            ]
        )


def a_task(
    name: str = "train", *command: str, needs: Collection[str] = (), gpus: int = 1, **fields: object
) -> TaskOrder:
    given: dict[str, object] = {"step": name, "any": False, "nodes": 1} | fields
    return TaskOrder(
        name=TaskName(name),
        step=str(given["step"]),
        needs=tuple(needs),
        any=bool(given["any"]),
        gpus=(gpus,),
        nodes=int(str(given["nodes"])),
        image="train:1",
        command=command or runs("pass"),
        env={"GPUJOB_TASK": name},
        outputs={},
    )


def an_order(*tasks: TaskOrder, job: int = 1, retries: int = 0, spec_hash: str = "abc") -> JobOrder:
    return JobOrder(job=JobId(job), name="story", spec_hash=spec_hash, tasks=tasks, retries=retries)


def runs(program: str) -> tuple[str, ...]:
    return sys.executable, "-c", program
