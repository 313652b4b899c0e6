"""The operator's hours: when GPUs may be lent at all, in local time, across midnight and daylight saving time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MINUTES = 24 * 60
_LOOK_AHEAD_DAYS = 9  # hours repeat weekly: what does not change in a week and a day never does
_EXAMPLE = 'write it as "20:00-08:00" or "20:00-08:00 mon-fri"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """Hours of some days of the week. They belong to the day on which they open."""

    opens: int  # minutes after local midnight, below 1440
    closes: int  # likewise, up to 1440; not above `opens`: on the next day
    days: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)  # 0 is Monday


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """All hours in which GPUs may be lent; without any, it is always allowed.

    Raises:
        ValueError: there is no such time zone.
    """

    timezone: str = "UTC"
    windows: tuple[Hours, ...] = ()

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f'"{self.timezone}" is no time zone; write one like "Europe/Berlin" or "UTC"') from error


def parse_hours(text: str) -> Hours | str:
    """`20:00-08:00`, `20:00-08:00 mon-fri`, `00:00-24:00 sat,sun`; or the sentence that says what is wrong."""
    words = text.lower().split()
    if len(words) not in (1, 2):
        return f'"{text}" are no hours; {_EXAMPLE}'
    first, _, last = words[0].partition("-")
    opens, closes = _minute(first), _minute(last)
    if opens is None or closes is None or opens == _DAY_MINUTES:
        return f'"{words[0]}" are no hours, times go from 00:00 to 24:00; {_EXAMPLE}'
    if opens == closes:
        return f'"{words[0]}" opens and closes at the same time; write 00:00-24:00 for a whole day'
    days = _days(words[1]) if len(words) == 2 else tuple(range(7))
    if days is None:
        return f'"{words[1]}" are no days; the days are {" ".join(_DAYS)}, written as mon-fri or sat,sun'
    return Hours(opens=opens, closes=closes, days=days)


def is_open(calendar: Calendar, at: datetime) -> bool:
    """Whether GPUs may be lent at this instant."""
    return not calendar.windows or any(start <= at < end for start, end in _spans(calendar, at))


def closes_at(calendar: Calendar, at: datetime) -> datetime | None:
    """When the hours that are open now end; None if they are closed, or never end."""
    if not calendar.windows:
        return None
    horizon = at + timedelta(days=_LOOK_AHEAD_DAYS - 1)
    return next((end for start, end in _spans(calendar, at) if start <= at < end < horizon), None)


def opens_at(calendar: Calendar, at: datetime) -> datetime | None:
    """When the next hours begin; None if they are open now, or never open."""
    if is_open(calendar, at):
        return None
    return next((start for start, _ in _spans(calendar, at) if start > at), None)


def _minute(text: str) -> int | None:
    hour, colon, minute = text.partition(":")
    if not (colon and hour.isdecimal() and minute.isdecimal() and len(hour) <= 2 and len(minute) == 2):
        return None
    minutes = int(hour) * 60 + int(minute)
    return minutes if int(minute) < 60 and minutes <= _DAY_MINUTES else None


def _days(text: str) -> tuple[int, ...] | None:
    days: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first not in _DAYS or (dash and last not in _DAYS):
            return None
        start, end = _DAYS.index(first), _DAYS.index(last if dash else first)
        days.update((start + step) % 7 for step in range((end - start) % 7 + 1))
    return tuple(sorted(days))


def _spans(calendar: Calendar, at: datetime) -> list[tuple[datetime, datetime]]:
    """Open spans around `at` as instants, in order; those that touch are one."""
    joined: list[tuple[datetime, datetime]] = []
    for start, end in sorted(_single_spans(calendar, at)):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _single_spans(calendar: Calendar, at: datetime) -> Iterator[tuple[datetime, datetime]]:
    zone = ZoneInfo(calendar.timezone)
    today = at.astimezone(zone).date()
    for ahead in range(-2, _LOOK_AHEAD_DAYS + 1):
        day = today + timedelta(days=ahead)
        for hours in calendar.windows:
            if day.weekday() in hours.days:
                yield _span(hours, day, zone)


def _span(hours: Hours, day: date, zone: ZoneInfo) -> tuple[datetime, datetime]:
    length = (hours.closes - hours.opens) % _DAY_MINUTES or _DAY_MINUTES
    start = _instant(day, hours.opens, zone)
    end = _instant(day, hours.opens + length, zone)
    # Hours that lie in the hour which the clock jumps over are held after the jump, at their full length.
    return start, end if end > start else start + timedelta(minutes=length)


def _instant(day: date, minutes: int, zone: ZoneInfo) -> datetime:
    # A local time that comes twice means the first of the two; one that never comes means as long after the jump.
    days, minute = divmod(minutes, _DAY_MINUTES)
    local = datetime.combine(day + timedelta(days=days), time(minute // 60, minute % 60), tzinfo=zone)
    return local.astimezone(UTC)
