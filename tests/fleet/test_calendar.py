"""The operator's hours, in local time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.fleet.calendar import Calendar, Hours, closes_at, is_open, opens_at, parse_hours

ZONES = ("America/New_York", "Europe/Berlin", "Asia/Seoul")
ALL_DAYS = (0, 1, 2, 3, 4, 5, 6)


def a_calendar(*texts: str, timezone: str = "UTC") -> Calendar:
    windows = tuple(hours for text in texts if isinstance(hours := parse_hours(text), Hours))
    assert len(windows) == len(texts)
    return Calendar(timezone=timezone, windows=windows)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "opens", "closes", "days"),
    [
        ("20:00-08:00", 1200, 480, ALL_DAYS),
        ("20:00-08:00 mon-fri", 1200, 480, (0, 1, 2, 3, 4)),
        ("00:00-24:00 sat,sun", 0, 1440, (5, 6)),
        ("9:30-17:05 Mon-Wed,FRI", 570, 1025, (0, 1, 2, 4)),
        ("22:00-06:00 sat-mon", 1320, 360, (0, 5, 6)),
    ],
)
def test_hours_are_understood(text, opens, closes, days):
    assert parse_hours(text) == Hours(opens=opens, closes=closes, days=days)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", '"" are no hours'),
        ("at night", '"at" are no hours'),
        ("20-08", '"20-08" are no hours'),
        ("20:00-25:00", '"20:00-25:00" are no hours, times go from 00:00 to 24:00'),
        ("20:00-08:60", '"20:00-08:60" are no hours'),
        ("24:00-08:00", '"24:00-08:00" are no hours'),
        ("-1:00-08:00", '"-1:00-08:00" are no hours'),
        ("20:00-08:00 mon fri", '"20:00-08:00 mon fri" are no hours'),
        ("08:00-08:00", "opens and closes at the same time; write 00:00-24:00 for a whole day"),
        ("20:00-08:00 weekdays", '"weekdays" are no days; the days are mon tue wed thu fri sat sun'),
        ("20:00-08:00 mon-", '"mon-" are no days'),
    ],
)
def test_hours_that_make_no_sense_are_explained(text, said):
    fault = parse_hours(text)

    assert isinstance(fault, str)
    assert said in fault


def test_a_time_zone_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match='"Berlin" is no time zone'):
        Calendar(timezone="Berlin")


def test_without_hours_lending_is_always_open():
    calendar = Calendar()

    assert is_open(calendar, utc("2026-12-01T03:00"))
    assert closes_at(calendar, utc("2026-12-01T03:00")) is None
    assert opens_at(calendar, utc("2026-12-01T03:00")) is None


@pytest.mark.parametrize(
    ("at", "opened", "closes", "opens"),
    [
        ("2026-12-01T19:59", False, None, "2026-12-01T20:00"),
        ("2026-12-01T20:00", True, "2026-12-02T08:00", None),
        ("2026-12-02T00:00", True, "2026-12-02T08:00", None),
        ("2026-12-02T07:59", True, "2026-12-02T08:00", None),
        ("2026-12-02T08:00", False, None, "2026-12-02T20:00"),
        ("2026-12-05T07:00", True, "2026-12-05T08:00", None),  # Friday's night
        ("2026-12-05T21:00", False, None, "2026-12-07T20:00"),  # Saturday has none
    ],
)
def test_hours_across_midnight_belong_to_the_day_on_which_they_open(at, opened, closes, opens):
    calendar = a_calendar("20:00-08:00 mon-fri")

    assert is_open(calendar, utc(at)) is opened
    assert closes_at(calendar, utc(at)) == (utc(closes) if closes else None)
    assert opens_at(calendar, utc(at)) == (utc(opens) if opens else None)


def test_hours_that_touch_are_one():
    calendar = a_calendar("20:00-24:00", "00:00-08:00", "00:00-24:00 sun")

    assert closes_at(calendar, utc("2026-12-01T21:00")) == utc("2026-12-02T08:00")
    assert closes_at(calendar, utc("2026-12-05T21:00")) == utc("2026-12-07T08:00")


def test_hours_that_cover_the_week_never_close():
    calendar = a_calendar("00:00-24:00", timezone="America/New_York")

    assert closes_at(calendar, utc("2026-03-08T06:59")) is None
    assert is_open(calendar, utc("2026-03-08T07:00"))


def test_hours_are_local():
    calendar = a_calendar("20:00-08:00", timezone="Asia/Seoul")

    assert opens_at(calendar, utc("2026-12-01T10:00")) == utc("2026-12-01T11:00")
    assert closes_at(calendar, utc("2026-12-01T12:00")) == utc("2026-12-01T23:00")


DST_EDGES = {  # the days in 2026 on which the clock jumps, and how long they last
    "America/New_York": {"2026-03-08": 23, "2026-11-01": 25},
    "Europe/Berlin": {"2026-03-29": 23, "2026-10-25": 25},
    "Asia/Seoul": {},
}


def openings(calendar: Calendar, at: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Every time the calendar opens, by going from one to the next as the scheduler does."""
    found = []
    while (start := opens_at(calendar, at)) is not None and start < end:
        close = closes_at(calendar, start)
        assert close is not None
        found.append((start, close))
        at = close
    return found


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(
    "text",
    [
        "20:00-08:00",
        "01:00-01:30",
        "01:30-02:30",
        "02:00-03:00",
        "02:15-02:45",
        "02:30-03:00",
        "03:00-04:00",
        "22:00-02:30",
    ],
)
def test_argo_r22_no_window_opens_twice_and_none_is_skipped_in_a_year_of_clock_changes(zone, text):
    calendar = a_calendar(text, timezone=zone)
    start = datetime(2026, 1, 1, 12, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    end = datetime(2027, 1, 1, 12, tzinfo=ZoneInfo(zone)).astimezone(UTC)

    spans = openings(calendar, start, end)

    days = [opened.astimezone(ZoneInfo(zone)).date() for opened, _ in spans]
    assert len(days) == 365
    assert len(set(days)) == 365
    assert all(opened < closed for opened, closed in spans)


@pytest.mark.parametrize(
    ("zone", "day", "length"), [(z, d, h) for z, days in DST_EDGES.items() for d, h in days.items()]
)
def test_argo_r22_a_whole_day_is_as_long_as_the_clock_makes_it(zone, day, length):
    calendar = a_calendar(f"00:00-24:00 {datetime.fromisoformat(day):%a}", timezone=zone)
    noon = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)

    ((opened, closed),) = openings(calendar, noon - timedelta(days=1), noon)

    assert closed - opened == timedelta(hours=length)


