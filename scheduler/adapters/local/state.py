"""The folder that holds all truth of the local cluster, and the lock that lets one scheduler at a time act on it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from threading import RLock

from scheduler.adapters.local.ledger import Ledger
from scheduler.errors import Unavailable
from scheduler.jobs.job import JobId, TaskName, Uid


class LocalState:
    """Where things lie. Who only reads needs no lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.ledger = Ledger(self.folder)
        self.turn = RLock()  # executor and cluster share the GPUs: one of them acts at a time
        self.terms = 0  # times that it was locked: what was remembered from before one is old
        self._lock: int | None = None

    @property
    def locked(self) -> bool:
        """Whether this process may act."""
        return self._lock is not None

    def lock(self) -> None:
        """Become the one scheduler that acts on this folder; it stays so until `unlock` or the end of the process.

        Raises:
            Unavailable: another one does, or the folder cannot be written.
        """
        if self._lock is not None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise Unavailable(f"{self.folder} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise Unavailable(
                f"another gpujob acts on {self.folder}; stop it, or give this one its own folder"
            ) from error
        self._lock = handle
        self.terms += 1
        self.ledger.forget()

    def unlock(self) -> None:
        """Let another scheduler act."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def must_act(self) -> None:
        """Raises Unavailable unless this process holds the lock."""
        if not self.locked:
            raise Unavailable(f"this gpujob only reads {self.folder}; the running scheduler acts on it")

    def job(self, job: JobId) -> Path:
        """Folder of a job."""
        return self.folder / "jobs" / str(job)

    def attempt(self, job: JobId, task: TaskName, number: int) -> Path:
        """Folder of one attempt of a task."""
        return self.job(job) / task / str(number)

    def service(self, name: str) -> Path:
        """Folder of a service."""
        return self.folder / "services" / name


def uid_of(job: JobId, task: TaskName, number: int) -> Uid:
    """The name of an attempt: "41.sft-3.1"."""
    return Uid(f"{job}.{task}.{number}")


def parse_uid(uid: Uid) -> tuple[JobId, TaskName, int] | None:
    """Job, task and number of an attempt; None for a name that is not ours."""
    job, _, rest = uid.partition(".")
    task, _, number = rest.rpartition(".")
    if not (job.isascii() and job.isdecimal() and number.isascii() and number.isdecimal() and task):
        return None
    if "/" in task or task.startswith("."):
        return None
    return JobId(int(job)), TaskName(task), int(number)
