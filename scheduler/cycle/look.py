"""Live jobs, pool and demand, put together: the snapshot that is planned on, and the board that people see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.cycle.work import Work
from scheduler.fleet import calendar, seats, windows
from scheduler.fleet.calendar import Calendar
from scheduler.fleet.demand import ServiceDemand
from scheduler.fleet.forecast import Soon
from scheduler.fleet.pattern import Pattern
from scheduler.fleet.pool import HolderKind, Pool
from scheduler.fleet.services import Service
from scheduler.jobs.job import (
    TERMINAL_RUN,
    Intent,
    Job,
    JobId,
    JobState,
    Run,
    RunState,
    Task,
    TaskName,
    TaskState,
)
from scheduler.jobs.mail import Board, BoardService, BoardWindow
from scheduler.jobs.reports import Phase, Report
from scheduler.jobs.spec import StepSpec
from scheduler.planning.snapshot import Lease, Snapshot, WaitingTask
from scheduler.policy import Policy

_WANTS_GPUS = frozenset({JobState.WAITING, JobState.RUNNING, JobState.PREEMPTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What the outside said at one time, before any job is looked at."""

    at: datetime
    pool: Pool
    demands: tuple[ServiceDemand, ...]
    soon: tuple[Soon, ...] = ()  # replicas that will probably be wanted before GPUs could be handed back


def snapshot(
    work: Work,
    fleet: Fleet,
    reports: Sequence[Report],
    services: tuple[Service, ...],
    pattern: Pattern,
    hours: Calendar,
    team_gpus: Mapping[str, int],
    team_shares: Mapping[str, float],
    policy: Policy,
) -> Snapshot:
    """Everything that the plan of this turn depends on."""
    now = fleet.at
    gated = {(report.job, report.task): report for report in reports if report.phase is Phase.GATED}
    return Snapshot(
        now=now,
        pool=fleet.pool,
        services=services,
        demands=fleet.demands,
        windows=windows.windows(
            pool=fleet.pool,
            services=services,
            demands=fleet.demands,
            pattern=pattern,
            calendar=hours,
            policy=policy,
            now=now,
        ),
        soon=fleet.soon,
        waiting=tuple(_waiting(work, gated)),
        leases=tuple(_lease(run, work) for run in work.runs.values() if run.state not in TERMINAL_RUN),
        team_gpus=team_gpus,
        team_shares=team_shares,
        lending_open=calendar.is_open(hours, now),
        opens_at=calendar.opens_at(hours, now),
    )


def _waiting(work: Work, gated: Mapping[tuple[JobId, TaskName], Report]) -> list[WaitingTask]:
    waiting = []
    for job in work.jobs.values():
        if job.state not in _WANTS_GPUS or job.cancelled_by:
            continue
        steps = {step.name: step for step in job.spec.steps}
        for task in work.tasks[job.id].values():
            if task.state in {TaskState.WAITING, TaskState.PREEMPTED}:
                report = gated.get((job.id, task.name))
                waiting.append(_waiting_task(job, task, steps[task.step], report))
    return waiting


def _waiting_task(job: Job, task: Task, step: StepSpec, gated: Report | None) -> WaitingTask:
    return WaitingTask(
        job=job.id,
        task=task.name,
        step=task.step,
        uid=gated.uid if gated else None,
        gpus=step.gpus if gated is None or gated.gpus is None else (gated.gpus,),
        nodes=step.nodes,
        submitted_at=job.submitted_at,
        since=task.since,
        priority=job.spec.priority,
        team=job.spec.team,
        estimate_s=left_s(job, task),
        can_save=job.spec.checkpoint is not None,
        saves=job.spec.checkpoint is not None and job.spec.checkpoint.on_sigterm,
        preempted=task.state is TaskState.PREEMPTED,
        start_after=job.spec.start_after,
        deadline=job.spec.deadline,
        parallel=step.parallel,
    )


def left_s(job: Job, task: Task) -> float | None:
    """Seconds that a task probably still needs; None without an estimate."""
    if job.spec.estimate_hours is None:
        return None
    done = task.progress.fraction if task.progress and job.spec.checkpoint else 0.0
    return job.spec.estimate_hours * 3600 * (1 - done)


def _lease(run: Run, work: Work) -> Lease:
    job = work.jobs[run.job]
    checkpoint = job.spec.checkpoint
    grace = timedelta(seconds=checkpoint.save_s) if checkpoint else timedelta()
    return Lease(
        uid=run.uid,
        job=run.job,
        task=run.task,
        step=work.tasks[run.job][run.task].step,
        placement=run.placement,
        since=run.since,
        team=job.spec.team,
        priority=job.spec.priority,
        stopping=run.intent is not Intent.NONE or run.state is RunState.STOPPING,
        stop_by=run.intent_at + grace if run.intent_at else None,
        kill_at=run.kill_at,
        can_save=checkpoint is not None and checkpoint.on_sigterm,
        save_s=checkpoint.save_s if checkpoint else 0.0,
        every_s=checkpoint.every_s if checkpoint else None,
        saved_at=run.progress.saved_at if run.progress else None,
    )


def board(seen: Snapshot, *, observe_only: bool) -> Board:
    """What is free now and until when, as people see it."""
    pool = seen.pool
    unknown = {node.name for node in pool.nodes if node.unknown}
    by_kind = dict.fromkeys(HolderKind, 0)
    for hold in pool.holds:
        by_kind[hold.kind] += hold.gpus
    held = pool.held()
    have = {demand.service: demand for demand in seen.demands}
    return Board(
        at=seen.now,
        gpus=sum(node.gpus for node in pool.nodes),
        serving=by_kind[HolderKind.REPLICA] + by_kind[HolderKind.OTHER],
        running=by_kind[HolderKind.RUN],
        idle=sum(pool.idle().values()),
        unknown=sum(node.gpus - held.get(node.name, 0) for node in pool.nodes if node.name in unknown),
        services=tuple(
            BoardService(
                name=service.name,
                have=have[service.name].have if service.name in have else 0,
                want=have[service.name].want if service.name in have else 0,
                gpus=sum(r.gpus for r in pool.replicas if r.service == service.name and r.node),
                why=have[service.name].why if service.name in have else "nothing is known of it yet",
            )
            for service in seen.services
        ),
        windows=tuple(
            BoardWindow(
                node=window.node,
                gpus=window.gpus,
                since=window.since,
                until=window.until,
                confidence=window.confidence,
                why=window.why,
            )
            for window in seen.windows
        ),
        waiting_tasks=len(seen.waiting),
        waiting_gpus=sum(max(task.gpus) * task.nodes for task in seen.waiting),
        observe_only=observe_only,
        alerts=(*pool.alerts, *(alert for demand in seen.demands for alert in demand.alerts), *_too_large(seen)),
    )


def _too_large(seen: Snapshot) -> list[str]:
    """Services that can never get a replica, which is told here alone: nothing else waits for them."""
    largest = max((node.gpus for node in seen.pool.nodes), default=0)
    return [
        f"{service.name}: a replica needs {service.gpus_per_replica} GPUs on one node, the largest node has {largest}; "
        "set gpus_per_replica of its [[service]], or add larger nodes."
        for service in seen.services
        if seats.fits_nowhere(service.gpus_per_replica, seen.pool)
    ]
