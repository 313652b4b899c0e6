"""What we need from the outside. Time is no port: `now` is read once a turn and handed down."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from scheduler.fleet.pool import Pool, Replica
from scheduler.fleet.readings import Series
from scheduler.jobs.job import Job, JobId, JobState, Run, RunState, Task, TaskName, TaskState, Uid
from scheduler.jobs.mail import Answer, Board, Notice, Request, RequestId
from scheduler.jobs.order import JobOrder
from scheduler.jobs.reports import Report
from scheduler.planning.plan import Plan
from scheduler.planning.snapshot import Snapshot

Clock = Callable[[], datetime]  # aware UTC


class Metrics(Protocol):
    """vLLM's own metrics."""

    def series(self, replicas: Sequence[Replica], now: datetime) -> tuple[Series, ...]:
        """One series a replica, in the same order; what cannot be read is a sample that says so, never an error."""
        ...


class Cluster(Protocol):
    """Nodes and services."""

    def pool(self, now: datetime) -> Pool:
        """Nodes, who holds which GPUs, and the replicas of all services.

        Raises:
            Unavailable: nothing can be said; the turn then does nothing.
        """
        ...

    def scale(self, service: str, replicas: int, leave_first: Sequence[str], nodes: Sequence[str]) -> None:
        """Make a managed service have so many replicas; said twice, it is done once.

        Raises:
            Unavailable: not carried out.
        """
        ...


