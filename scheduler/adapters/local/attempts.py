"""One job as its files stand: its order, the attempts of its tasks, and what follows for its DAG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from scheduler import codec
from scheduler.adapters.local import dag, files
from scheduler.adapters.local.dag import End, Standing
from scheduler.adapters.local.lease import Lease
from scheduler.adapters.local.ledger import Ledger
from scheduler.adapters.local.state import uid_of
from scheduler.errors import Unavailable
from scheduler.jobs.job import TaskName
from scheduler.jobs.order import JobOrder, TaskOrder
from scheduler.jobs.reports import Phase, Report

TAIL_LINES = 40
GIVEN_UP = 1  # the code of an attempt that was ended for good before it ran


@dataclass(slots=True)
class JobFiles:
    """What is known of one job. Only the holder of the state's lock may keep one from call to call."""

    folder: Path
    order: JobOrder
    cancel_grace_s: float | None  # None: not cancelled
    attempts: dict[TaskName, list[Lease | End]]  # from the first on; an End stands for a withdrawn attempt
    standings: Mapping[TaskName, Standing] = field(default_factory=dict)
    reports: dict[tuple[TaskName, int], Report] = field(default_factory=dict)  # of attempts that ended
    told: tuple[Report, ...] = ()
    settled: bool = False  # nothing of it changes unless somebody acts

    def derive(self) -> None:
        """Work out anew where each task stands, and all reports."""
        ends = {
            name: [attempt if isinstance(attempt, End) else end_of(attempt) for attempt in attempts]
            for name, attempts in self.attempts.items()
        }
        self.standings = dag.standings(self.order, ends, cancelled=self.cancel_grace_s is not None)
        self.settled = Standing.LIVE not in self.standings.values()
        self.told = tuple(report for task in self.order.tasks for report in self._reports(task.name))

    @property
    def closed(self) -> bool:
        """Nothing of it will ever run again."""
        return all(standing in dag.FINAL for standing in self.standings.values())

    def live(self) -> tuple[Lease, ...]:
        """Attempts that were released and have not ended."""
        newest = (attempts[-1] for attempts in self.attempts.values() if attempts)
        return tuple(one for one in newest if isinstance(one, Lease) and one.ending is None)

    def gated(self, task: TaskName) -> int | None:
        """The number of the task's gated attempt, from 1; None if it has none."""
        return len(self.attempts[task]) + 1 if self.standings.get(task) is Standing.OPEN else None

    def task(self, name: TaskName) -> TaskOrder | None:
        """One task of the order."""
        return next((task for task in self.order.tasks if task.name == name), None)

    def _reports(self, task: TaskName) -> list[Report]:
        found = []
        for number, attempt in enumerate(self.attempts[task], start=1):
            if isinstance(attempt, Lease):
                found.append(self._report(task, number, attempt))
        if number_gated := self.gated(task):
            uid = uid_of(self.order.job, task, number_gated)
            found.append(Report(uid=uid, job=self.order.job, task=task, phase=Phase.GATED))
        return found

    def _report(self, task: TaskName, number: int, lease: Lease) -> Report:
        if known := self.reports.get((task, number)):
            return known
        end = lease.ending
        stop_counts = lease.stop is not None and (end is None or end.stopped)
        report = Report(
            uid=uid_of(self.order.job, task, number),
            job=self.order.job,
            task=task,
            phase=lease.phase,
            placement=lease.gpus,
            started_at=lease.started_at,
            stop_asked_at=lease.stop.at if lease.stop and stop_counts else None,
            ended_at=end.at if end else None,
            exit_code=end.code if end else None,
            message=end.message if end else "",
            progress=lease.progress(),
            tail=files.tail(lease.log, TAIL_LINES) if end and end.code != 0 else "",
        )
        if end is not None:
            self.reports[task, number] = report
        return report


def end_of(lease: Lease) -> End | None:
    """How an attempt ended, as the DAG needs it."""
    end = lease.ending
    return None if end is None else End(code=end.code, message=end.message)


def write_order(folder: Path, order: JobOrder) -> None:
    """Keep a job; said twice, it is done once.

    Raises:
        Unavailable: the disk refused, or the folder holds another job of the same number.
    """
    if files.write_once(folder / "order.json", codec.to_plain(order)):
        return
    kept = _order(folder)
    if kept is not None and kept.spec_hash != order.spec_hash:
        raise Unavailable(
            f"{folder} holds another job of that number, {kept.name}; give this scheduler a folder of its own"
        )


def read_job(folder: Path, ledger: Ledger) -> JobFiles | None:
    """A job as its files stand; None if there is none.

    Raises:
        Unavailable: they cannot be read.
    """
    order = _order(folder)
    if order is None:
        return None
    cancel = files.read(folder / "cancel.json")
    job = JobFiles(
        folder=folder,
        order=order,
        cancel_grace_s=cancel["grace_s"] if cancel else None,
        attempts={task.name: _attempts(folder / task.name, ledger) for task in order.tasks},
    )
    job.derive()
    return job


def withdraw(job: JobFiles, task: TaskName, number: int, now: datetime, final: str = "", done: str = "") -> None:
    """Take a gated attempt away; the next one follows from it, or none if it is `final` or `done`, and why.

    Raises:
        Unavailable: the disk refused.
    """
    files.write_once(
        job.folder / task / str(number) / "withdrawn.json", {"at": now.timestamp(), "final": final, "done": done}
    )
    job.attempts[task].append(_withdrawn(final, done))
    job.derive()


def _withdrawn(final: str, done: str) -> End:
    if done:
        return End(code=0, message=done)
    return End(code=GIVEN_UP, message=final) if final else End(withdrawn=True)


def close(job: JobFiles) -> None:
    """Mark a job that has ended, so that nobody looks at it again when a scheduler starts."""
    if not (job.folder / "closed.json").exists():
        files.write_once(job.folder / "closed.json", {})


def _order(folder: Path) -> JobOrder | None:
    plain = files.read(folder / "order.json")
    if plain is None:
        return None
    try:
        return codec.from_plain(plain, JobOrder)
    except ExceptionGroup as error:
        raise Unavailable(f"{folder / 'order.json'} is no job: {error}") from error


def _attempts(folder: Path, ledger: Ledger) -> list[Lease | End]:
    found: list[Lease | End] = []
    while True:
        attempt = folder / str(len(found) + 1)
        if (taken := files.read(attempt / "withdrawn.json")) is not None:
            found.append(_withdrawn(str(taken.get("final", "")), str(taken.get("done", ""))))
        elif (lease := ledger.find(attempt)) is not None:
            found.append(lease)
        else:
            return found
