"""Fills `{{ .. }}` in commands and outputs: a closed list of names, looked up; nothing is ever evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from scheduler.errors import BadInput
from scheduler.jobs.faults import MAX_FAULTS, Fault, Path, dotted, nearest
from scheduler.jobs.flow import SpecTask, needs_first, task_names, tasks_of
from scheduler.jobs.job import JobId, TaskName
from scheduler.jobs.order import JobOrder, TaskOrder
from scheduler.jobs.spec import JobSpec, StepSpec, Value, spec_hash

MAX_ARGUMENT = 100_000  # characters of one filled value; Linux takes at most 128 KiB in one argument
MAX_FILLED = 16_000_000  # characters of a whole job
MAX_FILLINGS = 400_000  # words, templates and parameters of all its tasks; each takes a microsecond or two

_FAULTS_OF_A_TEXT = 20
_TEMPLATE = re.compile(r"\{\{([^{}]*)\}\}")
_REFERENCE = re.compile(
    r"params\.(?P<param>[\w-]+)|outputs\.(?P<output>[\w-]+)|steps\.(?P<step>[\w-]+)\.outputs\.(?P<of_step>[\w-]+)"
    r"|(?P<word>job\.id|job\.name|task|checkpoint)",
    re.ASCII,
)
_WORDS = ("params.NAME", "outputs.NAME", "steps.NAME.outputs.NAME", "job.id", "job.name", "task", "checkpoint")
T = TypeVar("T")

_URLS = ("s3://", "file://")

# Output of a step: a URL, or one a task if the step is swept.
Outputs = Mapping[str, str | Sequence[str]]
Kept = Mapping[TaskName, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """What the names in the templates of one task stand for."""

    job: str
    name: str
    step: str
    task: str
    checkpoint: str  # "" = the job has none
    params: Mapping[str, Value]
    steps: Mapping[str, Outputs]  # those that are needed, transitively
    others: frozenset[str]  # steps that exist but are not needed
    outputs: Mapping[str, str] | None = None  # its own; None while they are being filled themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """A text with its templates filled, and what could not be."""

    text: str
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filled:
    """One task, filled."""

    task: SpecTask
    step: StepSpec
    scope: _Scope
    command: tuple[str, ...]
    outputs: Mapping[str, str]
    faults: tuple[Fault, ...]


def check(spec: JobSpec) -> tuple[Fault, ...]:
    """Everything that would go wrong when the templates of this spec are filled; paths are those of the long form."""
    faults: dict[tuple[Path, str], Fault] = {}
    if _fillings(spec) > MAX_FILLINGS:
        message = (
            f"words, templates and parameters of all tasks together are more than {MAX_FILLINGS:,}; make smaller "
            "sweeps, or shorter commands"
        )
        return (Fault(path=("steps",), value="", message=message),)
    size = seen = 0
    for filled in _tasks(spec, "job-1", "s3://storage", {}):
        faults |= {(fault.path, fault.message): fault for fault in filled.faults}
        seen += len(filled.faults)
        if seen > MAX_FAULTS:
            break  # of all tasks of a sweep, the first ones say it
        size += sum(map(len, filled.command)) + sum(map(len, filled.outputs.values()))
        if size > MAX_FILLED:
            message = f"the filled commands of this job are longer than {MAX_FILLED:,} characters; make smaller sweeps"
            return (*faults.values(), Fault(path=("steps",), value="", message=message))
    return tuple(faults.values())


def fill(
    spec: JobSpec, job: JobId, storage_root: str, digests: Mapping[str, str] | None = None, kept: Kept | None = None
) -> JobOrder:
    """The job as the executor gets it.

    `digests` says which image a written name stands for. `kept` holds the outputs of tasks that are not run again: a
    step all of whose tasks are kept is no part of the order, and the others read these outputs.

    Raises:
        BadInput: a template cannot be filled; never for a spec that `check` finds no fault with.
    """
    digests, kept = digests or {}, kept or {}
    filled = {task.task.name: task for task in _tasks(spec, f"job-{job}", storage_root, kept)}
    faults = [fault for task in filled.values() for fault in task.faults]
    if faults:
        raise BadInput(*dict.fromkeys(f"{dotted(fault.path)}: {fault.message}" for fault in faults))
    gone = {step.name for step in spec.steps if set(task_names(step)) <= kept.keys()}
    return JobOrder(
        job=job,
        name=spec.name,
        spec_hash=spec_hash(spec, digests),
        tasks=tuple(
            _ordered(filled[task.name], spec, digests, gone) for task in tasks_of(spec) if task.step not in gone
        ),
        retries=spec.retries,
        secrets=spec.secrets,
        workdir=spec.workdir,
    )


def written(value: Value) -> str:
    """A parameter as a program gets it: `true`, `3`, `2e-05`, or the text itself."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def transitive_needs(spec: JobSpec) -> Mapping[str, frozenset[str]]:
    """All steps that must have ended before a step starts, for each step."""
    needs: dict[str, frozenset[str]] = {}
    for step in needs_first(spec):
        known = [name for name in step.needs if name in needs]
        needs[step.name] = frozenset(known).union(*(needs[name] for name in known))
    return needs


