"""Which tasks of a job go into which Workflow: small jobs into one, large ones into several."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from scheduler.adapters.argo.items import Piece, pieces
from scheduler.errors import BadInput
from scheduler.jobs.job import TaskName
from scheduler.jobs.order import JobOrder, TaskOrder

_TEMPLATE_BYTES = 2200  # of a template and its DAG task, without the texts of the job
_VARIABLE_BYTES = 150  # of a variable that is not in the order's environment
_REFERENCE_BYTES = 20  # of naming a DAG task in `depends`, without its name


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one Workflow."""

    pods: int = 300  # Argo writes the state of all of them at every change
    dag_tasks: int = 199  # each has a template; with the one of the DAG that is all that Argo's full CRDs take
    bytes: int = 480_000  # without its status, by our estimate; etcd takes 1.5 MB with it


LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Tasks of one Workflow, in task order, and what must have ended before it may be made."""

    tasks: tuple[TaskName, ...]
    waits_for: frozenset[TaskName] = frozenset()
    any: bool = False  # one of these must be done, once all have ended; else all of them must be


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """One task on its way into a bin."""

    task: TaskOrder
    piece: Piece
    needs: frozenset[TaskName]
    template_bytes: int  # once for all tasks of its piece that are in one bin
    item_bytes: int


@dataclass(slots=True, kw_only=True)
class _Bin:
    """A portion that is being filled."""

    limits: Limits
    waits_for: frozenset[TaskName]
    any: bool
    tasks: set[TaskName] = field(default_factory=set)
    pods: int = 0
    dag_tasks: int = 0
    bytes: int = 0
    held: set[int] = field(default_factory=set)  # ids of pieces
    reference_bytes: dict[str, int] = field(default_factory=dict)  # of naming all of a step in `depends`

    def takes(self, load: _Load) -> bool:
        """All that the task needs is in here, or none of it and this waits for just the same; and there is room."""
        same = self.waits_for == load.needs and (self.any == load.task.any or not load.needs)
        if not same and not (load.needs and load.needs <= self.tasks):
            return False
        pods, dag_tasks, size = self._with(load)
        most = self.limits
        return pods <= most.pods and dag_tasks <= most.dag_tasks and size <= most.bytes

    def put(self, load: _Load) -> None:
        """Take one task in."""
        self.pods, self.dag_tasks, self.bytes = self._with(load)
        self.tasks.add(load.task.name)
        if id(load.piece) not in self.held:
            self.held.add(id(load.piece))
            named = sum(len(batch.node) + _REFERENCE_BYTES for batch in load.piece.batches)
            self.reference_bytes[load.task.step] = self.reference_bytes.get(load.task.step, 0) + named

    def _with(self, load: _Load) -> tuple[int, int, int]:
        pods, size = self.pods + load.task.nodes, self.bytes + load.item_bytes
        if id(load.piece) in self.held:
            return pods, self.dag_tasks, size
        batches = len(load.piece.batches)
        depends = batches * sum(self.reference_bytes.get(need, 0) for need in load.task.needs)
        return pods, self.dag_tasks + batches, size + load.template_bytes + depends


def portions(order: JobOrder, limits: Limits = LIMITS) -> tuple[Portion, ...]:
    """Every task in exactly one portion; a portion waits only for tasks of portions before it.

    Raises:
        BadInput: a task is too large for any Workflow, or has a text that Argo would change.
    """
    bins: list[_Bin] = []
    for load in _loads(order):
        found = next((one for one in bins if one.takes(load)), None)
        if found is None:
            # A gang of more pods than that gets a Workflow of its own.
            found = _Bin(limits=limits, waits_for=load.needs, any=load.task.any)
            bins.append(found)
        found.put(load)
        if found.bytes > limits.bytes:
            raise BadInput(
                f"task {load.task.name}: its command and its environment are {found.bytes:,} characters long, and a "
                f"Workflow takes {limits.bytes:,}; put long lists into a file that the program reads"
            )
    return tuple(
        Portion(
            tasks=tuple(task.name for task in order.tasks if task.name in one.tasks),
            waits_for=one.waits_for,
            any=one.any,
        )
        for one in bins
    )


def by_step(tasks: Sequence[TaskOrder]) -> Mapping[str, list[TaskOrder]]:
    """Tasks by step, each step after those of its needs that are here."""
    found: dict[str, list[TaskOrder]] = {}
    for task in tasks:
        found.setdefault(task.step, []).append(task)
    needs = {step: [need for need in of_step[0].needs if need in found] for step, of_step in found.items()}
    return {step: found[step] for step in TopologicalSorter(needs).static_order()}


def _loads(order: JobOrder) -> list[_Load]:
    steps = by_step(order.tasks)
    return [
        _Load(
            task=task,
            piece=piece,
            needs=frozenset(needed.name for need in task.needs for needed in steps.get(need, ())),
            template_bytes=_template_bytes(order, piece),
            item_bytes=_item_bytes(piece, place),
        )
        for tasks in steps.values()
        for piece in pieces(order, tasks)
        for place, task in enumerate(piece.tasks)
    ]


def _template_bytes(order: JobOrder, piece: Piece) -> int:
    variables = len(order.secrets) + len(piece.batches[0].pods[0].task.needs)
    return sum(batch.size + _TEMPLATE_BYTES + variables * _VARIABLE_BYTES for batch in piece.batches)


def _item_bytes(piece: Piece, place: int) -> int:
    """Of one task: its item, or all those of a gang."""
    if len(piece.batches) > 1:
        return sum(len(json.dumps(item)) for batch in piece.batches for item in batch.items)
    items = piece.batches[0].items
    return len(json.dumps(items[place])) if items else 0
