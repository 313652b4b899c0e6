"""What services wanted at each time of the day, on the days seen so far."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

SLOT = timedelta(minutes=10)
_LONGEST_GAP = timedelta(hours=1)  # between two observations; nobody knows what was wanted in a longer one


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Ten minutes of the local day; working days and weekends are told apart."""

    weekend: bool
    number: int  # 0 to 143


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Per service and slot of the day: the most replicas wanted in that slot, one number a day, ascending."""

    timezone: str = "UTC"
    wants: Mapping[str, Mapping[Slot, tuple[int, ...]]] = field(default_factory=dict)

    def expected(self, service: str, at: datetime, quantile: float) -> int | None:
        """Replicas that suffice on this share of the days like this one; None if no such day was seen."""
        seen = self._seen(service, at)
        return seen[max(math.ceil(quantile * len(seen)) - 1, 0)] if seen else None

    def days(self, service: str, at: datetime) -> int:
        """Days like this one on which the service was seen at this time of day."""
        return len(self._seen(service, at))

    def _seen(self, service: str, at: datetime) -> tuple[int, ...]:
        slots = self.wants.get(service, {})
        local = at.astimezone(ZoneInfo(self.timezone))
        slot = _slot(local)
        # A first weekend is better guessed from the working days than not at all.
        return slots.get(slot) or slots.get(Slot(weekend=not slot.weekend, number=slot.number), ())


def pattern(observed: Iterable[tuple[datetime, str, int]], timezone: str) -> Pattern:
    """From (instant, service, replicas wanted), oldest first.

    What was wanted stays wanted until the next observation; after an hour without one nothing is known.
    """
    zone = ZoneInfo(timezone)
    most: dict[tuple[str, date, int], int] = {}
    newest: dict[str, tuple[datetime, int]] = {}
    for at, service, want in observed:
        before, wanted = newest.get(service, (at, want))
        if at - before <= _LONGEST_GAP:
            start = slot_start(before) + SLOT
            while start < at:
                _raise_to(most, service, start.astimezone(zone), wanted)
                start += SLOT
        _raise_to(most, service, at.astimezone(zone), want)
        newest[service] = (at, want)
    return Pattern(timezone=timezone, wants=_by_slot(most))


def slot_start(at: datetime) -> datetime:
    """The beginning of the ten minutes in which this instant lies."""
    utc = at.astimezone(UTC)
    return utc.replace(minute=utc.minute - utc.minute % 10, second=0, microsecond=0)


def _slot(local: datetime) -> Slot:
    return Slot(weekend=local.weekday() >= 5, number=local.hour * 6 + local.minute // 10)


def _raise_to(most: dict[tuple[str, date, int], int], service: str, local: datetime, want: int) -> None:
    key = (service, local.date(), _slot(local).number)
    most[key] = max(want, most.get(key, want))


def _by_slot(most: Mapping[tuple[str, date, int], int]) -> dict[str, dict[Slot, tuple[int, ...]]]:
    seen: defaultdict[str, defaultdict[Slot, list[int]]] = defaultdict(lambda: defaultdict(list))
    for (service, day, number), want in most.items():
        seen[service][Slot(weekend=day.weekday() >= 5, number=number)].append(want)
    return {service: {slot: tuple(sorted(wants)) for slot, wants in slots.items()} for service, slots in seen.items()}
