"""A spec as the text of a job file; reading it gives the same spec."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.jobs.jobfile import durations
from scheduler.jobs.jobfile.document import WORDS_OF_NULL, plain_value
from scheduler.jobs.spec import Checkpoint, JobSpec, Priority, StepSpec, Value

_UNQUOTED = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*", re.ASCII)

Points = Sequence[Mapping[str, Value]]


def dump(spec: JobSpec) -> str:
    """YAML in the long form, the keys in the order of the documentation."""
    return "".join(f"{line}\n" for line in _job(spec))


def _job(spec: JobSpec) -> Iterator[str]:
    values = {
        "gpujob": "1",
        "name": _scalar(spec.name),
        "team": spec.team and _scalar(spec.team),
        "image": spec.image and _scalar(spec.image),
        "params": spec.params and _mapping(spec.params),
        "secrets": spec.secrets and _mapping(spec.secrets),
        "max_hours": spec.max_hours and repr(spec.max_hours),
        "estimate_hours": spec.estimate_hours and repr(spec.estimate_hours),
        "checkpoint": "" if spec.checkpoint == Checkpoint() else _checkpoint(spec.checkpoint),
        "priority": "" if spec.priority == Priority.NORMAL else spec.priority,
        "retries": spec.retries and str(spec.retries),
        "start_after": spec.start_after and spec.start_after.isoformat(),
        "deadline": spec.deadline and spec.deadline.isoformat(),
        "workdir": spec.workdir and _scalar(spec.workdir),
    }
    yield from (f"{key}: {value}" for key, value in values.items() if value)
    yield "steps:"
    for step in spec.steps:
        for place, line in enumerate(_step(step)):
            yield f"    {line}" if place else f"  - {line}"


def _step(step: StepSpec) -> Iterator[str]:
    yield f"name: {_scalar(step.name)}"
    if step.needs:
        yield f"needs: {_list(step.needs)}"
    if step.any:
        yield "any: true"
    if step.image:
        yield f"image: {_scalar(step.image)}"
    yield f"gpus: {step.gpus[0]}" if len(step.gpus) == 1 else f"elastic: {{gpus: {_list(step.gpus)}}}"
    if step.nodes != 1:
        yield f"nodes: {step.nodes}"
    if step.sweep is not None:
        yield from _sweep(step.sweep)
    if step.parallel is not None:
        yield f"parallel: {step.parallel}"
    yield f"command: {_list(step.command)}"
    if step.outputs:
        yield f"outputs: {_mapping(step.outputs)}"


def _sweep(points: Points) -> Iterator[str]:
    grid = _grid(points)
    if grid is not None:
        yield f"sweep: {{{', '.join(f'{_scalar(key)}: {_list(values)}' for key, values in grid.items())}}}"
        return
    yield "sweep:"
    for point in points:
        yield f"  - {_mapping(point)}"


def _grid(points: Points) -> Mapping[str, Sequence[Value]] | None:
    """The grid that makes these points in this order, if there is one."""
    keys = list(points[0])
    if any(list(point) != keys for point in points):
        return None
    # By their text: 1, 1.0 and True are equal, and are not the same parameter.
    values = {key: list({_scalar(point[key]): point[key] for point in points}.values()) for key in keys}
    made = itertools.islice(itertools.product(*values.values()), len(points) + 1)
    texts = [[_scalar(value) for value in point] for point in made]
    return values if texts == [[_scalar(value) for value in point.values()] for point in points] else None


def _checkpoint(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "none"
    every, save = durations.written(checkpoint.every_s), durations.written(checkpoint.save_s)
    return f"{{every: {every}, on_sigterm: {_scalar(checkpoint.on_sigterm)}, save: {save}}}"


def _list(values: Iterable[Value]) -> str:
    return f"[{', '.join(map(_scalar, values))}]"


def _mapping(values: Mapping[str, Value]) -> str:
    return f"{{{', '.join(f'{_scalar(key)}: {_scalar(value)}' for key, value in values.items())}}}"


def _scalar(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    return (
        value
        if _UNQUOTED.fullmatch(value) and value not in WORDS_OF_NULL and plain_value(value) == value
        else quoted(value)
    )


def quoted(text: str) -> str:
    """Double quotes with YAML's own escapes; JSON's would split what lies beyond 16 bits in two."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
