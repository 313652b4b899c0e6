"""The whole contract between bot and scheduler: requests in; answers, notices and the board out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType

from scheduler.jobs.job import JobId

RequestId = NewType("RequestId", int)
NoticeId = NewType("NoticeId", int)

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Who asks. `groups` are Slack user groups, read when the request was made; none if they could not be read."""

    id: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A job file, whole."""

    text: str
    channel: str = ""
    folder: str = ""  # where the file lay; commands of a local cluster run there
    source: str = "command"  # form | one-liner | file | command


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End a job, whatever it is doing."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """Approve or deny a job that awaits approval."""

    job: JobId
    approve: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """The last lines of a job's output; of its newest run, or of the newest run of a step."""

    job: JobId
    step: str = ""
    lines: int = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A new job from an old one; `from_step` keeps the outputs of the steps before it."""

    job: JobId
    from_step: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    channel: str = ""


Body = Submit | Cancel | Decide | Logs | Rerun


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One thing that a person asks of the scheduler."""

    id: RequestId
    key: str  # of the delivery: the same key twice is the same request
    by: Person
    at: datetime
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a request. `text` is a sentence, or one a line, that can be shown unchanged."""

    ok: bool
    text: str
    job: JobId | None = None
    detail: Mapping[str, Json] = field(default_factory=dict)  # Logs: {"log": str, "run": uid, "task": name}


class NoticeKind(StrEnum):
    """What a person must be told. The payload's keys stand behind each; times are ISO 8601, hours are GPU-hours."""

    SUBMITTED = "submitted"  # owner, name, team, gpus, gpu_hours (estimate or null), spec_hash, warnings[]
    APPROVAL_NEEDED = "approval_needed"  # why[], approvers[]
    APPROVED = "approved"  # by
    DENIED = "denied"  # by, reason
    WAITING = "waiting"  # reason (a sentence), code, short_by, held_by, earliest or null
    STARTED = "started"  # task, nodes{node: gpus}, gpus, window_until or null, warnings[]
    PREEMPTED = "preempted"  # tasks[], service, reason, gpus, kept_s, lost_s, saved_step or null, earliest or null, nth
    RESUMED = "resumed"  # task, nodes{}, gpus, window_until or null, from_step or null, saved_step or null
    STEP_DONE = "step_done"  # step, tasks, seconds
    DEADLINE_AT_RISK = "deadline_at_risk"  # deadline, earliest_end
    NODE_LOST = "node_lost"  # node, tasks[]
    COMPLETED = "completed"  # used_gpu_hours, lost_gpu_hours, queue_s, money, currency, outputs{}, preemptions
    FAILED = "failed"  # step, task, exit_code or null, why, log (last lines), used_gpu_hours, lost_gpu_hours
    CANCELLED = "cancelled"  # by, used_gpu_hours, lost_gpu_hours
    EXPIRED = "expired"  # why


TERMINAL_NOTICES = frozenset(
    {
        NoticeKind.DENIED,
        NoticeKind.COMPLETED,
        NoticeKind.FAILED,
        NoticeKind.CANCELLED,
        NoticeKind.EXPIRED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One thing to tell. Ids grow in the order in which things happened; each job has exactly one terminal notice."""

    id: NoticeId  # 0 until it is recorded
    job: JobId
    kind: NoticeKind
    at: datetime
    payload: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardWindow:
    """Idle GPUs of one node."""

    node: str
    gpus: int
    since: datetime
    until: datetime | None  # None: no end in sight
    confidence: float  # 0 to 1
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardService:
    """One service, as people see it."""

    name: str
    have: int  # replicas
    want: int
    gpus: int  # held now
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What is free now and until when; the newest replaces the one before."""

    at: datetime
    gpus: int  # in the whole pool
    serving: int
    running: int  # held by jobs
    idle: int
    unknown: int  # GPUs of nodes of which too little is known
    services: tuple[BoardService, ...]
    windows: tuple[BoardWindow, ...]
    waiting_tasks: int
    waiting_gpus: int
    observe_only: bool = False
    alerts: tuple[str, ...] = ()  # what an operator should look at: a stalled replica, a missing target
