"""What a turn means to do, as changes of what we remember; recorded before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from scheduler.cycle import look, notices
from scheduler.cycle.work import Work
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
from scheduler.planning.plan import Plan, Release, TakeBack
from scheduler.policy import Policy

_EARLIEST_STEP = timedelta(seconds=60)  # a probable start that moved by less is no news
_QUIET_WAITS = frozenset({WaitReason.PREPARING, WaitReason.NEEDS_STEPS})


def end_overdue_waits(work: Work, now: datetime, policy: Policy, cancel: Callable[[JobId], bool]) -> None:
    """Jobs that nobody approved in time, and jobs whose deadline passed before they ran.

    `cancel` ends a job at the executor first, if it can: once a job has ended, nobody would ask for that again.
    """
    patience = timedelta(hours=policy.approval_hours)
    for job in list(work.jobs.values()):
        if job.state is JobState.AWAITING_APPROVAL and now - job.submitted_at > patience:
            expire(work, job, now, f"nobody approved it within {patience.total_seconds() / 3600:g} hours")
        elif _missed_its_deadline(work, job, now) and cancel(job.id):
            expire(work, job, now, "its deadline passed before GPUs were free")


def _missed_its_deadline(work: Work, job: Job, now: datetime) -> bool:
    waits = job.state is JobState.WAITING and job.started_at is None and not job.cancelled_by
    overdue = job.spec.deadline is not None and now > job.spec.deadline
    return waits and overdue and not work.runs_of(job.id)


def expire(work: Work, job: Job, now: datetime, why: str) -> None:
    """The job ends without having run."""
    for task in list(work.tasks[job.id].values()):
        work.move_task(job.id, task.name, TaskState.CANCELLED, now)
    work.move_job(job.id, JobState.EXPIRED, now, why=why)
    work.tell(job.id, NoticeKind.EXPIRED, now, {"why": why})


def stop(work: Work, action: TakeBack, now: datetime) -> None:
    """A run shall end so that a service gets its GPUs; one that is ending already shall end sooner."""
    run = work.runs[action.uid]
    if run.intent is Intent.NONE:
        run = _stopping(run, Intent.HAND_BACK, action.why, now)
    kill_at = now + timedelta(seconds=action.grace_s)
    work.run(replace(run, for_service=action.service or run.for_service, kill_at=kill_at))


def start(work: Work, action: Release, now: datetime) -> None:
    """A run shall begin."""
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


def stop_late(work: Work, now: datetime) -> None:
    """Runs whose task has used up max_hours, over all its runs, shall end."""
    for run in list(work.runs.values()):
        limit = work.jobs[run.job].spec.max_hours
        if limit is None or run.state in TERMINAL_RUN or run.intent is not Intent.NONE or run.started_at is None:
            continue
        if work.tasks[run.job][run.task].ran_s + (now - run.started_at).total_seconds() > limit * 3600:
            work.run(_stopping(run, Intent.TIME_LIMIT, "used up max_hours", now))


def stop_unstarted(work: Work, reports: Sequence[Report], now: datetime, policy: Policy) -> None:
    """Runs that do not begin for too long shall end: their task gets another chance elsewhere."""
    seen = {report.uid: report for report in reports if not report.whole_task}
    for run in list(work.runs.values()):
        report = seen.get(run.uid)
        if report is None or run.state is not RunState.STARTING or run.intent is not Intent.NONE:
            continue
        where, waited_s = ", ".join(run.placement), (now - run.since).total_seconds()
        if report.phase is Phase.GATED and waited_s > policy.start_s:
            work.run(_stopping(run, Intent.HAND_BACK, f"it could not be started on {where}", now))
        # Without a complaint it is most likely its image that takes so long.
        elif report.phase is Phase.STARTING and waited_s > (policy.start_s if report.message else policy.image_s):
            why = report.message or f"nothing of it was seen on {where} for {waited_s / 60:.0f} minutes"
            work.run(_stopping(run, Intent.NO_START, why, now))


def stop_cancelled(work: Work, now: datetime) -> None:
    """Runs of cancelled jobs shall end."""
    for run in list(work.runs.values()):
        by = work.jobs[run.job].cancelled_by
        if by and run.state not in TERMINAL_RUN and run.intent is Intent.NONE:
            work.run(_stopping(run, Intent.CANCEL, f"cancelled by {by}", now))


def _stopping(run: Run, intent: Intent, why: str, now: datetime) -> Run:
    return replace(run, state=RunState.STOPPING, intent=intent, intent_at=now, intent_why=why)


def tell_waits(work: Work, plan: Plan, now: datetime) -> None:
    """Each waiting task knows why, and people hear it once."""
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


def tell_deadlines(work: Work, now: datetime) -> None:
    """People hear early that a deadline cannot be met."""
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
