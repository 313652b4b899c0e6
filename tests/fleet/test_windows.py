"""Which idle GPUs may be lent, until when, how sure."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.fleet.calendar import Calendar, Hours
from scheduler.fleet.pattern import Pattern, pattern
from scheduler.fleet.pool import Pool
from scheduler.fleet.services import Mode
from scheduler.fleet.windows import Window, changes, windows
from scheduler.policy import Policy
from tests.build import NOW, a_demand, a_pending_replica, a_pool, a_service, a_window, hours, minutes


def found(
    pool: Pool, services=(), demands=(), *, seen: Pattern | None = None, calendar: Calendar | None = None, **policy
):
    return windows(
        pool=pool,
        services=services,
        demands=demands,
        pattern=seen or Pattern(),
        calendar=calendar or Calendar(),
        policy=Policy(**policy),
        now=NOW,
    )


def lent(answer: tuple[Window, ...]) -> dict[str, int]:
    gpus: Counter[str] = Counter()
    for window in answer:
        gpus[window.node] += window.gpus
    return dict(gpus)


def lasting(answer: tuple[Window, ...]) -> list[tuple[str, int, timedelta]]:
    return [(window.node, window.gpus, window.until - NOW) for window in answer]


def days_of(wants: dict[int, int], *, service: str = "chat", days: int = 5) -> Pattern:
    """Working days before NOW on which a service wanted so many replicas from each hour on."""
    monday = datetime(2026, 11, 23, tzinfo=UTC)
    observed = [
        (monday + timedelta(days=day, hours=hour, minutes=minute), service, wants[max(h for h in wants if h <= hour)])
        for day in range(days)
        for hour in range(24)
        for minute in range(0, 60, 10)
    ]
    return pattern(observed, "UTC")


def test_idle_gpus_of_known_nodes_may_be_lent():
    pool = a_pool("node-1: 8 idle", "node-2: 3 idle, 4 chat, 1 other", "node-3: 8 unknown", "node-4: 8 run:u-1")

    assert lent(found(pool)) == {"node-1": 8, "node-2": 3}


def test_outside_the_hours_nothing_may_be_lent():
    morning = Calendar(windows=(Hours(opens=8 * 60, closes=12 * 60),))

    assert found(a_pool("node-1: 8 idle"), calendar=morning) == ()


def test_windows_end_when_the_hours_close():
    night = Calendar(windows=(Hours(opens=20 * 60, closes=6 * 60),))

    (window,) = found(a_pool("node-1: 8 idle"), calendar=night)

    assert window.until == NOW + hours(8)
    assert window.why == "idle until the hours of lending close (no day of history yet)"


def test_windows_end_at_the_horizon_and_say_that_no_end_is_in_sight():
    (window,) = found(a_pool("node-1: 8 idle"), horizon_s=7200.0)

    assert (window.since, window.until) == (NOW, NOW + hours(2))
    assert window.why == "idle, and no end is in sight for 2 h (no day of history yet)"


def test_windows_that_are_too_short_are_not_lent():
    soon = Calendar(windows=(Hours(opens=20 * 60, closes=22 * 60 + 10),))
    pool = a_pool("node-1: 8 idle")

    assert found(pool, calendar=soon, least_window_s=601.0) == ()
    assert lasting(found(pool, calendar=soon, least_window_s=600.0)) == [("node-1", 8, minutes(10))]


@pytest.mark.parametrize(
    ("reserve", "expected"),
    [
        (0, {"node-1": 8, "node-2": 4, "node-3": 2}),
        (4, {"node-1": 8, "node-3": 2}),
        (6, {"node-1": 8}),
        (9, {"node-1": 4, "node-3": 1}),
        (14, {}),
        (99, {}),
    ],
)
def test_the_reserve_is_room_for_replicas_and_leaves_whole_nodes_whole(reserve, expected):
    pool = a_pool("node-1: 8 idle", "node-2: 4 idle, 4 chat", "node-3: 2 idle, 6 other")

    assert lent(found(pool, [a_service()], reserve_gpus=reserve)) == expected


@pytest.mark.parametrize(
    ("service", "demand"),
    [
        (a_service(), a_demand(have=1, want=2)),
        (a_service(mode=Mode.OBSERVE), a_demand(have=1, want=2)),
        (a_service(), a_demand(have=1, want=2, known=False)),
    ],
    ids=["managed", "observed", "unknown"],
)
def test_gpus_that_a_service_wants_now_are_not_lent(service, demand):
    pool = a_pool("node-1: 8 idle", "node-2: 4 idle, 4 chat")

    assert lent(found(pool, [service], [demand])) == {"node-1": 8}


def test_gpus_for_a_pending_replica_are_not_lent():
    pool = a_pool("node-1: 8 idle", "node-2: 4 idle, 4 chat", replicas=[a_pending_replica()])

    assert lent(found(pool, [a_service()], [a_demand(have=2, want=2)])) == {"node-1": 8}


def test_idle_gpus_beside_those_that_come_free_are_kept_for_the_replica_that_waits_for_both():
    pool = a_pool("node-1: 2 idle, 2 ending run:u-1, 4 other", "node-2: 2 idle, 6 other")

    assert lent(found(pool, [a_service()], [a_demand(have=0, want=1)])) == {"node-2": 2}


def test_what_an_unseen_service_had_is_taken_to_be_there_still():
    pool = a_pool("node-1: 8 idle", unknown_services={"chat": "the API does not answer"})

    assert lent(found(pool, [a_service()], [a_demand(have=2, want=2, known=False)])) == {"node-1": 8}
    assert lent(found(pool, [a_service()], [a_demand(have=2, want=3, known=False)])) == {"node-1": 4}


def test_gpus_are_wanted_back_when_the_day_so_far_says_so():
    pool = a_pool("node-1: 8 idle", "node-2: 4 idle, 4 chat")
    grows = days_of({0: 1, 6: 2, 8: 3, 20: 1})

    answer = found(pool, [a_service()], [a_demand(have=1, want=1)], seen=grows)

    assert lasting(answer) == [
        ("node-1", 4, hours(12)),
        ("node-1", 4, hours(10)),
        ("node-2", 4, hours(8)),
    ]
    assert answer[2].why == "idle until chat probably grows at 06:00 (5 days of history)"


def test_the_reserve_is_wanted_back_first():
    pool = a_pool("node-1: 8 idle", "node-2: 4 idle, 4 chat")
    grows = days_of({0: 1, 6: 2, 8: 3, 20: 1})

    answer = found(pool, [a_service()], [a_demand(have=1, want=1)], seen=grows, reserve_gpus=4)

    assert lasting(answer) == [("node-1", 4, hours(12)), ("node-1", 4, hours(10))]


def test_one_service_that_shrinks_makes_room_for_one_that_grows():
    pool = a_pool("node-1: 4 idle, 4 chat", "node-2: 4 code, 4 code")
    services = [a_service(), a_service("code")]
    demands = [a_demand(have=1, want=1), a_demand("code", have=2, want=2)]
    seen = Pattern(
        wants={
            **days_of({0: 1, 6: 2, 20: 1}).wants,
            **days_of({0: 2, 6: 1, 20: 2}, service="code").wants,
        }
    )

    assert lasting(found(pool, services, demands, seen=seen)) == [("node-1", 4, hours(12))]


def test_a_rest_in_which_no_replica_fits_does_not_stand_in_for_a_whole_seat():
    pool = a_pool("node-1: 4 idle, 4 chat", "node-2: 3 idle, 5 other")
    grows = days_of({0: 1, 6: 2, 20: 1})

    answer = found(pool, [a_service()], [a_demand(have=1, want=1)], seen=grows)

    assert lasting(answer) == [("node-1", 4, hours(8)), ("node-2", 3, hours(8))]


def test_without_history_a_window_is_unsure_and_says_so():
    (window,) = found(a_pool("node-1: 8 idle"), [a_service()], unsure_confidence=0.4)

    assert window.confidence == 0.4
    assert "no day of history yet" in window.why


def test_confidence_grows_with_the_days_seen_and_stays_below_the_quantile():
    pool = a_pool("node-1: 8 idle")

    def sure(days: int) -> float:
        return found(pool, [a_service()], seen=days_of({0: 1}, days=days))[0].confidence

    assert 0.5 < sure(1) < sure(2) < sure(5) < 0.9


# The day's pattern


def test_a_pattern_expects_what_sufficed_on_most_days():
    days = [
        (datetime(2026, 11, 2, 9, 3, tzinfo=UTC) + timedelta(weeks=week), "chat", want)
        for week, want in enumerate([1, 2, 3, 4])
    ]
    seen = pattern(days, "UTC")
    at = datetime(2026, 12, 1, 9, 9, tzinfo=UTC)

    assert [seen.expected("chat", at, quantile) for quantile in (0.0, 0.5, 0.75, 0.9, 1.0)] == [1, 2, 3, 4, 4]
    assert seen.days("chat", at) == 4


def test_a_pattern_takes_the_most_wanted_within_ten_minutes():
    at = datetime(2026, 12, 1, 9, 0, tzinfo=UTC)
    seen = pattern([(at, "chat", 1), (at + minutes(4), "chat", 5), (at + minutes(9), "chat", 2)], "UTC")

    assert seen.expected("chat", at, 0.9) == 5
    assert seen.expected("chat", at + minutes(10), 0.9) is None


def test_what_was_wanted_stays_wanted_until_the_next_observation_but_not_over_a_long_gap():
    at = datetime(2026, 12, 1, 9, 0, tzinfo=UTC)
    seen = pattern([(at, "chat", 2), (at + minutes(40), "chat", 3), (at + minutes(140), "chat", 1)], "UTC")

    assert seen.expected("chat", at + minutes(20), 0.9) == 2
    assert seen.expected("chat", at + minutes(50), 0.9) is None


def test_weekends_and_working_days_are_told_apart_once_both_were_seen():
    friday = datetime(2026, 11, 27, 9, 0, tzinfo=UTC)
    one = [(friday, "chat", 4)]
    both = [*one, (friday + timedelta(days=1), "chat", 1)]
    sunday = friday + timedelta(days=2)

    assert pattern(one, "UTC").expected("chat", sunday, 0.9) == 4
    assert pattern(both, "UTC").expected("chat", sunday, 0.9) == 1


def test_the_time_of_day_is_local():
    winter = datetime(2026, 10, 24, 7, 0, tzinfo=UTC)  # 9:00 in Berlin, a Saturday; the clock changes that night
    seen = pattern([(winter, "chat", 3)], "Europe/Berlin")

    assert seen.expected("chat", datetime(2026, 10, 25, 8, 0, tzinfo=UTC), 0.9) == 3
    assert seen.expected("chat", datetime(2026, 10, 25, 7, 0, tzinfo=UTC), 0.9) is None


nodes = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2), st.booleans()), min_size=1, max_size=5)


def a_drawn_pool(drawn: list[tuple[int, int, bool]]) -> Pool:
    lines = []
    for number, (idle, replicas, unknown) in enumerate(drawn):
        parts = [f"{idle} idle", *["4 chat"] * replicas] if not unknown else ["8 unknown"]
        lines.append(f"node-{number}: {', '.join(parts)}")
    return a_pool(*lines)


@given(
    nodes, st.integers(0, 12), st.integers(0, 10), st.dictionaries(st.integers(0, 23), st.integers(0, 12), max_size=4)
)
def test_what_is_lent_and_what_is_kept_add_up_to_what_is_idle(drawn, reserve, want, grows):
    pool = a_drawn_pool(drawn)
    have = len(pool.replicas)
    seen = days_of({0: 1} | grows, days=2)

    answer = found(pool, [a_service()], [a_demand(have=have, want=max(want, have))], seen=seen, reserve_gpus=reserve)

    idle, given_away = pool.idle(), lent(answer)
    assert all(gpus <= idle[node] for node, gpus in given_away.items())
    assert sum(given_away.values()) <= max(sum(idle.values()) - reserve, 0)
    assert all(window.gpus > 0 and NOW < window.until <= NOW + hours(12) for window in answer)
    seats = sum(gpus // 4 for gpus in idle.values())
    left = {node: idle[node] - given_away.get(node, 0) for node in idle}
    assert sum(gpus // 4 for gpus in left.values()) >= min(max(want - have, 0), seats)


# Today against the days before


def slots_of(day: int, hours_seen: range, want: int) -> list[tuple[datetime, str, int]]:
    """One observation every ten minutes; day 0 is a Monday."""
    start = datetime(2026, 11, 23, tzinfo=UTC) + timedelta(days=day)
    return [
        (start + timedelta(hours=hour, minutes=10 * part), "chat", want) for hour in hours_seen for part in range(6)
    ]


@pytest.mark.parametrize(
    ("today", "expected"), [(6, 6), (2, 2), (9, 9)], ids=["as always", "a holiday", "more users than before"]
)
def test_today_is_expected_to_go_on_at_its_own_level(today: int, expected: int):
    days = [row for day in range(4) for row in slots_of(day, range(24), 6)]

    seen = pattern([*days, *slots_of(4, range(9), today)], "UTC")

    assert seen.expected("chat", datetime(2026, 11, 27, 15, tzinfo=UTC), 0.9) == expected


def test_half_an_hour_says_nothing_of_todays_level():
    days = [row for day in range(4) for row in slots_of(day, range(9, 24), 6)]

    seen = pattern([*days, *slots_of(4, range(9, 10), 1)[:3]], "UTC")

    assert seen.levels == {"chat": 0.0}


def test_a_weekend_is_held_against_weekends():
    workdays = [row for day in range(5) for row in slots_of(day, range(24), 6)]
    weekend = slots_of(5, range(24), 2)

    seen = pattern([*workdays, *weekend, *slots_of(6, range(9), 2)], "UTC")

    assert seen.levels == {"chat": 0.0}
    assert seen.expected("chat", datetime(2026, 11, 29, 15, tzinfo=UTC), 0.9) == 2


# What changed between two turns


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([a_window("node-1", 4)], [a_window("node-1", 4)], []),
        ([], [a_window("node-1", 4)], [("node-1", 0, 4)]),
        ([a_window("node-1", 8)], [a_window("node-1", 4)], [("node-1", 8, 4)]),
        ([a_window("node-1", 8)], [], [("node-1", 8, 0)]),
        ([a_window("node-1", 8)], [a_window("node-1", 8, lasts=hours(2))], [("node-1", 8, 8)]),
        ([a_window("node-1", 8)], [a_window("node-1", 8, lasts=hours(10) + minutes(5))], []),
        ([a_window("node-1", 8)], [a_window("node-1", 4), a_window("node-1", 4)], []),
    ],
    ids=["the same", "opened", "smaller", "closed", "ends sooner", "ends about then", "in two parts"],
)
def test_changes_name_the_nodes_whose_windows_are_others_now(before, after, expected):
    assert [(shift.node, shift.gpus_before, shift.gpus) for shift in changes(before, after)] == expected