class Executor(Protocol):
    """Runs jobs. It owns the DAG; we own when and where, through a gate before each attempt."""

    def submit(self, order: JobOrder, ended: Mapping[TaskName, bool] = {}) -> None:
        """Hand over a whole job; its first tasks appear as gated attempts. Said twice, it is done once.

        `ended` are the tasks that need not be tried any more; True = done. An executor that cannot take a large job at
        once takes what may start, and is asked again when a task waits that it has no attempt of.

        Raises:
            Unavailable: not carried out, or nobody knows.
        """
        ...

    def release(self, uid: Uid, placement: Mapping[str, int]) -> None:
        """Open the gate of one attempt on named nodes. Released already, or gone: nothing happens.

        Raises:
            Unavailable: not carried out, or nobody knows.
        """
        ...

    def take_back(self, uid: Uid, grace_s: float) -> None:
        """End an attempt: SIGTERM, after the grace SIGKILL. A gated one is replaced by a new gated one.

        Said twice, the first grace stands. Ended already, or gone: nothing happens.

        Raises:
            Unavailable: not carried out, or nobody knows.
        """
        ...

    def give_up(self, uid: Uid, why: str) -> None:
        """End a gated attempt for good: its task has failed, and the DAG goes on from there. No longer gated: nothing.

        Raises:
            Unavailable: not carried out, or nobody knows.
        """
        ...

    def skip(self, uid: Uid, why: str) -> None:
        """End a gated attempt as done: its task is, and the executor did not see it. No longer gated: nothing.

        Raises:
            Unavailable: not carried out, or nobody knows.
        """
        ...

    def cancel(self, job: JobId, grace_s: float) -> None:
        """End all of a job: no new attempts, gated ones vanish, running ones end as in `take_back`.

        Raises:
            Unavailable: not carried out, or nobody knows.
        """
        ...

    def reports(self, jobs: Mapping[JobId, Collection[Uid]], now: datetime) -> tuple[Report, ...]:
        """All attempts of these jobs, oldest first within a task; jobs it does not know have none.

        The uids are attempts that the caller takes for live: of these it is told even if only their end is known.

        Raises:
            Unavailable: nothing can be said.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """Nobody can say which image a name stands for."""

    why: str  # the rest of a sentence


class Images(Protocol):
    """Which image a written name stands for, now."""

    def digests(self, names: Collection[str]) -> Mapping[str, str | Unresolved]:
        """The image with its digest, by name. A name that is missing is being looked up: ask again. Never waits."""
        ...


class LogReader(Protocol):
    """Output of runs."""

    def tail(self, uid: Uid, lines: int) -> str:
        """The last lines that an attempt wrote; "" if it wrote none.

        Raises:
            Unavailable: cannot be read now.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """All jobs that have not ended, with their tasks and the runs that have not ended."""

    jobs: tuple[Job, ...]  # by id
    tasks: tuple[Task, ...]  # by job, then in task order
    runs: tuple[Run, ...]
    attempts: Mapping[tuple[JobId, str], int]  # runs so far, by job and task
    next_job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class AddJob:
    """A new job with all its tasks."""

    job: Job
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeJob:
    """The job's row becomes `now`, if its state still is `was`. `version` is the store's own."""

    was: JobState
    now: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTask:
    """The task's row becomes `now`, if its state still is `was`."""

    was: TaskState
    now: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRun:
    """A new run."""

    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRun:
    """The run's row becomes `now`, if its state still is `was`."""

    was: RunState
    now: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """A request has its answer. Settled already is a Conflict."""

    request: RequestId
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """A notice into the outbox. A second terminal notice of a job is a Conflict."""

    notice: Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowBoard:
    """Replaces the board."""

    board: Board


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepTurn:
    """Snapshot and plan of a turn, so that any night replays; the last days are kept, compressed."""

    snapshot: Snapshot
    plan: Plan
    acted: bool  # False in observe-only mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What one service had and wanted; the day's pattern is made of these."""

    at: datetime
    service: str
    have: int
    want: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandBack:
    """One hand-back, from the first sign of need to the new replica; later fields come later."""

    service: str
    signal_at: datetime  # first reading above the threshold
    decided_at: datetime
    freed_at: datetime | None = None  # its GPUs were free
    ready_at: datetime | None = None  # the new replica answered
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepHandBack:
    """Adds, or replaces by service and decided_at."""

    hand_back: HandBack


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Who decided what."""

    at: datetime
    who: str
    what: str  # a verb: submitted, approved, denied, cancelled, refused
    job: JobId | None
    detail: str


Change = (
    AddJob
    | ChangeJob
    | ChangeTask
    | AddRun
    | ChangeRun
    | Settle
    | Tell
    | ShowBoard
    | KeepTurn
    | Observed
    | KeepHandBack
    | Audit
)


class Store(Protocol):
    """What we remember, the scheduler's side. One scheduler at a time writes; the token proves which."""

    def open_requests(self) -> tuple[Request, ...]:
        """Requests without an answer, oldest first."""
        ...

    def live(self) -> Live:
        """All that has not ended."""
        ...

    def record(self, changes: Sequence[Change], token: int) -> None:
        """All of it or nothing, in one transaction; notices get ids in their order.

        Raises:
            Conflict: a row was not in the state that was expected.
            Deposed: another scheduler has taken the lease.
            Unavailable: the database did not answer.
        """
        ...

    def job(self, job: JobId) -> Job | None:
        """One job, ended or not."""
        ...

    def job_runs(self, job: JobId) -> tuple[Run, ...]:
        """All runs of one job, oldest first."""
        ...

    def team_hours(self, since: datetime, now: datetime) -> Mapping[str, float]:
        """GPU-hours used since then, by team; jobs without a team are left out."""
        ...

    def runs(self, since: datetime) -> tuple[Run, ...]:
        """Runs that had not ended before `since`, oldest first."""
        ...

    def observed(self, since: datetime) -> tuple[Observed, ...]:
        """What services had and wanted, oldest first."""
        ...


class Leadership(Protocol):
    """One active scheduler at a time."""

    def hold(self, owner: str, now: datetime, ttl_s: float) -> int | None:
        """The fencing token if `owner` leads until `now + ttl_s`; None while another does.

        A new leader gets a token larger than any before; the same leader keeps its own.
        """
        ...

    def let_go(self, owner: str) -> None:
        """The next one need not wait for the lease to run out."""
        ...
