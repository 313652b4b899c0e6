"""Why a task waits, in numbers and names that a person understands."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from scheduler.fleet.pool import Hold, HolderKind
from scheduler.jobs.waits import Wait, WaitReason
from scheduler.planning.placement import Room
from scheduler.planning.snapshot import Snapshot, WaitingTask

_NAMED = 4  # holders, or jobs, in one sentence

PREPARING = Wait(reason=WaitReason.PREPARING)


def too_large(task: WaitingTask, sizes: Sequence[int], known: Sequence[int], unknown: str) -> Wait | None:
    """A wait if the nodes, even empty, could not hold the task.

    `sizes` are the GPUs of all nodes and `known` of those we know enough of, both ascending; `unknown` names the rest.
    """
    gpus = task.gpus[-1]
    if _at_least(known, gpus) >= task.nodes:
        return None
    if not sizes or _at_least(sizes, gpus) >= task.nodes:
        return Wait(reason=WaitReason.UNKNOWN_FLEET, detail=unknown or "no node is known")
    asks = f"{task.step} asks {gpus} {_gpus(gpus)}"
    if _at_least(sizes, gpus) == 0:
        return Wait(reason=WaitReason.TOO_LARGE, detail=f"{asks} on a node, the largest node has {sizes[-1]}")
    there = _at_least(sizes, gpus)
    detail = f"{asks} on each of {task.nodes} nodes, {there} {'node has' if there == 1 else 'nodes have'} so many"
    return Wait(reason=WaitReason.TOO_LARGE, detail=detail)


def parallel(task: WaitingTask, running: int) -> Wait:
    """As many of its step run as its file allows."""
    detail = f"{running} of {task.step} {'runs' if running == 1 else 'run'}, parallel is {task.parallel}"
    return Wait(reason=WaitReason.PARALLEL, detail=detail)


def team_budget(task: WaitingTask, running: int, limit: int) -> Wait:
    """Its team would have more GPUs at once than it may."""
    asks = task.gpus[-1] * task.nodes
    detail = f"{task.team} runs {running} of {limit} {_gpus(limit)}, this asks {asks}"
    return Wait(reason=WaitReason.TEAM_BUDGET, detail=detail)


def tasks_without_gpus(limit: int) -> Wait:
    """As many tasks without GPUs run as the policy allows."""
    return Wait(reason=WaitReason.QUEUE, detail=f"{limit} tasks without GPUs, as many as may run at once (node_tasks)")


def window_too_short(task: WaitingTask, horizon_s: float) -> Wait:
    """It cannot save its work, and the GPUs that are there will be wanted back too soon."""
    if task.estimate_s is None:
        detail = f"none is given; with estimate_hours it need not wait for a window of {horizon_s / 3600:g} h"
    else:
        detail = f"{task.estimate_s / 3600:.2g} h"
    return Wait(reason=WaitReason.WINDOW_TOO_SHORT, detail=detail)


def queue(started: Sequence[str], named: int, earliest: datetime | None) -> Wait:
    """Others took what there was; `started` are their labels."""
    return Wait(reason=WaitReason.QUEUE, detail=_listed(started, named), earliest=earliest)


def gang_first(gang: WaitingTask) -> Wait:
    """Only whole nodes are left, and a task of whole nodes could take them now or soon."""
    return Wait(reason=WaitReason.QUEUE, detail=f"job-{gang.job}, which needs whole nodes")


def unknown_nodes(snapshot: Snapshot) -> str:
    """`node-3 (its agent does not answer)`, for all nodes of which too little is known."""
    nodes = sorted((node for node in snapshot.pool.nodes if node.unknown), key=lambda node: node.name)
    return _listed([f"{node.name} ({node.unknown})" for node in nodes], _NAMED)


def held_by(snapshot: Snapshot, kept: int) -> str:
    """Who holds the GPUs, most first: "chat (16), job-3 (8)"; `kept` are idle but not lent."""
    labels: dict[str, str] = {lease.uid: f"job-{lease.job}" for lease in snapshot.leases}
    services: dict[str, str] = {replica.id: replica.service for replica in snapshot.pool.replicas}
    gpus: Counter[str] = Counter()
    for hold in snapshot.pool.holds:
        gpus[_holder(hold, services, labels)] += hold.gpus
    seen = {hold.holder for hold in snapshot.pool.holds}
    for lease in snapshot.leases:
        if lease.uid not in seen:
            gpus[labels[lease.uid]] += sum(lease.placement.values())
    if kept > 0:
        gpus["a reserve for services"] += kept
    ordered = sorted(gpus.items(), key=lambda item: (-item[1], item[0]))
    return _listed([f"{name} ({count})" for name, count in ordered if count > 0], _NAMED)


def _holder(hold: Hold, services: Mapping[str, str], labels: Mapping[str, str]) -> str:
    match hold.kind:
        case HolderKind.REPLICA:
            return services.get(hold.holder, hold.holder)
        case HolderKind.RUN:
            return labels.get(hold.holder, "runs that ended")
        case HolderKind.OTHER:
            return hold.holder or "others"


class Ahead:
    """When GPUs probably come free: windows that open later, runs that are stopping."""

    def __init__(self, snapshot: Snapshot, room: Room) -> None:
        """`room` as it is after all tasks of this turn were placed."""
        known = {node.name for node in snapshot.pool.nodes if not node.unknown}
        self._free = room.free
        self._events = sorted(
            [(window.since, window.node, window.gpus) for window in snapshot.windows if window.since > snapshot.now]
            + [
                (max(lease.stop_by, snapshot.now), node, gpus)
                for lease in snapshot.leases
                if lease.stopping and lease.stop_by is not None
                for node, gpus in lease.placement.items()
                if node in known
            ]
        )
        self._answers: dict[tuple[int, int], datetime | None] = {}

    def earliest(self, gpus: int, nodes: int) -> datetime | None:
        """When so many GPUs are free on so many nodes; None if nothing can be said."""
        if (gpus, nodes) not in self._answers:
            self._answers[gpus, nodes] = self._earliest(gpus, nodes)
        return self._answers[gpus, nodes]

    def _earliest(self, gpus: int, nodes: int) -> datetime | None:
        free = dict(self._free)
        fitting = sum(left >= gpus for left in free.values())
        for at, node, more in self._events:
            before = free.get(node, 0)
            free[node] = before + more
            fitting += before < gpus <= free[node]
            if fitting >= nodes:
                return at
        return None


def _at_least(sizes: Sequence[int], gpus: int) -> int:
    return len(sizes) - bisect_left(sizes, gpus)


def _gpus(count: int) -> str:
    return "GPU" if count == 1 else "GPUs"


def _listed(names: Sequence[str], limit: int) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