def _fillings(spec: JobSpec) -> int:
    """What filling costs, without doing it."""
    total = 0
    for step in spec.steps:
        texts = (*step.command, *step.outputs.values())
        swept = max((len(values) for values in step.sweep or ()), default=0)
        one_task = len(texts) + sum(text.count("{{") for text in texts) + len(spec.params) + swept
        total += one_task * len(task_names(step))
    return total


def _tasks(spec: JobSpec, job: str, storage_root: str, kept: Kept) -> Iterator[_Filled]:
    """All tasks, those of needed steps first."""
    needs = transitive_needs(spec)
    outputs: dict[str, Outputs] = {}
    places = {step.name: place for place, step in enumerate(spec.steps)}
    tasks: dict[str, list[SpecTask]] = {}
    for task in tasks_of(spec):
        tasks.setdefault(task.step, []).append(task)
    root = f"{storage_root.rstrip('/')}/{job}/checkpoints" if spec.checkpoint else ""
    for step in needs_first(spec):
        base = _Scope(
            job=job,
            name=spec.name,
            step=step.name,
            task="",
            checkpoint="",
            params={},
            steps={name: outputs[name] for name in outputs if name in needs[step.name]},
            others=frozenset(places) - needs[step.name],
        )
        made: list[Mapping[str, str]] = []
        for task in tasks[step.name]:
            checkpoint = f"{root}/{task.name}" if root else ""
            scope = replace(base, task=task.name, params=task.params, checkpoint=checkpoint)
            filled = _task(task, step, scope, ("steps", places[step.name]))
            made.append(kept.get(task.name, filled.outputs))
            yield filled
        if step.sweep is None:
            outputs[step.name] = made[0]
        else:
            outputs[step.name] = {name: [urls.get(name, "") for urls in made] for name in step.outputs}


def _task(task: SpecTask, step: StepSpec, scope: _Scope, path: Path) -> _Filled:
    outputs = {
        name: _url(_text(text, scope, (*path, "outputs", name)), (*path, "outputs", name))
        for name, text in step.outputs.items()
    }
    urls = {name: output.text for name, output in outputs.items()}
    scope = replace(scope, outputs=urls)
    command = [_text(text, scope, (*path, "command", place)) for place, text in enumerate(step.command)]
    return _Filled(
        task=task,
        step=step,
        scope=scope,
        command=tuple(argument.text for argument in command),
        outputs=urls,
        faults=tuple(fault for part in (*outputs.values(), *command) for fault in part.faults),
    )


def _url(filled: _Text, path: Path) -> _Text:
    if filled.faults or filled.text.startswith(_URLS):
        return filled
    fault = Fault(path=path, value=filled.text[:60], message="must be a URL that starts with s3:// or file://")
    return _Text(text="", faults=(fault,))


