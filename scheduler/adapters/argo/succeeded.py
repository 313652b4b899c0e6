"""What an `any` step is told of those before it, when its gate opens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from scheduler.adapters.argo.endings import end_of
from scheduler.adapters.argo.memory import Sighting
from scheduler.adapters.argo.nodes import WorkflowSeen
from scheduler.adapters.kube.names import ANY, SUCCEEDED
from scheduler.adapters.kube.objects import Pod
from scheduler.jobs.job import TaskName

_DIGITS = re.compile(r"(\d+)")


def who_succeeded(pod: Pod, there: Iterable[WorkflowSeen], pods: Iterable[Sighting]) -> Mapping[str, str]:
    """The tasks that succeeded, by step, of the steps that this pod's step waited for."""
    steps = [step for step in pod.annotations.get(ANY, "").split(",") if step]
    if not steps:
        return {}
    done = {task for seen in there for task in seen.succeeded()}
    done |= {seen.task for seen in pods if seen.over and (end := end_of(seen)) is not None and end.code == 0}
    return {f"{SUCCEEDED}.{step}": ",".join(_of_step(step, done)) for step in steps}


def _of_step(step: str, tasks: Iterable[TaskName]) -> list[TaskName]:
    """A step's tasks are called like it, or like it and a number."""
    named = re.compile(re.escape(step) + r"(-\d+)?")
    return sorted((task for task in tasks if named.fullmatch(task)), key=_natural)


def _natural(task: TaskName) -> list[str | int]:
    return [int(word) if word.isdecimal() else word for word in _DIGITS.split(task)]
