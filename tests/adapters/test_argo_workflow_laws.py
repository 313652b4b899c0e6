from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from scheduler.adapters.argo.split import Limits
from scheduler.adapters.argo.workflow import Part, part_without, workflows
from scheduler.adapters.kube.names import JOB
from scheduler.jobs import flow, templates
from scheduler.jobs.job import JobId, TaskName, TaskState
from scheduler.jobs.order import JobOrder
from scheduler.jobs.spec import JobSpec, StepSpec
from tests.adapters.argo_jobs import ROOT, SHAPE
from tests.adapters.argo_played import PlayedPod, needed, played, pods_of
from tests.jobs.building import a_spec, a_step
from tests.jobs.specs import specs

BYTES = Limits().bytes
limits = st.builds(Limits, pods=st.integers(1, 12), dag_tasks=st.integers(2, 8), bytes=st.just(BYTES))
# To make a failure smaller takes longer than a test may.
laws = settings(max_examples=40, phases=[Phase.generate], deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32)


@st.composite
def pipelines(draw) -> JobSpec:
    """Steps of all shapes: swept or not, on one node or several, after any or all of others."""
    steps = []
    for place in range(draw(st.integers(1, 5))):
        needs = draw(st.sets(st.integers(0, place - 1))) if place else set()
        sweep = draw(st.none() | st.lists(st.sampled_from(["a", "b", '"']), min_size=1, max_size=4))
        steps.append(
            a_step(
                f"s{place}",
                needs=tuple(f"s{need}" for need in sorted(needs)),
                any=bool(needs) and draw(st.booleans()),
                nodes=draw(st.sampled_from([1, 1, 1, 2, 3])),
                sweep=None if sweep is None else tuple({"text": text} for text in sweep),
            )
        )
    return a_spec(*steps, image="train:1")


def ordered(spec: JobSpec, kept: templates.Kept | None = None) -> JobOrder:
    order = templates.fill(spec, JobId(41), ROOT, kept=kept)
    return replace(order, tasks=tuple(replace(task, image=task.image or "train:1") for task in order.tasks))


def every_pod(parts: tuple[Part, ...]) -> list[PlayedPod]:
    return [pod for part in parts for pod in pods_of(part.body)]


@given(specs(), limits)
@laws
def test_the_pods_of_all_parts_are_the_order_word_for_word(spec, most):
    order = ordered(spec)

    pods = every_pod(workflows(order, SHAPE, most))

    tasks = {task.name: task for task in order.tasks}
    assert sorted((pod.task, pod.rank) for pod in pods) == sorted(
        (task.name, rank) for task in order.tasks for rank in range(task.nodes)
    )
    for pod in pods:
        assert pod.command == tasks[TaskName(pod.task)].command
        assert {key: pod.env[key] for key in tasks[TaskName(pod.task)].env} == tasks[TaskName(pod.task)].env
        assert pod.labels[JOB] == "job-41"
        assert pod.env.get("GPUJOB_NODE_RANK", "0") == str(pod.rank)


@given(specs(), limits)
@laws
def test_every_task_is_in_one_part_that_waits_only_for_parts_before_it(spec, most):
    order = ordered(spec)

    parts = workflows(order, SHAPE, most)

    before: set[TaskName] = set()
    for part in parts:
        assert part.waits_for <= before
        assert before.isdisjoint(part.tasks)
        assert {pod.task for pod in pods_of(part.body)} == set(part.tasks)
        before |= set(part.tasks)
    assert before == {task.name for task in order.tasks}
    assert len({part.name for part in parts}) == len(parts)


@given(specs(), limits)
@laws
def test_argo_r15_no_part_is_larger_than_it_may_be(spec, most):
    for part in workflows(ordered(spec), SHAPE, most):
        pods = pods_of(part.body)
        assert len(pods) <= most.pods or len(part.tasks) == 1
        assert len({pod.node for pod in pods}) <= most.dag_tasks or len(part.tasks) == 1
        assert len(json.dumps(part.body)) <= 512 * 1024


@given(specs(), limits)
@laws
def test_the_same_order_always_makes_the_same_parts(spec, most):
    first, again = workflows(ordered(spec), SHAPE, most), workflows(ordered(spec), SHAPE, most)

    assert [(part.name, part.tasks, part.body) for part in first] == [
        (part.name, part.tasks, part.body) for part in again
    ]


