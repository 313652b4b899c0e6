"""Nodes, pods and workloads, trimmed on arrival: a pod of 12 KB becomes one of less than 2 KB."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from scheduler.adapters.kube.names import GROUP, HOSTNAME, JOB, NODE_ID, RANK, TASK, WORKFLOW
from scheduler.jobs.job import Uid

Raw = Mapping[str, Any]  # an object as the API server sends it

TERMINAL = frozenset({"Succeeded", "Failed"})
_LABELS = (JOB, TASK, RANK, WORKFLOW, "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index")
_ANNOTATIONS = (NODE_ID, "prometheus.io/port", "prometheus.io/path", "controller.kubernetes.io/pod-deletion-cost")
_MAIN = "main"
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?)(?P<suffix>[numkMGTPE]|[KMGTPE]i)?"
)
_FACTORS = {
    **{
        suffix: Decimal(1000) ** power
        for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_MOST = Decimal(2**63 - 1)  # the API server takes no more
_LONGEST_GRACE_S = 100 * 365 * 86_400.0  # beyond three times that, the API server reckons wrongly when it is over
_PLAIN_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods", "hugepages-", "attachable-volumes-", "storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The controller of an object."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a container ended. `at` is None when nobody saw it: the kubelet made the status up (kubernetes #104107)."""

    exit_code: int
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod. Names are used again (Argo makes a deleted pod anew), uids are not."""

    uid: str
    name: str
    namespace: str
    version: str  # resourceVersion
    created_at: datetime
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner: Owner | None = None
    finalizers: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    priority: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)  # extended resources that it asks for, by name
    claims: bool = False  # it asks for devices through DRA
    node: str = ""  # "" = not bound
    nominated: str = ""  # the node that kube-scheduler frees for it
    pinned: str = ""  # the kubernetes.io/hostname that its nodeSelector asks for
    phase: str = "Pending"
    reason: str = ""  # of the status: Evicted, UnexpectedAdmissionError, ..
    message: str = ""
    held_back: str = (
        ""  # reason of PodScheduled=False: SchedulingGated, Unschedulable; "" = scheduled or not yet looked at
    )
    held_back_why: str = ""
    held_back_since: datetime | None = None
    disrupted: str = ""  # reason of DisruptionTarget: EvictionByEvictionAPI, PreemptionByScheduler, ..
    leaving_at: datetime | None = None  # deletionTimestamp: when its grace is over
    grace_s: float | None = None  # deletionGracePeriodSeconds
    ready: bool = False
    ready_since: datetime | None = None
    started_at: datetime | None = None  # of its main container
    waiting: str = ""  # why its main container waits: ImagePullBackOff, ContainerCreating, ..
    waiting_why: str = ""
    ended: Ended | None = None  # its main container
    side_ended: Ended | None = (
        None  # the first other container, init containers too, that ended with another code than 0
    )
    ip: str = ""

    @property
    def attempt(self) -> Uid:
        """What the rest of the product calls this attempt; the name is in it because the API wants names."""
        return Uid(f"{self.name}/{self.uid}")

    @property
    def terminal(self) -> bool:
        """Its containers have ended, so it holds no GPUs."""
        return self.phase in TERMINAL

    @property
    def key(self) -> str:
        """How the API server calls it."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeNode:
    """One node. Counts are of extended resources only, such as {"nvidia.com/gpu": 8}."""

    uid: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)  # kubernetes.io/hostname and those that speak of GPUs
    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    ready: bool = False
    ready_why: str = ""  # why it is not
    deleting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A Deployment, StatefulSet or LeaderWorkerSet."""

    uid: str
    kind: str
    name: str
    namespace: str
    version: str
    want: int  # spec.replicas: the desired count, known before the pods exist
    gpus: Mapping[str, int] = field(default_factory=dict)  # of one pod of its template
    pods_per_replica: int = 1  # LeaderWorkerSet: the size of a group
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaler:
    """A HorizontalPodAutoscaler or a KEDA ScaledObject: a second writer of replicas."""

    uid: str
    kind: str
    name: str
    namespace: str
    target_kind: str
    target: str
    want: int | None = None  # status.desiredReplicas


def pod(raw: Raw) -> Pod:
    """A pod, trimmed."""
    meta, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    scheduled, ready = conditions.get("PodScheduled", {}), conditions.get("Ready", {})
    held = scheduled if scheduled.get("status") == "False" else {}
    states = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    main = _main(spec, status)
    state = main.get("state") or {}
    name = main.get("name", "")
    return Pod(
        uid=meta["uid"],
        name=meta["name"],
        namespace=meta.get("namespace", ""),
        version=meta.get("resourceVersion", ""),
        created_at=time(meta.get("creationTimestamp")) or datetime.fromtimestamp(0, UTC),
        labels=_kept(meta.get("labels"), _LABELS),
        annotations=_kept(meta.get("annotations"), _ANNOTATIONS),
        owner=_owner(meta),
        finalizers=tuple(meta.get("finalizers") or ()),
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates") or ()),
        priority=spec.get("priority") or 0,
        gpus=requested(spec),
        claims=bool(spec.get("resourceClaims")),
        node=spec.get("nodeName", ""),
        nominated=status.get("nominatedNodeName", ""),
        pinned=(spec.get("nodeSelector") or {}).get(HOSTNAME, ""),
        phase=status.get("phase", "Pending"),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        held_back=held.get("reason", ""),
        held_back_why=held.get("message", ""),
        held_back_since=time(held.get("lastTransitionTime")),
        disrupted=_true(conditions.get("DisruptionTarget")),
        leaving_at=time(meta.get("deletionTimestamp")),
        grace_s=_grace_s(meta),
        ready=ready.get("status") == "True",
        ready_since=time(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None,
        started_at=time((state.get("running") or state.get("terminated") or {}).get("startedAt")),
        waiting=(state.get("waiting") or {}).get("reason", ""),
        waiting_why=(state.get("waiting") or {}).get("message", ""),
        ended=_ended(state),
        side_ended=next((end for one in states if one.get("name") != name if (end := _bad_end(one))), None),
        ip=status.get("podIP", ""),
    )


def node(raw: Raw) -> KubeNode:
    """A node, trimmed."""
    meta, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    ready: Mapping[str, str] = next((one for one in status.get("conditions") or () if one["type"] == "Ready"), {})
    taints = tuple(
        Taint(key=one["key"], value=one.get("value", ""), effect=one.get("effect", ""))
        for one in spec.get("taints") or ()
    )
    return KubeNode(
        uid=meta["uid"],
        name=meta["name"],
        labels={k: v for k, v in (meta.get("labels") or {}).items() if k == HOSTNAME or "gpu" in k},
        capacity=_counts(status.get("capacity")),
        allocatable=_counts(status.get("allocatable")),
        taints=taints,
        cordoned=bool(spec.get("unschedulable")),
        ready=ready.get("status") == "True",
        ready_why=ready.get("message", "") or ready.get("reason", "") or "its kubelet has not reported yet",
        deleting="deletionTimestamp" in meta,
    )


def workload(raw: Raw, kind: str) -> Workload:
    """A Deployment, StatefulSet or LeaderWorkerSet, trimmed; lists of the API server do not name the kind of items."""
    meta, spec = raw["metadata"], raw.get("spec", {})
    group = spec.get("leaderWorkerTemplate") or {}
    template = spec.get("template") or group.get("workerTemplate") or {}
    return Workload(
        uid=meta["uid"],
        kind=kind,
        name=meta["name"],
        namespace=meta["namespace"],
        version=meta.get("resourceVersion", ""),
        want=1 if spec.get("replicas") is None else spec["replicas"],
        gpus=requested(template.get("spec") or {}),
        pods_per_replica=group.get("size", 1),
        paused=bool(spec.get("paused")),
    )


def scaler(raw: Raw, kind: str) -> Scaler:
    """An autoscaler, trimmed."""
    meta, spec = raw["metadata"], raw.get("spec", {})
    target = spec.get("scaleTargetRef") or {}
    return Scaler(
        uid=meta["uid"],
        kind=kind,
        name=meta["name"],
        namespace=meta["namespace"],
        target_kind=target.get("kind", "Deployment"),
        target=target.get("name", ""),
        want=(raw.get("status") or {}).get("desiredReplicas"),
    )


def requested(spec: Raw) -> Mapping[str, int]:
    """Extended resources of a pod's spec: the larger of all containers together and the largest init container."""
    together: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for name, count in _limits(container).items():
            together[name] = together.get(name, 0) + count
    for container in spec.get("initContainers") or ():
        side = container.get("restartPolicy") == "Always"  # a sidecar runs beside the others
        for name, count in _limits(container).items():
            together[name] = together.get(name, 0) + count if side else max(together.get(name, 0), count)
    return {name: count for name, count in together.items() if count}


