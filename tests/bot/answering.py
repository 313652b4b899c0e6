"""A scheduler of a few lines, on the real store: it answers what the bot asks, and runs nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from scheduler.jobs import jobfile
from scheduler.jobs.job import TERMINAL_JOB, Job, JobId, JobState, Task, TaskName, TaskState
from scheduler.jobs.mail import (
    Answer,
    Board,
    BoardWindow,
    Cancel,
    Decide,
    Logs,
    Notice,
    NoticeId,
    NoticeKind,
    Request,
    Rerun,
    Submit,
)
from scheduler.jobs.spec import JobSpec, Priority
from scheduler.ports import AddJob, Audit, Change, ChangeJob, Settle, ShowBoard, Tell
from scheduler.store.sql import SqlStore

OWNER = "answering"


def now() -> datetime:
    return datetime.now(UTC)


class Answering:
    """Takes requests in while `awake`. `approvers` are people or groups."""

    def __init__(self, store: SqlStore, approvers: tuple[str, ...] = ()) -> None:
        self.store = store
        self.approvers = approvers
        self.awake = True
        self.log = "epoch 1\nepoch 2"
        self.taken: list[Request] = []
        token = store.hold(OWNER, now(), 3600)
        assert token is not None
        self._token = token

    async def run(self) -> None:
        while True:
            if self.awake:
                await asyncio.to_thread(self.take)
            await asyncio.sleep(0.02)

    def take(self) -> None:
        for request in self.store.open_requests():
            self.taken.append(request)
            changes, answer = self._decide(request)
            self.store.record([*changes, Settle(request=request.id, answer=answer)], self._token)

    def record(self, *changes: Change) -> None:
        self.store.record(changes, self._token)

    def tell(self, job: int, kind: NoticeKind, **payload: Any) -> None:
        self.record(a_tell(job, kind, **payload))

    def move(self, job: int, state: JobState, *changes: Change, **more: Any) -> None:
        """A job changes its state, and its card grows old."""
        old = self.store.job(JobId(job))
        assert old is not None
        self.record(ChangeJob(was=old.state, now=replace(old, state=state, **more)), *changes)

    def show_board(self, gpus: int = 8, *windows: BoardWindow) -> None:
        board = Board(
            at=now(),
            gpus=gpus,
            serving=0,
            running=0,
            idle=gpus,
            unknown=0,
            services=(),
            windows=windows,
            waiting_tasks=0,
            waiting_gpus=0,
        )
        self.record(ShowBoard(board=board))

    def submit(self, name: str = "sft", **more: Any) -> JobId:
        """A job that came another way than through the bot."""
        spec = jobfile.parse(f"gpujob: 1\nname: {name}\nimage: train:1\ngpus: 1\ncommand: [python, t.py]\n").spec
        assert spec is not None
        changes, answer = self._new(spec, more.pop("owner", "U0ANA"), more.pop("channel", "C0GPU"), **more)
        self.record(*changes)
        assert answer.job is not None
        return answer.job

    def _decide(self, request: Request) -> tuple[list[Change], Answer]:
        match request.body:
            case Submit(text=text, channel=channel):
                spec = jobfile.parse(text).spec
                assert spec is not None
                return self._new(spec, request.by.id, channel)
            case Logs(job=job):
                return [], Answer(ok=True, text="", job=job, detail={"log": self.log, "run": "r-1", "task": "main"})
            case Rerun(job=job, channel=channel):
                old = self.store.job(job)
                assert old is not None
                return self._new(old.spec, request.by.id, channel)
            case Cancel(job=job) | Decide(job=job):
                found = self.store.job(job)
                if found is None:
                    return [], Answer(ok=False, text=f"There is no job-{job}.")
                return self._end(request, found)

    def _end(self, request: Request, job: Job) -> tuple[list[Change], Answer]:
        by, body = request.by, request.body
        if isinstance(body, Cancel):
            if job.state in TERMINAL_JOB:
                return [], Answer(ok=False, text=f"{job.label} is {job.state} already.", job=job.id)
            ended = replace(job, state=JobState.CANCELLED, why=f"cancelled by {by.id}")
            return self._moved(job, ended, NoticeKind.CANCELLED, by=by.id), Answer(ok=True, text="Cancelled.")
        assert isinstance(body, Decide)
        if not {by.id, *by.groups} & set(self.approvers):
            return [self._refused(request, job)], Answer(ok=False, text="You are no approver.", job=job.id)
        if by.id == job.owner:
            return [self._refused(request, job)], Answer(ok=False, text="You may not decide on your own job.")
        if job.state is not JobState.AWAITING_APPROVAL:
            word = f"already approved by {job.decided_by}" if job.decided_by else f"{job.state} already"
            return [], Answer(ok=False, text=f"{job.label} is {word}.", job=job.id)
        state = JobState.WAITING if body.approve else JobState.DENIED
        decided = replace(job, state=state, decided_by=by.id, decided_at=now(), why=body.reason)
        kind = NoticeKind.APPROVED if body.approve else NoticeKind.DENIED
        said = f"{job.label} is {'approved' if body.approve else 'denied'}."
        return self._moved(job, decided, kind, by=by.id, reason=body.reason), Answer(ok=True, text=said, job=job.id)

    def _moved(self, old: Job, new: Job, kind: NoticeKind, **payload: Any) -> list[Change]:
        return [ChangeJob(was=old.state, now=new), a_tell(old.id, kind, **payload)]

    def _refused(self, request: Request, job: Job) -> Audit:
        return Audit(at=now(), who=request.by.id, what="refused", job=job.id, detail="decide")

    def _new(self, spec: JobSpec, owner: str, channel: str, **more: Any) -> tuple[list[Change], Answer]:
        number = self.store.live().next_job
        needs = spec.priority is Priority.HIGH
        job = Job(
            id=number,
            spec=spec,
            spec_hash="sha256:1",
            owner=owner,
            channel=channel,
            state=JobState.AWAITING_APPROVAL if needs else JobState.WAITING,
            submitted_at=now(),
            approval_why=("high priority needs approval",) if needs else (),
        )
        task = Task(job=number, name=TaskName("main"), step="main", index=0, state=TaskState.WAITING, since=now())
        changes: list[Change] = [AddJob(job=replace(job, **more), tasks=(task,))]
        changes.append(a_tell(number, NoticeKind.SUBMITTED, owner=owner, name=spec.name, gpus=1))
        if needs:
            people = [name for name in self.approvers if name.startswith("U")]
            changes.append(a_tell(number, NoticeKind.APPROVAL_NEEDED, why=list(job.approval_why), approvers=people))
        return changes, Answer(ok=True, text=f"job-{number} ({spec.name}) is submitted.", job=number)


def a_tell(job: int, kind: NoticeKind, **payload: Any) -> Tell:
    return Tell(notice=Notice(id=NoticeId(0), job=JobId(job), kind=kind, at=now(), payload=payload))