@given(pipelines(), limits, seeds)
@settings(laws, max_examples=150)
def test_argo_tries_exactly_the_tasks_that_our_own_flow_would(spec, most, seed):
    verdicts, pods_succeed = fates(ordered(spec), random.Random(seed))

    ended = run(workflows(ordered(spec), SHAPE, most), {}, pods_succeed)

    assert ended == expected(spec, verdicts)


@given(pipelines(), limits, seeds)
@settings(laws, max_examples=150)
def test_a_part_that_was_deleted_and_made_again_ends_as_it_would_have(spec, most, seed):
    chance = random.Random(seed)
    verdicts, pods_succeed = fates(ordered(spec), chance)
    whole = expected(spec, verdicts)
    # Some steps have ended, and some tasks of the next: what is known when somebody deletes the Workflows.
    steps = flow.needs_first(spec)
    next_step = chance.randrange(len(steps))
    gone = [task for step in steps[:next_step] for task in flow.task_names(step)]
    gone += [task for task in flow.task_names(steps[next_step]) if chance.randrange(2)]
    ended = {task: whole[task] for task in gone}

    assert run(workflows(ordered(spec), SHAPE, most), ended, pods_succeed) == whole


@given(st.integers(2, 5), st.data())
@laws
def test_argo_r16_a_rerun_is_a_new_workflow_bound_to_what_is_kept(steps, data):
    """A chain in which each step reads all outputs before it, run again from one step on."""
    tasks = data.draw(st.lists(st.integers(1, 3), min_size=steps, max_size=steps))
    first = data.draw(st.integers(1, steps - 1))
    spec = a_spec(*(_link(place, tasks) for place in range(steps)), image="train:1")
    kept = {task.name: {"o": f"s3://old/{task.name}"} for task in flow.tasks_of(spec) if int(task.step[1:]) < first}

    pods = every_pod(workflows(ordered(spec, kept), SHAPE))

    assert {pod.task for pod in pods} == {task.name for task in flow.tasks_of(spec)} - kept.keys()
    for pod in pods:
        assert {url for url in kept if f"s3://old/{url}" in " ".join(pod.command)} == kept.keys()
    (part,) = workflows(ordered(spec, kept), SHAPE)
    dag = part.body["spec"]["templates"][0]["dag"]["tasks"]
    assert {node for task in dag for node in needed(task)} <= {task["name"] for task in dag}


def _link(place: int, tasks: Sequence[int]) -> StepSpec:
    return a_step(
        f"s{place}",
        needs=tuple(f"s{before}" for before in range(place)),
        sweep=tuple({"lr": lr} for lr in range(tasks[place])),
        command=("x", *(f"{{{{ steps.s{before}.outputs.o | json }}}}" for before in range(place))),
        outputs={"o": "s3://b/{{ job.id }}/{{ task }}"},
    )


def fates(order: JobOrder, chance: random.Random):
    """Whether each task would succeed, and whether each of its pods would: one place of a gang is enough to fail it."""
    verdicts = {task.name: chance.randrange(3) > 0 for task in order.tasks}
    weak = {task.name: chance.randrange(task.nodes) for task in order.tasks}

    def succeeds(pod: PlayedPod) -> bool:
        name = TaskName(pod.task)
        return verdicts[name] or weak[name] != pod.rank

    return verdicts, succeeds


def run(parts: tuple[Part, ...], ended: Mapping[TaskName, bool], succeeds) -> dict[TaskName, bool]:
    """Every part that opens is played; a task that is never tried counts as one that failed."""
    known = dict(ended)
    for part in parts:
        body = part_without(part, known) if part.opens(known) else None
        told = played(body, succeeds) if body else {}
        known |= {task: told.get(task) is True for task in part.tasks if task not in known}
    return known


def expected(spec: JobSpec, verdicts: Mapping[TaskName, bool]) -> dict[TaskName, bool]:
    states = {task.name: TaskState.BLOCKED for task in flow.tasks_of(spec)}
    while True:
        ready = flow.ready(spec, states)
        if not ready.waiting and not ready.skipped:
            return {task: state is TaskState.DONE for task, state in states.items()}
        states |= dict.fromkeys(ready.skipped, TaskState.CANCELLED)
        states |= {task: TaskState.DONE if verdicts[task] else TaskState.FAILED for task in ready.waiting}
