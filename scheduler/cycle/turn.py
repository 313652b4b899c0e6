"""One turn of the scheduler: take in, observe, decide, record what is meant, act; the next turn confirms."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scheduler.cycle import confirm, intake, intents, look, pinning
from scheduler.cycle.acts import Acts
from scheduler.cycle.hand_backs import HandBacks
from scheduler.cycle.look import Fleet
from scheduler.cycle.work import Work
from scheduler.errors import Conflict, Deposed, Unavailable
from scheduler.fleet import demand, pattern, replica_state, scaling
from scheduler.fleet.calendar import Calendar
from scheduler.fleet.demand import DemandMemory, ServiceDemand
from scheduler.fleet.forecast import Forecaster, Soon
from scheduler.fleet.pattern import Pattern
from scheduler.fleet.pool import Pool, ReplicaPhase
from scheduler.fleet.services import Mode, Service
from scheduler.jobs.job import JobId, Uid
from scheduler.jobs.mail import Request, RequestId
from scheduler.jobs.reports import Report
from scheduler.jobs.waits import Wait, WaitReason
from scheduler.planning import planner
from scheduler.planning.plan import Move, Plan, Release, ScaleDown, ScaleUp, TakeBack, TaskWait
from scheduler.planning.snapshot import Snapshot
from scheduler.policy import Policy
from scheduler.ports import (
    Change,
    Cluster,
    Executor,
    Images,
    KeepTurn,
    Leadership,
    LogReader,
    Metrics,
    Observed,
    ShowBoard,
    Store,
)

log = logging.getLogger(__name__)

_PATTERN_DAYS = timedelta(days=14)
_PATTERN_AGE = timedelta(minutes=10)
_SHARES_DAYS = timedelta(days=7)
_SHARES_AGE = timedelta(minutes=10)
_OBSERVED_EVERY = timedelta(minutes=10)  # also when nothing changed, so that gaps can be told from calm
_KEEP_EVERY = timedelta(seconds=10)  # a turn without an action is kept so often
_BOARD_EVERY = timedelta(seconds=10)
_REQUESTS_A_TICK = 100  # so that a flood of requests keeps no service waiting for its turn
_MOST_TRIES = 3  # of a request that breaks each tick, which is a bug; then it is turned away


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Everything that a cycle is plugged into."""

    metrics: Metrics
    cluster: Cluster
    executor: Executor
    logs: LogReader
    store: Store
    leadership: Leadership
    images: Images | None = None  # None: images are not used here


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


def _never() -> bool:
    return False