def _text(template: str, scope: _Scope, path: Path) -> _Text:
    pieces: list[str] = []
    faults: list[Fault] = []
    end = 0
    for match in _TEMPLATE.finditer(template):
        value, wrong = _looked_up(match[1], scope)
        pieces += [template[end : match.start()], value]
        end = match.end()
        if wrong:
            faults.append(Fault(path=path, value=match[0][:60], message=wrong))
            if len(faults) == _FAULTS_OF_A_TEXT:
                break
    text = "".join([*pieces, template[end:]])
    if "{{" in text and not faults:
        message = 'has a {{ that is no template; write "{{ NAME }}" with a name of: ' + ", ".join(_WORDS)
        faults.append(Fault(path=path, value=template[:60], message=message))
    if len(text) > MAX_ARGUMENT:
        message = f"is {len(text):,} characters long when filled, limit {MAX_ARGUMENT:,}; name fewer or shorter values"
        faults.append(Fault(path=path, value="", message=message))
    return _Text(text="" if faults else text, faults=tuple(faults))


def _looked_up(inside: str, scope: _Scope) -> tuple[str, str]:
    """What a template stands for, and the sentence that says why it stands for nothing."""
    name, pipe, filter_name = (part.strip() for part in inside.partition("|"))
    reference = _REFERENCE.fullmatch(name)
    if reference is None:
        return "", f"`{name[:60]}` is no name that a template knows; known: {', '.join(_WORDS)}"
    if pipe and filter_name != "json":
        return "", f"`| {filter_name[:60]}` is unknown; the only filter is `| json`"
    value, wrong = _value(reference, scope)
    if wrong:
        return "", wrong
    if pipe:
        return json.dumps(value, ensure_ascii=False), ""
    if not isinstance(value, str | int | float):
        return "", f"`{name}` is a list, one a task; write {{{{ {name} | json }}}}"
    return written(value), ""


def _value(reference: re.Match[str], scope: _Scope) -> tuple[Value | Sequence[str], str]:
    match reference.lastgroup, reference[reference.lastgroup or 0]:
        case "param", name:
            wrong = f"`params.{name}` is not known in task {scope.task}"
            return _member(scope.params, name, wrong)
        case "output", name if scope.outputs is None:
            return "", f"an output cannot name another output (`outputs.{name}`); write its URL out"
        case "output", name:
            return _member(scope.outputs or {}, name, f"this step has no output `{name}`")
        case "of_step", name:
            return _of_step(reference["step"], name, scope)
        case _, "checkpoint":
            return (
                scope.checkpoint,
                "" if scope.checkpoint else "the job says `checkpoint: none`, so it has no such URL",
            )
        case _, word:
            return {"job.id": scope.job, "job.name": scope.name, "task": scope.task}[word], ""


def _of_step(step: str, output: str, scope: _Scope) -> tuple[Value | Sequence[str], str]:
    if step in scope.steps:
        return _member(scope.steps[step], output, f"step {step} has no output `{output}`")
    if step == scope.step:
        return "", f"a step names its own outputs as {{{{ outputs.{output} }}}}"
    if step in scope.others:
        return "", f"step {step} is not needed by this step; add it: `needs: [{step}]`"
    return "", f"there is no step `{step}`; {nearest(step, [*scope.steps, *sorted(scope.others)])}"


def _member(members: Mapping[str, T], name: str, wrong: str) -> tuple[T | str, str]:
    if name in members:
        return members[name], ""
    return "", f"{wrong}; {nearest(name, members)}"


def _ordered(filled: _Filled, spec: JobSpec, digests: Mapping[str, str], gone: set[str]) -> TaskOrder:
    step, scope = filled.step, filled.scope
    image = step.image or spec.image
    env = {"GPUJOB_JOB": scope.job, "GPUJOB_TASK": scope.task}
    if scope.checkpoint:
        env["GPUJOB_CHECKPOINT"] = scope.checkpoint
    env |= {f"GPUJOB_PARAM_{key.upper()}": written(value) for key, value in scope.params.items()}
    env |= {f"GPUJOB_OUTPUT_{name.upper()}": url for name, url in filled.outputs.items()}
    return TaskOrder(
        name=filled.task.name,
        step=step.name,
        needs=tuple(need for need in step.needs if need not in gone),
        any=step.any,
        gpus=step.gpus,
        nodes=step.nodes,
        image=digests.get(image, image),
        command=filled.command,
        env=env,
        outputs=filled.outputs,
    )
