from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.jobs import flow
from scheduler.jobs.job import JOB_MOVES, TERMINAL_JOB, TERMINAL_TASK, JobState, StepState, TaskName, TaskState
from scheduler.jobs.spec import JobSpec
from tests.jobs.building import a_spec, a_step

B, W, R, P = TaskState.BLOCKED, TaskState.WAITING, TaskState.RUNNING, TaskState.PREEMPTED
D, F, C = TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED
TWO = ({"seed": 1}, {"seed": 2})

PIPELINE = a_spec(
    a_step("prep"),
    a_step("sft", needs=("prep",), sweep=TWO),
    a_step("eval", needs=("sft",)),
    params={"lr": 1, "seed": 0},
)
TOLERANT = a_spec(a_step("sft", sweep=TWO), a_step("eval", needs=("sft",), any=True), a_step("post", needs=("eval",)))
BRANCHES = a_spec(a_step("a"), a_step("b"), a_step("after-a", needs=("a",)), a_step("after-b", needs=("b",)))


def states(spec: JobSpec, *said: TaskState) -> dict[TaskName, TaskState]:
    return dict(zip([task.name for task in flow.tasks_of(spec)], said, strict=True))


@st.composite
def dags(draw):
    """Jobs of up to five steps, each needing some of those before it, in any order of the file."""
    names = [f"s{place}" for place in range(draw(st.integers(1, 5)))]
    steps = [
        a_step(
            name,
            needs=(needs := tuple(draw(st.sets(st.sampled_from(names[:place]))) if place else ())),
            any=bool(needs) and draw(st.booleans()),
            sweep=draw(st.sampled_from([None, TWO])),
        )
        for place, name in enumerate(names)
    ]
    return a_spec(*draw(st.permutations(steps)))


def test_tasks_are_named_after_their_step_and_their_place_in_the_sweep():
    tasks = flow.tasks_of(PIPELINE)

    assert [(task.name, task.step, task.index) for task in tasks] == [
        ("prep", "prep", 0),
        ("sft-0", "sft", 0),
        ("sft-1", "sft", 1),
        ("eval", "eval", 0),
    ]


def test_a_sweep_replaces_parameters_in_its_own_step_only():
    params = {task.name: task.params for task in flow.tasks_of(PIPELINE)}

    assert params == {
        "prep": {"lr": 1, "seed": 0},
        "sft-0": {"lr": 1, "seed": 1},
        "sft-1": {"lr": 1, "seed": 2},
        "eval": {"lr": 1, "seed": 0},
    }


@pytest.mark.parametrize(
    ("tasks", "state"),
    [
        ([B, B], StepState.BLOCKED),
        ([W, W], StepState.WAITING),
        ([D, W], StepState.WAITING),
        ([P, D], StepState.WAITING),
        ([R, W], StepState.RUNNING),
        ([R, F], StepState.RUNNING),
        ([D, D], StepState.DONE),
        ([D, F], StepState.FAILED),
        ([C, F], StepState.FAILED),
        ([W, F], StepState.WAITING),
        ([C, C], StepState.SKIPPED),
        ([D, C], StepState.SKIPPED),
    ],
)
def test_the_state_of_a_step_follows_from_its_tasks(tasks, state):
    assert flow.derived(tasks) is state


@pytest.mark.parametrize(
    ("spec", "said", "waiting", "skipped"),
    [
        (PIPELINE, (B, B, B, B), ["prep"], []),
        (PIPELINE, (R, B, B, B), [], []),
        (PIPELINE, (D, B, B, B), ["sft-0", "sft-1"], []),
        (PIPELINE, (D, D, R, B), [], []),
        (PIPELINE, (D, D, D, B), ["eval"], []),
        (PIPELINE, (D, F, R, B), [], ["eval"]),
        (PIPELINE, (F, B, B, B), [], ["sft-0", "sft-1", "eval"]),
        (TOLERANT, (F, R, B, B), [], []),
        (TOLERANT, (F, D, B, B), ["eval"], []),
        (TOLERANT, (D, D, B, B), ["eval"], []),
        (TOLERANT, (F, C, B, B), [], ["eval", "post"]),
        (TOLERANT, (F, P, B, B), [], []),
        (BRANCHES, (F, D, B, B), ["after-b"], ["after-a"]),
        (BRANCHES, (B, B, B, B), ["a", "b"], []),
    ],
)
def test_what_is_ready_and_what_is_skipped(spec, said, waiting, skipped):
    ready = flow.ready(spec, states(spec, *said))

    assert (list(ready.waiting), list(ready.skipped)) == (waiting, skipped)