@pytest.mark.parametrize(
    ("text", "at", "opened"),
    [
        ("01:00-01:30", "2026-11-01T05:15", True),  # 1:15 for the first time
        ("01:00-01:30", "2026-11-01T06:15", False),  # and for the second
        ("20:00-02:30", "2026-03-08T06:59", True),  # 1:59, the clock jumps to 3:00
        ("20:00-02:30", "2026-03-08T07:30", False),
        ("02:15-02:45", "2026-03-08T07:20", True),  # 3:20: the hours that the jump left out are held after it
    ],
)
def test_argo_r22_hours_at_the_edge_of_daylight_saving_time(text, at, opened):
    assert is_open(a_calendar(text, timezone="America/New_York"), utc(at)) is opened


hours_of_day = st.builds(
    Hours,
    opens=st.integers(0, 1439),
    closes=st.integers(1, 1440),
    days=st.sets(st.integers(0, 6), min_size=1).map(lambda days: tuple(sorted(days))),
).filter(lambda hours: hours.opens != hours.closes)
instants = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001


@given(st.sampled_from(ZONES), st.lists(hours_of_day, min_size=1, max_size=3), instants)
def test_open_hours_last_until_they_close_and_closed_ones_until_they_open(zone, windows, at):
    calendar = Calendar(timezone=zone, windows=tuple(windows))
    moment = timedelta(microseconds=1)

    if is_open(calendar, at):
        close = closes_at(calendar, at)
        assert opens_at(calendar, at) is None
        assert close is None or (is_open(calendar, close - moment) and not is_open(calendar, close) and close > at)
    else:
        opening = opens_at(calendar, at)
        assert opening is not None
        assert closes_at(calendar, at) is None
        assert is_open(calendar, opening)
        assert not is_open(calendar, opening - moment)
        assert opening > at
