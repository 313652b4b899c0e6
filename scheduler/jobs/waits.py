"""Why a task does not run yet, as a value and as a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class WaitReason(StrEnum):
    """What a waiting task waits for."""

    PREPARING = "preparing"  # the executor has not made its pod yet
    NEEDS_STEPS = "needs_steps"  # steps before it are not done
    START_AFTER = "start_after"  # the job file asks for a later start
    GPUS = "gpus"  # too few GPUs are idle
    SERVICE_FIRST = "service_first"  # a service waits for GPUs: nothing starts meanwhile
    WINDOW_TOO_SHORT = "window_too_short"  # it cannot checkpoint, and no window outlasts its estimate
    PARALLEL = "parallel"  # as many of its step run as the file allows
    TEAM_BUDGET = "team_budget"  # the team's running GPUs
    QUEUE = "queue"  # others go first
    TOO_LARGE = "too_large"  # no node, even when empty, could hold it
    UNKNOWN_FLEET = "unknown_fleet"  # readings are missing: unknown is not idle
    CALENDAR = "calendar"  # the operator's hours are closed
    OBSERVE_ONLY = "observe_only"  # plans are written down, nothing is started


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The reason why a task waits."""

    reason: WaitReason
    short_by: int = 0  # GPUs missing
    held_by: str = ""  # who holds them, in words: "chat (16), job-3 (8)"
    earliest: datetime | None = None  # probable start; None when nothing can be said
    detail: str = ""  # what the reason needs to be understood: a step, a team, a limit


_SENTENCES: Mapping[WaitReason, str] = {
    WaitReason.PREPARING: "is being prepared",
    WaitReason.NEEDS_STEPS: "waits for {detail}",
    WaitReason.START_AFTER: "waits for its start_after time",
    WaitReason.GPUS: "is {short_by} {gpus} short{held}",
    WaitReason.SERVICE_FIRST: "waits while {detail} gets its GPUs first",
    WaitReason.WINDOW_TOO_SHORT: "cannot save its work, and no idle window outlasts its estimate ({detail})",
    WaitReason.PARALLEL: "waits its turn: {detail}",
    WaitReason.TEAM_BUDGET: "waits for its team's budget: {detail}",
    WaitReason.QUEUE: "waits behind {detail}",
    WaitReason.TOO_LARGE: "fits on no node: {detail}",
    WaitReason.UNKNOWN_FLEET: "waits because too little is known: {detail}",
    WaitReason.CALENDAR: "waits for the hours in which lending is allowed",
    WaitReason.OBSERVE_ONLY: "would run now, but this scheduler only observes",
}


def sentence(wait: Wait) -> str:
    """The reason as a person reads it, without the time: who shows it adds `earliest` in the reader's zone."""
    return _SENTENCES[wait.reason].format(
        detail=wait.detail,
        short_by=wait.short_by,
        gpus="GPU" if wait.short_by == 1 else "GPUs",
        held=f"; GPUs are held by {wait.held_by}" if wait.held_by else "",
    )
