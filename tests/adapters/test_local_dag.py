from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.adapters.local.dag import FINAL, End, Standing, standing_of, standings, succeeded
from scheduler.jobs.job import TaskName
from tests.local_bench import a_task, an_order

ORDER = an_order(
    a_task("prep"),
    a_task("sft-0", step="sft", needs=["prep"]),
    a_task("sft-1", step="sft", needs=["prep"]),
    a_task("eval", needs=["sft"]),
    a_task("best", needs=["sft"], after_any=True),
)
OK, BAD, SAVED, GONE, WITHDRAWN = End(code=0), End(code=1), End(code=143), End(code=None), End(withdrawn=True)


def where(*, cancelled: bool = False, **ends: list[End | None]) -> dict[str, str]:
    found = standings(
        ORDER, {TaskName(name.replace("_", "-")): tries for name, tries in ends.items()}, cancelled=cancelled
    )
    return {name: str(standing) for name, standing in found.items()}


@pytest.mark.parametrize(
    ("ends", "retries", "standing"),
    [
        ([], 0, Standing.OPEN),
        ([None], 0, Standing.LIVE),
        ([OK], 0, Standing.DONE),
        ([BAD], 0, Standing.FAILED),
        ([BAD], 1, Standing.OPEN),
        ([BAD, BAD], 1, Standing.FAILED),
        ([SAVED] * 9, 0, Standing.OPEN),
        ([SAVED, GONE, WITHDRAWN, BAD], 1, Standing.OPEN),
        ([BAD, SAVED, BAD], 1, Standing.FAILED),
        ([WITHDRAWN], 0, Standing.OPEN),
        ([GONE], 0, Standing.OPEN),
        ([GONE, None], 0, Standing.LIVE),
        ([End(code=137, message="OOMKilled")], 0, Standing.FAILED),
    ],
)
def test_where_a_task_stands_follows_from_how_its_attempts_ended(ends, retries, standing):
    assert standing_of(ends, retries) is standing


def test_only_tasks_without_needs_are_open_at_first():
    assert where() == {"prep": "open", "sft-0": "blocked", "sft-1": "blocked", "eval": "blocked", "best": "blocked"}


def test_a_step_waits_for_all_tasks_before_it():
    half = where(prep=[OK], sft_0=[OK], sft_1=[None])

    assert (half["sft-1"], half["eval"], half["best"]) == ("live", "blocked", "blocked")


def test_one_failure_closes_the_steps_that_need_all_and_leaves_those_that_need_any():
    mixed = where(prep=[OK], sft_0=[OK], sft_1=[BAD])

    assert (mixed["eval"], mixed["best"]) == ("never", "open")


def test_a_failure_at_the_start_closes_everything_behind_it():
    assert set(where(prep=[BAD]).values()) == {"failed", "never"}


def test_after_a_cancel_nothing_is_open_and_what_runs_still_runs():
    assert where(cancelled=True, prep=[OK], sft_0=[None]) == {
        "prep": "done",
        "sft-0": "live",
        "sft-1": "never",
        "eval": "never",
        "best": "never",
    }


def test_needs_that_go_round_in_a_circle_never_open():
    order = an_order(a_task("a", needs=["b"]), a_task("b", needs=["a"]))

    assert set(standings(order, {}, cancelled=False).values()) == {Standing.NEVER}


def test_succeeded_tasks_are_named_in_task_order():
    found = standings(
        ORDER, {TaskName("prep"): [OK], TaskName("sft-1"): [OK], TaskName("sft-0"): [OK]}, cancelled=False
    )

    assert succeeded(ORDER, "sft", found) == ("sft-0", "sft-1")


endings = st.lists(st.sampled_from([OK, BAD, SAVED, GONE, WITHDRAWN]), max_size=4)


@given(st.fixed_dictionaries({TaskName(task.name): endings for task in ORDER.tasks}), endings)
def test_what_is_final_stays_final_whatever_ends_later(ends, later):
    before = standings(ORDER, ends, cancelled=False)
    after = standings(
        ORDER,
        {name: [*tries, *later] if before[name] is Standing.OPEN else tries for name, tries in ends.items()},
        cancelled=False,
    )

    final = {name for name, standing in before.items() if standing in FINAL}
    assert {name: after[name] for name in final} == {name: before[name] for name in final}
