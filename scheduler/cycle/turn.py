"""One turn of the scheduler: take in, observe, decide, record what is meant, act; the next turn confirms."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ParamSpec

from scheduler.cycle import confirm, intake, look, notices
from scheduler.cycle.hand_backs import HandBacks
from scheduler.cycle.look import Fleet
from scheduler.cycle.work import Work
from scheduler.errors import Conflict, Unavailable
from scheduler.fleet import demand, pattern, replica_state, scaling
from scheduler.fleet.calendar import Calendar
from scheduler.fleet.demand import DemandMemory, ServiceDemand
from scheduler.fleet.pattern import Pattern
from scheduler.fleet.services import Service
from scheduler.jobs import templates
from scheduler.jobs.job import (
    TERMINAL_JOB,
    TERMINAL_RUN,
    Intent,
    Job,
    JobId,
    JobState,
    Run,
    RunState,
    TaskState,
)
from scheduler.jobs.mail import NoticeKind
from scheduler.jobs.reports import Phase, Report
from scheduler.jobs.waits import Wait, WaitReason
from scheduler.planning import planner
from scheduler.planning.plan import Plan, Release, ScaleDown, ScaleUp, TakeBack, TaskWait
from scheduler.planning.snapshot import Snapshot
from scheduler.policy import Policy
from scheduler.ports import (
    Change,
    Cluster,
    Executor,
    KeepTurn,
    Leadership,
    LogReader,
    Metrics,
    Observed,
    ShowBoard,
    Store,
)

log = logging.getLogger(__name__)

P = ParamSpec("P")

_PATTERN_DAYS = timedelta(days=14)
_PATTERN_AGE = timedelta(minutes=10)
_OBSERVED_EVERY = timedelta(minutes=10)  # also when nothing changed, so that gaps can be told from calm
_KEEP_EVERY = timedelta(seconds=10)  # a turn without an action is kept so often
_BOARD_EVERY = timedelta(seconds=10)
_EARLIEST_STEP = timedelta(seconds=60)  # a probable start that moved by less is no news
_REQUESTS_A_TICK = 100  # so that a flood of requests keeps no service waiting for its turn
_QUIET_WAITS = frozenset({WaitReason.PREPARING, WaitReason.NEEDS_STEPS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Everything that a cycle is plugged into."""

    metrics: Metrics
    cluster: Cluster
    executor: Executor
    logs: LogReader
    store: Store
    leadership: Leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the operator set, as the cycle needs it."""

    owner: str  # this process, as the holder of the lease
    services: tuple[Service, ...]
    calendar: Calendar
    policy: Policy
    house: intake.House
    team_gpus: dict[str, int]
    lease_s: float = 15.0
    observe_only: bool = False


class Cycle:
    """One scheduler. Callers see to it that `take_in` and `turn` do not overlap; `observe` may run beside `take_in`."""

    def __init__(self, outside: Outside, terms: Terms) -> None:
        self._out = outside
        self._terms = terms
        self._memory = DemandMemory()
        self._pattern: Pattern | None = None
        self._pattern_at: datetime | None = None
        self._observed: dict[str, Observed] = {}
        self._kept_at: datetime | None = None
        self._board: ShowBoard | None = None
        self._nodes: dict[str, int] | None = None
        self._hand_backs = HandBacks()

    @property
    def owner(self) -> str:
        """In whose name it holds the lease."""
        return self._terms.owner

    def take_in(self, now: datetime) -> bool:
        """Answers every open request; True if a turn should follow soon."""
        requests = self._out.store.open_requests()
        if not requests:
            return False
        token = self._token(now)
        if token is None:
            return False
        house = replace(self._terms.house, nodes=self._nodes)
        work = Work(self._out.store.live())
        desk = intake.Desk(work=work, store=self._out.store, logs=self._out.logs, house=house, now=now)
        for request in requests[:_REQUESTS_A_TICK]:
            try:
                self._out.store.record(desk.take_in(request), token)
            except Conflict as conflict:
                # What was read is older than what is stored; the next tick reads anew.
                log.warning("request=%s conflict=%s, decided anew at the next tick", request.id, conflict)
                break
        return True

    def observe(self, now: datetime) -> Fleet:
        """What the outside says. No transaction is open meanwhile.

        Raises:
            Unavailable: the nodes cannot be seen; the turn does nothing.
        """
        pool = self._out.cluster.pool(now)
        self._nodes = {node.name: node.gpus for node in pool.nodes}
        series = {s.replica: s for s in self._out.metrics.series(pool.replicas, now)}
        demands: list[ServiceDemand] = []
        for service in self._terms.services:
            replicas = [replica for replica in pool.replicas if replica.service == service.name]
            views = [
                replica_state.judge(replica, series[replica.id], service, self._terms.policy, now)
                for replica in replicas
            ]
            wanted, self._memory = demand.demand(
                service,
                views,
                self._memory,
                self._terms.policy,
                now,
                unknown=pool.unknown_services.get(service.name, ""),
            )
            demands.append(replace(wanted, leave_first=scaling.leave_first(views, pool)))
        return Fleet(at=now, pool=pool, demands=tuple(demands))

    def turn(self, fleet: Fleet) -> Plan | None:
        """Confirms, decides, records and acts; None if another scheduler leads.

        Raises:
            Unavailable: executor or store did not answer; nothing was decided.
        """
        now = fleet.at
        token = self._token(now)
        if token is None:
            return None
        work = Work(self._out.store.live())
        self._end_waits_that_are_over(work, now)
        reports = self._confirm(work, now, token)
        seen = self.snapshot(work, fleet, reports)
        plan = planner.plan(seen, self._terms.policy)
        if self._terms.observe_only:
            self._write_down(work, seen, plan, token)
            return plan
        self._record(work, seen, plan, token)
        self._act(work, plan, reports, token, now)
        return plan

    def snapshot(self, work: Work, fleet: Fleet, reports: Sequence[Report]) -> Snapshot:
        """What this turn is planned on."""
        return look.snapshot(
            work,
            fleet,
            reports,
            self._terms.services,
            self._day_pattern(fleet.at),
            self._terms.calendar,
            self._terms.team_gpus,
            self._terms.policy,
        )

    def look_only(self, now: datetime) -> tuple[Snapshot, Plan]:
        """What would be decided now; nothing is recorded, nothing is done."""
        fleet = self.observe(now)
        work = Work(self._out.store.live())
        reports = self._out.executor.reports(tuple(work.jobs), now)
        confirm.confirm(work, reports, now, self._terms.policy, self._terms.house.terms)
        seen = self.snapshot(work, fleet, reports)
        return seen, planner.plan(seen, self._terms.policy)

    def _token(self, now: datetime) -> int | None:
        return self._out.leadership.hold(self._terms.owner, now, self._terms.lease_s)

    def _day_pattern(self, now: datetime) -> Pattern:
        if self._pattern is None or self._pattern_at is None or now - self._pattern_at > _PATTERN_AGE:
            seen = self._out.store.observed(now - _PATTERN_DAYS)
            rows = [(row.at, row.service, row.want) for row in seen]
            self._pattern = pattern.pattern(rows, self._terms.calendar.timezone)
            self._pattern_at = now
        return self._pattern

    def _confirm(self, work: Work, now: datetime, token: int) -> tuple[Report, ...]:
        known = tuple(job.id for job in work.jobs.values() if job.handed_over)
        reports = self._out.executor.reports(known, now)
        confirm.confirm(work, reports, now, self._terms.policy, self._terms.house.terms)
        changes = work.changes()
        if changes:
            self._out.store.record(changes, token)
        return reports

    def _end_waits_that_are_over(self, work: Work, now: datetime) -> None:
        """Jobs that nobody approved in time, and jobs whose deadline passed before they ran."""
        patience = timedelta(hours=self._terms.policy.approval_hours)
        for job in list(work.jobs.values()):
            if job.state is JobState.AWAITING_APPROVAL and now - job.submitted_at > patience:
                _expire(work, job, now, f"nobody approved it within {patience.total_seconds() / 3600:g} hours")
            elif (
                job.state is JobState.WAITING
                and job.started_at is None
                and not work.runs_of(job.id)
                and job.spec.deadline is not None
                and now > job.spec.deadline
            ):
                _expire(work, job, now, "its deadline passed before GPUs were free")

    def _record(self, work: Work, seen: Snapshot, plan: Plan, token: int) -> None:
        now = plan.at
        changes: list[Change] = []
        for action in plan.actions:
            match action:
                case TakeBack():
                    _mean_to_stop(work, action, now)
                    changes += self._hand_backs.decided(action, seen, now)
                case Release():
                    _mean_to_start(work, action, now)
                case ScaleUp() | ScaleDown():
                    log.info("service=%s replicas=%d why=%s", action.service, action.replicas, action.why)
        for uid in confirm.over_time(work, now):
            work.run(
                replace(
                    work.runs[uid],
                    state=RunState.STOPPING,
                    intent=Intent.TIME_LIMIT,
                    intent_at=now,
                    intent_why="used up max_hours",
                )
            )
        _stop_cancelled(work, now)
        _tell_waits(work, plan, now)
        _tell_deadlines(work, now)
        changes += self._hand_backs.followed(work, seen, now)
        changes += self._bookkeeping(seen, plan, acted=True)
        changes = [*work.changes(), *changes]
        if changes:
            self._out.store.record(changes, token)

    def _write_down(self, work: Work, seen: Snapshot, plan: Plan, token: int) -> None:
        """Observe-only: the plan is kept, and whoever would run is told why it does not."""
        observing = [
            TaskWait(job=action.job, task=action.task, wait=Wait(reason=WaitReason.OBSERVE_ONLY))
            for action in plan.actions
            if isinstance(action, Release)
        ]
        _tell_waits(work, replace(plan, waits=(*plan.waits, *observing)), plan.at)
        changes = [*work.changes(), *self._bookkeeping(seen, plan, acted=False)]
        if changes:
            self._out.store.record(changes, token)

    def _bookkeeping(self, seen: Snapshot, plan: Plan, *, acted: bool) -> list[Change]:
        changes: list[Change] = []
        now = plan.at
        if plan.actions or self._kept_at is None or now - self._kept_at >= _KEEP_EVERY:
            self._kept_at = now
            changes.append(KeepTurn(snapshot=seen, plan=plan, acted=acted))
        board = ShowBoard(board=look.board(seen, observe_only=not acted))
        if self._board is None or _differs(self._board, board):
            self._board = board
            changes.append(board)
        for wanted in seen.demands:
            row = Observed(at=now, service=wanted.service, have=wanted.have, want=wanted.want)
            last = self._observed.get(wanted.service)
            if wanted.known and (
                last is None or (last.have, last.want) != (row.have, row.want) or now - last.at >= _OBSERVED_EVERY
            ):
                self._observed[wanted.service] = row
                changes.append(row)
        return changes

    def _act(self, work: Work, plan: Plan, reports: Sequence[Report], token: int, now: datetime) -> None:
        """Whatever is left undone here is done again by the next turn."""
        self._keep_asking(work, reports)
        for action in plan.actions:
            match action:
                case TakeBack():
                    _try(f"take back {action.uid}", self._out.executor.take_back, action.uid, action.grace_s)
                case Release():
                    _try(f"release {action.uid}", self._out.executor.release, action.uid, action.placement)
                case ScaleUp():
                    _try(
                        f"scale {action.service}",
                        self._out.cluster.scale,
                        action.service,
                        action.replicas,
                        (),
                        action.nodes,
                    )
                case ScaleDown():
                    _try(
                        f"scale {action.service}",
                        self._out.cluster.scale,
                        action.service,
                        action.replicas,
                        action.leave_first,
                        (),
                    )
        self._hand_over(work, token, now)

    def _keep_asking(self, work: Work, reports: Sequence[Report]) -> None:
        """What earlier turns meant and the executor does not show yet: a process that died in between loses nothing."""
        phases = {report.uid: report.phase for report in reports}
        grace = self._terms.policy.grace_s
        cancelled: set[JobId] = set()
        for run in work.runs.values():
            if run.state in TERMINAL_RUN:
                continue
            phase = phases.get(run.uid)
            if run.intent is Intent.CANCEL:
                cancelled.add(run.job)
            elif run.intent is not Intent.NONE and phase not in {Phase.STOPPING, Phase.ENDED}:
                _try(f"take back {run.uid}", self._out.executor.take_back, run.uid, grace)
            elif run.intent is Intent.NONE and phase is Phase.GATED:
                _try(f"release {run.uid}", self._out.executor.release, run.uid, run.placement)
        cancelled |= {job.id for job in work.jobs.values() if job.cancelled_by}
        for report in reports:
            task = work.tasks[report.job][report.task]
            if report.phase is Phase.GATED and task.state is TaskState.FAILED:
                # We gave up a task that the executor would try again: its time is used up, or nobody saw why it ends.
                why = work.jobs[report.job].why
                _try(f"give up {report.uid}", self._out.executor.give_up, report.uid, why)
        for job in cancelled:
            _try(f"cancel job-{job}", self._out.executor.cancel, job, grace)

    def _hand_over(self, work: Work, token: int, now: datetime) -> None:
        """Jobs that may run become known to the executor; its gates keep them from running."""
        for job in list(work.jobs.values()):
            ready = job.state in {JobState.WAITING, JobState.RUNNING} and not job.cancelled_by
            if not ready or job.handed_over or (job.spec.start_after is not None and job.spec.start_after > now):
                continue
            order = templates.fill(job.spec, job.id, self._terms.house.terms.storage_root)
            if _try(f"submit {job.label}", self._out.executor.submit, order):
                work.job(replace(job, handed_over=True))
                self._out.store.record(work.changes(), token)


def _try(what: str, call: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> bool:
    try:
        call(*arguments, **named)
    except Unavailable as error:
        log.warning("action=%r failed=%s, tried again at the next turn", what, error)
        return False
    return True


def _expire(work: Work, job: Job, now: datetime, why: str) -> None:
    for task in list(work.tasks[job.id].values()):
        work.move_task(job.id, task.name, TaskState.CANCELLED, now)
    work.move_job(job.id, JobState.EXPIRED, now, why=why)
    work.tell(job.id, NoticeKind.EXPIRED, now, {"why": why})


def _mean_to_stop(work: Work, action: TakeBack, now: datetime) -> None:
    work.run(
        replace(
            work.runs[action.uid],
            state=RunState.STOPPING,
            intent=Intent.HAND_BACK,
            intent_at=now,
            intent_why=action.why,
            for_service=action.service,
        )
    )


def _mean_to_start(work: Work, action: Release, now: datetime) -> None:
    attempt = work.attempts.get((action.job, action.task), 0) + 1
    work.add_run(
        Run(
            uid=action.uid,
            job=action.job,
            task=action.task,
            attempt=attempt,
            placement=action.placement,
            state=RunState.STARTING,
            since=now,
            window_until=action.until,
        )
    )
    work.move_task(action.job, action.task, TaskState.RUNNING, now)
    if work.jobs[action.job].state is not JobState.RUNNING:
        job = work.jobs[action.job]
        # `started_at` is set when its program is seen running; until then only its state moves.
        work.job(replace(job, state=JobState.RUNNING, told_wait=""))


def _stop_cancelled(work: Work, now: datetime) -> None:
    for run in list(work.runs.values()):
        by = work.jobs[run.job].cancelled_by
        if by and run.state not in TERMINAL_RUN and run.intent is Intent.NONE:
            work.run(
                replace(
                    run,
                    state=RunState.STOPPING,
                    intent=Intent.CANCEL,
                    intent_at=now,
                    intent_why=f"cancelled by {by}",
                )
            )


def _tell_waits(work: Work, plan: Plan, now: datetime) -> None:
    for waiting in plan.waits:
        task = work.tasks[waiting.job][waiting.task]
        if task.wait is None or _news(task.wait, waiting.wait):
            work.task(replace(task, wait=waiting.wait))
        job = work.jobs[waiting.job]
        first_time = job.state is JobState.WAITING and not job.told_wait
        if first_time and waiting.wait.reason not in _QUIET_WAITS:
            work.tell(job.id, NoticeKind.WAITING, now, notices.waiting(waiting.wait))
            work.job(replace(job, told_wait=str(waiting.wait.reason)))


def _news(old: Wait, new: Wait) -> bool:
    if replace(old, earliest=None) != replace(new, earliest=None):
        return True
    if old.earliest is None or new.earliest is None:
        return old.earliest is not new.earliest
    return abs(new.earliest - old.earliest) > _EARLIEST_STEP


def _tell_deadlines(work: Work, now: datetime) -> None:
    for job in list(work.jobs.values()):
        deadline = job.spec.deadline
        if deadline is None or job.told_deadline or job.state in TERMINAL_JOB:
            continue
        left = [look.left_s(job, task) for task in work.tasks[job.id].values() if task.state is not TaskState.DONE]
        needs = max((seconds for seconds in left if seconds is not None), default=None)
        if needs is not None and now + timedelta(seconds=needs) > deadline:
            end = now + timedelta(seconds=needs)
            work.tell(
                job.id,
                NoticeKind.DEADLINE_AT_RISK,
                now,
                {"deadline": deadline.isoformat(), "earliest_end": end.isoformat()},
            )
            work.job(replace(job, told_deadline=True))


def _differs(old: ShowBoard, new: ShowBoard) -> bool:
    """Worth writing: another picture, or the same one so old that its age would worry people."""
    same = replace(old.board, at=new.board.at) == new.board
    return not same or new.board.at - old.board.at >= _BOARD_EVERY
