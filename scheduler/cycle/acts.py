"""Carrying out what was recorded; whatever is left undone is done again by the next turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import ParamSpec

from scheduler.cycle.work import Work
from scheduler.errors import Unavailable
from scheduler.jobs import templates
from scheduler.jobs.job import (
    TERMINAL_JOB,
    TERMINAL_RUN,
    TERMINAL_TASK,
    Intent,
    Job,
    JobId,
    JobState,
    Task,
    TaskName,
    TaskState,
)
from scheduler.jobs.reports import Phase, Report
from scheduler.planning.plan import Move, Plan, Release, ScaleDown, ScaleUp, TakeBack
from scheduler.ports import Cluster, Executor

log = logging.getLogger(__name__)

P = ParamSpec("P")
_MAY_RUN = frozenset({JobState.WAITING, JobState.RUNNING, JobState.PREEMPTED})
_WAITS = frozenset({TaskState.WAITING, TaskState.PREEMPTED})
_ASK_AGAIN = timedelta(seconds=10)


class Acts:
    """The hands of a turn."""

    def __init__(
        self, executor: Executor, cluster: Cluster, grace_s: float, may_go: Callable[[Job], bool] = lambda _: True
    ) -> None:
        self._executor = executor
        self._may_go = may_go  # all that has to be known of a job before it is handed over is known
        self._cluster = cluster
        self._grace_s = grace_s
        self._troubles: dict[JobId, str] = {}
        self._asked_at: dict[JobId, datetime] = {}  # jobs handed over again for tasks without an attempt

    def troubles(self) -> tuple[str, ...]:
        """Jobs that the executor does not take, a sentence each."""
        return tuple(said for _, said in sorted(self._troubles.items()))

    def act(self, work: Work, plan: Plan, reports: Sequence[Report]) -> None:
        """What earlier turns meant and what this one means, in the order of the plan."""
        self._keep_asking(work, reports, plan.at)
        for action in plan.actions:
            match action:
                case TakeBack():
                    _try(f"take back {action.uid}", self._executor.take_back, action.uid, action.grace_s)
                case Release():
                    _try(f"release {action.uid}", self._executor.release, action.uid, action.placement)
                case ScaleUp():
                    _try(
                        f"scale {action.service}",
                        self._cluster.scale,
                        action.service,
                        action.replicas,
                        (),
                        action.nodes,
                    )
                case ScaleDown():
                    _try(
                        f"scale {action.service}",
                        self._cluster.scale,
                        action.service,
                        action.replicas,
                        action.leave_first,
                        (),
                    )
                case Move():
                    pass  # a hint in the log: where a replica goes is for its own scheduler to say

    def _keep_asking(self, work: Work, reports: Sequence[Report], now: datetime) -> None:
        """What earlier turns meant and the executor does not show yet: a process that died in between loses nothing."""
        phases = {report.uid: report.phase for report in reports}
        grace = self._grace_s
        cancelled: set[JobId] = set()
        for run in work.runs.values():
            if run.state in TERMINAL_RUN:
                continue
            phase = phases.get(run.uid)
            if run.intent is Intent.CANCEL:
                cancelled.add(run.job)
            elif run.intent is not Intent.NONE and phase not in {Phase.STOPPING, Phase.ENDED}:
                left = grace if run.kill_at is None else max((run.kill_at - now).total_seconds(), 1.0)
                _try(f"take back {run.uid}", self._executor.take_back, run.uid, left)
            elif run.intent is Intent.NONE and phase is Phase.GATED:
                _try(f"release {run.uid}", self._executor.release, run.uid, run.placement)
        cancelled |= {job.id for job in work.jobs.values() if job.cancelled_by or _only_left(work, job)}
        self._settle(work, reports)
        for job in cancelled:
            self.cancel(job)

    def _settle(self, work: Work, reports: Sequence[Report]) -> None:
        """Gated attempts of tasks that have ended: the executor would run them again."""
        for report in reports:
            if report.phase is not Phase.GATED:
                continue  # of one that went while nobody looked, the executor may not even know the task
            task = work.tasks[report.job][report.task]
            if task.state is TaskState.DONE:
                # Its end was seen by us alone: the executor took the attempt for stopped.
                _try(f"skip {report.uid}", self._executor.skip, report.uid, "done already")
            if task.state is TaskState.FAILED:
                # We gave it up: its time is used up, or nobody saw why it ends.
                why = work.jobs[report.job].why
                _try(f"give up {report.uid}", self._executor.give_up, report.uid, why)

    def cancel(self, job: JobId) -> bool:
        """The executor ends all of a job; whether it took that in."""
        return _try(f"cancel job-{job}", self._executor.cancel, job, self._grace_s)

    def hand_over(self, work: Work, reports: Sequence[Report], now: datetime, storage_root: str) -> bool:
        """Jobs that may run become known to the executor; its gates keep them from running. True if one did."""
        handed = False
        alive = {(report.job, report.task) for report in reports if report.phase is not Phase.ENDED}
        for job in list(work.jobs.values()):
            if job.cancelled_by or job.state not in _MAY_RUN:
                continue
            if job.handed_over:
                if self._lacks_attempts(work, job, alive, now):
                    self._submit(work, job, storage_root)
            elif self._may_go(job) and (job.spec.start_after or now) <= now and self._submit(work, job, storage_root):
                work.job(replace(job, handed_over=True))
                handed = True
        self._asked_at = {job: at for job, at in self._asked_at.items() if job in work.jobs}
        self._troubles = {job: said for job, said in self._troubles.items() if job in work.jobs}
        return handed

    def _submit(self, work: Work, job: Job, storage_root: str) -> bool:
        order = templates.fill(job.spec, job.id, storage_root, job.digests, job.kept)
        ended = {task.name: task.state is TaskState.DONE for task in work.tasks[job.id].values() if _over(task)}
        try:
            self._executor.submit(order, ended)
        except Unavailable as error:
            log.warning("submit=%s failed=%s, tried again at the next turn", job.label, error)
            self._troubles[job.id] = f"{job.label} cannot be handed over, it is tried again: {error}"
            return False
        self._troubles.pop(job.id, None)
        return True

    def _lacks_attempts(self, work: Work, job: Job, alive: Collection[tuple[JobId, TaskName]], now: datetime) -> bool:
        """A task waits, and the executor shows nothing of it: the rest of a job that it could not take at once."""
        waits = any(task.state in _WAITS and (job.id, task.name) not in alive for task in work.tasks[job.id].values())
        if not waits or now - self._asked_at.get(job.id, now - _ASK_AGAIN) < _ASK_AGAIN:
            return False
        self._asked_at[job.id] = now
        return True


def _over(task: Task) -> bool:
    return task.state in TERMINAL_TASK


def _only_left(work: Work, job: Job) -> bool:
    """All its tasks have ended, and only the executor still holds something of it."""
    tasks = work.tasks[job.id].values()
    return job.state not in TERMINAL_JOB and job.handed_over and all(task.state in TERMINAL_TASK for task in tasks)


def _try(what: str, call: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> bool:
    try:
        call(*arguments, **named)
    except Unavailable as error:
        log.warning("action=%r failed=%s, tried again at the next turn", what, error)
        return False
    return True
