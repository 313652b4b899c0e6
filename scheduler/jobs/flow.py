"""Which tasks a job has, which of them may go on, and what their states make of its steps and of itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from scheduler.jobs.job import TERMINAL_JOB, TERMINAL_TASK, JobState, StepState, Task, TaskName, TaskState
from scheduler.jobs.spec import JobSpec, StepSpec, Value

States = Mapping[TaskName, TaskState]

_BROKEN = frozenset({TaskState.FAILED, TaskState.CANCELLED})
_UNDECIDED = frozenset({JobState.SUBMITTED, JobState.AWAITING_APPROVAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecTask:
    """One task that a spec asks for."""

    name: TaskName
    step: str
    index: int  # place in its step, from 0
    params: Mapping[str, Value]  # of the job, overlaid by the sweep's


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Blocked tasks that are blocked no longer, both in task order."""

    waiting: tuple[TaskName, ...]  # their needs are met
    skipped: tuple[TaskName, ...]  # their needs can never be met: they become cancelled


def task_names(step: StepSpec) -> tuple[TaskName, ...]:
    """`sft-0`, `sft-1`, .. for a sweep; a step that is none has one task of its own name."""
    if step.sweep is None:
        return (TaskName(step.name),)
    return tuple(TaskName(f"{step.name}-{index}") for index in range(len(step.sweep)))


def tasks_of(spec: JobSpec) -> tuple[SpecTask, ...]:
    """All tasks: steps in the order of the file, the tasks of a sweep in its order."""
    return tuple(
        SpecTask(name=name, step=step.name, index=index, params={**spec.params, **values})
        for step in spec.steps
        for index, (name, values) in enumerate(zip(task_names(step), step.sweep or ({},), strict=True))
    )


def needs_first(spec: JobSpec) -> tuple[StepSpec, ...]:
    """The steps so that each comes after all that it needs.

    Total: needs that nobody has are passed over, and of a cycle the step that stands first comes last.
    """
    steps = {step.name: step for step in spec.steps}
    ordered: dict[str, StepSpec] = {}
    for root in spec.steps:
        seen = {root.name}
        path = [(root, iter(root.needs))]
        while path:
            step, needs = path[-1]
            need = next((name for name in needs if name in steps and name not in ordered and name not in seen), None)
            if need is None:
                ordered.setdefault(step.name, step)
                path.pop()
            else:
                seen.add(need)
                path.append((steps[need], iter(steps[need].needs)))
    return tuple(ordered.values())


def step_state(step: str, tasks: Iterable[Task]) -> StepState:
    """The state of one step, from the job's tasks; rules at `derived`."""
    return derived([task.state for task in tasks if task.step == step])


def derived(states: Collection[TaskState]) -> StepState:
    """What the states of a step's tasks make of the step.

    A task runs: running. Else a task waits, or was preempted and will go on: waiting. Else a task is blocked: blocked.
    All have ended: failed if one failed, done if all are done, skipped if some were never run or were cancelled.
    """
    if TaskState.RUNNING in states:
        return StepState.RUNNING
    if TaskState.WAITING in states or TaskState.PREEMPTED in states:
        return StepState.WAITING
    if TaskState.BLOCKED in states:
        return StepState.BLOCKED
    if TaskState.FAILED in states:
        return StepState.FAILED
    return StepState.SKIPPED if TaskState.CANCELLED in states else StepState.DONE


def ready(spec: JobSpec, task_states: States) -> Ready:
    """Which blocked tasks become waiting, and which can never run.

    - A step starts when all tasks of all its needs are done.
    - As soon as one of these failed or was cancelled, the step is skipped, and so is all that needs it.
    - A step with `any` starts when none of these tasks is left and at least one is done; if none is, it is skipped.
    - Branches that do not need what failed go on.

    A task without a state counts as done: it was kept from an older job.
    """
    states = dict(task_states)
    names = {step.name: task_names(step) for step in spec.steps}
    for step in needs_first(spec):
        needed = [states.get(task, TaskState.DONE) for need in step.needs for task in names.get(need, ())]
        new = _opened(step, needed)
        for task in names[step.name]:
            if states.get(task) == TaskState.BLOCKED:
                states[task] = new
    changed = [task for task in task_states if task_states[task] != states[task]]
    return Ready(
        waiting=tuple(task for task in changed if states[task] == TaskState.WAITING),
        skipped=tuple(task for task in changed if states[task] == TaskState.CANCELLED),
    )


def job_state(spec: JobSpec, task_states: States, current: JobState) -> JobState:
    """What the states of its tasks make of a job.

    - A job that has ended stays as it is; one that nobody has decided on waits for that decision.
    - A task runs: running. Else a task was preempted: preempted.
    - All tasks have ended: completed if every step that no other step needs is done, else failed. So a failure that an
      `any` step put up with does not fail the job, and a failed branch does, once the others have ended.
    - Else: waiting.

    The answer is always a lawful move: a job that was waiting gets to preempted through running, in two turns.
    """
    if current in TERMINAL_JOB or current in _UNDECIDED:
        return current
    states = frozenset(task_states.values())
    if TaskState.RUNNING in states:
        return JobState.RUNNING
    if TaskState.PREEMPTED in states:
        return JobState.RUNNING if current == JobState.WAITING else JobState.PREEMPTED
    if states <= TERMINAL_TASK:
        return JobState.COMPLETED if _sinks_done(spec, task_states) else JobState.FAILED
    return JobState.WAITING


def _opened(step: StepSpec, needed: Collection[TaskState]) -> TaskState:
    if not step.any:
        if not _BROKEN.isdisjoint(needed):
            return TaskState.CANCELLED
        return TaskState.WAITING if all(state == TaskState.DONE for state in needed) else TaskState.BLOCKED
    if not TERMINAL_TASK.issuperset(needed):
        return TaskState.BLOCKED
    return TaskState.WAITING if TaskState.DONE in needed else TaskState.CANCELLED


def _sinks_done(spec: JobSpec, task_states: States) -> bool:
    needed = {need for step in spec.steps for need in step.needs}
    return all(
        task_states.get(task, TaskState.DONE) == TaskState.DONE
        for step in spec.steps
        if step.name not in needed
        for task in task_names(step)
    )
