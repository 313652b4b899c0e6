"""Nodes, GPUs and who holds each: a replica, a run, someone else, nobody, unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType

ReplicaId = NewType("ReplicaId", str)


class HolderKind(StrEnum):
    """Who holds GPUs."""

    REPLICA = "replica"
    RUN = "run"
    OTHER = "other"  # someone else's pod or process: respected, never touched


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """GPUs of one node in one hand."""

    node: str
    gpus: int
    kind: HolderKind
    holder: str  # replica id, uid of a run, or a name
    ending: bool = False  # told to go; its GPUs are still held


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One computer with GPUs. An unknown node lends nothing and nothing is taken from it."""

    name: str
    gpus: int
    unknown: str = ""  # why too little is known of it; "" = known


class ReplicaPhase(StrEnum):
    """Where a replica is."""

    PENDING = "pending"  # asked for, waits for GPUs
    STARTING = "starting"  # has GPUs, does not answer yet
    READY = "ready"
    LEAVING = "leaving"  # told to go


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of a service."""

    id: ReplicaId
    service: str
    phase: ReplicaPhase
    gpus: int
    since: datetime  # of the phase
    asked_at: datetime | None = None  # when it was asked for
    node: str = ""  # "" while pending
    url: str = ""  # of its /metrics; "" when it has none yet
    settling: bool = False  # pending, and whoever places it may be making room this moment: nobody need end for it yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """All nodes at one instant.

    Raises:
        ValueError: more GPUs of a node are held than it has, or a hold names a node that is not there.
    """

    at: datetime
    nodes: tuple[Node, ...]
    holds: tuple[Hold, ...] = ()
    replicas: tuple[Replica, ...] = ()
    unknown_services: Mapping[str, str] = field(default_factory=dict)  # service -> why its replicas cannot be seen
    alerts: tuple[str, ...] = ()  # what an operator should look at, a sentence each

    def __post_init__(self) -> None:
        sizes = {node.name: node.gpus for node in self.nodes}
        for name, held in self.held().items():
            if name not in sizes:
                raise ValueError(f"{held} GPUs are held on {name}, which is no node of the pool")
            if held > sizes[name]:
                raise ValueError(f"{held} GPUs of {name} are held, it has {sizes[name]}")

    def held(self) -> Mapping[str, int]:
        """GPUs held on each node that has any held."""
        held: Counter[str] = Counter()
        for hold in self.holds:
            held[hold.node] += hold.gpus
        return held

    def idle(self) -> Mapping[str, int]:
        """GPUs that nobody holds, by node; nodes of which too little is known have none."""
        held = self.held()
        return {node.name: 0 if node.unknown else node.gpus - held.get(node.name, 0) for node in self.nodes}
