"""Job, step, task and run: their states, and the one table of lawful moves of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType, TypeVar

from scheduler.errors import IllegalMove
from scheduler.jobs.progress import Progress
from scheduler.jobs.spec import JobSpec
from scheduler.jobs.waits import Wait

JobId = NewType("JobId", int)
TaskName = NewType("TaskName", str)  # unique in its job: "sft-3", "preprocess"
Uid = NewType("Uid", str)  # the executor's name of one attempt: a pod's uid, or the local twin of it


class JobState(StrEnum):
    """Words of state of a job."""

    SUBMITTED = "submitted"
    AWAITING_APPROVAL = "awaiting_approval"
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DENIED = "denied"
    EXPIRED = "expired"


class StepState(StrEnum):
    """Words of state of a step; always derived from its tasks (jobs/flow.py)."""

    BLOCKED = "blocked"
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class TaskState(StrEnum):
    """Words of state of a task. A task of a step that is skipped is `cancelled`."""

    BLOCKED = "blocked"
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RunState(StrEnum):
    """Words of state of a run."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    PREEMPTED = "preempted"
    LOST = "lost"
    CANCELLED = "cancelled"


class Intent(StrEnum):
    """What we meant when we asked a run to end; recorded before we ask."""

    NONE = "none"
    HAND_BACK = "hand_back"  # a service needs the GPUs
    CANCEL = "cancel"  # a person cancelled the job
    TIME_LIMIT = "time_limit"  # the task used up max_hours
    NO_START = "no_start"  # its program did not begin, and not for want of GPUs: its image, a secret


_J, _T, _R = JobState, TaskState, RunState

JOB_MOVES: Mapping[JobState, frozenset[JobState]] = {
    _J.SUBMITTED: frozenset({_J.AWAITING_APPROVAL, _J.WAITING, _J.CANCELLED}),
    _J.AWAITING_APPROVAL: frozenset({_J.WAITING, _J.DENIED, _J.CANCELLED, _J.EXPIRED}),
    # A job whose steps need no GPU, or whose runs end between two turns, goes straight on.
    _J.WAITING: frozenset({_J.RUNNING, _J.COMPLETED, _J.FAILED, _J.CANCELLED, _J.EXPIRED}),
    _J.RUNNING: frozenset({_J.WAITING, _J.PREEMPTED, _J.COMPLETED, _J.FAILED, _J.CANCELLED}),
    _J.PREEMPTED: frozenset({_J.RUNNING, _J.WAITING, _J.COMPLETED, _J.FAILED, _J.CANCELLED}),
    _J.COMPLETED: frozenset(),
    _J.FAILED: frozenset(),
    _J.CANCELLED: frozenset(),
    _J.DENIED: frozenset(),
    _J.EXPIRED: frozenset(),
}

TASK_MOVES: Mapping[TaskState, frozenset[TaskState]] = {
    _T.BLOCKED: frozenset({_T.WAITING, _T.CANCELLED}),
    # waiting -> done: the executor knows the end of a run that nobody saw
    _T.WAITING: frozenset({_T.RUNNING, _T.DONE, _T.FAILED, _T.CANCELLED}),
    # running -> waiting: a run that never really began, or a real failure that `retries` allows again
    _T.RUNNING: frozenset({_T.WAITING, _T.PREEMPTED, _T.DONE, _T.FAILED, _T.CANCELLED}),
    _T.PREEMPTED: frozenset({_T.RUNNING, _T.DONE, _T.FAILED, _T.CANCELLED}),
    _T.DONE: frozenset(),
    _T.FAILED: frozenset(),
    _T.CANCELLED: frozenset(),
}

_ENDS = frozenset({_R.DONE, _R.FAILED, _R.PREEMPTED, _R.LOST, _R.CANCELLED})

RUN_MOVES: Mapping[RunState, frozenset[RunState]] = {
    _R.STARTING: frozenset({_R.RUNNING, _R.STOPPING}) | _ENDS,
    _R.RUNNING: frozenset({_R.STOPPING}) | _ENDS,
    _R.STOPPING: _ENDS,
    _R.DONE: frozenset(),
    _R.FAILED: frozenset(),
    _R.PREEMPTED: frozenset(),
    _R.LOST: frozenset(),
    _R.CANCELLED: frozenset(),
}

TERMINAL_JOB = frozenset(state for state, to in JOB_MOVES.items() if not to)
TERMINAL_TASK = frozenset(state for state, to in TASK_MOVES.items() if not to)
TERMINAL_RUN = frozenset(state for state, to in RUN_MOVES.items() if not to)

