"""The payload of each notice (the keys stand in jobs/mail.py). Words are made by who shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from scheduler.jobs import templates
from scheduler.jobs.job import Job, Run, Task
from scheduler.jobs.mail import Json
from scheduler.jobs.progress import Progress
from scheduler.jobs.reports import Report
from scheduler.jobs.waits import Wait, sentence

_LOG_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What notices need of the settings."""

    currency: str = "USD"
    per_gpu_hour: float = 0.0  # what a GPU-hour would cost elsewhere
    storage_root: str = ""


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


def _hours(gpu_seconds: float) -> float:
    return round(gpu_seconds / 3600, 4)


def _step(progress: Progress | None, key: str) -> int | None:
    text = progress.values.get(key, "") if progress else ""
    return int(text) if text.isascii() and text.isdecimal() else None


def _steps(runs: Sequence[Run], key: str) -> int | None:
    """The smallest of several runs: what all of them can say."""
    known = [step for run in runs if (step := _step(run.progress, key)) is not None]
    return min(known) if known else None


def _nodes(runs: Sequence[Run]) -> dict[str, int]:
    nodes: Counter[str] = Counter()
    for run in runs:
        nodes.update(run.placement)
    return dict(nodes)


def submitted(job: Job, gpus: int, gpu_hours: float | None, warnings: Sequence[str]) -> Mapping[str, Json]:
    """A job was taken in."""
    return {
        "owner": job.owner,
        "name": job.spec.name,
        "team": job.spec.team,
        "gpus": gpus,
        "gpu_hours": gpu_hours,
        "spec_hash": job.spec_hash,
        "warnings": list(warnings),
    }


def waiting(wait: Wait) -> Mapping[str, Json]:
    """A job does not start yet."""
    return {
        "reason": sentence(wait),
        "code": str(wait.reason),
        "short_by": wait.short_by,
        "held_by": wait.held_by,
        "earliest": _iso(wait.earliest),
    }


def started(runs: Sequence[Run], warnings: Sequence[str] = ()) -> Mapping[str, Json]:
    """The first runs of a job began."""
    first = runs[0]
    return {
        "task": first.task,
        "nodes": _nodes(runs),
        "gpus": sum(run.gpus for run in runs),
        "window_until": _iso(first.window_until),
        "warnings": list(warnings),
    }


def resumed(runs: Sequence[Run]) -> Mapping[str, Json]:
    """Runs began where earlier ones of their tasks had stopped."""
    return {**started(runs), "tasks": [run.task for run in runs], "from_step": _steps(runs, "from_step")}


def preempted(job: Job, runs: Sequence[Run]) -> Mapping[str, Json]:
    """Runs gave their GPUs back; the work that was kept and lost is in seconds of running, summed over the tasks."""
    service = next((run.for_service for run in runs if run.for_service), "")
    reason = next((run.intent_why for run in runs if run.intent_why), runs[0].message)
    return {
        "tasks": [run.task for run in runs],
        "service": service,
        "reason": reason,
        "gpus": sum(run.gpus for run in runs),
        "kept_s": round(sum(run.kept_s for run in runs), 1),
        "lost_s": round(sum(run.lost_s for run in runs), 1),
        "saved_step": _steps(runs, "saved_step"),
        "earliest": None,
        "nth": job.preemptions,
    }


def node_lost(runs: Sequence[Run]) -> Mapping[str, Json]:
    """Nobody saw how runs ended: their node went away, or the computer started anew. Their tasks run again."""
    return {"node": ", ".join(_nodes(runs)), "tasks": [run.task for run in runs]}


def step_done(step: str, tasks: Sequence[Task]) -> Mapping[str, Json]:
    """All tasks of a step are done."""
    return {"step": step, "tasks": len(tasks), "seconds": round(max(task.ran_s for task in tasks), 1)}


def completed(job: Job, now: datetime, terms: Terms) -> Mapping[str, Json]:
    """A job reached its end."""
    ran = job.started_at or now
    return {
        "used_gpu_hours": _hours(job.used_gpu_s),
        "kept_gpu_hours": _hours(job.kept_gpu_s),
        "lost_gpu_hours": _hours(job.lost_gpu_s),
        "queue_s": round((ran - job.submitted_at).total_seconds(), 1),
        "money": round(job.used_gpu_s / 3600 * terms.per_gpu_hour, 2),
        "currency": terms.currency,
        "outputs": _outputs(job, terms),
        "preemptions": job.preemptions,
    }


def _outputs(job: Job, terms: Terms) -> dict[str, Json]:
    """Where the results are: the outputs of steps that no other step needs."""
    order = templates.fill(job.spec, job.id, terms.storage_root)
    needed = {need for task in order.tasks for need in task.needs}
    last = [task for task in order.tasks if task.step not in needed]
    return {f"{task.name}.{name}": url for task in last for name, url in task.outputs.items()}


def failed(job: Job, task: Task, report: Report | None) -> Mapping[str, Json]:
    """A job cannot be completed any more."""
    return {
        "step": task.step,
        "task": task.name,
        "exit_code": report.exit_code if report else None,
        "why": job.why,
        "log": "\n".join(report.tail.splitlines()[-_LOG_LINES:]) if report else "",
        "used_gpu_hours": _hours(job.used_gpu_s),
        "lost_gpu_hours": _hours(job.lost_gpu_s),
    }


def cancelled(job: Job) -> Mapping[str, Json]:
    """A person ended it."""
    return {
        "by": job.cancelled_by,
        "used_gpu_hours": _hours(job.used_gpu_s),
        "lost_gpu_hours": _hours(job.lost_gpu_s),
    }
