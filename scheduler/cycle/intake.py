"""Requests in, answers out: what a person asks becomes a job, a decision, or a sentence that says why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType

from scheduler.cycle import notices
from scheduler.cycle.work import Work
from scheduler.errors import Unavailable
from scheduler.jobs import admission, flow, jobfile, templates, usage
from scheduler.jobs.job import TERMINAL_JOB, Job, JobId, JobState, RunState, Task, TaskState
from scheduler.jobs.mail import Answer, Cancel, Decide, Json, Logs, NoticeKind, Request, Rerun, Submit
from scheduler.jobs.spec import JobSpec, Value, spec_hash
from scheduler.ports import AddJob, Audit, Change, LogReader, Settle, Store


def _anything(_: JobSpec) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What admission needs to know of the settings and the fleet."""

    rules: admission.Rules
    terms: notices.Terms
    nodes: Mapping[str, int] | None = None  # node -> GPUs; None: not known yet
    local: bool = True  # images are not used
    timezone: tzinfo = UTC  # months begin there
    unfit: Callable[[JobSpec], tuple[str, ...]] = _anything  # why the executor could never run a job, a sentence each


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Where one request is answered: what is remembered, and the time at which it is read."""

    work: Work
    store: Store
    logs: LogReader
    house: House
    now: datetime

    def take_in(self, request: Request) -> list[Change]:
        """All changes that the request leads to, its answer among them."""
        body = request.body
        match body:
            case Submit():
                return self._submit(request, body)
            case Cancel():
                return self._cancel(request, body)
            case Decide():
                return self._decide(request, body)
            case Rerun():
                return self._rerun(request, body)
            case Logs():
                return [_settle(request, self._logs(body))]

    def turn_away(self, request: Request) -> list[Change]:
        """For a request that we cannot answer, and that is our fault."""
        why = "Your request cannot be carried out because of a fault in gpujob. Tell an operator: its log says more."
        return [_settle(request, _no(why)), self._audit(request, "refused", None, "a fault in gpujob")]

    def _submit(self, request: Request, body: Submit) -> list[Change]:
        parsed = jobfile.parse(body.text)
        if parsed.spec is None:
            return [_settle(request, _no(jobfile.shown(parsed.errors)))]
        spec = parsed.spec
        if self.house.local:
            # What a person writes here runs as our own user: a folder is only taken from where the file really lies.
            spec = replace(spec, workdir=spec.workdir or body.folder)
        return self._admit(request, spec, body.channel, parsed.warnings)

    def _admit(
        self,
        request: Request,
        spec: JobSpec,
        channel: str,
        warnings: tuple[str, ...],
        kept: templates.Kept = MappingProxyType({}),
        rerun_of: JobId | None = None,
    ) -> list[Change]:
        work, house, now = self.work, self.house, self.now
        running, month = self._use()
        verdict = admission.admit(
            spec, request.by, house.rules, running=running, month_gpu_hours=month, nodes=house.nodes
        )
        faults = verdict.faults if isinstance(verdict, admission.Refused) else house.unfit(spec)
        if faults:
            text = "\n".join(faults)
            return [_settle(request, _no(text)), self._audit(request, "refused", None, text)]
        if house.local and spec.image:
            warnings = (*warnings, "The image is not used here: commands run as processes of this computer.")
        why = verdict.why if isinstance(verdict, admission.NeedsApproval) else ()
        job = Job(
            id=work.new_id(),
            spec=spec,
            spec_hash=spec_hash(spec, {}),
            owner=request.by.id,
            channel=channel,
            state=JobState.AWAITING_APPROVAL if why else JobState.WAITING,
            submitted_at=now,
            decided_at=None if why else now,
            approval_why=why,
            kept=kept,
            rerun_of=rerun_of,
        )
        tasks = tuple(
            Task(
                job=job.id,
                name=plan.name,
                step=plan.step,
                index=plan.index,
                state=TaskState.DONE if plan.name in kept else TaskState.BLOCKED,
                since=now,
            )
            for plan in flow.tasks_of(spec)
        )
        work.add_job(job, tasks)
        self._tell_submitted(job, warnings)
        says = "needs approval. " + " ".join(why) if why else "waits for idle GPUs."
        text = "\n".join((f"{job.label} is submitted and {says}", *warnings))
        detail: dict[str, Json] = {"spec_hash": job.spec_hash, "warnings": list(warnings)}
        return [
            AddJob(job=job, tasks=tasks),
            *work.changes(),
            _settle(request, Answer(ok=True, text=text, job=job.id, detail=detail)),
            self._audit(request, "submitted", job.id, job.spec_hash),
        ]

    def _tell_submitted(self, job: Job, warnings: tuple[str, ...]) -> None:
        gpus = max(step.gpus[0] * step.nodes for step in job.spec.steps)
        payload = notices.submitted(job, gpus, admission.gpu_hours(job.spec), warnings)
        self.work.tell(job.id, NoticeKind.SUBMITTED, self.now, payload)
        if job.approval_why:
            rules = self.house.rules
            approvers = [name for name in rules.approvers if name != job.owner or rules.own_jobs]
            asks: dict[str, Json] = {"why": list(job.approval_why), "approvers": approvers}
            self.work.tell(job.id, NoticeKind.APPROVAL_NEEDED, self.now, asks)

    def _use(self) -> tuple[Mapping[str, int], Mapping[str, float]]:
        """Running GPUs now, and GPU-hours of this month, by team."""
        teams = {job.id: job.spec.team for job in self.work.jobs.values()}
        running = usage.running_gpus(self.work.runs.values(), teams)
        if all(budget.month_gpu_hours is None for budget in self.house.rules.teams.values()):
            return running, {}
        return running, self.store.team_hours(usage.month_start(self.now, self.house.timezone), self.now)

    def _cancel(self, request: Request, body: Cancel) -> list[Change]:
        work, now = self.work, self.now
        job = self._found(body.job)
        if job is None:
            return [_settle(request, _unknown(body.job))]
        if not admission.may_cancel(job, request.by, self.house.rules):
            why = f"You may not cancel {job.label}: only its owner and the approvers may."
            return [_settle(request, _no(why, job.id)), self._audit(request, "refused", job.id, why)]
        if job.state in TERMINAL_JOB:
            return [_settle(request, _no(f"{job.label} is {job.state} already; nothing was changed.", job.id))]
        if job.cancelled_by:
            return [_settle(request, _no(f"{job.label} is being cancelled already, by {job.cancelled_by}.", job.id))]
        work.job(replace(job, cancelled_by=request.by.id))
        if work.runs_of(job.id):
            text = f"{job.label} is being cancelled; its runs get time to save and end."
        else:
            text = f"{job.label} is cancelled."
        # Once it may run, the executor may know it although nobody could write that down: the next turn ends it there.
        if job.state is JobState.AWAITING_APPROVAL:
            for task in list(work.tasks[job.id].values()):
                work.move_task(job.id, task.name, TaskState.CANCELLED, now)
            work.move_job(job.id, JobState.CANCELLED, now, why=f"cancelled by {request.by.id}")
            work.tell(job.id, NoticeKind.CANCELLED, now, notices.cancelled(work.jobs[job.id]))
        return [
            *work.changes(),
            _settle(request, Answer(ok=True, text=text, job=job.id)),
            self._audit(request, "cancelled", job.id, ""),
        ]

    def _decide(self, request: Request, body: Decide) -> list[Change]:
        work, now = self.work, self.now
        job = self._found(body.job)
        if job is None:
            return [_settle(request, _unknown(body.job))]
        verdict = admission.decide(job, request.by, body.approve, body.reason, self.house.rules)
        if isinstance(verdict, admission.NotAllowed):
            refusal = self._audit(request, "refused", job.id, verdict.why)
            return [_settle(request, _no(verdict.why, job.id)), refusal]
        work.job(replace(job, decided_by=verdict.by, decided_at=now))
        work.move_job(job.id, verdict.state, now, why=verdict.why)
        if verdict.state is JobState.WAITING:
            work.tell(job.id, NoticeKind.APPROVED, now, {"by": verdict.by})
            text = f"{job.label} is approved; it waits for idle GPUs."
        else:
            for task in list(work.tasks[job.id].values()):
                work.move_task(job.id, task.name, TaskState.CANCELLED, now)
            work.tell(job.id, NoticeKind.DENIED, now, {"by": verdict.by, "reason": verdict.why})
            text = f"{job.label} is denied."
        return [
            *work.changes(),
            _settle(request, Answer(ok=True, text=text, job=job.id)),
            self._audit(request, "approved" if body.approve else "denied", job.id, verdict.why),
        ]

    def _rerun(self, request: Request, body: Rerun) -> list[Change]:
        job = self._found(body.job)
        if job is None:
            return [_settle(request, _unknown(body.job))]
        kept = self._kept(job, body.from_step) if body.from_step else {}
        if isinstance(kept, str):
            return [_settle(request, _no(kept, job.id))]
        params = _changed(job, body.params)
        if isinstance(params, str):
            return [_settle(request, _no(params, job.id))]
        parsed = jobfile.parse(jobfile.dump(replace(job.spec, params=params, start_after=None, deadline=None)))
        if parsed.spec is None:
            return [_settle(request, _no(jobfile.shown(parsed.errors), job.id))]
        return self._admit(request, parsed.spec, body.channel or job.channel, parsed.warnings, kept, job.id)

    def _kept(self, job: Job, step: str) -> templates.Kept | str:
        """Outputs of all tasks that a rerun from `step` does not run again; or a sentence that says why it cannot."""
        known = [one.name for one in job.spec.steps]
        if step not in known:
            return f"{job.label} has no step {step}; it has: {', '.join(known)}."
        needs = templates.transitive_needs(job.spec)
        before = [one for one in job.spec.steps if one.name != step and step not in needs[one.name]]
        done = {run.task for run in self.store.job_runs(job.id) if run.state is RunState.DONE} | job.kept.keys()
        missing = [one.name for one in before if not done.issuperset(flow.task_names(one))]
        if missing:
            return (
                f"{job.label} cannot be run again from {step}: step {missing[0]} before it is not done. "
                f"Write: rerun {job.label} from {missing[0]}."
            )
        order = templates.fill(job.spec, job.id, self.house.terms.storage_root, kept=job.kept)
        made = {task.name: task.outputs for task in order.tasks} | dict(job.kept)
        return {name: made[name] for one in before for name in flow.task_names(one)}

    def _logs(self, body: Logs) -> Answer:
        job = self._found(body.job)
        if job is None:
            return _unknown(body.job)
        known = [step.name for step in job.spec.steps]
        if body.step and body.step not in known:
            return _no(f"{job.label} has no step {body.step}; it has: {', '.join(known)}.", job.id)
        names = {task.name for task in flow.tasks_of(job.spec) if body.step in {"", task.step}}
        runs = [run for run in self.store.job_runs(job.id) if run.task in names]
        run = max(runs, key=lambda run: run.since, default=None)
        if run is None:
            return _no(f"{job.label} has not run yet; there is no output.", job.id)
        try:
            text = self.logs.tail(run.uid, body.lines)
        except Unavailable as error:
            return _no(f"The output of {job.label} cannot be read now: {error}", job.id)
        detail: dict[str, Json] = {"log": text, "run": run.uid, "task": run.task}
        return Answer(ok=True, text=text or "No output yet.", job=job.id, detail=detail)

    def _found(self, job: JobId) -> Job | None:
        return self.work.jobs.get(job) or self.store.job(job)

    def _audit(self, request: Request, what: str, job: JobId | None, detail: str) -> Audit:
        return Audit(at=self.now, who=request.by.id, what=what, job=job, detail=detail)


def _changed(job: Job, given: Mapping[str, str]) -> Mapping[str, Value] | str:
    """The job's parameters with new values, read as a job file reads them; or a sentence that says what is wrong."""
    params = dict(job.spec.params)
    for key, text in given.items():
        if key not in params:
            return f"{job.label} has no parameter {key}; it has: {', '.join(params) or 'none'}."
        params[key] = jobfile.plain_value(text)
    return params


def _settle(request: Request, answer: Answer) -> Settle:
    return Settle(request=request.id, answer=answer)


def _no(text: str, job: JobId | None = None) -> Answer:
    return Answer(ok=False, text=text, job=job)


def _unknown(job: JobId) -> Answer:
    return _no(f"There is no job-{job}. `list` shows the jobs there are.")
