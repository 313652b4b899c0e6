"""Processes of this computer that were not necessarily started by this process. Linux only: /proc tells."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scheduler.errors import Unavailable

SHIM = Path(__file__).with_name("shim.py")
MARK = "GPUJOB_LEASE"  # in the environment of every program of a lease, so that its orphans can be told


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What tells a process from a later one with the same number."""

    pid: int
    start: int  # ticks since boot
    boot: str

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Identity:
        """From what the shim wrote."""
        return cls(pid=plain["pid"], start=plain["start"], boot=plain["boot"])


@cache
def this_boot() -> str:
    """Another one after each start of the computer."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def alive(who: Identity) -> bool:
    """Whether it still runs; one that ended and was not collected does not."""
    if who.boot != this_boot():
        return False
    try:
        fields = Path(f"/proc/{who.pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] not in (b"Z", b"X") and int(fields[19]) == who.start


def tell(who: Identity, number: signal.Signals) -> None:
    """Send a signal to the process, if it runs."""
    if alive(who):
        with suppress(ProcessLookupError):
            os.kill(who.pid, number)


def tell_group(leader: Identity, number: signal.Signals) -> None:
    """Send a signal to the leader's process group, if the leader runs."""
    if alive(leader):
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, number)


def marked(lease: Path) -> tuple[int, ...]:
    """Processes that belong to a lease, wherever they went. Reads all of /proc: for orphans only."""
    mark = f"{MARK}={lease}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return tuple(found)


def kill(pids: tuple[int, ...]) -> None:
    """SIGKILL to each that still is there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Shims:
    """The shims that this process started: their parent must collect them."""

    def __init__(self) -> None:
        self._pids: dict[tuple[Path, int], int] = {}

    def start(self, lease: Path, rank: int, env: Mapping[str, str]) -> None:
        """Start one, unless one that we started for this rank has not ended yet.

        Raises:
            Unavailable: the computer refused.
        """
        self.collect()
        if (lease, rank) in self._pids:
            return
        command = [sys.executable, "-I", "-S", str(SHIM), str(lease), str(rank)]
        null = [(os.POSIX_SPAWN_OPEN, handle, os.devnull, os.O_RDWR, 0) for handle in (0, 1)]
        errors = (os.POSIX_SPAWN_OPEN, 2, str(lease / "shim.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            # Not subprocess: its objects complain when a scheduler ends before its programs do.
            self._pids[lease, rank] = os.posix_spawn(
                sys.executable, command, dict(env), file_actions=[*null, errors], setsid=True
            )
        except OSError as error:
            raise Unavailable(f"no process can be started: {error.strerror}") from error

    def collect(self) -> None:
        """Take leave of those that ended."""
        for key, pid in tuple(self._pids.items()):
            try:
                gone, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                gone = pid
            if gone:
                del self._pids[key]
