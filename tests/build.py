"""Builders for values of the spine, so that a test says only what matters to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from scheduler.fleet.demand import ServiceDemand
from scheduler.fleet.pool import Hold, HolderKind, Node, Pool, Replica, ReplicaId, ReplicaPhase
from scheduler.fleet.services import Mode, Service
from scheduler.fleet.windows import Window
from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.planning.snapshot import Lease, Snapshot, WaitingTask

NOW = datetime(2026, 12, 1, 22, 0, tzinfo=UTC)  # a Tuesday


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


def a_pool(*lines: str, replicas: Iterable[Replica] = (), at: datetime = NOW, **fields: Any) -> Pool:
    """Nodes in words: "node-1: 4 idle, 4 chat, 2 other, 4 run:u-3, 2 ending run:u-4"; "node-2: 8 unknown".

    Any other word is a service: one ready replica with so many GPUs. `replicas` adds some, such as pending ones.
    """
    nodes: list[Node] = []
    holds: list[Hold] = []
    made: list[Replica] = []
    numbers = count(1)
    for line in lines:
        node, _, text = line.partition(": ")
        size, unknown = 0, ""
        for part in text.split(", "):
            match = re.fullmatch(r"(\d+) (ending )?(\S+)", part)
            assert match, f"a_pool does not understand {part!r}"
            gpus, ending, who = int(match[1]), bool(match[2]), match[3]
            size += gpus
            if who == "unknown":
                unknown = "its agent does not answer"
            elif who == "other":
                holds.append(Hold(node=node, gpus=gpus, kind=HolderKind.OTHER, holder="someone", ending=ending))
            elif who.startswith("run:"):
                holds.append(Hold(node=node, gpus=gpus, kind=HolderKind.RUN, holder=who[4:], ending=ending))
            elif who != "idle":
                phase = ReplicaPhase.LEAVING if ending else ReplicaPhase.READY
                made.append(a_replica(f"{who}-{next(numbers)}", service=who, gpus=gpus, node=node, phase=phase))
                kind = HolderKind.REPLICA
                holds.append(Hold(node=node, gpus=gpus, kind=kind, holder=made[-1].id, ending=ending))
        nodes.append(Node(name=node, gpus=size, unknown=unknown))
    return Pool(at=at, nodes=tuple(nodes), holds=tuple(holds), replicas=(*made, *replicas), **fields)


def a_replica(
    name: str = "chat-1",
    *,
    service: str = "chat",
    gpus: int = 4,
    node: str = "node-1",
    phase: ReplicaPhase = ReplicaPhase.READY,
    **fields: Any,
) -> Replica:
    given = {"since": NOW - hours(1), "asked_at": NOW - hours(1), "url": f"http://{name}:8000/metrics"} | fields
    return Replica(id=ReplicaId(name), service=service, gpus=gpus, node=node, phase=phase, **given)


def a_pending_replica(name: str = "chat-new", *, service: str = "chat", gpus: int = 4) -> Replica:
    return a_replica(name, service=service, gpus=gpus, node="", phase=ReplicaPhase.PENDING, url="")


def a_service(name: str = "chat", *, gpus: int = 4, mode: Mode = Mode.MANAGE, **fields: Any) -> Service:
    given = {"max_num_seqs": 64, "min_replicas": 1, "max_replicas": 8} | fields
    return Service(name=name, gpus_per_replica=gpus, mode=mode, **given)


def a_demand(
    service: str = "chat", *, have: int = 1, want: int = 1, known: bool = True, **fields: Any
) -> ServiceDemand:
    given = {"why": f"{service} wants {want}", "estimates": {}} | fields
    return ServiceDemand(service=service, have=have, want=want, known=known, **given)


def a_window(node: str = "node-1", gpus: int = 8, *, lasts: timedelta = timedelta(hours=10), **fields: Any) -> Window:
    given = {"since": NOW, "until": NOW + lasts, "confidence": 0.8, "why": "idle"} | fields
    return Window(node=node, gpus=gpus, **given)


def a_task(
    name: str = "main", *, job: int = 1, gpus: int | tuple[int, ...] = 1, nodes: int = 1, **fields: Any
) -> WaitingTask:
    choices = gpus if isinstance(gpus, tuple) else (gpus,)
    given = {"uid": Uid(f"gated-{job}-{name}"), "step": re.sub(r"-\d+$", "", name)} | fields
    given = {"submitted_at": NOW - hours(2), "since": NOW - hours(2)} | given
    return WaitingTask(job=JobId(job), task=TaskName(name), gpus=choices, nodes=nodes, **given)


def a_lease(
    uid: str = "u-1",
    placement: Mapping[str, int] | str = "node-1: 4",
    *,
    job: int = 9,
    held: timedelta = timedelta(hours=1),
    **fields: Any,
) -> Lease:
    """`placement` as a mapping or in words: "node-1: 4, node-2: 4"."""
    if isinstance(placement, str):
        pairs = [part.split(": ") for part in placement.split(", ")]
        placement = {node: int(gpus) for node, gpus in pairs}
    given = {"since": NOW - held, "task": TaskName("main"), "step": "main"} | fields
    return Lease(uid=Uid(uid), job=JobId(job), placement=placement, **given)


def a_snapshot(pool: Pool, *, windows: Sequence[Window] | None = None, **fields: Any) -> Snapshot:
    """Without `windows`, all idle GPUs may be lent for ten hours."""
    if windows is None:
        windows = [a_window(node, gpus) for node, gpus in sorted(pool.idle().items()) if gpus > 0]
    given = {"now": NOW, "services": (), "demands": ()} | fields
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return Snapshot(pool=pool, windows=tuple(windows), **given)


def changed(snapshot: Snapshot, **fields: Any) -> Snapshot:
    return replace(snapshot, **fields)
