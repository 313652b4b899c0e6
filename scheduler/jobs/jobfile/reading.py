"""A job file to a spec, or everything that is wrong with it, at once."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from scheduler.jobs.faults import HIDDEN, Fault, FileError, Path, dotted, looks_secret, safe, shown_value
from scheduler.jobs.jobfile import document, model, rules
from scheduler.jobs.jobfile.document import Document, Plain
from scheduler.jobs.spec import Checkpoint, JobSpec, Priority, StepSpec, Value

MAX_TASKS = 10_000
MAX_ERRORS = 200
SHORT_STEP = "main"  # the one step of the short form

_TEMPLATED = (("command",), ("outputs",))
_MENDINGS = 3  # each takes away all that was found; a key may hide one below it


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What a job file says. `spec` is None if and only if there are errors."""

    spec: JobSpec | None
    errors: tuple[FileError, ...] = ()  # by line
    warnings: tuple[str, ...] = ()  # sentences


def parse(text: str) -> Parsed:
    """Reads a job file, YAML 1.2 or JSON. Never raises: all errors come back at once."""
    found = document.read(text)
    if found.unreadable:
        lines = (
            FileError(line=line, key="", value=value, message=message) for line, value, message in found.unreadable
        )
        return Parsed(spec=None, errors=tuple(lines))
    return judged(found)


def judged(found: Document) -> Parsed:
    """The spec of a document, or its errors."""
    spec, faults = _spec_and_faults(found)
    if faults or spec is None:
        errors = sorted({_error(fault, found.lines): None for fault in faults}, key=lambda error: error.line)
        return Parsed(spec=None, errors=tuple(_cut(errors)))
    return Parsed(spec=spec, warnings=tuple(rules.warnings(spec)))


def _cut(errors: list[FileError]) -> list[FileError]:
    if len(errors) <= MAX_ERRORS:
        return errors
    message = f"there are more than {MAX_ERRORS} errors; these are the first, mend them and check again"
    return [*errors[:MAX_ERRORS], FileError(line=errors[MAX_ERRORS].line, key="", value="", message=message)]


def _spec_and_faults(found: Document) -> tuple[JobSpec | None, list[Fault]]:
    root = found.root
    faults = _joined(found.faults, _odd_texts(root, ()))
    file, wrong = model.validated(root)
    faults = _joined(faults, wrong)
    wrong = tuple(faults)
    for attempt in range(_MENDINGS):
        if file is not None or not isinstance(root, dict):
            break
        root = _mended(root, wrong, drop=attempt > 0)
        file, wrong = model.validated(root)
        faults = _joined(faults, wrong)
    if file is None:
        return None, faults
    faults = _joined(faults, _form_faults(file, found.root))
    spec = _spec(file, found.root)
    long_form = "steps" in file.model_fields_set
    between = rules.faults(spec)
    return spec, _joined(faults, between if long_form else map(_short, between))


def _joined(faults: Iterable[Fault], more: Iterable[Fault]) -> list[Fault]:
    """Both, without what only follows from a fault at the same place or above it."""
    joined = list(faults)
    wrong = {fault.path for fault in joined}
    joined += [fault for fault in more if wrong.isdisjoint(_above(fault.path))]
    return joined


def _above(path: Path) -> list[Path]:
    return [path[:end] for end in range(1, len(path) + 1)]


def _odd_texts(plain: Plain, path: Path) -> Iterator[Fault]:
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield from _odd_text(key, (*path, key), key=True)
            yield from _odd_texts(value, (*path, key))
    elif isinstance(plain, list):
        for place, value in enumerate(plain):
            yield from _odd_texts(value, (*path, place))
    elif isinstance(plain, str):
        yield from _odd_text(plain, path, key=False)


def _odd_text(text: str, path: Path, *, key: bool) -> Iterator[Fault]:
    if looks_secret(text):
        message = "looks like a secret; put it into a Kubernetes Secret and name it: `secrets: {NAME: secret/key}`"
        # The key of a fault is shown, so a secret in a key is told of at the mapping around it.
        yield Fault(path=path[:-1] if key else path, value=HIDDEN, message=message)
    elif "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        message = "has a character that no program can be given; leave it out"
        yield Fault(path=path[:-1] if key else path, value=ascii(text[:40]), message=message)
    elif "{{" in text and not key and not _takes_templates(path):
        message = "has a template; they are filled in `command` and `outputs` only"
        yield Fault(path=path, value=shown_value(text), message=message)


def _takes_templates(path: Path) -> bool:
    return path[:1] in _TEMPLATED or path[2:3] in _TEMPLATED


def _mended(root: dict[str, Any], faults: Iterable[Fault], *, drop: bool) -> dict[str, Any]:
    """The same file with a harmless value in each wrong place, so that the rules between keys can be checked too."""
    mended = copy.deepcopy(root)
    for fault in faults:
        if not fault.path:
            continue
        at: Any = mended
        last = fault.path[-1]
        for part in fault.path[:-1]:
            at = _inside(at, part)
        harmless = _required(fault.path) or (None if drop else _optional(fault.path))
        _put(at, last, harmless)
    return mended


def _put(at: Any, last: str | int, harmless: object) -> None:
    if isinstance(at, dict) and harmless is None:
        at.pop(last, None)
    elif isinstance(at, dict) or (isinstance(at, list) and last in range(len(at))):
        at[cast("Any", last)] = harmless


def _inside(plain: Any, part: str | int) -> Any:
    if isinstance(plain, dict):
        return plain.get(part)
    if isinstance(plain, list) and isinstance(part, int) and part < len(plain):
        return plain[part]
    return None


