"""What the executor has seen of one attempt of a task: evidence, not a verdict (jobs/outcomes.py decides)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.jobs.progress import Progress

SAVED = frozenset({143, 75})  # exit codes of a program that saved its work and wants to go on later


class Phase(StrEnum):
    """Where an attempt is. A gated attempt costs nothing and is our queue entry."""

    GATED = "gated"
    STARTING = "starting"  # released, its program not yet seen
    RUNNING = "running"
    STOPPING = "stopping"  # asked to end
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One attempt. An attempt that ended stays in the reports until its job is cancelled or forgotten."""

    uid: Uid
    job: JobId
    task: TaskName
    phase: Phase
    placement: Mapping[str, int] = field(default_factory=dict)  # empty while gated
    started_at: datetime | None = None
    stop_asked_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None  # None after the end: nobody saw it (a lost node, a killed machine)
    message: str = ""
    progress: Progress | None = None
    gpus: int | None = None  # a node; a gated attempt can only be released with so many. None: any choice of its step
    whole_task: bool = False  # no attempt of ours: it says how the executor ended the task, whatever we saw of it
    tail: str = ""  # last lines of its output, for an attempt that ended with another code than 0
