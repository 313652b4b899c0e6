"""Replicas of services: pods joined to their workloads by their owners, never by labels of metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.adapters.kube.objects import Pod, Scaler, Workload
from scheduler.fleet.pool import Replica, ReplicaId, ReplicaPhase
from scheduler.fleet.services import Mode

GROUP_OF = "leaderworkerset.sigs.k8s.io/name"
_PLACE = "leaderworkerset.sigs.k8s.io/group-index"
_PORT = "prometheus.io/port"
_MOST_AWAITED = 1000  # of one service; whoever asks for two billion by mistake must not take our memory
_PATIENCE = timedelta(minutes=2)  # a controller makes pods within seconds, if it can


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeService:
    """A service, and the Deployment, StatefulSet or LeaderWorkerSet that its replicas belong to."""

    name: str
    namespace: str
    workload: str  # its name
    gpus_per_replica: int
    url: str = "http://{ip}:{port}/metrics"  # {pod} too; {port} is the annotation prometheus.io/port, or 8000
    mode: Mode = Mode.OBSERVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """All services at one instant."""

    replicas: tuple[Replica, ...]  # by service, then by id
    by_pod: Mapping[str, ReplicaId]  # uid of a pod -> its replica
    unknown: Mapping[str, str]  # service -> why its replicas cannot be seen
    wanted_since: Mapping[str, datetime]  # replicas that are asked for and have no pod yet: since when
    alerts: tuple[str, ...] = ()


def serving(
    services: Iterable[KubeService],
    pods: Iterable[Pod],
    workloads: Iterable[Workload],
    scalers: Iterable[Scaler],
    wanted_since: Mapping[str, datetime],
    now: datetime,
) -> Serving:
    """Replicas of each service; `wanted_since` is that of the last time.

    What is asked for and has no pod yet is a pending replica too, so that GPUs come free while pods are being made.
    """
    services, scalers = tuple(services), tuple(scalers)
    found = _by_name(services, workloads)
    by_root = _by_root(pods, {service.namespace for service in services})
    seen: list[_Seen] = []
    unknown: dict[str, str] = {}
    for service in services:
        kinds = found.get((service.namespace, service.workload), ())
        if len(kinds) == 1:
            (workload,) = kinds
            groups = _groups(by_root.get(_place(workload), ()), workload)
            want = wanted(service, workload, scalers)
            seen.append(_look(service, workload, list(groups.values()), want, wanted_since, now))
        else:
            unknown[service.name] = _not_one(service, kinds)
    return Serving(
        replicas=tuple(replica for one in seen for replica in one.replicas),
        by_pod={uid: replica for one in seen for uid, replica in one.by_pod.items()},
        unknown=unknown,
        wanted_since={replica: at for one in seen for replica, at in one.wanted_since.items()},
        alerts=tuple(alert for one in seen for alert in one.alerts),
    )


def wanted(service: KubeService, workload: Workload, scalers: Iterable[Scaler]) -> int:
    """Replicas that are asked for; an autoscaler says so before it has written it into the workload."""
    if service.mode is Mode.MANAGE:
        return workload.want
    return max(workload.want, *(one.want or 0 for one in writers(workload, scalers)), 0)


def writers(workload: Workload, scalers: Iterable[Scaler]) -> tuple[Scaler, ...]:
    """Autoscalers that write the replicas of a workload."""
    place = _place(workload)
    return tuple(one for one in scalers if (one.namespace, one.target_kind, one.target) == place)


def live_pods(workload: Workload, pods: Iterable[Pod]) -> Mapping[ReplicaId, Sequence[Pod]]:
    """The pods of a workload by replica, without those that have ended; the first of each is the leader."""
    mine = _by_root(pods, {workload.namespace}).get(_place(workload), ())
    return {_id(group[0]): group for group in _groups(mine, workload).values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Of one service."""

    replicas: tuple[Replica, ...]
    by_pod: Mapping[str, ReplicaId]
    wanted_since: Mapping[str, datetime]
    alerts: tuple[str, ...]


def _look(
    service: KubeService,
    workload: Workload,
    groups: Sequence[Sequence[Pod]],
    want: int,
    wanted_since: Mapping[str, datetime],
    now: datetime,
) -> _Seen:
    there = [_replica(service, group) for group in groups]
    missing = want - sum(replica.phase is not ReplicaPhase.LEAVING for replica in there)
    names = [f"{service.name}/wanted-{number + 1}" for number in range(min(missing, _MOST_AWAITED))]
    since = {name: wanted_since.get(name, now) for name in names}
    late = {name: at for name, at in since.items() if now - at > _PATIENCE}
    awaited = [_awaited(service, name, at) for name, at in since.items() if name not in late]
    return _Seen(
        replicas=(*there, *awaited),
        by_pod={pod.uid: replica.id for replica, group in zip(there, groups, strict=True) for pod in group},
        wanted_since=since,
        alerts=(_no_pods(service, workload, want, late),) if late else (),
    )


