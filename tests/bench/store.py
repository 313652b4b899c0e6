"""How fast a turn reads and writes 1,000 live jobs of three tasks: `python -m tests.bench.store` prints JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter

from scheduler.jobs.job import Job, JobState, Run, RunState, Task, TaskState
from scheduler.jobs.mail import NoticeKind
from scheduler.jobs.progress import Progress
from scheduler.jobs.waits import Wait, WaitReason
from scheduler.ports import AddRun, Change, ChangeJob, ChangeRun, ChangeTask, Live, Tell
from scheduler.store.migrations import migrate
from scheduler.store.sql import SqlStore
from tests.store.building import NOW, a_notice, a_run, added, minutes

JOBS = 1_000
TASKS = 3


def rows() -> Sequence[Mapping[str, object]]:
    """One row a measurement: name, seconds, what it was measured on."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/gpujob.sqlite3"
        migrate(url)
        store = SqlStore(url)
        _fill(store)
        measured = [
            _row("live", "1,000 jobs, 3,000 tasks, 1,000 runs", store.live),
            _row("record one start", "2 moves, 1 run, 1 notice", _starts(store)),
            _row("record a whole turn", "3,000 waits change", lambda: store.record(_waits(store.live()), token=0)),
        ]
        store.close()
    return measured


def _fill(store: SqlStore) -> None:
    for number in range(1, JOBS + 1):
        job = added(number, tasks=TASKS, why="x" * 200)
        progress = Progress(fraction=0.5, values={"loss": "1.3"}, first_at=NOW, saved_at=NOW)
        run = a_run(f"pod-{number}", number, "main-0", progress=progress)
        store.record([job, AddRun(run=run)], token=0)
    store.record(_waits(store.live()), token=0)


def _waits(live: Live) -> list[Change]:
    earliest = max(task.wait.earliest if task.wait and task.wait.earliest else NOW for task in live.tasks) + minutes(1)
    wait = Wait(reason=WaitReason.GPUS, short_by=4, held_by="chat (16), job-3 (8)", earliest=earliest)
    return [ChangeTask(was=task.state, now=replace(task, wait=wait)) for task in live.tasks]


def _starts(store: SqlStore) -> Callable[[], None]:
    live = store.live()
    jobs = iter(live.jobs)
    tasks = {task.job: task for task in live.tasks}
    runs = {run.job: run for run in live.runs}

    def start() -> None:
        job = next(jobs)
        store.record(_start(job, tasks[job.id], runs[job.id]), token=0)

    return start


def _start(job: Job, task: Task, run: Run) -> list[Change]:
    return [
        ChangeJob(was=job.state, now=replace(job, state=JobState.RUNNING)),
        ChangeTask(was=task.state, now=replace(task, state=TaskState.RUNNING, wait=None)),
        ChangeRun(was=run.state, now=replace(run, state=RunState.RUNNING)),
        Tell(notice=a_notice(job.id, NoticeKind.STARTED, gpus=4)),
    ]


def _row(name: str, on: str, call: Callable[[], object], times: int = 5) -> Mapping[str, object]:
    seconds = []
    for _ in range(times):
        begun = perf_counter()
        call()
        seconds.append(perf_counter() - begun)
    return {
        "name": f"store: {name}",
        "seconds": round(median(seconds), 4),
        "slowest": round(max(seconds), 4),
        "on": on,
    }


if __name__ == "__main__":
    print(json.dumps(rows(), indent=2))
