"""Places for the replicas of the next minute."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.fleet.forecast import Ahead, Forecaster
from scheduler.fleet.services import Mode, Service
from scheduler.policy import Policy

HARVEST = Path(__file__).parents[1] / "data" / "harvest"
POLICY = Policy()
CHAT = Service(name="chat", gpus_per_replica=4, max_num_seqs=8, max_replicas=8)
CODE = Service(name="code", gpus_per_replica=2, max_num_seqs=8, max_replicas=4)
HOUR = 360  # steps


def wave(steps: int, level: float, noise: float = 0.02) -> list[float]:
    """A calm load that is never quite the same."""
    return [level + noise * math.sin(step * 1.7) + noise * math.cos(step * 0.61) for step in range(steps)]


def learned(
    loads: Sequence[float | None], want: int = 2, policy: Policy = POLICY, service: Service = CHAT
) -> Forecaster:
    made = Forecaster([service], policy)
    for step, load in enumerate(loads):
        made.learn(step * 10.0, [load], [want])
    return made


def test_nothing_is_kept_for_a_calm_service_far_from_its_edge():
    calm = learned(wave(24 * HOUR, 1.2))

    assert calm.soon() == ()
    assert calm.ahead().chances[0] < 0.001


def test_a_ramp_that_will_cross_the_edge_keeps_a_place_before_it_does():
    history = wave(24 * HOUR, 1.2)
    ramp = [1.2 + 0.02 * step for step in range(45)]  # 2.08 of 2.2 at its end

    made = learned([*history, *ramp])

    (place,) = made.soon()
    assert (place.service, place.gpus) == ("chat", 4)
    assert place.why.startswith("chat carries ")
    assert "within 80 s" in place.why


def test_at_the_beginning_it_is_careful():
    assert learned([1.9] * 3).soon() != ()


def test_a_service_at_its_maximum_asks_for_nothing():
    full = learned([7.9] * 20, want=8)

    assert (full.soon(), full.ahead().by_service) == ((), (0.0,))


def test_a_replica_that_is_asked_for_takes_its_place():
    made = learned(wave(HOUR, 2.15), want=2)
    before = len(made.soon())

    made.learn(HOUR * 10.0, [2.3], [3])

    assert len(made.soon()) == before - 1


def test_loads_that_are_not_known_let_go_of_nothing():
    loads = wave(HOUR, 2.15)
    before = learned(loads).soon()

    assert before != ()
    assert learned([*loads, *[None] * 30]).soon() == before


def test_a_place_is_let_go_only_after_a_while():
    made = learned(wave(6 * HOUR, 2.15))
    kept = []
    for step in range(60):
        made.learn((6 * HOUR + step) * 10.0, [1.0], [2])
        kept.append(len(made.soon()))

    assert kept[:6] == [1] * 6
    assert kept[-1] == 0


def test_a_managed_service_is_asked_for_at_the_load_of_its_replicas_without_tolerance():
    managed = learned([1.0] * 400, want=1, service=replace(CHAT, mode=Mode.MANAGE))
    observed = learned([1.0] * 400, want=1)

    assert managed.ahead().by_service[0] > observed.ahead().by_service[0]


def test_time_that_stands_still_or_goes_back_teaches_nothing():
    made = learned(wave(100, 2.0))
    before = made.ahead()

    made.learn(990.0, [9.0], [2])
    made.learn(100.0, [9.0], [2])

    assert made.ahead() == before


def test_a_fleet_without_services_has_nothing_ahead():
    nobody = Forecaster([], POLICY)
    nobody.learn(0.0, [], [])

    assert (nobody.soon(), nobody.ahead()) == ((), Ahead(lead_s=80.0, chances=(), by_service=(), days=1 / 8640))


loads = st.one_of(st.none(), st.floats(0, 12, allow_nan=False))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(loads, loads, st.integers(0, 9), st.integers(0, 9), st.integers(0, 60)), max_size=60))
def test_chances_are_chances_whatever_comes_and_the_same_story_ends_the_same(story):
    ends = []
    for _ in range(2):
        made, at = Forecaster([CHAT, CODE], POLICY), 0.0
        for chat, code, wants_chat, wants_code, seconds in story:
            at += seconds
            made.learn(at, [chat, code], [wants_chat, wants_code])
            chances = made.ahead().chances
            assert all(0.0 <= chance <= 1.0 for chance in chances)
            assert all(less <= more + 1e-9 for more, less in pairwise(chances))
            assert len(made.soon()) <= len(chances)
        ends.append((made.soon(), made.ahead()))

    assert ends[0] == ends[1]


def test_what_is_said_comes_true_as_often_on_days_that_were_not_tuned_on():
    with gzip.open(HARVEST / "demand-base.csv.gz", "rt") as file:
        rows = [list(map(float, row)) for row in list(csv.reader(file))[1:]]
    sizes = (8, 4, 8, 6, 7, 5)
    made = Forecaster(
        [Service(name=str(n), gpus_per_replica=4, max_num_seqs=8, max_replicas=size) for n, size in enumerate(sizes)],
        POLICY,
    )
    said: list[float] = []
    rises = [0]
    for before, row in zip([rows[0], *rows], rows, strict=False):
        made.learn(row[0], row[1:7], [int(want) for want in row[7:13]])
        said.append(made.ahead().chances[0])
        rises.append(rises[-1] + sum(max(now - then, 0) for now, then in zip(row[7:13], before[7:13], strict=True)))

    gaps, counted = 0.0, 0
    for low, high in pairwise((0.0, 0.02, 0.1, 0.25, 0.6, 1.01)):
        mine = [t for t in range(4 * 8640, 60_000) if low <= said[t] < high]
        true = sum(rises[t + 12] > rises[t + 1] for t in mine) / len(mine)
        mean = sum(said[t] for t in mine) / len(mine)
        gaps, counted = gaps + abs(true - mean) * len(mine), counted + len(mine)
        assert abs(true - mean) <= 0.03, f"said {mean:.3f}, came true {true:.3f}"
    assert gaps / counted <= 0.01
