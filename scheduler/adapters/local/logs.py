"""Output of attempts."""

from __future__ import annotations

from scheduler.adapters.local import files, lease
from scheduler.adapters.local.state import LocalState, parse_uid
from scheduler.jobs.job import Uid


class LocalLogs:
    """Reads what programs wrote; needs no lock."""

    def __init__(self, state: LocalState) -> None:
        self._state = state

    def tail(self, uid: Uid, lines: int) -> str:
        """The last lines that an attempt wrote, out of its last 64 KiB; "" if it wrote none."""
        named = parse_uid(uid)
        found = lease.find(self._state.attempt(*named)) if named else None
        return files.tail(found.log, lines) if found else ""
