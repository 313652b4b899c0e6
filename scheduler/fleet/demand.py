"""How many replicas each service needs, from what its replicas do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from scheduler.fleet.replica_state import ReplicaView


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDemand:
    """Replicas that one service needs now."""

    service: str
    have: int  # replicas that hold GPUs and are not leaving
    want: int  # after the hold: never above max_replicas, never below min_replicas
    known: bool  # False: an input is missing; then want >= have, and nothing of it is lent
    why: str
    estimates: Mapping[str, float | None]  # "e1", "e2", "e3": replicas by each estimator
    replicas: tuple[ReplicaView, ...] = ()
    leave_first: tuple[str, ...] = ()  # replica ids, in the order in which they should leave
    alerts: tuple[str, ...] = ()  # sentences for the operator
    above_since: datetime | None = None  # first sample of the busy window that asked for more than there is


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandMemory:
    """What must be remembered between turns to lower slowly: per service, the wants seen lately, newest last."""

    wants: Mapping[str, tuple[tuple[datetime, int], ...]] = field(default_factory=dict)
    capacity: Mapping[str, float] = field(default_factory=dict)  # E2: learned token rate of one full replica
