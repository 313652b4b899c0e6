"""The store in dictionaries: the same promises as `SqlStore`, for tests and for one process that need not remember."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from scheduler.errors import Conflict, Deposed, Unavailable
from scheduler.jobs.job import TERMINAL_JOB, TERMINAL_RUN, Job, JobId, JobState, Run, RunState, Task, TaskState, Uid
from scheduler.jobs.mail import TERMINAL_NOTICES, Answer, Board, Body, Notice, NoticeId, Person, Request, RequestId
from scheduler.planning.plan import Plan
from scheduler.planning.snapshot import Snapshot
from scheduler.ports import (
    AddJob,
    AddRun,
    Audit,
    Change,
    ChangeJob,
    ChangeRun,
    ChangeTask,
    HandBack,
    KeepHandBack,
    KeepTurn,
    Live,
    Observed,
    Settle,
    ShowBoard,
    Tell,
)

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S", Job, Task, Run)


@dataclass(slots=True, kw_only=True)
class _Kept:
    """Everything that is remembered; a transaction works on a copy."""

    requests: dict[RequestId, Request] = field(default_factory=dict)
    answers: dict[RequestId, Answer] = field(default_factory=dict)
    jobs: dict[JobId, Job] = field(default_factory=dict)
    tasks: dict[tuple[JobId, str], Task] = field(default_factory=dict)  # of a job in task order
    runs: dict[Uid, Run] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    board: Board | None = None
    turns: list[KeepTurn] = field(default_factory=list)
    observed: list[Observed] = field(default_factory=list)
    hand_backs: dict[tuple[str, datetime], HandBack] = field(default_factory=dict)
    audits: list[Audit] = field(default_factory=list)

    def copy(self) -> _Kept:
        return _Kept(**{each.name: copy(getattr(self, each.name)) for each in fields(self)})


class MemoryStore:
    """Implements `ports.Store` and `ports.Leadership`, and as much of the mailbox as tests of a turn need.

    While `down` is true, every call raises Unavailable.
    """

    def __init__(self) -> None:
        self.down = False
        self._kept = _Kept()
        self._owner = ""
        self._token = 0
        self._until: datetime | None = None

    # The mailbox's side
    def send(self, key: str, by: Person, at: datetime, body: Body) -> RequestId:
        """One request; the same key again gives the first one's id and changes nothing."""
        kept = self._open()
        _refuse_naive(at)
        for request in kept.requests.values():
            if request.key == key:
                return request.id
        new = RequestId(len(kept.requests) + 1)
        kept.requests[new] = Request(id=new, key=key, by=by, at=at, body=body)
        return new

    def answer(self, request: RequestId) -> Answer | None:
        """The answer, once there is one."""
        return self._open().answers.get(request)

    def notices(self) -> tuple[Notice, ...]:
        """The whole outbox, oldest first."""
        return tuple(self._open().notices)

    def board(self) -> Board | None:
        """What is free now; None before the first turn."""
        return self._open().board

    # The scheduler's side
    def open_requests(self) -> tuple[Request, ...]:
        """Requests without an answer, oldest first."""
        kept = self._open()
        return tuple(request for request in kept.requests.values() if request.id not in kept.answers)

    def live(self) -> Live:
        """All that has not ended; runs that have not ended are in it even if their job has."""
        kept = self._open()
        jobs = {
            job.id: job for job in sorted(kept.jobs.values(), key=lambda job: job.id) if job.state not in TERMINAL_JOB
        }
        held = [run for run in kept.runs.values() if run.state not in TERMINAL_RUN]
        return Live(
            jobs=tuple(jobs.values()),
            tasks=tuple(sorted((task for task in kept.tasks.values() if task.job in jobs), key=lambda task: task.job)),
            runs=tuple(sorted(held, key=lambda run: (run.job, run.since, run.uid))),
            attempts=dict(Counter((run.job, run.task) for run in kept.runs.values() if run.job in jobs)),
            next_job=JobId(max(kept.jobs, default=0) + 1),
        )

    def job(self, job: JobId) -> Job | None:
        """One job, ended or not."""
        return self._open().jobs.get(job)

    def job_tasks(self, job: JobId) -> tuple[Task, ...]:
        """All tasks of one job, in task order."""
        return tuple(task for task in self._open().tasks.values() if task.job == job)

    def job_runs(self, job: JobId) -> tuple[Run, ...]:
        """All runs of one job, oldest first."""
        return _oldest_first(run for run in self._open().runs.values() if run.job == job)

    def team_hours(self, since: datetime, now: datetime) -> Mapping[str, float]:
        """GPU-hours used since then, by team; jobs without a team are left out."""
        kept = self._open()
        hours: defaultdict[str, float] = defaultdict(float)
        for run in kept.runs.values():
            seconds = (min(run.ended_at or now, now) - max(run.since, since)).total_seconds()
            team = kept.jobs[run.job].spec.team
            if team and run.gpus and seconds > 0:
                hours[team] += run.gpus * seconds / 3600
        return dict(hours)

    def runs(self, since: datetime) -> tuple[Run, ...]:
        """Runs that had not ended before `since`, oldest first."""
        return _oldest_first(run for run in self._open().runs.values() if not run.ended_at or run.ended_at >= since)

    def observed(self, since: datetime) -> tuple[Observed, ...]:
        """What services had and wanted, oldest first."""
        newer = (seen for seen in self._open().observed if seen.at >= since)
        return tuple(sorted(newer, key=lambda seen: seen.at))

    def record(self, changes: Sequence[Change], token: int) -> None:
        """All of it or nothing; notices get ids in their order.

        Raises:
            Conflict: a row was not in the state that was expected.
            Deposed: another scheduler has taken the lease.
            Unavailable: the store is down.
        """
        kept = self._open().copy()
        if token != self._token:
            raise Deposed(f"this scheduler leads with token {token}, the newest is {self._token}")
        recording = _Recording(kept)
        for change in changes:
            _refuse_naive(change)
            recording.apply(change)
        recording.finish()
        self._kept = kept

    def hold(self, owner: str, now: datetime, ttl_s: float) -> int | None:
        """The fencing token if `owner` leads until `now + ttl_s`; None while another does."""
        self._open()
        if self._owner not in {owner, ""} and self._until is not None and self._until > now:
            return None
        if self._owner != owner:
            self._token += 1
        self._owner, self._until = owner, now + timedelta(seconds=ttl_s)
        return self._token

    def let_go(self, owner: str) -> None:
        """The next one need not wait for the lease to run out."""
        self._open()
        if self._owner == owner:
            self._owner = ""

    # What an operator looks at
    def turn(self, at: datetime | None = None) -> tuple[Snapshot, Plan] | None:
        """The newest turn at or before `at`, or of all; None if none is kept."""
        kept = [turn for turn in self._open().turns if at is None or turn.snapshot.now <= at]
        if not kept:
            return None
        newest = max(kept, key=lambda turn: turn.snapshot.now)
        return newest.snapshot, newest.plan

    def hand_backs(self, since: datetime) -> tuple[HandBack, ...]:
        """Hand-backs that were decided since then, oldest first."""
        newer = (hand_back for hand_back in self._open().hand_backs.values() if hand_back.decided_at >= since)
        return tuple(sorted(newer, key=lambda hand_back: (hand_back.decided_at, hand_back.service)))

    def audits(self, limit: int = 100) -> tuple[Audit, ...]:
        """Who decided what, newest first."""
        return tuple(reversed(self._open().audits))[:limit]

    def _open(self) -> _Kept:
        if self.down:
            raise Unavailable("the database did not answer: it is down")
        return self._kept