def time(text: str | None) -> datetime | None:
    """An RFC 3339 time; None for none and for the year 1, which Go writes for none."""
    if not text:
        return None
    at = datetime.fromisoformat(text)
    return at if at.year > 1 else None


def _limits(container: Raw) -> Mapping[str, int]:
    resources = container.get("resources") or {}
    return _counts({**(resources.get("requests") or {}), **(resources.get("limits") or {})})


def _counts(quantities: Mapping[str, Any] | None) -> Mapping[str, int]:
    return {
        name: whole(quantity)
        for name, quantity in (quantities or {}).items()
        if "/" in name and not name.startswith(_PLAIN_RESOURCES) and not name.startswith("kubernetes.io/")
    }


def whole(quantity: str | int) -> int:
    """An integer quantity in any way that Kubernetes writes one: 8, "8", "1k", "12e6", "3Gi"; fractions are cut off."""
    read = _QUANTITY.fullmatch(str(quantity))
    if read is None:
        raise ValueError(f"{quantity!r} is no quantity")
    return int(min(Decimal(read["number"]) * _FACTORS[read["suffix"] or ""], _MOST))


def _grace_s(meta: Raw) -> float | None:
    """Anybody may ask for thousands of years; a time that is so long ago is none."""
    seconds = meta.get("deletionGracePeriodSeconds")
    return None if seconds is None else min(seconds, _LONGEST_GRACE_S)


