"""The scheduler's side of the database. Every write is guarded by the state it expects and by the fencing token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select, update

from scheduler.errors import Deposed
from scheduler.jobs.job import TERMINAL_JOB, TERMINAL_RUN, Job, JobId, JobState, Run, RunState, Task
from scheduler.jobs.mail import Request
from scheduler.planning.plan import Plan
from scheduler.planning.snapshot import Snapshot
from scheduler.ports import Audit, Change, HandBack, Live, Observed
from scheduler.store import rows, tables
from scheduler.store.changes import AUDITS, HAND_BACKS, OBSERVATIONS, Recording, unpacked
from scheduler.store.database import Database

_LIVE_JOBS = [state.value for state in JobState if state not in TERMINAL_JOB]
_LIVE_RUNS = [state.value for state in RunState if state not in TERMINAL_RUN]


class SqlStore:
    """Implements `ports.Store` and `ports.Leadership`; the schema must be there (`gpujob migrate`).

    Raises:
        BadInput: the URL cannot be used.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)

    def close(self) -> None:
        """Ends its connections."""
        self._database.close()

    # What a turn reads
    def open_requests(self) -> tuple[Request, ...]:
        """Requests without an answer, oldest first."""
        requests = tables.requests.c
        unanswered = rows.REQUESTS.select.where(requests.answer.is_(None)).order_by(requests.id)
        with self._database.reading() as connection:
            return rows.REQUESTS.values(connection.execute(unanswered))

    def live(self) -> Live:
        """All that has not ended; runs that have not ended are in it even if their job has."""
        jobs, tasks, runs = tables.jobs.c, tables.tasks.c, tables.runs.c
        is_live = jobs.state.in_(_LIVE_JOBS)
        live_jobs = rows.JOBS.select.where(is_live).order_by(jobs.id)
        live_tasks = rows.TASKS.select.join(tables.jobs).where(is_live).order_by(tasks.job, tasks.position)
        live_runs = rows.RUNS.select.where(runs.state.in_(_LIVE_RUNS)).order_by(runs.job, runs.since, runs.uid)
        attempts = select(runs.job, runs.task, func.count()).join(tables.jobs, jobs.id == runs.job).where(is_live)
        with self._database.reading() as connection:
            return Live(
                jobs=rows.JOBS.values(connection.execute(live_jobs)),
                tasks=rows.TASKS.values(connection.execute(live_tasks)),
                runs=rows.RUNS.values(connection.execute(live_runs)),
                attempts={
                    (job, task): count
                    for job, task, count in connection.execute(attempts.group_by(runs.job, runs.task))
                },
                next_job=JobId(connection.execute(select(func.coalesce(func.max(jobs.id), 0))).scalar_one() + 1),
            )

    def job(self, job: JobId) -> Job | None:
        """One job, ended or not."""
        with self._database.reading() as connection:
            return rows.job(connection, job)

    def job_tasks(self, job: JobId) -> tuple[Task, ...]:
        """All tasks of one job, in task order."""
        with self._database.reading() as connection:
            return rows.job_tasks(connection, job)

    def job_runs(self, job: JobId) -> tuple[Run, ...]:
        """All runs of one job, oldest first."""
        with self._database.reading() as connection:
            return rows.job_runs(connection, job)

    def team_hours(self, since: datetime, now: datetime) -> Mapping[str, float]:
        """GPU-hours used since then, by team; jobs without a team are left out."""
        jobs, runs = tables.jobs.c, tables.runs.c
        held = (
            select(jobs.team, runs.gpus, runs.since, func.coalesce(runs.ended_at, now))
            .join(tables.jobs, jobs.id == runs.job)
            .where(jobs.team != "", runs.gpus > 0, func.coalesce(runs.ended_at, now) > since, runs.since < now)
        )
        hours: defaultdict[str, float] = defaultdict(float)
        with self._database.reading() as connection:
            for team, gpus, begun, ended in connection.execute(held):
                hours[team] += gpus * (min(ended, now) - max(begun, since)).total_seconds() / 3600
        return dict(hours)

    def runs(self, since: datetime) -> tuple[Run, ...]:
        """Runs that had not ended before `since`, oldest first."""
        with self._database.reading() as connection:
            return rows.runs_since(connection, since)

    def observed(self, since: datetime) -> tuple[Observed, ...]:
        """What services had and wanted, oldest first."""
        observations = tables.observations.c
        newer = OBSERVATIONS.select.where(observations.at >= since).order_by(observations.at, observations.id)
        with self._database.reading() as connection:
            return OBSERVATIONS.values(connection.execute(newer))

    # What a turn writes
    def record(self, changes: Sequence[Change], token: int) -> None:
        """All of it or nothing, in one transaction; notices get ids in their order.

        Raises:
            Conflict: a row was not in the state that was expected.
            Deposed: another scheduler has taken the lease.
            Unavailable: the database did not answer.
        """
        with self._database.writing() as connection:
            newest = _leader_token(connection)
            if newest != token:
                raise Deposed(f"this scheduler leads with token {token}, the newest is {newest}")
            recording = Recording(connection)
            for change in changes:
                recording.apply(change)
            recording.finish()

    # Who leads
    def hold(self, owner: str, now: datetime, ttl_s: float) -> int | None:
        """The fencing token if `owner` leads until `now + ttl_s`; None while another does.

        A new leader gets a token larger than any before; the same leader keeps its own.
        """
        leader = tables.leader
        with self._database.writing() as connection:
            held = connection.execute(select(leader).with_for_update()).one()
            if held.owner not in {owner, ""} and held.until > now:
                return None
            token: int = held.token if held.owner == owner else held.token + 1
            until = now + timedelta(seconds=ttl_s)
            connection.execute(update(leader).values(owner=owner, token=token, until=until))
            return token

    def let_go(self, owner: str) -> None:
        """The next one need not wait for the lease to run out."""
        leader = tables.leader
        with self._database.writing() as connection:
            connection.execute(update(leader).where(leader.c.owner == owner).values(owner=""))

    # What an operator looks at
    def turn(self, at: datetime | None = None) -> tuple[Snapshot, Plan] | None:
        """The newest turn at or before `at`, or of all; None if none is kept."""
        turns = tables.turns.c
        kept = select(turns.snapshot, turns.plan).order_by(turns.at.desc(), turns.id.desc()).limit(1)
        with self._database.reading() as connection:
            row = connection.execute(kept if at is None else kept.where(turns.at <= at)).first()
            return row and (unpacked(row.snapshot, Snapshot), unpacked(row.plan, Plan))

    def hand_backs(self, since: datetime) -> tuple[HandBack, ...]:
        """Hand-backs that were decided since then, oldest first."""
        decided_at = tables.hand_backs.c.decided_at
        newer = HAND_BACKS.select.where(decided_at >= since).order_by(decided_at, tables.hand_backs.c.service)
        with self._database.reading() as connection:
            return HAND_BACKS.values(connection.execute(newer))

    def audits(self, limit: int = 100) -> tuple[Audit, ...]:
        """Who decided what, newest first."""
        newest = AUDITS.select.order_by(tables.audits.c.id.desc()).limit(limit)
        with self._database.reading() as connection:
            return AUDITS.values(connection.execute(newest))


def _leader_token(connection: Connection) -> int:
    # Locked where rows are locked: the lease cannot change hands before this transaction ends.
    token: int = connection.execute(select(tables.leader.c.token).with_for_update()).scalar_one()
    return token
