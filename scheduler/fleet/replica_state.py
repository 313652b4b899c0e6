"""In which state a replica is, from the samples of its metrics. Unknown is neither idle nor busy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from scheduler.fleet.pool import Replica


class ReplicaState(StrEnum):
    """Evaluated in this order; the first that holds is the state."""

    TARGET_MISSING = "target_missing"
    DOWN = "down"
    NO_VLLM_SERIES = "no_vllm_series"
    LOADING = "loading"
    SLEEPING = "sleeping"
    STALLED = "stalled"
    STALE_GAUGE = "stale_gauge"
    SATURATED = "saturated"
    BUSY = "busy"
    UNSURE = "unsure"  # quiet, but with too few samples, or too short a time, to call it idle
    FRESH_IDLE = "fresh_idle"
    IDLE = "idle"


LENDABLE = frozenset({ReplicaState.IDLE, ReplicaState.FRESH_IDLE})
UNKNOWN = frozenset(
    {
        ReplicaState.TARGET_MISSING,
        ReplicaState.DOWN,
        ReplicaState.NO_VLLM_SERIES,
        ReplicaState.UNSURE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """One replica, judged."""

    replica: Replica
    state: ReplicaState
    why: str  # a sentence
    signals: Mapping[str, float | None]  # what the state was judged by; the keys `gpujob scale` shows
