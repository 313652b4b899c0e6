"""What services wanted at each time of the day, on the days seen so far, and how today differs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from statistics import median
from zoneinfo import ZoneInfo

SLOT = timedelta(minutes=10)
_DAYS = 14  # before today, that its level is held against
_LEVEL = 18  # slots of today that are held against the days before: three hours
_LEVEL_LEAST = 6
_LONGEST_GAP = timedelta(hours=1)  # between two observations; nobody knows what was wanted in a longer one


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Ten minutes of the local day; working days and weekends are told apart."""

    weekend: bool
    number: int  # 0 to 143


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Per service and slot of the day: the most replicas wanted in that slot, one number a day, ascending.

    On holidays, and after a service has won or lost users, all slots are lower or higher than on the days before:
    `levels` says by how many replicas, in the middle of the last three hours.
    """

    timezone: str = "UTC"
    wants: Mapping[str, Mapping[Slot, tuple[int, ...]]] = field(default_factory=dict)
    levels: Mapping[str, float] = field(default_factory=dict)

    def expected(self, service: str, at: datetime, quantile: float) -> int | None:
        """Replicas that suffice on this share of the days like this one, at today's level; None if none was seen."""
        return self.expected_in(service, self.slot(at), quantile)

    def slot(self, at: datetime) -> Slot:
        """The slot of an instant."""
        return slot_of(at.astimezone(ZoneInfo(self.timezone)))

    def expected_in(self, service: str, slot: Slot, quantile: float) -> int | None:
        """The same for a slot that is known already."""
        seen = self._seen(service, slot)
        if not seen:
            return None
        usual = seen[max(math.ceil(quantile * len(seen)) - 1, 0)]
        return max(math.ceil(usual + self.levels.get(service, 0.0)), 0)

    def days(self, service: str, at: datetime) -> int:
        """Days like this one on which the service was seen at this time of day."""
        return len(self._seen(service, self.slot(at)))

    def _seen(self, service: str, slot: Slot) -> tuple[int, ...]:
        slots = self.wants.get(service, {})
        # A first weekend is better guessed from the working days than not at all.
        return slots.get(slot) or slots.get(Slot(weekend=not slot.weekend, number=slot.number), ())


Slots = Mapping[tuple[str, date, int], int]  # (service, local day, number of the slot): the most replicas wanted in it


def pattern(observed: Iterable[tuple[datetime, str, int]], timezone: str) -> Pattern:
    """From (instant, service, replicas wanted), oldest first.

    What was wanted stays wanted until the next observation; after an hour without one nothing is known.
    """
    most, newest = slots(observed, timezone)
    return of_slots(most, newest, timezone)


def slots(
    observed: Iterable[tuple[datetime, str, int]], timezone: str
) -> tuple[dict[tuple[str, date, int], int], dict[str, datetime]]:
    """The most that was wanted in each slot, and when each service was seen last."""
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
    return most, {service: at for service, (at, _) in newest.items()}


def of_slots(most: Slots, newest: Mapping[str, datetime], timezone: str) -> Pattern:
    """The pattern of slots that were seen up to `newest`."""
    zone = ZoneInfo(timezone)
    levels = {service: _level(most, service, at.astimezone(zone)) for service, at in newest.items()}
    return Pattern(timezone=timezone, wants=_by_slot(most), levels=levels)


def slot_start(at: datetime) -> datetime:
    """The beginning of the ten minutes in which this instant lies."""
    utc = at.astimezone(UTC)
    return utc.replace(minute=utc.minute - utc.minute % 10, second=0, microsecond=0)


def slot_of(local: datetime) -> Slot:
    """The slot of a local time."""
    return Slot(weekend=local.weekday() >= 5, number=local.hour * 6 + local.minute // 10)


def _raise_to(most: dict[tuple[str, date, int], int], service: str, local: datetime, want: int) -> None:
    key = (service, local.date(), slot_of(local).number)
    most[key] = max(want, most.get(key, want))


def _level(most: Slots, service: str, newest: datetime) -> float:
    """The middle of the differences between the last slots and the same slots of days before, alike if there were any.

    Less than an hour of such slots tells nothing.
    """
    differences: list[float] = []
    for back in range(_LEVEL):
        local = newest - back * SLOT
        now = most.get((service, local.date(), slot_of(local).number))
        before = _before(most, service, local)
        if now is not None and before:
            differences.append(now - median(before))
    return float(median(differences)) if len(differences) >= _LEVEL_LEAST else 0.0


def _before(most: Slots, service: str, local: datetime) -> list[int]:
    slot = slot_of(local)
    alike: dict[bool, list[int]] = {True: [], False: []}
    for days in range(1, _DAYS + 1):
        day = local.date() - timedelta(days=days)
        want = most.get((service, day, slot.number))
        if want is not None:
            alike[(day.weekday() >= 5) is slot.weekend].append(want)
    return alike[True] or alike[False]


def _by_slot(most: Slots) -> dict[str, dict[Slot, tuple[int, ...]]]:
    seen: defaultdict[str, defaultdict[Slot, list[int]]] = defaultdict(lambda: defaultdict(list))
    for (service, day, number), want in most.items():
        seen[service][Slot(weekend=day.weekday() >= 5, number=number)].append(want)
    return {service: {slot: tuple(sorted(wants)) for slot, wants in slots.items()} for service, slots in seen.items()}
