"""This computer as the cluster: GPU slots, and processes on them."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scheduler.adapters.local.cluster import LocalCluster
from scheduler.adapters.local.executor import LocalExecutor
from scheduler.adapters.local.gpus import detect_gpus
from scheduler.adapters.local.logs import LocalLogs
from scheduler.adapters.local.services import LocalReplica, LocalService
from scheduler.adapters.local.state import LocalState
from scheduler.errors import Unavailable
from scheduler.fleet.services import Mode
from scheduler.jobs.spec import JobSpec
from scheduler.ports import Clock, Cluster, Executor, Images, LogReader
from scheduler.settings import Settings

_LOCK_TRIES, _LOCK_PAUSE_S = 20, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGround:
    """The folder of runs and replicas, and what works in it."""

    state: LocalState
    cluster: Cluster
    executor: Executor
    logs: LogReader
    images: Images | None = None

    def faults(self) -> tuple[str, ...]:
        """None that its nodes do not show."""
        return ()

    def unseen(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def unfit(self, spec: JobSpec) -> tuple[str, ...]:
        """Processes run whatever the job file allows."""
        del spec
        return ()

    def counts(self) -> Mapping[str, int]:
        """Nothing: here nobody else ends runs."""
        return {}

    def look(self) -> None:
        """Its files can be read without more ado."""

    def take(self) -> None:
        """Hold the folder alone.

        Raises:
            Unavailable: another scheduler holds it.
        """
        # One that was just killed may hold the folder for a moment longer: what it was starting ends first.
        for _ in range(_LOCK_TRIES - 1):
            try:
                self.state.lock()
            except Unavailable:
                time.sleep(_LOCK_PAUSE_S)
            else:
                return
        self.state.lock()

    def listen(self, hint: Callable[[], None]) -> None:
        """Files tell nobody; turns come often enough here."""

    def leave(self) -> None:
        """The next scheduler may have the folder."""
        self.state.unlock()


def local(settings: Settings, clock: Clock) -> LocalGround:
    """The parts of `kind = "local"`."""
    state = LocalState(settings.state_folder)
    sizes = {node.name: node.gpus for node in settings.nodes} or {socket.gethostname().lower(): detect_gpus()}
    services = tuple(
        LocalService(
            name=row.name,
            command=row.command,
            gpus_per_replica=row.gpus_per_replica,
            mode=Mode(row.mode),
            replicas=tuple(LocalReplica(url=replica.url, node=replica.node) for replica in row.replica),
            drain_s=row.drain_s,
            workdir=str(settings.loaded.folder.resolve()),
        )
        for row in settings.services
    )
    programs = Path(sys.executable).parent  # `python` in a command is the one that runs gpujob
    return LocalGround(
        state=state,
        cluster=LocalCluster(state, sizes, services, clock, programs),
        executor=LocalExecutor(state, sizes, clock, programs),
        logs=LocalLogs(state),
    )
