"""What one turn decided: actions in the order in which they are carried out, and why the rest waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.jobs.waits import Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBack:
    """End a run gracefully so that a service gets its GPUs."""

    uid: Uid
    job: JobId
    task: TaskName
    placement: Mapping[str, int]
    service: str
    grace_s: float
    why: str
    urgent: bool = True  # False: no replica waits yet, and the run has time to save


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Open the gate of a task on named nodes."""

    uid: Uid
    job: JobId
    task: TaskName
    placement: Mapping[str, int]  # node -> GPUs; {node: 0} for a task without GPUs
    until: datetime | None  # of the window; None for a task without GPUs
    confidence: float | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUp:
    """More replicas of a managed service; only once their GPUs are free."""

    service: str
    replicas: int  # in all
    nodes: tuple[str, ...]  # where the new ones go, one entry each
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDown:
    """Fewer replicas of a managed service."""

    service: str
    replicas: int  # in all
    leave_first: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A replica to another node, so that its own comes free whole: the new one starts, then the old one leaves."""

    service: str
    replica: str
    node: str  # where the new one goes
    why: str


Action = TakeBack | Release | ScaleUp | ScaleDown | Move


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWait:
    """Why one task gets nothing in this turn."""

    job: JobId
    task: TaskName
    wait: Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer to one snapshot."""

    at: datetime
    actions: tuple[Action, ...]  # take back, scale down, scale up, release, move
    waits: tuple[TaskWait, ...]
