"""Who holds which GPU slot: no slot is ever in two hands, because every hand is a lease in one folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from scheduler.adapters.local import files, lease
from scheduler.adapters.local.lease import Lease, Tenant
from scheduler.adapters.local.processes import Shims
from scheduler.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Slots that someone outside holds for good."""

    node: str
    slots: tuple[int, ...]
    holder: str


class Ledger:
    """All leases that have not ended. What it says is derived from files; in memory it is only quicker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._live: dict[Path, Lease] | None = None
        self._shims = Shims()
        self.reserved: tuple[Reserved, ...] = ()

    def live(self) -> Mapping[Path, Lease]:
        """Leases by folder, as last looked at."""
        if self._live is None:
            found = (lease.find(folder) for folder in self._folders())
            self._live = {one.folder: one for one in found if one is not None and one.ending is None}
        return self._live

    def find(self, folder: Path) -> Lease | None:
        """The lease of a folder, ended or not; None if it has none."""
        return self.live().get(folder) or lease.find(folder)

    def attend(self, now: datetime, only: Collection[Lease] | None = None) -> None:
        """See what became of all, or of a few; do what their shims cannot; forget those that ended.

        Raises:
            Unavailable: files cannot be read, or nothing can be started.
        """
        self._shims.collect()
        for one in tuple(self.live().values()) if only is None else only:
            one.look()
            one.care(self._shims, now)
            if one.ending is not None:
                self._drop(one)

    def grant(self, folder: Path, tenant: Tenant, nodes: Mapping[str, int], now: datetime) -> Lease:
        """A lease for the tenant, its programs started.

        Raises:
            Unavailable: too few slots are free, or the computer refused.
        """
        slots = _choose(tenant, self.free(nodes))
        if isinstance(slots, str):
            self.attend(now)  # some may have come free since the last look
            slots = _choose(tenant, self.free(nodes))
        if isinstance(slots, str):
            raise Unavailable(slots)
        made = lease.make(folder, tenant, slots, now)
        if self._live is not None:
            self._live[folder] = made
        made.care(self._shims, now)
        return made

    def free(self, nodes: Mapping[str, int]) -> Mapping[str, tuple[int, ...]]:
        """Indices of free slots, by node."""
        held: dict[str, set[int]] = {node: set() for node in nodes}
        for one in self.live().values():
            for node, slots in one.slots.items():
                held.setdefault(node, set()).update(slots)
        for fixed in self.reserved:
            held.setdefault(fixed.node, set()).update(fixed.slots)
        return {node: tuple(slot for slot in range(size) if slot not in held[node]) for node, size in nodes.items()}

    def ports(self) -> frozenset[int]:
        """Loopback ports promised to leases."""
        return frozenset(one.port for one in self.live().values() if one.port)

    def forget(self) -> None:
        """Read all files again."""
        self._live = None

    def _drop(self, ended: Lease) -> None:
        if self._live is not None:
            self._live.pop(ended.folder, None)

    def _folders(self) -> list[Path]:
        attempts = [
            attempt
            for job in files.folders(self._folder / "jobs")
            if not (job / "closed.json").exists()
            for task in files.folders(job)
            for attempt in files.folders(task)
        ]
        replicas = [one for service in files.folders(self._folder / "services") for one in files.folders(service)]
        return attempts + replicas


def _choose(tenant: Tenant, free: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, ...], ...] | str:
    """Slots for each seat, or a sentence why there are none."""
    left = dict(free)
    chosen = []
    for seat in tenant.seats:
        there = left.get(seat.node)
        if there is None:
            return f"{seat.node} is no node of this computer; it has {', '.join(free)}"
        if len(there) < seat.gpus:
            return f"{tenant.holder} wants {seat.gpus} GPUs of {seat.node}, {len(there)} are free"
        chosen.append(there[: seat.gpus])
        left[seat.node] = there[seat.gpus :]
    return tuple(chosen)
