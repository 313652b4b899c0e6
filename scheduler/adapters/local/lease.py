"""GPU slots in one hand, and the programs that run on them: what the files of one lease say."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from scheduler.adapters.local import files, processes
from scheduler.adapters.local.processes import Identity, Shims
from scheduler.fleet.pool import HolderKind
from scheduler.jobs.progress import Progress, parse_line
from scheduler.jobs.reports import Phase

MATE_GRACE_S = 30.0  # for the other programs of a gang, when one of them failed
UNSEEN = "nobody saw how it ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What one program of a tenant gets."""

    node: str
    gpus: int
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Who wants a lease, and what to run under it: one program a seat."""

    kind: HolderKind
    holder: str
    seats: tuple[Seat, ...]
    command: tuple[str, ...]
    cwd: Path
    inherit: tuple[str, ...] = ()  # names of variables of the scheduler's own that never go to disk
    port: int = 0  # loopback port promised to it; 0 = none


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a program, or a whole lease, ended."""

    code: int | None
    message: str
    stopped: bool  # it had been asked to
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """That it was asked to end."""

    at: datetime
    grace_s: float


@dataclass(slots=True)
class Rank:
    """One program of a lease, as far as it has been seen."""

    number: int
    folder: Path
    claim: Identity | None = None  # of its shim
    program: Identity | None = None
    started_at: datetime | None = None
    ending: Ending | None = None
    told: bool = False  # SIGTERM was sent in the place of a lost shim

    def look(self) -> None:
        """Read what is not known yet."""
        if self.ending is not None:
            return
        if self.claim is None and (claim := files.read(self.folder / "claim")):
            self.claim = Identity.of(claim)
        if self.claim is None:
            return
        if self.program is None and (started := files.read(self.folder / "started.json")):
            self.program, self.started_at = Identity.of(started), _at(started["at"])
        if end := files.read(self.folder / "exit.json"):
            self.ending = Ending(
                code=end["code"], message=end["message"], stopped=end["stopped"], at=_at(end["ended_at"])
            )


@dataclass(slots=True)
class Lease:
    """One folder with a `placement.json`."""

    folder: Path
    kind: HolderKind
    holder: str
    since: datetime
    slots: Mapping[str, tuple[int, ...]]  # node -> indices of its GPUs
    inherit: tuple[str, ...]
    port: int
    ranks: tuple[Rank, ...]
    stop: Stop | None = None
    halt: Stop | None = None  # of a gang, one of whose programs failed
    _progress: tuple[int, Progress | None] = field(default=(0, None))

    @property
    def gpus(self) -> Mapping[str, int]:
        """GPUs on each node; {node: 0} for a task without GPUs."""
        return {node: len(indices) for node, indices in self.slots.items()}

    @property
    def started_at(self) -> datetime | None:
        """When the last of its programs began."""
        return max((rank.started_at for rank in self.ranks if rank.started_at), default=None)

    @property
    def ending(self) -> Ending | None:
        """None until all its programs ended. The first bad end counts: what follows in a gang is its echo."""
        ends = [rank.ending for rank in self.ranks if rank.ending is not None]
        if len(ends) < len(self.ranks):
            return None
        first = min(ends, key=lambda end: (end.code == 0, end.code is not None, end.at))
        stopped = any(end.stopped for end in ends)
        return Ending(code=first.code, message=first.message, stopped=stopped, at=max(end.at for end in ends))

    @property
    def phase(self) -> Phase:
        """Never gated: a lease begins when the gate opens."""
        if self.ending is not None:
            return Phase.ENDED
        if self.stop is not None:
            return Phase.STOPPING
        return Phase.RUNNING if all(rank.started_at for rank in self.ranks) else Phase.STARTING

    @property
    def log(self) -> Path:
        """Output of the program that tells most: the one that ended badly, else the first."""
        bad = [rank for rank in self.ranks if rank.ending is not None and rank.ending.code != 0]
        told = min(bad, key=lambda rank: rank.ending.at if rank.ending else self.since, default=self.ranks[0])
        return told.folder / "log.txt"

    def look(self) -> None:
        """Read what is not known yet."""
        for rank in self.ranks:
            rank.look()
        if self.stop is None:
            self.stop = _stop(self.folder / "stop.json")
        if self.halt is None and len(self.ranks) > 1:
            self.halt = _stop(self.folder / "halt.json")

    def ask_to_stop(self, now: datetime, grace_s: float) -> None:
        """SIGTERM now, SIGKILL after the grace. Said twice, the earlier end stands.

        Raises:
            Unavailable: the disk refused.
        """
        self.look()  # a shim whose claim has not been read cannot be woken
        if self.ending is None and files.write_once(
            self.folder / "stop.json", {"at": now.timestamp(), "grace_s": grace_s}
        ):
            self._wake()
        self.look()
        if self.ending is None and self.stop is not None:
            self._hurry(self.stop, now, grace_s)

    def _hurry(self, stop: Stop, now: datetime, grace_s: float) -> None:
        until_s = (now - stop.at).total_seconds() + grace_s
        if until_s < stop.grace_s:
            files.write(self.folder / "stop.json", {"at": stop.at.timestamp(), "grace_s": until_s})
            self.stop = replace(stop, grace_s=until_s)
            self._wake()

    def care(self, shims: Shims, now: datetime) -> None:
        """Do what its shims cannot: those that were never started, those that were killed, the mates in a gang.

        Raises:
            Unavailable: the computer refused.
        """
        for rank in self.ranks:
            if rank.ending is not None:
                continue
            if rank.claim is None:
                inherited = {name: os.environ[name] for name in self.inherit if name in os.environ}
                shims.start(self.folder, rank.number, inherited)
            elif not processes.alive(rank.claim):
                self._replace_shim(rank, now)
        self._end_mates(now)

    def progress(self) -> Progress | None:
        """Newest word of the first program."""
        path = self.ranks[0].folder / "progress.json"
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return None
        if changed != self._progress[0] and (told := files.read(path)):
            self._progress = (changed, _progress_of(told))
        return self._progress[1]

    def _wake(self) -> None:
        for rank in self.ranks:
            if rank.ending is None and rank.claim is not None:
                processes.tell(rank.claim, signal.SIGUSR1)

    def _replace_shim(self, rank: Rank, now: datetime) -> None:
        rank.look()  # it may have written the end between our reading and its own end
        if rank.ending is not None:
            return
        if rank.program is not None and processes.alive(rank.program):
            asked = self.stop or self.halt
            if asked is None:
                return
            if now >= asked.at + timedelta(seconds=asked.grace_s):
                processes.tell_group(rank.program, signal.SIGKILL)
            elif not rank.told:
                processes.tell_group(rank.program, signal.SIGTERM)
                rank.told = True
            return
        if left := processes.marked(rank.folder):
            processes.kill(left)
            return
        end = {"code": None, "message": UNSEEN, "stopped": self.stop is not None, "ended_at": now.timestamp()}
        files.write_once(rank.folder / "exit.json", end)
        rank.look()

    def _end_mates(self, now: datetime) -> None:
        bad = [rank for rank in self.ranks if rank.ending is not None and rank.ending.code != 0]
        if not bad or self.ending is not None or self.stop is not None or self.halt is not None:
            return
        code = bad[0].ending.code if bad[0].ending else None
        why = f"rank {bad[0].number} of the gang ended with {'nothing seen' if code is None else code}"
        if files.write_once(self.folder / "halt.json", {"at": now.timestamp(), "grace_s": MATE_GRACE_S, "why": why}):
            self._wake()


