"""Commands that show what is, what is planned, and what was."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from scheduler.cli.asking import named_job
from scheduler.cli.say import NO, Say, table
from scheduler.codec import from_plain, to_plain
from scheduler.errors import BadInput
from scheduler.fleet import scaling
from scheduler.jobs import flow, usage
from scheduler.jobs.job import Job, JobState, Run
from scheduler.jobs.spec import images
from scheduler.jobs.waits import sentence
from scheduler.planning import planner
from scheduler.planning.plan import Action, Move, Plan, Release, ScaleDown, ScaleUp, TakeBack
from scheduler.planning.snapshot import Snapshot
from scheduler.settings import Settings
from scheduler.store.mailbox import JobView, Mailbox
from scheduler.wiring import clock, house, mailbox

_STATES = {
    "waiting": (JobState.SUBMITTED, JobState.AWAITING_APPROVAL, JobState.WAITING, JobState.PREEMPTED),
    "running": (JobState.RUNNING,),
    "done": (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.DENIED, JobState.EXPIRED),
}
_NAMED = 3  # tasks that wait for the same reason
_FRESH = timedelta(seconds=60)
_ALWAYS = datetime(2000, 1, 1, tzinfo=UTC)


def plan(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """What would be done now and why."""
    if options.snapshot is not None:
        seen = _kept_snapshot(options.snapshot)
    elif options.at is not None:
        seen = _turn_at(options.at, settings)
    else:
        seen = last_seen(settings)
    planned = planner.plan(seen, settings.policy)
    if options.keep is not None:
        _write(options.keep, json.dumps(to_plain(seen), indent=1, ensure_ascii=False))
    return say.answer(_plan_plain(planned), _plan_lines(seen, planned, explain=options.explain))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error


def _turn_at(text: str, settings: Settings) -> Snapshot:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f'--at "{text}": write a time such as 2026-12-01T03:00+09:00') from error
    if at.tzinfo is None:
        raise BadInput(f'--at "{text}" has no time zone; write it such as {text}+09:00')
    kept = house(settings).store.turn(at.astimezone(UTC))
    if kept is None:
        raise BadInput(f"No turn is kept from before {text}; the last days are.")
    return kept[0]


def _kept_snapshot(path: Path) -> Snapshot:
    try:
        return from_plain(json.loads(path.read_text(encoding="utf-8")), Snapshot)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError, ExceptionGroup) as error:
        raise BadInput(f"{path} is no snapshot; `gpujob plan --keep FILE` writes one ({error})") from error


def _plan_plain(planned: Plan) -> Mapping[str, Any]:
    return {
        "at": planned.at.isoformat(),
        "actions": [_action_plain(action) for action in planned.actions],
        "waits": [
            {
                "job": f"job-{waiting.job}",
                "task": waiting.task,
                "why": sentence(waiting.wait),
                "short_by": waiting.wait.short_by,
                "earliest": waiting.wait.earliest,
            }
            for waiting in planned.waits
        ],
    }


def _action_plain(action: Action) -> Mapping[str, Any]:
    match action:
        case TakeBack() | Release():
            do = "take_back" if isinstance(action, TakeBack) else "release"
            more: dict[str, Any] = {"service": action.service} if isinstance(action, TakeBack) else {}
            return {
                "do": do,
                "job": f"job-{action.job}",
                "task": action.task,
                "gpus": sum(action.placement.values()),
                "node": ", ".join(action.placement),
                "why": action.why,
                **more,
            }
        case Move():
            return {
                "do": "move",
                "job": None,
                "task": None,
                "gpus": None,
                "node": action.node,
                "why": action.why,
                "service": action.service,
                "replica": action.replica,
            }
        case ScaleUp() | ScaleDown():
            do = "scale_up" if isinstance(action, ScaleUp) else "scale_down"
            nodes = action.nodes if isinstance(action, ScaleUp) else ()
            return {
                "do": do,
                "job": None,
                "task": None,
                "gpus": None,
                "node": ", ".join(nodes) or None,
                "why": action.why,
                "service": action.service,
                "replicas": action.replicas,
            }


def _plan_lines(seen: Snapshot, planned: Plan, *, explain: bool) -> Iterable[str]:
    if explain:
        idle = sum(seen.pool.idle().values())
        yield f"At {planned.at:%Y-%m-%d %H:%M:%S} UTC: {idle} of {sum(n.gpus for n in seen.pool.nodes)} GPUs idle."
        for demand in seen.demands:
            yield f"  {demand.service} has {demand.have} replicas and wants {demand.want}: {demand.why}"
        for place in seen.soon:
            yield f"  A place of {place.gpus} GPUs is kept for {place.service}: {place.why}."
    for action in map(_action_plain, planned.actions):
        what = _what(action)
        where = f" on {action['node']} ({action['gpus']} GPUs)" if action["gpus"] is not None else ""
        yield f"{action['do'].replace('_', ' ')} {what}{where}: {action['why']}"
    alike: dict[str, list[str]] = {}
    for waiting in planned.waits:
        earliest = f", probably until {waiting.wait.earliest:%Y-%m-%d %H:%M} UTC" if waiting.wait.earliest else ""
        alike.setdefault(f"{sentence(waiting.wait)}{earliest}", []).append(f"job-{waiting.job} {waiting.task}")
    for why, tasks in alike.items():
        yield f"{tasks[0]} {why}" if len(tasks) == 1 else f"{len(tasks)} tasks ({_named(tasks)}): each {why}"
    if not planned.actions and not planned.waits:
        yield "Nothing to do, and nothing waits."


def _named(tasks: Sequence[str]) -> str:
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    return ", ".join(tasks[:_NAMED]) + more


def _what(action: Mapping[str, Any]) -> str:
    if action["job"]:
        return f"{action['job']} {action['task']}"
    if action["do"] == "move":
        return f"{action['replica']} to {action['node']}"
    return f"{action['service']} to {action['replicas']}"


def scale(_: argparse.Namespace, say: Say, settings: Settings) -> int:
    """What services need: `at services[{name, have, want, why, estimates{}, replicas[{name, state, signals{}}]}]`."""
    seen = last_seen(settings)
    lines = [line for demand in seen.demands for line in scaling.sentences(demand)]
    return say.answer(scaling.explain(seen.demands, seen.now), lines or ["No [[service]] is set."])


def last_seen(settings: Settings) -> Snapshot:
    """What the running scheduler saw last; without one, what can be seen now.

    A scheduler knows more: idle is judged over a window, and a single look at the metrics proves nothing.
    """
    parts = house(settings)
    kept = parts.store.turn()
    if kept is not None and clock() - kept[0].now <= _FRESH:
        return kept[0]
    parts.ground.look()
    return parts.cycle.look_only(clock())[0]


def hand_backs(_: argparse.Namespace, say: Say, settings: Settings) -> int:
    """How long hand-backs took: `grace_s hand_backs[{service, signal_at, decided_at, freed_at, ready_at, seconds}]`."""
    rows = []
    for row in house(settings).store.hand_backs(_ALWAYS):
        seconds = (row.freed_at - row.signal_at).total_seconds() if row.freed_at else None
        rows.append(
            {
                "service": row.service,
                "gpus": row.gpus,
                "signal_at": row.signal_at,
                "decided_at": row.decided_at,
                "freed_at": row.freed_at,
                "ready_at": row.ready_at,
                "seconds": seconds,
            }
        )
    lines = table(
        ("service", "GPUs", "signal", "seconds until free"),
        [(r["service"], r["gpus"], f"{r['signal_at']:%Y-%m-%d %H:%M:%S}", r["seconds"]) for r in rows],
    )
    return say.answer({"grace_s": settings.policy.grace_s, "hand_backs": rows}, lines)


def report(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """A month of jobs: `months[{month, jobs, gpu_hours, ..}] total{}`."""
    wanted = None if options.month is None else _month_or_raise(options.month)
    runs = house(settings).store.runs(_ALWAYS)
    priced = partial(
        usage.months,
        now=clock(),
        timezone=ZoneInfo(settings.calendar.timezone),
        price_per_gpu_hour=settings.money.per_gpu_hour,
        currency=settings.money.currency,
    )
    months = [month for month in priced(runs) if wanted in {None, month.month}]
    rows = [to_plain(month) for month in months]
    if options.csv is not None and rows:
        file = io.StringIO(newline="")
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        _write(options.csv, file.getvalue())
    lines = table(
        ("month", "jobs", "GPU-hours", "kept", "lost", "GPUs at 12 h", "GPUs at 24 h", "saved", ""),
        [
            (
                m.month,
                m.jobs,
                m.gpu_hours,
                m.kept_gpu_hours,
                m.lost_gpu_hours,
                m.gpus_12h,
                m.gpus_24h,
                m.money,
                m.currency,
            )
            for m in months
        ],
    )
    plain = {"months": rows, "total": to_plain(usage.total(runs, **priced.keywords))}
    return say.answer(plain, lines if rows else ["No job has run yet."])


def _month_or_raise(text: str) -> str:
    try:
        return f"{datetime.strptime(text, '%Y-%m').replace(tzinfo=UTC):%Y-%m}"
    except ValueError as error:
        raise BadInput(f'--month "{text}": write it as YYYY-MM, such as 2026-11') from error


def audit(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """Who decided what, newest first."""
    rows = house(settings).store.audits(options.limit)
    plain = [
        {"at": row.at, "who": row.who, "what": row.what, "job": row.job and f"job-{row.job}", "detail": row.detail}
        for row in rows
    ]
    here = settings.local_time
    lines = table(
        ("when", "who", "what", "job", "detail"),
        [(f"{here(r.at):%Y-%m-%d %H:%M:%S}", r.who, r.what, r.job and f"job-{r.job}", r.detail) for r in rows],
    )
    return say.answer({"audit": plain}, lines)


def jobs(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """Jobs, newest first: `jobs[{id, name, owner, team, state, gpus, why, submitted_at, ..}]`."""
    states = _STATES[options.state] if options.state else ()
    rows = _with_door(settings, lambda door: _listed(door, options.owner, states, options.limit))
    lines = table(
        ("job", "name", "owner", "state", "GPUs", "why"),
        [(r["id"], r["name"], r["owner"], r["state"], r["gpus"], r["why"]) for r in rows],
    )
    return say.answer({"jobs": rows}, lines if rows else ["There is no such job."])


def _listed(door: Mailbox, owner: str, states: Sequence[JobState], limit: int) -> list[dict[str, Any]]:
    rows = []
    for job in door.jobs(owner=owner, states=states, limit=limit):
        view = None if job.why or job.state in _STATES["done"] else door.job(job.id)
        rows.append({**_job_plain(job), "why": _why(view) if view else job.why})
    return rows


def _why(view: JobView) -> str:
    """Why a job is where it is: how it ended, what it waits for, or who is asked."""
    if view.job.why:
        return view.job.why
    if view.job.state is JobState.AWAITING_APPROVAL:
        return " ".join(view.job.approval_why)
    return next((sentence(task.wait) for task in view.tasks if task.wait is not None), "")


def _job_plain(job: Job) -> dict[str, Any]:
    return {
        "id": job.label,
        "name": job.spec.name,
        "owner": job.owner,
        "team": job.spec.team or None,
        "state": str(job.state),
        "gpus": max(step.gpus[0] * step.nodes for step in job.spec.steps),
        "why": job.why,
        "priority": str(job.spec.priority),
        "spec_hash": job.spec_hash,
        "images": {**dict.fromkeys(sorted(images(job.spec))), **job.digests},
        "warnings": list(job.warnings),
        "submitted_at": job.submitted_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "preemptions": job.preemptions,
        "used_gpu_hours": round(job.used_gpu_s / 3600, 4),
        "kept_gpu_hours": round(job.kept_gpu_s / 3600, 4),
        "lost_gpu_hours": round(job.lost_gpu_s / 3600, 4),
    }


def status(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """One job: `job{.., steps[], runs[{task, node, gpus, from, until, outcome, kept_s, lost_s}]}`."""
    wanted = named_job(options.job)
    view = _with_door(settings, lambda door: door.job(wanted))
    if view is None:
        return say.no(f"There is no job-{wanted}. `gpujob list` shows the jobs there are.", code=NO)
    plain = _view_plain(view)
    return say.answer({"job": plain}, _view_lines(plain))


def _view_plain(view: JobView) -> dict[str, Any]:
    job = {**_job_plain(view.job), "why": _why(view)}
    steps = []
    for step in view.job.spec.steps:
        tasks = [task for task in view.tasks if task.step == step.name]
        steps.append(
            {
                "name": step.name,
                "state": str(flow.step_state(step.name, view.tasks)),
                "tasks": [
                    {
                        "name": task.name,
                        "state": str(task.state),
                        "why": sentence(task.wait) if task.wait else "",
                        "earliest": task.wait.earliest if task.wait else None,
                        "progress": task.progress.fraction if task.progress else None,
                    }
                    for task in tasks
                ],
            }
        )
    return {**job, "steps": steps, "runs": [_run_plain(run) for run in view.runs]}


def _run_plain(run: Run) -> dict[str, Any]:
    return {
        "uid": run.uid,
        "task": run.task,
        "attempt": run.attempt,
        "node": ", ".join(run.placement),
        "gpus": run.gpus,
        "from": run.since,
        "started_at": run.started_at,
        "until": run.ended_at,
        "outcome": str(run.state),
        "exit_code": run.exit_code,
        "why": run.message or run.intent_why,
        "kept_s": round(run.kept_s, 3),
        "lost_s": round(run.lost_s, 3),
        "restart_s": round(run.restart_s, 3),
        "ending_s": round(run.ending_s, 3),
    }


def _view_lines(job: Mapping[str, Any]) -> Iterable[str]:
    yield f"{job['id']} {job['name']}: {job['state']}{'. ' + job['why'] if job['why'] else ''}"
    yield from job["warnings"]
    yield from table(
        ("step", "task", "state", "done", "why"),
        [
            (s["name"], t["name"], t["state"], f"{t['progress']:.0%}" if t["progress"] is not None else None, t["why"])
            for s in job["steps"]
            for t in s["tasks"]
        ],
    )
    if job["runs"]:
        yield ""
        yield from table(
            ("run of", "node", "GPUs", "outcome", "exit", "kept s", "lost s"),
            [
                (r["task"], r["node"], r["gpus"], r["outcome"], r["exit_code"], r["kept_s"], r["lost_s"])
                for r in job["runs"]
            ],
        )


def _with_door(settings: Settings, look: Callable[[Any], Any]) -> Any:
    door = mailbox(settings)
    try:
        return look(door)
    finally:
        door.close()
