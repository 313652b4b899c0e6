"""A local cluster in a temporary folder, with real processes, for tests that wait for what they claim."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from scheduler.adapters.local import processes
from scheduler.adapters.local.cluster import LocalCluster
from scheduler.adapters.local.executor import LocalExecutor
from scheduler.adapters.local.lease import Lease
from scheduler.adapters.local.logs import LocalLogs
from scheduler.adapters.local.services import LocalService
from scheduler.adapters.local.state import LocalState
from scheduler.errors import Unavailable
from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.jobs.order import JobOrder, TaskOrder
from scheduler.jobs.reports import Phase, Report

T = TypeVar("T")
DEADLINE_S = 15.0


def clock() -> datetime:
    return datetime.now(UTC)


def until(look: Callable[[], T | None], deadline_s: float = DEADLINE_S) -> T:
    """The first answer of `look` that is not None or False; fails the test if there is none in time."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        found = look()
        if found is not None and found is not False:
            return found
        time.sleep(0.01)
    raise AssertionError(f"not seen within {deadline_s} s; the last look gave {look()!r}")


def a_task(
    name: str,
    script: str = "exit 0",
    *,
    step: str = "",
    needs: Sequence[str] = (),
    after_any: bool = False,
    gpus: int = 1,
    nodes: int = 1,
    env: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
) -> TaskOrder:
    """A task whose program is a shell script."""
    return TaskOrder(
        name=TaskName(name),
        step=step or name,
        needs=tuple(needs),
        any=after_any,
        gpus=(gpus,),
        nodes=nodes,
        image="",
        command=tuple(command) or ("sh", "-c", script),
        env=env or {},
        outputs=outputs or {},
    )


def an_order(
    *tasks: TaskOrder, job: int = 1, retries: int = 0, workdir: str = "", secrets: Mapping[str, str] | None = None
) -> JobOrder:
    return JobOrder(
        job=JobId(job),
        name=f"job-{job}",
        spec_hash=f"hash-{job}",
        tasks=tasks,
        retries=retries,
        workdir=workdir,
        secrets=secrets or {},
    )


class Bench:
    """One scheduler's view of the folder; `restart` makes a new one, as after kill -9 of the old."""

    def __init__(
        self, folder: Path, nodes: Mapping[str, int] | None = None, services: Sequence[LocalService] = ()
    ) -> None:
        self.folder = folder / "state"
        self.files = folder / "files"
        self.files.mkdir(exist_ok=True)
        self.nodes = nodes or {"node-1": 2, "node-2": 2}
        self.services = services
        self.state = LocalState(self.folder)
        self.restart()

    def restart(self) -> None:
        self.state.unlock()
        self.state = LocalState(self.folder)
        until(self._locked)
        self.executor = LocalExecutor(self.state, self.nodes, clock)
        self.cluster = LocalCluster(self.state, self.nodes, self.services, clock)
        self.logs = LocalLogs(self.state)

    def _locked(self) -> bool:
        # A scheduler killed while it starts a program leaves a copy of itself, and of its lock, for a moment.
        with suppress(Unavailable):
            self.state.lock()
        return self.state.locked

    def reports(self, job: int = 1) -> tuple[Report, ...]:
        return self.executor.reports({JobId(job): ()}, clock())

    def report(self, uid: str) -> Report:
        return next(report for report in self.reports(int(uid.partition(".")[0])) if report.uid == uid)

    def gated(self, job: int = 1) -> list[str]:
        return [report.uid for report in self.reports(job) if report.phase is Phase.GATED]

    def release(self, uid: str, node: str = "node-1", gpus: int = 1) -> None:
        self.executor.release(Uid(uid), {node: gpus})

    def take_back(self, uid: str, grace_s: float = 10.0) -> None:
        self.executor.take_back(Uid(uid), grace_s)

    def phase(self, uid: str, phase: Phase) -> Report:
        """The report of an attempt, once it is in that phase."""
        return until(lambda: found if (found := self.report(uid)).phase is phase else None)

    def ended(self, uid: str) -> Report:
        return self.phase(uid, Phase.ENDED)

    def run(self, uid: str) -> Report:
        """Release one attempt and wait for its end."""
        self.release(uid)
        return self.ended(uid)

    def said(self, name: str, lines: int = 1) -> list[str]:
        """What programs wrote into a file of ours, once it has so many lines."""
        path = self.files / name
        return until(lambda: found if path.exists() and len(found := path.read_text().splitlines()) >= lines else None)

    def stop_program(self, lease: Lease) -> None:
        """SIGKILL to the programs of a lease, as when they crash."""
        for rank in lease.ranks:
            if rank.program is not None:
                processes.tell_group(rank.program, signal.SIGKILL)

    def clear(self) -> None:
        """End everything that still runs."""
        self.restart()
        for lease in tuple(self.state.ledger.live().values()):
            lease.ask_to_stop(clock(), 0.0)

        def empty() -> bool:
            self.state.ledger.attend(clock())
            for lease in self.state.ledger.live().values():
                self.stop_program(lease)
            return not self.state.ledger.live()

        until(empty)
        self.state.unlock()