_S = TypeVar("_S", JobState, TaskState, RunState)


def lawful(table: Mapping[_S, frozenset[_S]], old: _S, new: _S) -> _S:
    """`new`, if the table leads there from `old`.

    Raises:
        IllegalMove: it does not; the sentence names both states.
    """
    if new not in table[old]:
        allowed = ", ".join(sorted(table[old])) or "nothing, it has ended"
        raise IllegalMove(f"{type(old).__name__} may not go from {old} to {new}; lawful: {allowed}")
    return new


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job as we remember it."""

    id: JobId
    spec: JobSpec
    spec_hash: str  # same file, parameters and digests: same hash (jobs/spec.py)
    owner: str  # Slack user id, or the name given with `--as`
    channel: str  # where its card and thread live; "" for a job from the command line
    state: JobState
    submitted_at: datetime
    decided_at: datetime | None = None  # approved, denied or admitted without approval
    started_at: datetime | None = None  # first run
    ended_at: datetime | None = None
    approval_why: tuple[str, ...] = ()  # the rules that ask for an approver
    decided_by: str = ""
    why: str = ""  # why it ended as it did, or why it was denied
    handed_over: bool = False  # the executor knows it (submit has been called and recorded)
    cancelled_by: str = ""  # who asked to end it; it is `cancelled` once its runs have ended
    preemptions: int = 0
    told_wait: str = ""  # the reason code of the newest `waiting` notice; "" after a start
    told_deadline: bool = False
    used_gpu_s: float = 0.0  # of runs that have ended
    kept_gpu_s: float = 0.0
    lost_gpu_s: float = 0.0
    kept: Mapping[TaskName, Mapping[str, str]] = field(default_factory=dict)  # outputs of tasks of an earlier job
    rerun_of: JobId | None = None
    digests: Mapping[str, str] = field(default_factory=dict)  # image as written -> the same with its digest
    unresolved: Mapping[str, str] = field(default_factory=dict)  # image as written -> why it has no digest
    version: int = 0  # grows at every visible change; the bot redraws the card when it does

    @property
    def label(self) -> str:
        """`job-41`, as it is written everywhere."""
        return f"job-{self.id}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What people should know of it, a sentence each."""
        return tuple(
            f"Image {name} could not be resolved to a digest: {why}; the tag is used as it is."
            for name, why in sorted(self.unresolved.items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task of a job."""

    job: JobId
    name: TaskName
    step: str
    index: int  # place in its step, from 0
    state: TaskState
    since: datetime  # of the state
    wait: Wait | None = None  # why it does not run, when it waits
    failures: int = 0  # real ones; preemptions never count
    unseen: int = 0  # endings in a row that look like a preemption which nobody asked for
    ran_s: float = 0.0  # wall seconds of its ended runs, against max_hours
    progress: Progress | None = None  # newest word of any of its runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt of a task: a lease of GPUs of named nodes, from `since` until `ended_at`."""

    uid: Uid
    job: JobId
    task: TaskName
    attempt: int  # 1 for the first
    placement: Mapping[str, int]  # node -> GPUs on it; {"node-1": 0} for a task without GPUs
    state: RunState
    since: datetime  # when we released it: the lease begins
    window_until: datetime | None = None  # what the window said at the start
    started_at: datetime | None = None  # its program began
    intent: Intent = Intent.NONE
    intent_at: datetime | None = None  # when we asked it to end
    kill_at: datetime | None = None  # when the time that it got to end is over
    intent_why: str = ""
    for_service: str = ""  # who needed the GPUs, for a hand-back
    ended_at: datetime | None = None
    exit_code: int | None = None
    message: str = ""
    progress: Progress | None = None
    kept_s: float = 0.0  # wall seconds, not GPU-seconds; the four add up to ended_at - since
    lost_s: float = 0.0
    restart_s: float = 0.0
    ending_s: float = 0.0
    told: bool = False  # its `started` or `resumed` notice is out, or needs none

    @property
    def gpus(self) -> int:
        """GPUs it holds, over all its nodes."""
        return sum(self.placement.values())


def job_id(text: str) -> JobId | None:
    """`job-41`, `#41` or `41` as an id; None if it is none of them."""
    digits = text.strip().lower().removeprefix("job-").removeprefix("#")
    return JobId(int(digits)) if digits.isascii() and digits.isdecimal() and len(digits) < 12 else None
