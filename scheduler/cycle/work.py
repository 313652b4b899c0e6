"""The live jobs within one turn: read once, changed as values, recorded as changes with the state they were read in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from scheduler.jobs.job import (
    JOB_MOVES,
    RUN_MOVES,
    TASK_MOVES,
    TERMINAL_JOB,
    TERMINAL_RUN,
    Job,
    JobId,
    JobState,
    Run,
    Task,
    TaskName,
    TaskState,
    Uid,
    lawful,
)
from scheduler.jobs.mail import Json, Notice, NoticeId, NoticeKind
from scheduler.ports import AddRun, Change, ChangeJob, ChangeRun, ChangeTask, Live, Tell


class Work:
    """Live jobs, and what has been decided of them since they were read.

    Every move goes through the tables of `jobs/job.py`, so a plan that would break them is a loud bug and not a row.
    """

    def __init__(self, live: Live) -> None:
        self.jobs: dict[JobId, Job] = {job.id: job for job in live.jobs}
        self.tasks: dict[JobId, dict[TaskName, Task]] = {job.id: {} for job in live.jobs}
        for task in live.tasks:
            self.tasks[task.job][task.name] = task
        self.runs: dict[Uid, Run] = {run.uid: run for run in live.runs if run.job in self.jobs}
        self.attempts = dict(live.attempts)
        self._next_job = live.next_job
        self._was_job = dict(self.jobs)
        self._was_task = {(task.job, task.name): task for task in live.tasks}
        self._was_run = dict(self.runs)
        self._added: list[AddRun] = []
        self._notices: list[Tell] = []

    def new_id(self) -> JobId:
        """The id of the next job."""
        return self._next_job

    def add_job(self, job: Job, tasks: Sequence[Task]) -> None:
        """A new job; `AddJob` records it, later moves count from here."""
        self._next_job = JobId(job.id + 1)
        self.jobs[job.id] = self._was_job[job.id] = job
        self.tasks[job.id] = {task.name: task for task in tasks}
        self._was_task.update({(task.job, task.name): task for task in tasks})

    def runs_of(self, job: JobId) -> tuple[Run, ...]:
        """Runs of a job that have not ended."""
        return tuple(run for run in self.runs.values() if run.job == job and run.state not in TERMINAL_RUN)

    def job(self, job: Job) -> None:
        """The job as it is now."""
        if job.state != self.jobs[job.id].state:
            lawful(JOB_MOVES, self.jobs[job.id].state, job.state)
        self.jobs[job.id] = job

    def move_job(self, job: JobId, state: JobState, now: datetime, why: str = "") -> None:
        """The job goes to another state, with the times that belong to it."""
        old = self.jobs[job]
        new = replace(old, state=state)
        if state in TERMINAL_JOB:
            new = replace(new, ended_at=now, why=why or old.why)
        self.job(new)

    def task(self, task: Task) -> None:
        """The task as it is now."""
        old = self.tasks[task.job][task.name]
        if task.state != old.state:
            lawful(TASK_MOVES, old.state, task.state)
        self.tasks[task.job][task.name] = task

    def move_task(self, job: JobId, name: TaskName, state: TaskState, now: datetime) -> None:
        """The task goes to another state; why it waited is forgotten."""
        self.task(replace(self.tasks[job][name], state=state, since=now, wait=None))

    def add_run(self, run: Run) -> None:
        """A new run."""
        self.runs[run.uid] = run
        self.attempts[(run.job, run.task)] = run.attempt
        self._added.append(AddRun(run=run))

    def run(self, run: Run) -> None:
        """The run as it is now."""
        old = self.runs[run.uid]
        if run.state != old.state:
            lawful(RUN_MOVES, old.state, run.state)
        self.runs[run.uid] = run

    def tell(self, job: JobId, kind: NoticeKind, now: datetime, payload: Mapping[str, Json]) -> None:
        """A notice goes out with the changes."""
        self._notices.append(Tell(notice=Notice(id=NoticeId(0), job=job, kind=kind, at=now, payload=payload)))

    def changes(self) -> tuple[Change, ...]:
        """All that differs from what was read, guarded by the states that were read; then it counts as read."""
        added = {change.run.uid: self.runs[change.run.uid] for change in self._added}
        changes: list[Change] = []
        changes += _changed(ChangeJob, self.jobs, self._was_job)
        now_tasks = {(task.job, task.name): task for tasks in self.tasks.values() for task in tasks.values()}
        changes += _changed(ChangeTask, now_tasks, self._was_task)
        changes += [AddRun(run=run) for run in added.values()]
        changes += _changed(ChangeRun, {uid: run for uid, run in self.runs.items() if uid not in added}, self._was_run)
        changes += self._notices
        self._was_job, self._was_task, self._was_run = dict(self.jobs), now_tasks, dict(self.runs)
        self._added, self._notices = [], []
        return tuple(changes)


def _changed(kind: type, now: Mapping, was: Mapping) -> Iterable[Change]:  # type: ignore[type-arg]
    return [kind(was=was[key].state, now=value) for key, value in now.items() if value is not was[key]]