def make(folder: Path, tenant: Tenant, slots: tuple[tuple[int, ...], ...], now: datetime) -> Lease:
    """Write a lease down, one tuple of slots a seat; from this moment on it holds them. Nothing is started yet.

    Raises:
        Unavailable: the disk refused.
    """
    ranks = [
        {
            "command": list(tenant.command),
            "cwd": str(tenant.cwd),
            "env": {
                **seat.env,
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, indices)),
                processes.MARK: str(folder / str(number)),
            },
        }
        for number, (seat, indices) in enumerate(zip(tenant.seats, slots, strict=True))
    ]
    held: dict[str, tuple[int, ...]] = {}
    for seat, indices in zip(tenant.seats, slots, strict=True):
        held[seat.node] = (*held.get(seat.node, ()), *indices)
    plain = {
        "at": now.timestamp(),
        "kind": tenant.kind.value,
        "holder": tenant.holder,
        "slots": held,
        "inherit": list(tenant.inherit),
        "port": tenant.port,
        "ranks": ranks,
    }
    files.write_once(folder / "placement.json", plain)
    lease = find(folder)
    assert lease is not None
    return lease


def find(folder: Path) -> Lease | None:
    """The lease of a folder, as its files stand; None if it has none.

    Raises:
        Unavailable: they cannot be read.
    """
    plain = files.read(folder / "placement.json")
    if plain is None:
        return None
    lease = Lease(
        folder=folder,
        kind=HolderKind(plain["kind"]),
        holder=plain["holder"],
        since=_at(plain["at"]),
        slots={node: tuple(indices) for node, indices in plain["slots"].items()},
        inherit=tuple(plain["inherit"]),
        port=plain["port"],
        ranks=tuple(Rank(number=number, folder=folder / str(number)) for number in range(len(plain["ranks"]))),
    )
    lease.look()
    return lease


def _progress_of(told: Mapping[str, Any]) -> Progress | None:
    parsed = parse_line(told["line"])
    if parsed is None:
        return None
    fraction, values = parsed
    return Progress(
        fraction=fraction,
        # A line without them does not unsay what an earlier one said of checkpoints.
        values={**told["kept"], **values},
        first_at=_at(told["first_at"]),
        saved_at=_at(told["saved_at"]) if told["saved_at"] else None,
    )


def _stop(path: Path) -> Stop | None:
    asked = files.read(path)
    return Stop(at=_at(asked["at"]), grace_s=asked["grace_s"]) if asked else None


def _at(unix: float) -> datetime:
    return datetime.fromtimestamp(unix, UTC)
