"""A job as Argo Workflows: plain dicts, ready to be posted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from hera.workflows import DAG, Workflow
from hera.workflows import models as m

from scheduler.adapters.argo.items import Piece, pieces
from scheduler.adapters.argo.shape import Shape as Shape
from scheduler.adapters.argo.split import LIMITS, Limits, by_step, portions
from scheduler.adapters.argo.template import call, template
from scheduler.adapters.kube.names import DONE, JOB, SPEC
from scheduler.errors import BadInput
from scheduler.jobs.job import JobId, TaskName
from scheduler.jobs.order import JobOrder, TaskOrder

Ended = Mapping[TaskName, bool]  # True = done

_ENTRY = "DAG"  # capitals, so that it is no step's name
_ENDINGS = ("Succeeded", "Failed", "Errored", "Skipped", "Omitted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One Workflow of a job."""

    name: str
    order: JobOrder
    shape: Shape
    tasks: tuple[TaskName, ...]
    waits_for: frozenset[TaskName] = frozenset()  # of earlier parts
    any: bool = False  # one of these must be done, once all have ended; else all of them must be

    @property
    def body(self) -> dict[str, Any]:
        """The whole Workflow."""
        return _body(self, self.tasks, {})

    def opens(self, ended: Ended) -> bool:
        """Whether it may be made now. Once that can never be, its tasks are never tried."""
        if not self.waits_for <= ended.keys():
            return False
        done = [ended[task] for task in self.waits_for]
        return not done or (any(done) if self.any else all(done))


def workflows(order: JobOrder, shape: Shape, limits: Limits = LIMITS) -> tuple[Part, ...]:
    """The job in parts, the first one first.

    Raises:
        BadInput: Argo cannot run this job; each fault has its sentence.
    """
    lacking = dict.fromkeys(task.step for task in order.tasks if not task.image)
    if lacking:
        raise BadInput(*(f"step {step} has no image; on Kubernetes every step needs one" for step in lacking))
    return tuple(
        Part(
            name=_name(order.job, number),
            order=order,
            shape=shape,
            tasks=portion.tasks,
            waits_for=portion.waits_for,
            any=portion.any,
        )
        for number, portion in enumerate(portions(order, limits), start=1)
    )


def part_without(part: Part, ended: Ended) -> dict[str, Any] | None:
    """The Workflow with only those tasks that have not ended and can still run; None if there are none."""
    left = _left(part, ended)
    return _body(part, left, ended) if left else None


def _name(job: JobId, number: int) -> str:
    return f"job-{job}" if number == 1 else f"job-{job}-{number}"


def _left(part: Part, ended: Ended) -> tuple[TaskName, ...]:
    """In task order. What needs a task that failed is never tried, and neither is what needs that."""
    of_part = [task for task in part.order.tasks if task.name in set(part.tasks)]
    everything = by_step(part.order.tasks)
    hopeless = {task for task, done in ended.items() if not done}
    left: set[TaskName] = set()
    for tasks in by_step(of_part).values():
        first = tasks[0]
        needed = {task.name for need in first.needs for task in everything.get(need, ())}
        open_tasks = {task.name for task in tasks if task.name not in ended}
        lost = needed & hopeless
        if needed and (lost == needed if first.any else lost):
            hopeless |= open_tasks
        else:
            left |= open_tasks
    return tuple(task for task in part.tasks if task in left)


def _body(part: Part, chosen: Collection[TaskName], ended: Ended) -> dict[str, Any]:
    order, shape, wanted = part.order, part.shape, set(chosen)
    steps = by_step([task for task in order.tasks if task.name in wanted])
    made = {step: pieces(order, tasks) for step, tasks in steps.items()}
    known_done = {task.step for task in order.tasks if ended.get(task.name)}
    batches = [
        (batch, _depends(tasks[0], made, known_done))
        for step, tasks in steps.items()
        for piece in made[step]
        for batch in piece.batches
    ]
    workflow = Workflow(
        api_version="argoproj.io/v1alpha1",
        name=part.name,
        namespace=shape.namespace,
        labels={JOB: f"job-{order.job}"},
        annotations={
            SPEC: order.spec_hash,
            **({DONE: ",".join(done)} if (done := _done(order, wanted, ended)) else {}),
        },
        entrypoint=_ENTRY,
        service_account_name=shape.service_account,
        image_pull_secrets=[m.LocalObjectReference(name=name) for name in shape.pull_secrets] or None,
        # Ends of pods must be seen by a scheduler that was away; GPUs are free as soon as a pod has ended.
        pod_gc=m.PodGC(strategy="OnWorkflowCompletion", delete_delay_duration=f"{shape.pods_kept_s}s"),
        ttl_strategy=m.TTLStrategy(seconds_after_completion=shape.ttl_s),
        templates=[
            DAG(name=_ENTRY, tasks=[call(batch, depends) for batch, depends in batches]),
            *(template(batch, order, shape) for batch, _ in batches),
        ],
    )
    body: dict[str, Any] = workflow.to_dict()
    # Hera's DAG(fail_fast=) would set the template's failFast, too, with which one preemption fails the job.
    body["spec"]["templates"][0]["dag"]["failFast"] = False
    return body


def _done(order: JobOrder, wanted: Set[TaskName], ended: Ended) -> list[TaskName]:
    """Done tasks that an `any` step of this Workflow will be told of."""
    steps = {need for task in order.tasks if task.any and task.name in wanted for need in task.needs}
    return [task.name for task in order.tasks if task.step in steps and ended.get(task.name)]


def _depends(task: TaskOrder, made: Mapping[str, Sequence[Piece]], known_done: Set[str]) -> str:
    """When the tasks of a step may start, as far as it depends on this Workflow."""
    needed = [piece for need in task.needs for piece in made.get(need, ())]
    names = [batch.node for piece in needed for batch in piece.batches]
    if not task.any:
        return " && ".join(f"{name}.Succeeded" for name in names)
    if known_done & set(task.needs):
        # One is done already: it is enough that the others end, whatever becomes of them.
        return " && ".join(f"({' || '.join(f'{name}.{ending}' for ending in _ENDINGS)})" for name in names)
    return " || ".join(map(_one_done, needed))


def _one_done(piece: Piece) -> str:
    if len(piece.batches) == 1:
        batch = piece.batches[0]
        return f"{batch.node}.{'AnySucceeded' if batch.items else 'Succeeded'}"
    return f"({' && '.join(f'{batch.node}.Succeeded' for batch in piece.batches)})"
