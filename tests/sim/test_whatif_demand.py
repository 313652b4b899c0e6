"""What services want: as there was, as an autoscaler would ask, and never less than is known."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.adapters.vllm.history import UP
from scheduler.adapters.vllm.names import RUNNING
from scheduler.sim.whatif_demand import Demand, Replicas, autoscaled, demand, placed
from scheduler.sim.whatif_observed import Observed
from scheduler.sim.whatif_services import KnownService
from tests.sim.servegen import MOST
from tests.sim.whatif_pieces import CHAT, STEP, T0, line, observed, piece, pod

HARVEST = Path(__file__).parents[1] / "data" / "harvest"
EACH = 6  # ticks of ten seconds a point


def seen(
    requests: Sequence[float | None], known: KnownService = CHAT, up: Sequence[float | None] | None = None
) -> Observed:
    lines = {RUNNING: [line(pod(), requests)], UP: [] if up is None else [line(pod(), up)]}
    return observed(piece(lines, len(requests)), points=len(requests), known=(known,))


def wanted(got: Demand, name: str = "chat") -> list[int]:
    (one,) = (one for one in got.services if one.name == name)
    return one.wanted[EACH - 1 :: EACH].tolist()


def asked(got: Observed, how: Replicas = Replicas.THERE) -> Demand:
    return demand(got, how, 1, "test")


def test_on_the_benchmark_the_autoscaler_asks_for_what_its_files_say():
    with gzip.open(HARVEST / "demand-base.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))

    for name, most in MOST.items():
        load = np.array([float(row[f"{name}:load"]) for row in rows])
        told = np.array([int(row[f"{name}:wanted"]) for row in rows])
        assert (autoscaled(load, 1, most) == told).mean() > 0.998


@given(
    load=st.lists(st.floats(0, 20), min_size=1, max_size=200),
    least=st.integers(0, 3),
    more=st.integers(0, 8),
)
def test_the_autoscaler_stays_within_its_bounds_and_gives_a_value_a_tick(load: list[float], least: int, more: int):
    got = autoscaled(np.array(load), least, least + more + 1)

    assert len(got) == len(load)
    assert got.min() >= min(least, 1)
    assert got.max() <= least + more + 1


def test_a_short_lull_takes_no_replica_away():
    load = np.array([4.0] * 60 + [1.0] * 27 + [4.0] * 60)  # 270 s

    assert set(autoscaled(load, 1, 8).tolist()) == {4}


def test_a_long_lull_does():
    load = np.array([4.0] * 60 + [1.0] * 36)

    assert autoscaled(load, 1, 8)[-1] == 1


def test_as_many_as_there_were_are_wanted():
    got = asked(seen([8, 8, 8]))

    assert wanted(got) == [1, 1, 1]
    assert got.start == T0 - STEP


@pytest.mark.parametrize(
    ("there", "mean", "ticks"),
    [
        ([1, 2, 2], [1, 1.5, 2], [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]),
        ([2, 2, 1], [2, 1.25, 1], [2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1]),
        ([1, 3, 3], [1, 2.0, 3], [1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3]),
        ([2, 2, 2], [2, 1.5, 2], [2] * 12),  # one went and another came: both hold GPUs at times
        ([1, 2, 1], [1, 1.5, 1], [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1]),
    ],
)
def test_replicas_come_and_go_when_the_mean_of_the_step_tells(there: list[int], mean: list[float], ticks: list[int]):
    assert placed(np.array(there, dtype=float), np.array(mean), 4).tolist() == ticks


def test_a_gap_of_five_minutes_is_bridged_by_the_value_before():
    got = asked(seen([8, *[None] * 5, 8]))

    assert wanted(got) == [1] * 7
    assert not got.missing.any()


def test_a_longer_gap_counts_as_not_idle():
    got = asked(seen([8, *[None] * 6, 8]))

    assert wanted(got) == [1, *[CHAT.max_replicas] * 6, 1]
    assert got.missing.sum() == got.blind.sum() == 6 * EACH


def test_a_service_whose_series_stop_while_others_go_on_is_missing_but_not_all_is_blind():
    code = replace(CHAT, name="code", workload="code")
    lines = {RUNNING: [line(pod(), [8, *[None] * 8, 8]), line(pod("code-0"), [8] * 10)]}

    got = asked(observed(piece(lines, 10), points=10, known=(CHAT, code)))

    assert wanted(got) == [1, *[6] * 8, 1]
    assert (got.missing.sum(), got.blind.sum()) == (8 * EACH, 0)


def test_before_its_first_and_after_its_last_sample_a_service_was_not_there():
    code = replace(CHAT, name="code", workload="code")
    lines = {RUNNING: [line(pod(), [8] * 30), line(pod("code-0"), [8] * 10, first=10)]}

    got = asked(observed(piece(lines, 30), points=30, known=(CHAT, code)))

    # For five minutes after its last sample its value stands, as for any gap that might be short.
    assert wanted(got, "code")[:10] == [0] * 10
    assert wanted(got, "code")[-5:] == [0] * 5
    assert not got.missing.any()


def test_a_service_that_may_have_no_replica_has_none_while_it_is_not_seen():
    idle = replace(CHAT, name="code", workload="code", min_replicas=0)
    lines = {RUNNING: [line(pod(), [8] * 20), line(pod("code-0"), [8, *[None] * 18, 8])]}

    got = asked(observed(piece(lines, 20), points=20, known=(CHAT, idle)))

    assert wanted(got, "code") == [1, *[0] * 18, 1]


def test_of_a_managed_service_as_many_are_wanted_as_its_load_needs():
    managed = replace(CHAT, managed=True)

    got = demand(seen([32.0] * 30, managed), Replicas.AUTO, 1, "test")

    assert wanted(got) == [4] * 30
    assert got.services[0].replicas is Replicas.NEEDED


def test_while_a_replica_is_unread_no_fewer_are_wanted_than_there_are():
    managed = replace(CHAT, managed=True, min_replicas=0)
    requests = [0.0] * 20 + [None] * 20
    up = [1.0] * 40

    got = demand(seen(requests, managed, up), Replicas.AUTO, 1, "test")

    assert (wanted(got)[19], wanted(got)[20:]) == (0, [1] * 20)


@pytest.mark.parametrize(("counts", "how"), [([1, 1, 1, 1], Replicas.NEEDED), ([1, 2, 2, 1], Replicas.THERE)])
def test_without_settings_a_number_that_never_changes_is_taken_for_no_autoscaler(counts: list[int], how: Replicas):
    lines = {
        RUNNING: [
            line(pod(f"chat-{number}"), [8 if count > number else None for count in counts]) for number in range(2)
        ]
    }

    got = demand(observed(piece(lines, 4), points=4, known=()), Replicas.AUTO, 2, "test")

    assert got.services[0].replicas is how


def test_sizes_that_nobody_said_are_told_as_assumed():
    got = demand(observed(piece({RUNNING: [line(pod(), [8])]}, 1), points=1, known=()), Replicas.AUTO, 2, "test")

    assert got.services[0].gpus_per_replica == 2
    assert "Nothing says how many GPUs a replica of chat holds; 2 are taken" in got.notes[0]
