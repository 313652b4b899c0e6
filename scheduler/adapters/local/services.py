"""Services of the local cluster: what the operator says of each, and which replicas it shall have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from scheduler.adapters.local import files
from scheduler.fleet.services import Mode

LONGEST_WAIT_S = 60.0  # before a replica that keeps dying is started again
SETTLED_S = 60.0  # one that lived so long did not die of its start


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalReplica:
    """A replica that somebody else runs."""

    url: str  # of its /metrics
    node: str
    slots: tuple[int, ...] = ()  # indices of its GPUs; () = the first that nobody else is said to have


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalService:
    """One service of this computer."""

    name: str
    gpus_per_replica: int
    mode: Mode
    command: tuple[str, ...] = ()  # manage: {port} {name} {service} are filled in
    replicas: tuple[LocalReplica, ...] = ()  # observe: all there are
    drain_s: float = 30.0  # manage: between SIGTERM and SIGKILL
    workdir: str = ""  # manage: "" = a folder of the replica's own
    env: Mapping[str, str] = field(default_factory=dict)  # manage; kept in files, so no place for secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One replica that a managed service shall have."""

    id: str
    asked_at: datetime
    node: str = ""  # "" = the first with room
    deaths: int = 0  # of its predecessors, one soon after the other
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """All replicas that a managed service shall have, first asked first; the others that run are leaving."""

    service: str
    next: int = 1
    replicas: tuple[Wish, ...] = ()

    def more(self, nodes: Sequence[str], count: int, now: datetime) -> Wishes:
        """`count` replicas are asked for; `nodes` says where, as far as it goes."""
        new = tuple(
            Wish(
                id=f"{self.service}-{self.next + place}",
                asked_at=now,
                node=nodes[place] if place < len(nodes) else "",
            )
            for place in range(count)
        )
        return replace(self, next=self.next + count, replicas=self.replicas + new)

    def fewer(self, count: int, leave_first: Sequence[str], started: frozenset[str]) -> Wishes:
        """`count` replicas leave: those named, in that order; then those without GPUs; then the newest."""
        newest = tuple(wish.id for wish in reversed(self.replicas))
        known = frozenset(newest)
        order = [
            *(name for name in dict.fromkeys(leave_first) if name in known),
            *(name for name in newest if name not in leave_first and name not in started),
            *(name for name in newest if name not in leave_first and name in started),
        ]
        leaving = frozenset(order[:count])
        return replace(self, replicas=tuple(wish for wish in self.replicas if wish.id not in leaving))

    def after_death(self, dead: str, since: datetime, now: datetime) -> Wishes:
        """A new replica in the place of one that died by itself; one that keeps dying waits longer each time."""
        replicas = []
        for wish in self.replicas:
            if wish.id != dead:
                replicas.append(wish)
                continue
            deaths = wish.deaths + 1 if now - since < timedelta(seconds=SETTLED_S) else 1
            wait = min(2.0 ** (deaths - 1) - 1, LONGEST_WAIT_S)
            replicas.append(
                Wish(
                    id=f"{self.service}-{self.next}",
                    asked_at=now,
                    node=wish.node,
                    deaths=deaths,
                    not_before=now + timedelta(seconds=wait),
                )
            )
        return replace(self, next=self.next + 1, replicas=tuple(replicas))


def at(unix: float) -> datetime:
    """The time that a file means."""
    return datetime.fromtimestamp(unix, UTC)


def read_wishes(folder: Path, service: str) -> Wishes:
    """What was asked for last.

    Raises:
        Unavailable: the file cannot be read.
    """
    plain = files.read(folder / "wishes.json")
    if plain is None:
        return Wishes(service=service)
    return Wishes(
        service=service,
        next=plain["next"],
        replicas=tuple(
            Wish(
                id=wish["id"],
                asked_at=at(wish["asked_at"]),
                node=wish["node"],
                deaths=wish["deaths"],
                not_before=at(wish["not_before"]) if wish["not_before"] else None,
            )
            for wish in plain["replicas"]
        ),
    )


def write_wishes(folder: Path, wishes: Wishes) -> None:
    """Keep what is asked for.

    Raises:
        Unavailable: the disk refused.
    """
    replicas = [
        {
            "id": wish.id,
            "asked_at": wish.asked_at.timestamp(),
            "node": wish.node,
            "deaths": wish.deaths,
            "not_before": wish.not_before.timestamp() if wish.not_before else None,
        }
        for wish in wishes.replicas
    ]
    files.write(folder / "wishes.json", {"next": wishes.next, "replicas": replicas})