class _Recording:
    def __init__(self, kept: _Kept) -> None:
        self._kept = kept
        self._touched: set[JobId] = set()

    def apply(self, change: Change) -> None:  # noqa: C901, PLR0912 - a table of kinds
        kept = self._kept
        match change:
            case AddJob(job=job, tasks=tasks):
                _add(kept.jobs, job.id, job)
                for task in tasks:
                    _add(kept.tasks, (task.job, task.name), task)
            case ChangeJob(was=was, now=job):
                self._touched.add(job.id)
                old = _expect(kept.jobs, job.id, was)
                kept.jobs[job.id] = replace(job, version=old.version)
            case ChangeTask(was=was_task, now=task):
                self._touched.add(task.job)
                _expect(kept.tasks, (task.job, task.name), was_task)
                kept.tasks[task.job, task.name] = task
            case AddRun(run=run):
                self._add_run(run)
            case ChangeRun(was=was_run, now=run):
                self._touched.add(run.job)
                _expect(kept.runs, run.uid, was_run)
                kept.runs[run.uid] = run
            case Settle(request=request, answer=answer):
                if request not in kept.requests:
                    raise Conflict(f"request {request} is not there")
                _add(kept.answers, request, answer)
            case Tell(notice=notice):
                self._tell(notice)
            case ShowBoard(board=board):
                kept.board = board
            case KeepTurn():
                kept.turns.append(change)
            case Observed():
                kept.observed.append(change)
            case KeepHandBack(hand_back=hand_back):
                kept.hand_backs[hand_back.service, hand_back.decided_at] = hand_back
            case Audit():
                kept.audits.append(change)

    def finish(self) -> None:
        jobs = self._kept.jobs
        for job in self._touched:
            jobs[job] = replace(jobs[job], version=jobs[job].version + 1)

    def _add_run(self, run: Run) -> None:
        self._touched.add(run.job)
        if (run.job, run.task) not in self._kept.tasks:
            raise Conflict(f"{run.task} of job-{run.job} is not there")
        _add(self._kept.runs, run.uid, run)

    def _tell(self, notice: Notice) -> None:
        self._touched.add(notice.job)
        told = self._kept.notices
        ended = any(other.job == notice.job and other.kind in TERMINAL_NOTICES for other in told)
        if notice.job not in self._kept.jobs or (ended and notice.kind in TERMINAL_NOTICES):
            raise Conflict(f"job-{notice.job} has its terminal notice, or is not there")
        told.append(replace(notice, id=NoticeId(len(told) + 1)))


def _add(rows: dict[K, V], key: K, row: V) -> None:
    if key in rows:
        raise Conflict(f"{key} is there already")
    rows[key] = row


def _expect(rows: dict[K, S], key: K, was: JobState | TaskState | RunState) -> S:
    row = rows.get(key)
    if row is None or row.state != was:
        raise Conflict(f"{key} is no longer {was}")
    return row


def _oldest_first(runs: Iterable[Run]) -> tuple[Run, ...]:
    return tuple(sorted(runs, key=lambda run: (run.since, run.job, run.task, run.attempt)))


def _refuse_naive(value: object) -> None:
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise ValueError(f"{value} has no zone")
    if is_dataclass(value):
        for each in fields(value):
            _refuse_naive(getattr(value, each.name))
    if isinstance(value, tuple):
        for each in value:
            _refuse_naive(each)
