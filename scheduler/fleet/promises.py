"""How much of what windows said came true: the pattern of each past hour, held against what was wanted afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from scheduler.fleet.pattern import SLOT, Pattern, Slots, of_slots, slot_of, slot_start, slots
from scheduler.fleet.services import Service

SAID = (0.5, 0.8, 0.9)
LEADS = (timedelta(hours=1), timedelta(hours=4), timedelta(hours=12))
_EVERY = timedelta(hours=1)
_LEAST = timedelta(days=1)  # of history before the first promise


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """Promises of one kind: "so many GPUs stay idle for so long, with so much confidence"."""

    lead: timedelta
    said: float
    made: int
    kept: int  # at no time before the end were more GPUs wanted than was said

    @property
    def came_true(self) -> float | None:
        """Share of them; None if none was made."""
        return self.kept / self.made if self.made else None


def calibration(
    observed: Iterable[tuple[datetime, str, int]], services: Sequence[Service], timezone: str
) -> tuple[Promises, ...]:
    """From (instant, service, replicas wanted), oldest first: one promise an hour, by lead and confidence.

    Each is made of what was known then, and of nothing later.
    """
    rows = list(observed)
    most, newest = slots(rows, timezone)
    if not rows:
        return tuple(Promises(lead=lead, said=said, made=0, kept=0) for lead in LEADS for said in SAID)
    past = _Past(most, services, timezone)
    made: dict[tuple[timedelta, float], list[bool]] = {(lead, said): [] for lead in LEADS for said in SAID}
    at = slot_start(rows[0][0] + _LEAST) + _EVERY
    end = max(newest.values())
    while at < end:
        known = past.pattern_at(at)
        for said in SAID:
            promised = past.promised(known, at, said)
            for lead in LEADS:
                wanted = past.wanted(at, lead) if at + lead <= end else None
                if wanted is not None:
                    made[lead, said].append(wanted <= max(0, *promised[: lead // SLOT]))
        at += _EVERY
    return tuple(Promises(lead=lead, said=said, made=len(kept), kept=sum(kept)) for (lead, said), kept in made.items())


class _Past:
    """What was known at a past instant, and what became of it. GPUs are counted against those wanted at the instant."""

    def __init__(self, most: Slots, services: Sequence[Service], timezone: str) -> None:
        self._most = most
        self._services = services
        self._timezone = timezone
        self._zone = ZoneInfo(timezone)
        self._in_order = sorted(most.items(), key=lambda item: (item[0][1], item[0][2]))

    def pattern_at(self, at: datetime) -> Pattern:
        local = at.astimezone(self._zone)
        now = (local.date(), slot_of(local).number)
        seen = {}
        for key, want in self._in_order:
            if key[1:] >= now:
                break
            seen[key] = want
        return of_slots(seen, {service.name: at - SLOT for service in self._services}, self._timezone)

    def promised(self, known: Pattern, at: datetime, said: float) -> Sequence[int]:
        """GPUs wanted more than now, in each slot ahead, as the pattern had it."""
        now = self._wants(at - SLOT)
        return [
            sum(
                (wanted - now.get(service.name, wanted)) * service.gpus_per_replica
                for service in self._services
                if (wanted := known.expected(service.name, at + number * SLOT, said)) is not None
            )
            for number in range(max(LEADS) // SLOT)
        ]

    def wanted(self, at: datetime, lead: timedelta) -> int | None:
        """The most GPUs that were wanted more than now; None where nobody knows."""
        now = self._wants(at - SLOT)
        most = 0
        for number in range(lead // SLOT):
            then = self._wants(at + number * SLOT)
            if len(then) < len(self._services) or len(now) < len(self._services):
                return None
            most = max(most, sum((then[one.name] - now[one.name]) * one.gpus_per_replica for one in self._services))
        return most

    def _wants(self, at: datetime) -> Mapping[str, int]:
        local = at.astimezone(self._zone)
        number = slot_of(local).number
        found = {service.name: self._most.get((service.name, local.date(), number)) for service in self._services}
        return {name: want for name, want in found.items() if want is not None}