def test_a_task_that_was_kept_from_an_older_job_counts_as_done():
    known = {name: state for name, state in states(PIPELINE, D, B, B, B).items() if name != "prep"}

    assert flow.ready(PIPELINE, known).waiting == ("sft-0", "sft-1")


@pytest.mark.parametrize(
    ("spec", "said", "current", "state"),
    [
        (PIPELINE, (B, B, B, B), JobState.SUBMITTED, JobState.SUBMITTED),
        (PIPELINE, (B, B, B, B), JobState.AWAITING_APPROVAL, JobState.AWAITING_APPROVAL),
        (PIPELINE, (W, B, B, B), JobState.WAITING, JobState.WAITING),
        (PIPELINE, (R, B, B, B), JobState.WAITING, JobState.RUNNING),
        (PIPELINE, (D, R, P, B), JobState.RUNNING, JobState.RUNNING),
        (PIPELINE, (D, W, P, B), JobState.RUNNING, JobState.PREEMPTED),
        (PIPELINE, (D, W, P, B), JobState.WAITING, JobState.RUNNING),
        (PIPELINE, (D, W, D, B), JobState.PREEMPTED, JobState.WAITING),
        (PIPELINE, (D, D, D, D), JobState.RUNNING, JobState.COMPLETED),
        (PIPELINE, (D, F, D, C), JobState.RUNNING, JobState.FAILED),
        (TOLERANT, (F, D, D, D), JobState.RUNNING, JobState.COMPLETED),
        (TOLERANT, (F, F, C, C), JobState.RUNNING, JobState.FAILED),
        (BRANCHES, (F, D, C, R), JobState.RUNNING, JobState.RUNNING),
        (BRANCHES, (F, D, C, D), JobState.RUNNING, JobState.FAILED),
        (BRANCHES, (D, D, D, D), JobState.CANCELLED, JobState.CANCELLED),
    ],
)
def test_the_state_of_a_job_follows_from_its_tasks(spec, said, current, state):
    assert flow.job_state(spec, states(spec, *said), current) is state


@given(st.data(), dags(), st.sampled_from(JobState))
def test_the_state_of_a_job_is_always_a_lawful_move(data, spec, current):
    said = {task.name: data.draw(st.sampled_from(TaskState)) for task in flow.tasks_of(spec)}

    assert flow.job_state(spec, said, current) in JOB_MOVES[current] | {current}


@given(st.data(), dags())
def test_every_job_comes_to_its_end_however_its_tasks_end(data, spec):
    said = dict.fromkeys((task.name for task in flow.tasks_of(spec)), B)
    for _ in range(len(said) + 1):
        ready = flow.ready(spec, said)
        said |= dict.fromkeys(ready.waiting, W) | dict.fromkeys(ready.skipped, C)
        said |= {name: data.draw(st.sampled_from([D, F])) for name, state in said.items() if state == W}

    assert TERMINAL_TASK.issuperset(said.values())
    assert flow.job_state(spec, said, JobState.RUNNING) in TERMINAL_JOB


@given(dags())
def test_a_job_without_failures_runs_all_its_tasks_after_what_they_need(spec):
    said = dict.fromkeys((task.name for task in flow.tasks_of(spec)), B)
    steps = {step.name: step for step in spec.steps}
    while B in said.values():
        ready = flow.ready(spec, said)
        assert ready.waiting
        assert not ready.skipped
        for task in flow.tasks_of(spec):
            if task.name in ready.waiting:
                needed = [name for need in steps[task.step].needs for name in flow.task_names(steps[need])]
                assert all(said[name] == D for name in needed)
        said |= dict.fromkeys(ready.waiting, D)

    assert flow.job_state(spec, said, JobState.RUNNING) is JobState.COMPLETED


@given(dags())
def test_steps_are_put_in_an_order_in_which_they_could_run(spec):
    ordered = [step.name for step in flow.needs_first(spec)]

    assert sorted(ordered) == sorted(step.name for step in spec.steps)
    for step in spec.steps:
        assert all(ordered.index(need) < ordered.index(step.name) for need in step.needs)


def test_an_order_exists_even_for_a_cycle_and_for_needs_that_nobody_has():
    spec = a_spec(a_step("a", needs=("b", "nobody")), a_step("b", needs=("a",)))

    assert [step.name for step in flow.needs_first(spec)] == ["b", "a"]
