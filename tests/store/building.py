"""Jobs, tasks, runs and notices as the store's tests need them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from scheduler.fleet.pool import Node, Pool
from scheduler.jobs.job import Job, JobId, JobState, Run, RunState, Task, TaskName, TaskState, Uid
from scheduler.jobs.mail import Notice, NoticeId, NoticeKind
from scheduler.jobs.spec import JobSpec, StepSpec
from scheduler.planning.plan import Plan, Release
from scheduler.planning.snapshot import Snapshot
from scheduler.ports import AddJob, KeepTurn

NOW = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def a_job(number: int = 1, *, team: str = "nlp", **more: Any) -> Job:
    spec = JobSpec(name=f"sft-{number}", team=team, steps=(StepSpec(name="main", command=("python", "sft.py")),))
    plain = Job(
        id=JobId(number),
        spec=spec,
        spec_hash="sha256:1",
        owner="U_ANA",
        channel="C_GPU",
        state=JobState.WAITING,
        submitted_at=NOW,
    )
    return replace(plain, **more)


def a_task(job: int = 1, name: str = "main", **more: Any) -> Task:
    plain = Task(job=JobId(job), name=TaskName(name), step="main", index=0, state=TaskState.WAITING, since=NOW)
    return replace(plain, **more)


def a_run(uid: str = "pod-1", job: int = 1, task: str = "main", **more: Any) -> Run:
    plain = Run(
        uid=Uid(uid),
        job=JobId(job),
        task=TaskName(task),
        attempt=1,
        placement={"node-1": 4},
        state=RunState.STARTING,
        since=NOW,
    )
    return replace(plain, **more)


def a_notice(job: int = 1, kind: NoticeKind = NoticeKind.WAITING, **payload: Any) -> Notice:
    return Notice(id=NoticeId(0), job=JobId(job), kind=kind, at=NOW, payload=payload)


def added(number: int = 1, tasks: int = 1, **more: Any) -> AddJob:
    names = ["main"] if tasks == 1 else [f"main-{index}" for index in range(tasks)]
    return AddJob(
        job=a_job(number, **more),
        tasks=tuple(a_task(number, name, index=index) for index, name in enumerate(names)),
    )


def a_turn(at: datetime = NOW, why: str = "idle") -> KeepTurn:
    pool = Pool(at=at, nodes=(Node(name="node-1", gpus=8),))
    release = Release(
        uid=Uid("pod-1"),
        job=JobId(1),
        task=TaskName("main"),
        placement={"node-1": 4},
        until=at + minutes(60),
        confidence=0.5,
        why=why,
    )
    return KeepTurn(
        snapshot=Snapshot(now=at, pool=pool, services=(), demands=(), windows=()),
        plan=Plan(at=at, actions=(release,), waits=()),
        acted=True,
    )