_Root = tuple[str, str, str]  # namespace, kind, name


def _place(workload: Workload) -> _Root:
    return (workload.namespace, workload.kind, workload.name)


def _by_root(pods: Iterable[Pod], namespaces: set[str]) -> Mapping[_Root, Sequence[Pod]]:
    by_root: defaultdict[_Root, list[Pod]] = defaultdict(list)
    for pod in pods:
        if pod.namespace in namespaces and not pod.terminal and pod.owner is not None:
            root = _root(pod)
            if root is not None:
                by_root[root].append(pod)
    return by_root


def _root(pod: Pod) -> _Root | None:
    """The workload that made a pod, as far as its owner tells."""
    owner = pod.owner
    if owner is None:
        return None
    if owner.kind == "ReplicaSet":
        deployment, _, _ = owner.name.rpartition("-")  # the rest is a hash of the template
        return (pod.namespace, "Deployment", deployment)
    if owner.kind != "StatefulSet":
        return None
    group = pod.labels.get(GROUP_OF, "")
    # A leader belongs to the StatefulSet of its LeaderWorkerSet, its workers to one that has the leader's name.
    if group and owner.name in (group, f"{group}-{pod.labels.get(_PLACE, '')}"):
        return (pod.namespace, "LeaderWorkerSet", group)
    return (pod.namespace, "StatefulSet", owner.name)


def _groups(pods: Iterable[Pod], workload: Workload) -> Mapping[str, Sequence[Pod]]:
    """Pods of one replica each, in the order of their leaders' names; a leader that is there comes first."""
    groups: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        leader = f"{workload.name}-{pod.labels.get(_PLACE, '')}" if workload.kind == "LeaderWorkerSet" else pod.name
        groups[leader].append(pod)
    return {name: sorted(group, key=lambda pod: (pod.name != name, pod.name)) for name, group in sorted(groups.items())}


def _by_name(
    services: Iterable[KubeService], workloads: Iterable[Workload]
) -> Mapping[tuple[str, str], Sequence[Workload]]:
    asked = {(service.namespace, service.workload) for service in services}
    found: defaultdict[tuple[str, str], list[Workload]] = defaultdict(list)
    for workload in workloads:
        if (workload.namespace, workload.name) in asked:
            found[workload.namespace, workload.name].append(workload)
    return found


def _not_one(service: KubeService, kinds: Sequence[Workload]) -> str:
    place = f"{service.workload} in namespace {service.namespace}"
    if kinds:
        return f"there are several workloads {place}: {', '.join(sorted(one.kind for one in kinds))}; rename one"
    return f"there is no Deployment, StatefulSet or LeaderWorkerSet {place}"


# -- One replica


def _replica(service: KubeService, group: Sequence[Pod]) -> Replica:
    leader = group[0]
    phase, since = _phase(group)
    pending = phase is ReplicaPhase.PENDING
    return Replica(
        id=_id(leader),
        service=service.name,
        phase=phase,
        gpus=service.gpus_per_replica,
        since=since,
        asked_at=min(pod.created_at for pod in group),
        node="" if pending else leader.node,
        url=_url(service, leader) if leader.ip and not pending else "",
    )


def _phase(group: Sequence[Pod]) -> tuple[ReplicaPhase, datetime]:
    leaving = [pod.leaving_at - timedelta(seconds=pod.grace_s or 0) for pod in group if pod.leaving_at is not None]
    if leaving:
        return ReplicaPhase.LEAVING, min(leaving)
    asked_at = max(pod.created_at for pod in group)
    if not all(pod.node for pod in group):
        return ReplicaPhase.PENDING, asked_at
    if all(pod.ready for pod in group):
        return ReplicaPhase.READY, max(pod.ready_since or pod.created_at for pod in group)
    return ReplicaPhase.STARTING, max((pod.started_at for pod in group if pod.started_at is not None), default=asked_at)


def _awaited(service: KubeService, name: str, asked_at: datetime) -> Replica:
    return Replica(
        id=ReplicaId(name),
        service=service.name,
        phase=ReplicaPhase.PENDING,
        gpus=service.gpus_per_replica,
        since=asked_at,
        asked_at=asked_at,
    )


def _id(leader: Pod) -> ReplicaId:
    return ReplicaId(f"{leader.namespace}/{leader.name}")


def _url(service: KubeService, pod: Pod) -> str:
    ip = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    filled = service.url.replace("{ip}", ip).replace("{pod}", pod.name)
    return filled.replace("{port}", pod.annotations.get(_PORT, "8000"))


def _no_pods(service: KubeService, workload: Workload, want: int, late: Mapping[str, datetime]) -> str:
    since = min(late.values())
    return (
        f"{service.name}: {want} replicas are asked for, {len(late)} have no pods since {since:%H:%M:%S} UTC. No GPUs "
        f"are kept for these any more; kubectl -n {workload.namespace} describe {workload.kind.lower()} "
        f"{workload.name} says why (a ResourceQuota, an admission policy)."
    )
