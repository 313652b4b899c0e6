"""What the executor saw, into what we remember: the only place where a run, a task or a job moves on evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from scheduler.cycle import notices
from scheduler.cycle.work import Work
from scheduler.jobs import flow, outcomes, usage
from scheduler.jobs.job import (
    TERMINAL_JOB,
    TERMINAL_RUN,
    TERMINAL_TASK,
    Job,
    JobId,
    JobState,
    Run,
    RunState,
    StepState,
    Task,
    TaskState,
    Uid,
)
from scheduler.jobs.mail import Json, NoticeKind
from scheduler.jobs.outcomes import Outcome, Verdict
from scheduler.jobs.progress import Progress
from scheduler.jobs.reports import Phase, Report
from scheduler.policy import Policy

# A resumed run says where it went on from in its first progress line; wait for it a little before telling people.
_FIRST_WORD = timedelta(seconds=20)
_PROGRESS_STEP = 0.05  # of the whole; smaller steps are not worth a card update

_STATE_OF_PHASE = {
    Phase.GATED: RunState.STARTING,
    Phase.STARTING: RunState.STARTING,
    Phase.RUNNING: RunState.RUNNING,
    Phase.STOPPING: RunState.STOPPING,
}
_TASK_AFTER = {
    Verdict.SUCCEEDED: TaskState.DONE,
    Verdict.PREEMPTED: TaskState.PREEMPTED,
    Verdict.LOST: TaskState.PREEMPTED,
    Verdict.CANCELLED: TaskState.CANCELLED,
}
_RUN_AFTER = {
    Verdict.SUCCEEDED: RunState.DONE,
    Verdict.FAILED: RunState.FAILED,
    Verdict.PREEMPTED: RunState.PREEMPTED,
    Verdict.LOST: RunState.LOST,
    Verdict.CANCELLED: RunState.CANCELLED,
}


@dataclass(slots=True)
class _Heard:
    """What must be told of one job after all its reports were read."""

    started: list[Run] = field(default_factory=list)
    resumed: list[Run] = field(default_factory=list)
    preempted: list[Run] = field(default_factory=list)
    lost: list[Run] = field(default_factory=list)
    moved_on: set[str] = field(default_factory=set)  # steps of which a task was done


def confirm(work: Work, reports: Iterable[Report], now: datetime, policy: Policy, terms: notices.Terms) -> None:
    """Brings `work` up to what the executor reports, and adds the notices that follow from it."""
    reports = known(work, reports)
    by_uid = {report.uid: report for report in reports if not report.whole_task}
    heard: Mapping[JobId, _Heard] = defaultdict(_Heard)
    alive = {report.job for report in by_uid.values() if report.phase is not Phase.ENDED}
    for uid in list(work.runs):
        run = work.runs[uid]
        if run.state not in TERMINAL_RUN:
            _confirm_run(work, run, by_uid.get(uid), now, policy, heard[run.job])
    for report in reports:
        if report.whole_task:
            _ended_unseen(work, report, now, heard[report.job])
    for job_id in list(work.jobs):
        if work.jobs[job_id].state not in TERMINAL_JOB:
            _confirm_job(work, job_id, heard[job_id], by_uid, now, terms, alive=job_id in alive)


def known(work: Work, reports: Iterable[Report]) -> tuple[Report, ...]:
    """Without what the executor says of tasks that no job has: somebody else's pod may carry our labels.

    That of a run of ours stays, whatever it says of its task.
    """
    return tuple(
        report for report in reports if report.uid in work.runs or report.task in work.tasks.get(report.job, {})
    )


def _confirm_run(work: Work, run: Run, report: Report | None, now: datetime, policy: Policy, heard: _Heard) -> None:
    task = work.tasks[run.job][run.task]
    outcome = outcomes.judge(run, report, now=now, policy=policy, unseen=task.unseen, failures=task.failures)
    if outcome is None and report is not None:
        _still_running(work, run, report, now, heard)
        return
    if outcome is not None:
        _ended(work, run, task, report, outcome, now, policy, heard)


def _still_running(work: Work, run: Run, report: Report, now: datetime, heard: _Heard) -> None:
    state = _STATE_OF_PHASE[report.phase]
    if run.state is RunState.STOPPING or (run.state is RunState.RUNNING and state is RunState.STARTING):
        state = run.state
    progress = _worth_telling(run.progress, report.progress)
    seen = run
    if (state, report.started_at, progress) != (run.state, run.started_at, run.progress):
        seen = replace(run, state=state, started_at=report.started_at, progress=progress)
    if not run.told and state is RunState.RUNNING and _can_tell(run, report, now):
        seen = replace(seen, told=True, progress=report.progress or seen.progress)
        (heard.resumed if run.attempt > 1 else heard.started).append(seen)
    if seen is not run:
        work.run(seen)
        if seen.progress is not run.progress:
            work.task(replace(work.tasks[run.job][run.task], progress=seen.progress))


def _can_tell(run: Run, report: Report, now: datetime) -> bool:
    """A first start is told at once; a later one when it has said where it went on from."""
    return run.attempt == 1 or report.progress is not None or now - (report.started_at or now) >= _FIRST_WORD


def _worth_telling(old: Progress | None, new: Progress | None) -> Progress | None:
    if old is None or new is None:
        return new or old
    moved = new.fraction - old.fraction >= _PROGRESS_STEP or new.fraction < old.fraction or new.fraction == 1.0
    return new if moved or new.saved_at != old.saved_at else old


def _ended(
    work: Work,
    run: Run,
    task: Task,
    report: Report | None,
    outcome: Outcome,
    now: datetime,
    policy: Policy,
    heard: _Heard,
) -> None:
    job = work.jobs[run.job]
    ended_at = outcome.ended_at
    ended = replace(
        run,
        state=_RUN_AFTER[outcome.verdict],
        started_at=(report.started_at if report else None) or run.started_at,
        ended_at=ended_at,
        exit_code=report.exit_code if report else None,
        message=outcome.why,
        progress=(report.progress if report else None) or run.progress,
        told=True,
    )
    kept, lost, restart, ending = usage.split(ended, job.spec.checkpoint, policy.restart_s)
    ended = replace(ended, kept_s=kept, lost_s=lost, restart_s=restart, ending_s=ending)
    work.run(ended)
    if not run.told and run.attempt > 1 and outcome.verdict is Verdict.SUCCEEDED:
        heard.resumed.append(ended)  # it ended before it could say where it went on from
    elif not run.told and ended.started_at is not None and run.attempt == 1:
        heard.started.append(ended)
    gpus = ended.gpus
    seconds = (ended_at - run.since).total_seconds()
    preempted = outcome.verdict in {Verdict.PREEMPTED, Verdict.LOST} and not outcome.never_began
    work.job(
        replace(
            job,
            used_gpu_s=job.used_gpu_s + gpus * seconds,
            kept_gpu_s=job.kept_gpu_s + gpus * kept,
            lost_gpu_s=job.lost_gpu_s + gpus * lost,
            preemptions=job.preemptions + (1 if preempted else 0),
        )
    )
    _task_after(work, task, ended, outcome, now, seconds)
    if preempted:
        (heard.lost if outcome.verdict is Verdict.LOST else heard.preempted).append(ended)
    if outcome.verdict is Verdict.SUCCEEDED:
        heard.moved_on.add(task.step)


def _task_after(
    work: Work,
    task: Task,
    run: Run,
    outcome: Outcome,
    now: datetime,
    seconds: float,
) -> None:
    job = work.jobs[run.job]
    failures = task.failures + (1 if outcome.verdict is Verdict.FAILED else 0)
    unseen = task.unseen + 1 if outcome.unseen else task.unseen if outcome.never_began else 0
    counted = replace(
        work.tasks[job.id][task.name],
        failures=failures,
        unseen=unseen,
        ran_s=task.ran_s + seconds,
        progress=run.progress or task.progress,
    )
    work.task(counted)
    if outcome.verdict is Verdict.FAILED:
        again = outcomes.again(outcome, failures=task.failures, retries=job.spec.retries)
        work.move_task(job.id, task.name, TaskState.WAITING if again else TaskState.FAILED, now)
        if not again:
            named = f"{task.name}: {outcome.why}"
            work.job(replace(work.jobs[job.id], why=work.jobs[job.id].why or named))
        return
    after = TaskState.WAITING if outcome.never_began else _TASK_AFTER[outcome.verdict]
    work.move_task(job.id, task.name, after, now)


def _ended_unseen(work: Work, report: Report, now: datetime, heard: _Heard) -> None:
    """The executor ended a task, and nobody saw the attempt that did: its run was called lost, or there was none."""
    task = work.tasks[report.job][report.task]
    if task.state not in {TaskState.WAITING, TaskState.PREEMPTED}:
        return
    if report.exit_code == 0:
        work.move_task(task.job, task.name, TaskState.DONE, now)
        heard.moved_on.add(task.step)
        return
    work.move_task(task.job, task.name, TaskState.FAILED, now)
    job = work.jobs[task.job]
    said = report.message.removeprefix(outcomes.FINAL).strip()
    work.job(replace(job, why=job.why or f"{task.name}: {said}"))


def _confirm_job(
    work: Work,
    job_id: JobId,
    heard: _Heard,
    by_uid: Mapping[Uid, Report],
    now: datetime,
    terms: notices.Terms,
    *,
    alive: bool,
) -> None:
    job = work.jobs[job_id]
    if job.state in {JobState.SUBMITTED, JobState.AWAITING_APPROVAL}:
        return
    if not job.cancelled_by:
        _follow_the_dag(work, job, now)
    _tell_runs(work, job, heard, now)
    _tell_steps(work, job, heard.moved_on, now)
    if job.cancelled_by:
        if not alive:
            _end_cancelled(work, job_id, now, terms)
        return
    state = flow.job_state(job.spec, {t.name: t.state for t in work.tasks[job_id].values()}, job.state)
    if state in TERMINAL_JOB and alive:
        return  # the executor still holds attempts that we gave up; once it has ended, nobody would ask for them again
    if state is not job.state:
        work.move_job(job_id, state, now)
    if state is JobState.COMPLETED:
        work.tell(job_id, NoticeKind.COMPLETED, now, notices.completed(work.jobs[job_id], now, terms))
    elif state is JobState.FAILED:
        work.tell(job_id, NoticeKind.FAILED, now, _failure(work, job_id, by_uid))


def _failure(work: Work, job_id: JobId, by_uid: Mapping[Uid, Report]) -> Mapping[str, Json]:
    """The first task that failed for good, with the newest evidence of it."""
    job = work.jobs[job_id]
    failed = next(task for task in work.tasks[job_id].values() if task.state is TaskState.FAILED)
    ended = [r for r in by_uid.values() if r.job == job_id and r.task == failed.name and r.phase is Phase.ENDED]
    seen = [report for report in ended if report.started_at] or ended  # not those that were given up at their gate
    return notices.failed(job, failed, seen[-1] if seen else None)


def _follow_the_dag(work: Work, job: Job, now: datetime) -> None:
    states = {task.name: task.state for task in work.tasks[job.id].values()}
    ready = flow.ready(job.spec, states)
    for name in ready.waiting:
        work.move_task(job.id, name, TaskState.WAITING, now)
    for name in ready.skipped:
        work.move_task(job.id, name, TaskState.CANCELLED, now)


def _tell_runs(work: Work, job: Job, heard: _Heard, now: datetime) -> None:
    job = work.jobs[job.id]
    first = heard.started or heard.resumed
    if first and job.started_at is None:
        work.tell(job.id, NoticeKind.STARTED, now, notices.started(first, job.warnings))
        work.job(replace(work.jobs[job.id], started_at=first[0].started_at or now, told_wait=""))
    if heard.preempted and not job.cancelled_by:
        work.tell(job.id, NoticeKind.PREEMPTED, now, notices.preempted(job, heard.preempted))
    if heard.lost and not job.cancelled_by:
        work.tell(job.id, NoticeKind.NODE_LOST, now, notices.node_lost(heard.lost))
    if heard.resumed and job.started_at is not None:
        work.tell(job.id, NoticeKind.RESUMED, now, notices.resumed(heard.resumed))


def _tell_steps(work: Work, job: Job, moved_on: Collection[str], now: datetime) -> None:
    if len(job.spec.steps) == 1:
        return
    for step in sorted(moved_on):
        tasks = [task for task in work.tasks[job.id].values() if task.step == step]
        if flow.step_state(step, tasks) is StepState.DONE:
            work.tell(job.id, NoticeKind.STEP_DONE, now, notices.step_done(step, tasks))


def _end_cancelled(work: Work, job_id: JobId, now: datetime, terms: notices.Terms) -> None:
    """A cancelled job ends once the executor holds nothing of it: only then its GPU-hours are known."""
    if work.runs_of(job_id):
        return
    job = work.jobs[job_id]
    for task in list(work.tasks[job_id].values()):
        if task.state not in TERMINAL_TASK:
            work.move_task(job_id, task.name, TaskState.CANCELLED, now)
    # Its last run may have brought it to its end at the same moment; what it reached counts, not the wish.
    states = {task.name: task.state for task in work.tasks[job_id].values()}
    if all(state is TaskState.DONE for state in states.values()):
        work.move_job(job_id, JobState.COMPLETED, now)
        work.tell(job_id, NoticeKind.COMPLETED, now, notices.completed(work.jobs[job_id], now, terms))
        return
    work.move_job(job_id, JobState.CANCELLED, now, why=f"cancelled by {job.cancelled_by}")
    work.tell(job_id, NoticeKind.CANCELLED, now, notices.cancelled(work.jobs[job_id]))
