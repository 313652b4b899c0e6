"""Which tasks of a step can share one template, and what of them then stands in the items of `withItems`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from scheduler.adapters.kube.names import GANG, GANG_PORT, GANG_SERVICE, JOB, RANK, TASK
from scheduler.errors import BadInput
from scheduler.jobs.job import TaskName
from scheduler.jobs.order import JobOrder, TaskOrder

MAX_ITEM = 2000  # characters; an item stands in the names and inputs of its nodes, several times each
_THE_TASK = "{{inputs.parameters.task}}"
_LABEL = 63  # characters of a DNS label

# Argo reads an item's text by cutting the quotes off its JSON, and quotes it as Go does: all else would be changed.
_CARRIED = re.compile(r'[^"\\\x00-\x1f\x7f\u2028\u2029\ud800-\udfff\U00010000-\U0010ffff]*')
_DOLLAR = re.compile(r"\$(?=[$(])")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOrder:
    """One pod of a task: one place of a gang, or all of the task."""

    task: TaskOrder
    command: tuple[str, ...]
    env: Mapping[str, str]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Pods that one template fits. With more than one pod, the texts have parameters, and `items` their values."""

    name: str  # of the template; a part of pod names
    node: str  # of the DAG task; `depends` names it
    pods: tuple[PodOrder, ...]
    command: tuple[str, ...]
    env: Mapping[str, str]
    labels: Mapping[str, str]
    items: tuple[Mapping[str, str], ...] = ()
    hostname: str = ""

    @property
    def size(self) -> int:
        """Characters of what varies between templates, as JSON."""
        return len(json.dumps([self.command, self.env, self.labels]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Batches that stand for the same tasks: one, or the two of a gang."""

    batches: tuple[Batch, ...]

    @property
    def tasks(self) -> tuple[TaskOrder, ...]:
        """In task order."""
        return tuple({pod.task.name: pod.task for batch in self.batches for pod in batch.pods}.values())


@dataclass(slots=True)
class _Columns:
    """What varies, by its parameter's name; columns with the same values are one."""

    names: dict[tuple[str, ...], str] = field(default_factory=dict)

    def text(self, name: str, texts: Sequence[str], tasks: Sequence[TaskName]) -> str:
        """The template's text for these texts of the pods."""
        if len(set(texts)) == 1:
            return texts[0]
        named = {text.replace(task, _THE_TASK) for text, task in zip(texts, tasks, strict=True)}
        # What stands before it must not make three braces of two.
        if len(named) == 1 and "{{{" not in (only := named.pop()):
            return only
        return f"{{{{inputs.parameters.{self.names.setdefault(tuple(texts), name)}}}}}"

    def items(self, tasks: Sequence[TaskName]) -> tuple[Mapping[str, str], ...]:
        """One a pod."""
        return tuple(
            {"task": task, **{name: values[place] for values, name in self.names.items()}}
            for place, task in enumerate(tasks)
        )


def pieces(order: JobOrder, tasks: Sequence[TaskOrder]) -> tuple[Piece, ...]:
    """The tasks of one step, some or all, in as few pieces as can be.

    Raises:
        BadInput: a text has a {{, which Argo would take for its own.
    """
    if tasks[0].nodes > 1:
        return tuple(_gang(order, task) for task in tasks)
    kinds: dict[object, list[PodOrder]] = {}
    for task in tasks:
        kinds.setdefault((len(task.command), *task.env), []).append(_pod(order, task))
    found: list[Piece] = []
    named_like_step = False
    for pods in kinds.values():
        together, alone = _sorted_out(pods)
        if together:
            # Only a step's own task can be named like the step and a number, so no two are named the same.
            name = together[0].task.name if named_like_step else tasks[0].step
            found.append(Piece(batches=(_batch(name, together),)))
            named_like_step = True
        found += [Piece(batches=(_batch(pod.task.name, [pod]),)) for pod in alone]
    return tuple(found)


def hostname(order: JobOrder, task: TaskName) -> str:
    """Of rank 0 of a gang; a DNS label."""
    name = f"job-{order.job}-{task}"
    return name if len(name) <= _LABEL else f"{name[: _LABEL - 9]}-{sha256(name.encode()).hexdigest()[:8]}"


def _sorted_out(pods: Sequence[PodOrder]) -> tuple[list[PodOrder], list[PodOrder]]:
    """Pods that share a template, and those whose texts cannot be carried in an item."""
    if len(pods) == 1:
        return [], list(pods)
    batch = _batch("", pods)
    fits = [all(map(_CARRIED.fullmatch, item.values())) and _length(item) <= MAX_ITEM for item in batch.items]
    together = [pod for pod, fit in zip(pods, fits, strict=True) if fit]
    if len(together) < 2:
        return [], list(pods)
    return together, [pod for pod, fit in zip(pods, fits, strict=True) if not fit]


def _length(item: Mapping[str, str]) -> int:
    return sum(map(len, item.values()))


def _batch(name: str, pods: Sequence[PodOrder], node: str = "", host: str = "") -> Batch:
    first, tasks, columns = pods[0], [pod.task.name for pod in pods], _Columns()

    def text(column: str, texts: Iterable[str]) -> str:
        values = list(texts)
        return values[0] if len(pods) == 1 else columns.text(column, values, tasks)

    # The environment first, so that a word of the command that is a parameter is called after it.
    env = {key: text(_column(key), (pod.env[key] for pod in pods)) for key in first.env}
    command = tuple(text(f"word-{place}", (pod.command[place] for pod in pods)) for place in range(len(first.command)))
    labels = {key: text("", (pod.labels[key] for pod in pods)) for key in first.labels}
    return Batch(
        name=name,
        # A capital, so that no step is called like an operator of expr-lang: in, not, and, or, matches, ..
        node=node or name[:1].upper() + name[1:],
        pods=tuple(pods),
        command=command,
        env=env,
        labels=labels,
        items=columns.items(tasks) if len(pods) > 1 else (),
        hostname=host,
    )


def _column(key: str) -> str:
    return key.removeprefix("GPUJOB_").lower().replace("_", "-")


def _gang(order: JobOrder, task: TaskOrder) -> Piece:
    """Rank 0 has a name that the others find it by, so it has a template of its own."""
    host = hostname(order, task.name)
    gang = {"GPUJOB_NODES": str(task.nodes), "GPUJOB_MASTER": f"{host}.{GANG_SERVICE}:{GANG_PORT}"}
    first, *others = (_pod(order, task, rank, gang) for rank in range(task.nodes))
    return Piece(
        batches=(
            _batch(task.name, [first], host=host),
            # No step's name starts with a digit, and none has capitals.
            _batch(f"1-{task.name}", others, node=f"{task.name[:1].upper()}{task.name[1:]}-RANKS"),
        )
    )


def _pod(order: JobOrder, task: TaskOrder, rank: int = 0, gang: Mapping[str, str] | None = None) -> PodOrder:
    env = {**task.env, **gang, "GPUJOB_NODE_RANK": str(rank)} if gang else task.env
    labels = {JOB: f"job-{order.job}", TASK: task.name, **({RANK: str(rank), GANG: "true"} if gang else {})}
    command = tuple(_literal(word, task) for word in task.command)
    env = {key: _literal(text, task) for key, text in env.items()}
    return PodOrder(task=task, command=command, env=env, labels=labels)


def _literal(text: str, task: TaskOrder) -> str:
    """A text that comes out as it is of what Argo and the kubelet replace."""
    if "{{" in text:
        raise BadInput(f"task {task.name}: {text[:60]!r} has a {{{{, which Argo would take for a template of its own")
    return _DOLLAR.sub("$$", text)