def _required(path: Path) -> object:
    match path:
        case ("gpujob",):
            return 1
        case ("steps", int()):
            return {"name": "unnamed", "command": ["true"]}
        case ("steps",):
            return [{"name": "unnamed", "command": ["true"]}]
        case (*_, "name"):
            return "unnamed"
        case (*_, "command"):
            return ["true"]
        case _:
            return None


def _optional(path: Path) -> object:
    """A value that keeps the key known, so that whoever refers to it is not wrong too."""
    match path:
        case (*_, "sweep", str()):
            return [""]
        case (*_, "outputs", _):
            return "s3://unknown"
        case ("params", _) | (*_, "sweep", _, _) | (*_, "command", _) | (*_, "needs", _):
            return "unknown"
        case _:
            return None


def _form_faults(file: model.JobFile, root: Plain) -> Iterator[Fault]:
    given = root if isinstance(root, dict) else {}
    if "steps" in given:
        for key in model.STEP_KEYS:
            if key in given:
                message = "belongs into a step when there are `steps`; move it there"
                yield Fault(path=(key,), value=shown_value(given[key]), message=message)
    elif "command" not in given:
        yield Fault(path=("command",), value="", message="is missing; say `command` for one step, or a list of `steps`")
    tasks = 0
    for path, step in _step_files(file):
        if step.elastic is not None and step.gpus is not None:
            message = "cannot stand beside `elastic`; keep one of the two"
            yield Fault(path=(*path, "gpus"), value=str(step.gpus), message=message)
        if step.elastic is not None and len(set(step.elastic.gpus)) < len(step.elastic.gpus):
            message = "has a number twice; each choice stands once, like [8, 4]"
            yield Fault(path=(*path, "elastic", "gpus"), value=shown_value(step.elastic.gpus), message=message)
        tasks += _size(step.sweep)
        if tasks > MAX_TASKS:
            # A grid can be larger than what Python agrees to print.
            count = f"{tasks:,}" if tasks < 10**9 else "more than 1,000,000,000"
            message = f"brings the job to {count} tasks, limit {MAX_TASKS:,}; split it into several jobs"
            yield Fault(path=(*path, "sweep"), value="", message=message)
            break


def _step_files(file: model.JobFile) -> Iterator[tuple[Path, model.StepFile | model.JobFile]]:
    if file.steps is None:
        yield (), file
    for place, step in enumerate(file.steps or ()):
        yield ("steps", place), step


def _size(sweep: Mapping[str, list[Any]] | list[dict[str, Any]] | None) -> int:
    if isinstance(sweep, Mapping):
        return math.prod(len(values) for values in sweep.values())
    return 1 if sweep is None else len(sweep)


def _short(fault: Fault) -> Fault:
    """A fault of the long form, at its place in the short form."""
    return replace(fault, path=fault.path[2:]) if fault.path[:1] == ("steps",) else fault


def _error(fault: Fault, lines: Mapping[Path, int]) -> FileError:
    known = (lines[fault.path[:end]] for end in range(len(fault.path), -1, -1) if fault.path[:end] in lines)
    return FileError(
        line=next(known, 1),
        key=safe(dotted(fault.path), 200),
        value=safe(fault.value, 60),
        message=safe(fault.message, 1000),
    )


def _spec(file: model.JobFile, root: Plain) -> JobSpec:
    checkpoint = file.checkpoint
    return JobSpec(
        name=file.name,
        steps=tuple(_step(step, _raw_name(root, path)) for path, step in _step_files(file)),
        team=file.team or "",
        image=file.image or "",
        params=model.values_of(file.params),
        secrets=file.secrets,
        max_hours=file.max_hours,
        estimate_hours=file.estimate_hours,
        checkpoint=None
        if checkpoint == "none"
        else Checkpoint(every_s=checkpoint.every, on_sigterm=checkpoint.on_sigterm, save_s=checkpoint.save),
        priority=Priority(file.priority),
        retries=file.retries,
        start_after=file.start_after,
        deadline=file.deadline,
        workdir=file.workdir or "",
    )


def _raw_name(root: Plain, path: Path) -> str:
    """The name of a step as it is written: a wrong name is still the one that others need."""
    if not path:
        return SHORT_STEP
    name: Any = root
    for part in (*path, "name"):
        name = _inside(name, part)
    return name if isinstance(name, str) else ""


def _step(step: model.StepFile | model.JobFile, name: str) -> StepSpec:
    own = isinstance(step, model.StepFile)
    return StepSpec(
        name=name,
        command=tuple(step.command or ("true",)),
        needs=tuple(step.needs) if isinstance(step, model.StepFile) else (),
        any=isinstance(step, model.StepFile) and step.any,
        image=(step.image or "") if own else "",
        gpus=tuple(sorted(step.elastic.gpus, reverse=True)) if step.elastic else (step.gpus or 0,),
        nodes=step.nodes,
        sweep=_points(step.sweep),
        parallel=step.parallel,
        outputs=step.outputs,
    )


def _points(sweep: Mapping[str, list[Any]] | list[dict[str, Any]] | None) -> tuple[Mapping[str, Value], ...] | None:
    """One mapping a task; of a grid, the key that stands last changes fastest."""
    if sweep is None or _size(sweep) > MAX_TASKS:
        return None
    if isinstance(sweep, Mapping):
        return tuple(dict(zip(sweep, point, strict=True)) for point in itertools.product(*sweep.values()))
    return tuple(sweep)
