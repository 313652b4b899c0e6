"""Nodes, pods and workloads of a cluster, so that a test says only what matters to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.adapters.kube.names import HOSTNAME, JOB, RUN
from scheduler.adapters.kube.objects import KubeNode, Owner, Pod, Scaler, Workload
from scheduler.errors import Unavailable
from tests.build import NOW, minutes

GPU = "nvidia.com/gpu"
JOBS, SERVING = "gpujobs", "serving"


def a_node(name: str = "node-1", gpus: int = 8, *, labels: Mapping[str, str] = {}, **fields: Any) -> KubeNode:
    given: dict[str, Any] = {"capacity": {GPU: gpus}, "allocatable": {GPU: gpus}, "ready": True} | fields
    return KubeNode(uid=f"uid-of-{name}", name=name, labels={HOSTNAME: name, **labels}, **given)


def a_pod(name: str = "someone", gpus: int = 1, node: str = "", *, namespace: str = "other", **fields: Any) -> Pod:
    given: dict[str, Any] = {
        "uid": f"uid-of-{name}",
        "version": "1",
        "created_at": NOW - minutes(60),
        "gpus": {GPU: gpus} if gpus else {},
        "phase": "Running" if node else "Pending",
    } | fields
    return Pod(name=name, namespace=namespace, node=node, **given)


def an_attempt(name: str = "job-1-sft-0", gpus: int = 1, node: str = "", *, run: str = "", **fields: Any) -> Pod:
    """A pod of a job."""
    annotations = {RUN: run} if run else {}
    given: dict[str, Any] = {"namespace": JOBS, "labels": {JOB: "job-1"}, "annotations": annotations} | fields
    return a_pod(name, gpus, node, **given)


def a_server(name: str = "chat-5f-a", gpus: int = 4, node: str = "", *, of: str = "chat-5f", **fields: Any) -> Pod:
    """A pod of a Deployment, ready if it is bound."""
    given: dict[str, Any] = {
        "namespace": SERVING,
        "owner": Owner(kind="ReplicaSet", name=of, uid="u"),
        "ready": bool(node),
        "ready_since": NOW - minutes(50) if node else None,
        "started_at": NOW - minutes(55) if node else None,
        "ip": "10.0.0.1" if node else "",
    } | fields
    return a_pod(name, gpus, node, **given)


def a_workload(name: str = "chat", want: int = 1, *, kind: str = "Deployment", **fields: Any) -> Workload:
    given: dict[str, Any] = {"namespace": SERVING, "version": "1", "gpus": {GPU: 4}} | fields
    return Workload(uid=f"uid-of-{kind}-{name}", kind=kind, name=name, want=want, **given)


def a_scaler(target: str = "chat", want: int | None = None, *, kind: str = "HorizontalPodAutoscaler") -> Scaler:
    place = {"namespace": SERVING, "target_kind": "Deployment", "target": target}
    return Scaler(uid=f"uid-of-{kind}", kind=kind, name=target, want=want, **place)


class Shelf:
    """In place of a Mirror: what lies on it."""

    def __init__(self, *things: Any) -> None:
        self._things = {one.uid: one for one in things}

    def items(self) -> Mapping[str, Any]:
        return self._things

    def listen(self, heard: Callable[[Any], None]) -> None:
        """Nothing on it ever moves."""


@dataclass
class StillWatching:
    """In place of Watching: a cluster in which nothing moves unless a test puts other things there."""

    nodes: Shelf = field(default_factory=Shelf)
    pods: Shelf = field(default_factory=Shelf)
    serving: Sequence[Workload] = ()
    autoscalers: Sequence[Scaler] = ()
    trouble: str = ""
    reminded: list[float] = field(default_factory=list)

    def fresh(self) -> None:
        if self.trouble:
            raise Unavailable(self.trouble)

    def remind(self, after_s: float) -> None:
        self.reminded.append(after_s)

    def workloads(self) -> Sequence[Workload]:
        return self.serving

    def scalers(self) -> Sequence[Scaler]:
        return self.autoscalers