class Cycle:
    """One scheduler. Callers see to it that `take_in` and `turn` do not overlap; `observe` may run beside `take_in`."""

    def __init__(self, outside: Outside, terms: Terms) -> None:
        self._out = outside
        self._terms = terms
        ready = (lambda _: True) if outside.images is None else pinning.is_pinned
        self._acts = Acts(outside.executor, outside.cluster, terms.policy.grace_s, ready)
        self._memory = DemandMemory()
        self._forecaster = Forecaster(terms.services, terms.policy)
        self._pattern: Pattern | None = None
        self._pattern_at: datetime | None = None
        self._shares: Mapping[str, float] = {}
        self._shares_at: datetime | None = None
        self._observed: dict[str, Observed] = {}
        self._kept_at: datetime | None = None
        self._board: ShowBoard | None = None
        self._nodes: dict[str, int] | None = None
        self._hand_backs = HandBacks()
        self._tries: Counter[RequestId] = Counter()

    @property
    def owner(self) -> str:
        """In whose name it holds the lease."""
        return self._terms.owner

    def take_in(self, now: datetime, enough: Callable[[], bool] = _never) -> bool:
        """Answers open requests, at least one and then until it is `enough`; True if a turn should follow soon."""
        requests = self._out.store.open_requests()
        if not requests:
            return False
        token = self._token(now)
        if token is None:
            return False
        house = replace(self._terms.house, nodes=self._nodes)
        work = Work(self._out.store.live())
        desk = intake.Desk(work=work, store=self._out.store, logs=self._out.logs, house=house, now=now)
        # One that broke a tick comes after all others: a bug that one request meets must not keep people waiting.
        for request in sorted(requests, key=lambda request: self._tries[request.id])[:_REQUESTS_A_TICK]:
            if not self._answer(desk, request, token) or enough():
                break
        return True

    def _answer(self, desk: intake.Desk, request: Request, token: int) -> bool:
        """False if what was read of the jobs is older than what is stored: the next tick reads anew."""
        self._tries[request.id] += 1
        try:
            broken = self._tries[request.id] > _MOST_TRIES
            self._out.store.record(desk.turn_away(request) if broken else desk.take_in(request), token)
        except Conflict as conflict:
            log.warning("request=%s conflict=%s, decided anew at the next tick", request.id, conflict)
            del self._tries[request.id]
            return False
        except (Unavailable, Deposed):
            del self._tries[request.id]
            raise
        del self._tries[request.id]
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
        return Fleet(at=now, pool=pool, demands=tuple(demands), soon=self._look_ahead(pool, demands, now))

    def _look_ahead(self, pool: Pool, demands: Sequence[ServiceDemand], now: datetime) -> tuple[Soon, ...]:
        """Places to keep, once the forecast has learned for a while; what it learned does not outlive the process."""
        standing = Counter(one.service for one in pool.replicas if one.phase is not ReplicaPhase.LEAVING)
        asked = [
            demand.want if service.mode is Mode.MANAGE else standing[service.name]
            for service, demand in zip(self._terms.services, demands, strict=True)
        ]
        self._forecaster.learn(now.timestamp(), [demand.load for demand in demands], asked)
        learned = self._forecaster.ahead().days >= self._terms.policy.forecast_after_days
        return self._forecaster.soon() if learned else ()

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
        # Who only observes cannot ask the executor to let go of a job; one that it does not know may end.
        cancel = (lambda job: not work.jobs[job].handed_over) if self._terms.observe_only else self._acts.cancel
        intents.end_overdue_waits(work, now, self._terms.policy, cancel)
        reports = self._confirm(work, now, token)
        seen = self.snapshot(work, fleet, reports)
        plan = planner.plan(seen, self._terms.policy)
        if self._terms.observe_only:
            self._write_down(work, seen, plan, token)
            return plan
        self._record(work, seen, plan, reports, token)
        self._acts.act(work, plan, reports)
        if self._acts.hand_over(work, reports, now, self._terms.house.terms.storage_root):
            self._out.store.record(work.changes(), token)
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
            self._team_shares(fleet.at),
            self._terms.policy,
        )

    def look_only(self, now: datetime) -> tuple[Snapshot, Plan]:
        """What would be decided now; nothing is recorded, nothing is done."""
        fleet = self.observe(now)
        work = Work(self._out.store.live())
        reports = confirm.known(work, self._out.executor.reports(_attempts(work, work.jobs), now))
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

    def _team_shares(self, now: datetime) -> Mapping[str, float]:
        """Each team's part of the GPU-hours that teams used in the last days."""
        if self._shares_at is None or now - self._shares_at > _SHARES_AGE:
            hours = self._out.store.team_hours(now - _SHARES_DAYS, now)
            used = sum(hours.values())
            self._shares = {team: spent / used for team, spent in hours.items()} if used > 0 else {}
            self._shares_at = now
        return self._shares

    def _confirm(self, work: Work, now: datetime, token: int) -> tuple[Report, ...]:
        known = [job.id for job in work.jobs.values() if job.handed_over or job.cancelled_by]
        reports = confirm.known(work, self._out.executor.reports(_attempts(work, known), now))
        confirm.confirm(work, reports, now, self._terms.policy, self._terms.house.terms)
        changes = work.changes()
        if changes:
            self._out.store.record(changes, token)
        return reports

    def _record(self, work: Work, seen: Snapshot, plan: Plan, reports: Sequence[Report], token: int) -> None:
        now = plan.at
        changes: list[Change] = []
        for action in plan.actions:
            match action:
                case TakeBack():
                    intents.stop(work, action, now)
                    if action.urgent:
                        changes += self._hand_backs.decided(action, seen, now)
                case Release():
                    intents.start(work, action, now)
                case ScaleUp() | ScaleDown():
                    log.info("service=%s replicas=%d why=%s", action.service, action.replicas, action.why)
                case Move():
                    log.info("service=%s move=%s to=%s why=%s", action.service, action.replica, action.node, action.why)
        if self._out.images is not None:
            pinning.pin(work, self._out.images, now)
        intents.stop_late(work, now)
        intents.stop_unstarted(work, reports, now, self._terms.policy)
        intents.stop_cancelled(work, now)
        intents.tell_waits(work, plan, now)
        intents.tell_deadlines(work, now)
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
        intents.tell_waits(work, replace(plan, waits=(*plan.waits, *observing)), plan.at)
        changes = [*work.changes(), *self._bookkeeping(seen, plan, acted=False)]
        if changes:
            self._out.store.record(changes, token)

    def _bookkeeping(self, seen: Snapshot, plan: Plan, *, acted: bool) -> list[Change]:
        changes: list[Change] = []
        now = plan.at
        if plan.actions or self._kept_at is None or now - self._kept_at >= _KEEP_EVERY:
            self._kept_at = now
            changes.append(KeepTurn(snapshot=seen, plan=plan, acted=acted))
        drawn = look.board(seen, observe_only=not acted)
        board = ShowBoard(board=replace(drawn, alerts=(*self._acts.troubles(), *drawn.alerts)))
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


def _attempts(work: Work, jobs: Iterable[JobId]) -> dict[JobId, frozenset[Uid]]:
    """The attempts that we take for live, by job."""
    return {job: frozenset(run.uid for run in work.runs_of(job)) for job in jobs}


def _differs(old: ShowBoard, new: ShowBoard) -> bool:
    """Worth writing: another picture, or the same one so old that its age would worry people."""
    same = replace(old.board, at=new.board.at) == new.board
    return not same or new.board.at - old.board.at >= _BOARD_EVERY