def _main(spec: Raw, status: Raw) -> Raw:
    names = [one["name"] for one in spec.get("containers") or ()]
    main = _MAIN if _MAIN in names else (names[0] if names else "")
    return next((one for one in status.get("containerStatuses") or () if one["name"] == main), {"name": main})


def _ended(state: Raw) -> Ended | None:
    ended = state.get("terminated")
    if not ended:
        return None
    return Ended(
        exit_code=ended.get("exitCode", 0),
        reason=ended.get("reason") or "",
        message=ended.get("message") or "",
        started_at=time(ended.get("startedAt")),
        at=time(ended.get("finishedAt")),
    )


def _bad_end(container: Raw) -> Ended | None:
    ended = _ended(container.get("state") or {})
    return ended if ended and ended.exit_code else None


def _true(condition: Raw | None) -> str:
    if not condition or condition.get("status") != "True":
        return ""
    return str(condition.get("reason") or "unknown")


def _owner(meta: Raw) -> Owner | None:
    owner = next((one for one in meta.get("ownerReferences") or () if one.get("controller")), None)
    return Owner(kind=owner["kind"], name=owner["name"], uid=owner["uid"]) if owner else None


def _kept(given: Mapping[str, str] | None, names: Iterable[str]) -> Mapping[str, str]:
    wanted = frozenset(names)
    return {k: v for k, v in (given or {}).items() if k in wanted or k.startswith((f"{GROUP}/", "sim/"))}
