from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import IllegalMove
from scheduler.jobs.job import (
    JOB_MOVES,
    RUN_MOVES,
    TASK_MOVES,
    TERMINAL_JOB,
    TERMINAL_RUN,
    TERMINAL_TASK,
    JobState,
    RunState,
    TaskState,
    lawful,
)

TABLES = [
    pytest.param(JOB_MOVES, JobState.SUBMITTED, TERMINAL_JOB, id="job"),
    pytest.param(TASK_MOVES, TaskState.BLOCKED, TERMINAL_TASK, id="task"),
    pytest.param(RUN_MOVES, RunState.STARTING, TERMINAL_RUN, id="run"),
]
ENDS = {
    "job": {"completed", "failed", "cancelled", "denied", "expired"},
    "task": {"done", "failed", "cancelled"},
    "run": {"done", "failed", "preempted", "lost", "cancelled"},
}


def reachable(table, start):
    seen, open_ = {start}, [start]
    while open_:
        for state in table[open_.pop()] - seen:
            seen.add(state)
            open_.append(state)
    return seen


@pytest.mark.parametrize(("table", "start", "terminal"), TABLES)
def test_every_state_has_a_row_and_can_be_reached(table, start, terminal):
    assert set(table) == set(type(start)) == reachable(table, start)


@pytest.mark.parametrize(("table", "start", "terminal"), TABLES)
def test_an_end_can_be_reached_from_every_state(table, start, terminal):
    assert all(reachable(table, state) & terminal for state in table)


@pytest.mark.parametrize(("table", "start", "terminal"), TABLES)
def test_no_move_leads_to_where_it_came_from(table, start, terminal):
    assert not [state for state, to in table.items() if state in to]


def test_ended_states_are_the_promised_words():
    assert {"job": set(TERMINAL_JOB), "task": set(TERMINAL_TASK), "run": set(TERMINAL_RUN)} == ENDS


@given(st.sampled_from([JOB_MOVES, TASK_MOVES, RUN_MOVES]), st.data())
def test_a_walk_of_lawful_moves_ends_for_good_or_goes_on(table, data):
    state = data.draw(st.sampled_from(sorted(table)))
    for _ in range(20):
        if not table[state]:
            break
        state = lawful(table, state, data.draw(st.sampled_from(sorted(table[state]))))
    for other in table:
        if other in table[state]:
            assert lawful(table, state, other) is other
        else:
            with pytest.raises(IllegalMove, match=f"from {state} to {other}"):
                lawful(table, state, other)


def test_an_illegal_move_names_both_states_and_what_is_lawful():
    with pytest.raises(IllegalMove) as raised:
        lawful(TASK_MOVES, TaskState.BLOCKED, TaskState.RUNNING)

    assert str(raised.value) == "TaskState may not go from blocked to running; lawful: cancelled, waiting"


def test_an_illegal_move_from_an_end_says_so():
    with pytest.raises(IllegalMove) as raised:
        lawful(JOB_MOVES, JobState.DENIED, JobState.WAITING)

    assert str(raised.value) == "JobState may not go from denied to waiting; lawful: nothing, it has ended"


def test_a_job_that_awaits_approval_never_runs_unapproved():
    assert JobState.RUNNING not in JOB_MOVES[JobState.AWAITING_APPROVAL] | JOB_MOVES[JobState.SUBMITTED]
