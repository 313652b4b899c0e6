"""Values of the room `jobs`, with everything said that a test does not care about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from scheduler.jobs.job import Job, JobId, JobState, Run, RunState, TaskName, Uid
from scheduler.jobs.spec import JobSpec, StepSpec

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def a_run(**said: Any) -> Run:
    values: dict[str, Any] = {
        "uid": Uid("u-1"),
        "job": JobId(41),
        "task": TaskName("sft-0"),
        "attempt": 1,
        "placement": {"node-1": 4},
        "state": RunState.RUNNING,
        "since": NOON,
    }
    return Run(**values | said)


def a_step(name: str = "sft", **said: Any) -> StepSpec:
    return StepSpec(**{"name": name, "command": ("python", "sft.py"), "gpus": (4,)} | said)


def a_spec(*steps: StepSpec, **said: Any) -> JobSpec:
    return JobSpec(**{"name": "solar-sft", "steps": steps or (a_step(),)} | said)


def a_job(**said: Any) -> Job:
    values: dict[str, Any] = {
        "id": JobId(41),
        "spec": a_spec(),
        "spec_hash": "9f86d081",
        "owner": "U1",
        "channel": "",
        "state": JobState.WAITING,
        "submitted_at": NOON,
    }
    return Job(**values | said)
