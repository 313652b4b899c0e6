"""Perfect foresight: by stretches of idle time, and by a linear program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from scheduler.sim.oracle import harvestable_slot_s


def by_linear_program(idle: list[int], step_s: float, restart_s: float, save_s: float) -> float:
    """Maximise the sum of U, less restart for each rise and save for each fall inside the time, 0 <= U <= idle."""
    count = len(idle)
    # Variables: U, then the rises and the falls between two steps.
    gain = np.concatenate([np.full(count, -step_s), np.full(count - 1, restart_s), np.full(count - 1, save_s)])
    rows = np.zeros((2 * (count - 1), len(gain)))
    for t in range(count - 1):
        rows[t, [t + 1, t, count + t]] = 1, -1, -1
        rows[count - 1 + t, [t, t + 1, 2 * count - 1 + t]] = 1, -1, -1
    bounds = [(0, slots) for slots in idle] + [(0, None)] * (2 * (count - 1))
    return -float(linprog(gain, A_ub=rows, b_ub=np.zeros(len(rows)), bounds=bounds).fun)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=30), st.floats(0, 80), st.floats(0, 80))
def test_stretches_give_what_a_linear_program_finds(wanted, restart_s, save_s):
    found = harvestable_slot_s(wanted, 5, 10.0, lost_s=(restart_s, save_s))

    assert found == pytest.approx(by_linear_program([5 - want for want in wanted], 10.0, restart_s, save_s), abs=1e-6)


def test_nothing_is_paid_at_both_ends_of_the_time():
    assert harvestable_slot_s([0, 0, 0], 2, 10.0) == 60.0


def test_a_stretch_inside_pays_for_its_start_and_its_end_and_a_short_one_is_left():
    wanted = [1] + [0] * 30 + [1] + [0] * 10 + [1]

    assert harvestable_slot_s(wanted, 1, 10.0, lost_s=(150.0, 52.0)) == 300.0 - 202.0
