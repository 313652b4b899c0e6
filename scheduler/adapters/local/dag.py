"""Which tasks of a job may be tried now, from how their attempts ended: what Argo's DAG and `retryStrategy` do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

from scheduler.jobs.job import TaskName
from scheduler.jobs.order import JobOrder, TaskOrder
from scheduler.jobs.outcomes import exit_again


class Standing(StrEnum):
    """Where a task is."""

    BLOCKED = "blocked"  # steps before it are not done
    OPEN = "open"  # its newest attempt is gated
    LIVE = "live"  # its newest attempt has been released
    DONE = "done"
    FAILED = "failed"
    NEVER = "never"  # a step before it failed


FINAL = frozenset({Standing.DONE, Standing.FAILED, Standing.NEVER})


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How one attempt ended. A gated attempt that was taken back ended `withdrawn`."""

    code: int | None = None
    message: str = ""
    withdrawn: bool = False


def standing_of(ends: Sequence[End | None], retries: int) -> Standing:
    """Of one task whose needs are done; `ends` has one entry an attempt, None for one that goes on."""
    if not ends:
        return Standing.OPEN
    newest = ends[-1]
    if newest is None:
        return Standing.LIVE
    if newest.withdrawn:
        return Standing.OPEN
    if newest.code == 0:
        return Standing.DONE
    failures = sum(_is_failure(end) for end in ends[:-1])
    return Standing.OPEN if exit_again(newest.code, newest.message, failures, retries) else Standing.FAILED


def standings(
    order: JobOrder, ends: Mapping[TaskName, Sequence[End | None]], *, cancelled: bool
) -> Mapping[TaskName, Standing]:
    """Of all tasks of a job. After a cancel nothing is open: no task gets another attempt."""
    steps: dict[str, list[TaskOrder]] = {}
    for task in order.tasks:
        steps.setdefault(task.step, []).append(task)
    found: dict[TaskName, Standing] = {}
    left = dict(steps)
    while left:
        ready = [step for step, tasks in left.items() if not any(need in left for need in tasks[0].needs)]
        if not ready:  # needs that go round in a circle never open
            return {**found, **{task.name: Standing.NEVER for tasks in left.values() for task in tasks}}
        for step in ready:
            tasks = left.pop(step)
            opening = _opening(tasks[0], steps, found)
            for task in tasks:
                tried = ends.get(task.name, ())
                found[task.name] = standing_of(tried, order.retries) if tried else opening
    if not cancelled:
        return found
    return {
        name: Standing.NEVER if standing in (Standing.OPEN, Standing.BLOCKED) else standing
        for name, standing in found.items()
    }


def succeeded(order: JobOrder, step: str, found: Mapping[TaskName, Standing]) -> tuple[TaskName, ...]:
    """Tasks of a step that are done, in task order."""
    return tuple(task.name for task in order.tasks if task.step == step and found[task.name] is Standing.DONE)


def _opening(task: TaskOrder, steps: Mapping[str, Sequence[TaskOrder]], found: Mapping[TaskName, Standing]) -> Standing:
    """Of a task that was never tried; the tasks of one step share their needs."""
    before = {found[needed.name] for need in task.needs for needed in steps.get(need, ())}
    if task.any:
        return _after_any(before)
    if before & {Standing.FAILED, Standing.NEVER}:
        return Standing.NEVER
    return Standing.OPEN if before <= {Standing.DONE} else Standing.BLOCKED


def _after_any(before: Set[Standing]) -> Standing:
    if not before <= FINAL:
        return Standing.BLOCKED
    return Standing.OPEN if not before or Standing.DONE in before else Standing.NEVER


def _is_failure(end: End | None) -> bool:
    return end is not None and not end.withdrawn and end.code != 0 and not exit_again(end.code, end.message, 0, 0)
