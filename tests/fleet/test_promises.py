"""How much of what windows said came true."""

from __future__ import annotations

import csv
import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

from scheduler.fleet.promises import Promises, calibration
from scheduler.fleet.services import Service

MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
CHAT = Service(name="chat", gpus_per_replica=4, max_num_seqs=8)
HARVEST = Path(__file__).parents[1] / "data" / "harvest"


def rows(*days: dict[int, int]) -> list[tuple[datetime, str, int]]:
    """Each day: from which hour on how many replicas are wanted; told every ten minutes."""
    found = []
    for number, day in enumerate(days):
        for slot in range(144):
            want = [want for hour, want in day.items() if hour * 6 <= slot][-1]
            found.append((MONDAY + timedelta(days=number, minutes=10 * slot), "chat", want))
    return found


def of(found: tuple[Promises, ...], lead_h: float, said: float) -> Promises:
    return next(one for one in found if one.lead == timedelta(hours=lead_h) and one.said == said)


def test_days_that_are_all_alike_keep_every_promise():
    found = calibration(rows(*[{0: 1, 9: 3, 20: 1}] * 4), [CHAT], "UTC")

    assert all(one.came_true == 1.0 for one in found)
    assert of(found, 1, 0.9).made == 3 * 24 - 2


def test_a_day_that_grows_where_none_did_breaks_those_of_the_hours_before():
    found = calibration(rows(*[{0: 1}] * 3, {0: 1, 12: 3}), [CHAT], "UTC")

    hour = of(found, 1, 0.9)
    assert hour.made - hour.kept == 1
    assert of(found, 4, 0.9).made - of(found, 4, 0.9).kept == 4


def test_without_a_day_of_history_no_promise_is_made():
    assert {one.came_true for one in calibration([], [CHAT], "UTC")} == {None}
    assert {one.made for one in calibration(rows({0: 1}), [CHAT], "UTC")} == {0}


def test_a_gap_makes_no_promise_and_breaks_none():
    days = rows(*[{0: 1, 9: 3}] * 4)
    gap = [
        row for row in days if not MONDAY + timedelta(days=2, hours=6) < row[0] < MONDAY + timedelta(days=2, hours=12)
    ]

    whole, holed = calibration(days, [CHAT], "UTC"), calibration(gap, [CHAT], "UTC")

    assert of(holed, 1, 0.9).made < of(whole, 1, 0.9).made
    assert of(holed, 1, 0.9).came_true == 1.0


def test_what_is_said_at_90_percent_comes_true_about_as_often_on_a_week_with_a_holiday():
    services = ("small-app", "small-office", "mid-office", "mid-app", "large-office", "large-api")
    observed = []
    last: dict[str, str] = {}
    with gzip.open(HARVEST / "demand-base.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            at = MONDAY + timedelta(seconds=int(row["t_s"]))
            for name in services:
                if int(row["t_s"]) % 600 == 0 or row[f"{name}:wanted"] != last[name]:
                    observed.append((at, name, int(row[f"{name}:wanted"])))
                last[name] = row[f"{name}:wanted"]

    found = calibration(observed, [Service(name=name, gpus_per_replica=4, max_num_seqs=8) for name in services], "UTC")

    for lead_h in (1, 4, 12):
        assert (of(found, lead_h, 0.9).came_true or 0) >= 0.85
