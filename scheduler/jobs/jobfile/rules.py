"""What must hold between the keys of a job file, once each of them is right by itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.jobs import flow, templates
from scheduler.jobs.faults import MAX_FAULTS, Fault, Path, nearest, shown_value
from scheduler.jobs.spec import JobSpec, StepSpec, Value

SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh", "fish", "csh", "tcsh", "cmd", "powershell", "pwsh"})

_SECRET_KEY = re.compile(
    r"(^|_)(password|passwd|api_?key|secret|credential|(access|auth|hf|bearer)_token)s?$", re.IGNORECASE
)


def faults(spec: JobSpec) -> Iterator[Fault]:
    """What is wrong, up to `MAX_FAULTS`; paths are those of the long form."""
    return itertools.islice(_faults(spec), MAX_FAULTS)


def _faults(spec: JobSpec) -> Iterator[Fault]:
    yield from _names(spec)
    for place, step in enumerate(spec.steps):
        path: Path = ("steps", place)
        yield from _needs(spec, step, path)
        yield from _step(spec, step, path)
    yield from _cycles(spec)
    yield from _twins(spec.params, ("params",))
    if spec.deadline and spec.start_after and spec.deadline <= spec.start_after:
        message = f"is not after start_after ({spec.start_after.isoformat()}); move one of the two"
        yield Fault(path=("deadline",), value=spec.deadline.isoformat(), message=message)
    yield from templates.check(spec)


def warnings(spec: JobSpec) -> Iterator[str]:
    """What is allowed but probably not meant, a sentence each."""
    if not all(step.image or spec.image for step in spec.steps):
        yield "A step has no image: it can run on a local cluster only. Add `image`."
    if all(step.gpus == (0,) for step in spec.steps):
        yield "No step asks for GPUs. Add `gpus: 1` if the program needs one."
    if spec.estimate_hours and spec.max_hours and spec.estimate_hours > spec.max_hours:
        yield (
            f"estimate_hours {spec.estimate_hours:g} is more than max_hours {spec.max_hours:g}: "
            "tasks are ended before they are done."
        )
    for step in spec.steps:
        word = step.command[0].rpartition("/")[2]
        if word in SHELLS:
            yield (
                f"Step {step.name} starts a shell ({word}). A shell may keep SIGTERM from the program, which then "
                "cannot save; start the program itself."
            )
        if step.parallel is not None and step.sweep is None:
            yield f"Step {step.name} says `parallel` but has no sweep: it is one task."
        if step.sweep is not None and len(step.sweep) > 1:
            yield from _shared_outputs(step, step.sweep)
    for key, value in spec.params.items():
        if isinstance(value, str) and value and _SECRET_KEY.search(key):
            yield f"params.{key} looks like a secret by its name. Secrets stand under `secrets`, as Secret/key."


def _names(spec: JobSpec) -> Iterator[Fault]:
    steps: dict[str, int] = {}
    for place, step in enumerate(spec.steps):
        if step.name.endswith("-"):
            message = "must not end with -; Kubernetes takes no such label"
            yield Fault(path=("steps", place, "name"), value=shown_value(step.name), message=message)
        if step.name in steps:
            message = f"is also the name of steps[{steps[step.name]}]; every step needs its own"
            yield Fault(path=("steps", place, "name"), value=shown_value(step.name), message=message)
        steps.setdefault(step.name, place)
    for place, step in enumerate(spec.steps):
        swept, dash, index = step.name.rpartition("-")
        owner = spec.steps[steps[swept]] if dash and swept in steps else None
        # Other collisions do not exist: two sweeps of different names differ before the last dash.
        if owner and step.sweep is None and step.name in flow.task_names(owner):
            message = f"is also the name of task {index} of the swept step {swept}; choose another name"
            yield Fault(path=("steps", place, "name"), value=shown_value(step.name), message=message)


def _needs(spec: JobSpec, step: StepSpec, path: Path) -> Iterator[Fault]:
    others = [other.name for other in spec.steps if other.name not in (step.name, "")]
    for place, need in enumerate(step.needs):
        if need == step.name:
            message = "is the step itself; leave it out"
        elif need not in others:
            message = f"is no step of this job; {nearest(need, others)}"
        elif need in step.needs[:place]:
            message = "stands twice; leave one out"
        else:
            continue
        yield Fault(path=(*path, "needs", place), value=shown_value(need), message=message)
    if step.any and not step.needs:
        yield Fault(
            path=(*path, "any"), value="true", message="has a meaning only with `needs`; add it or leave `any` out"
        )


def _step(spec: JobSpec, step: StepSpec, path: Path) -> Iterator[Fault]:
    if step.nodes > 1 and 0 in step.gpus:
        message = "is a gang without GPUs; say `gpus` of 1 or more, which is on each node"
        yield Fault(path=(*path, "nodes"), value=str(step.nodes), message=message)
    if not step.command[0].strip():
        yield Fault(path=(*path, "command", 0), value='""', message="must name the program to run, like python")
    yield from _twins(step.outputs, (*path, "outputs"))
    swept = {key for values in step.sweep or () for key in values}
    for twin in _twins([*spec.params, *sorted(swept - spec.params.keys())], (*path, "sweep")):
        if twin.path[-1] not in spec.params:
            yield twin


def _twins(keys: Iterable[str], path: Path) -> Iterator[Fault]:
    seen: dict[str, str] = {}
    for key in keys:
        twin = seen.setdefault(key.upper(), key)
        if twin != key:
            message = f"and `{twin}` are the same environment variable ({key.upper()}); rename one"
            yield Fault(path=(*path, key), value="", message=message)


def _cycles(spec: JobSpec) -> Iterator[Fault]:
    """One fault a cycle, at the first of its steps."""
    needs = {step.name: [need for need in step.needs if need != step.name] for step in spec.steps}
    settled: set[str] = set()
    for place, step in enumerate(spec.steps):
        cycle = _cycle_from(step.name, needs, settled)
        if cycle:
            settled.update(cycle)
            message = f"go round in a circle: {' needs '.join(cycle)}; take one of them out"
            yield Fault(path=("steps", place, "needs"), value=shown_value(list(step.needs)), message=message)


def _cycle_from(root: str, needs: dict[str, list[str]], settled: set[str]) -> list[str]:
    """A cycle through `root`, as [root, .., root]; [] if there is none outside of what is settled."""
    came_from: dict[str, str] = {}
    edge = [root] if root not in settled else []
    while edge:
        name = edge.pop()
        for need in needs.get(name, ()):
            if need in settled:
                continue
            if need == root:
                cycle = [root, name]
                while cycle[-1] != root:
                    cycle.append(came_from[cycle[-1]])
                return cycle[::-1]
            if need not in came_from:
                came_from[need] = name
                edge.append(need)
    return []


def _shared_outputs(step: StepSpec, points: Sequence[Mapping[str, Value]]) -> Iterator[str]:
    swept = {key for values in points for key in values}
    for name, url in step.outputs.items():
        own = re.search(r"\{\{\s*(task|checkpoint)\b", url) or any(f"params.{key}" in url for key in swept)
        if not own:
            tasks = f"All {len(points)} tasks of step {step.name}"
            yield f"{tasks} write output {name} to one URL. Add {{{{ task }}}} to it."
