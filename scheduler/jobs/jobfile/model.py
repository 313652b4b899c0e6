"""The shape of a job file, once: it checks files and it is the JSON Schema.

Every description ends with what is allowed ("Must be .."); the sentence about a wrong value is made of it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from scheduler.jobs.faults import HIDDEN, MAX_FAULTS, Fault, Path, dotted, nearest, shown_value, sounds_secret
from scheduler.jobs.jobfile import durations
from scheduler.jobs.spec import Value

MAX_STEPS = 200
STEP_KEYS = ("gpus", "elastic", "nodes", "command", "outputs", "sweep", "parallel")  # of the short form

_NAME = r"^[a-z][a-z0-9-]{0,39}$"
_WORD = r"^[A-Za-z_][A-Za-z0-9_]{0,59}$"
_IMAGE = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,299}$"
_KUBERNETES_KEY = r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?/[A-Za-z0-9._-]{1,253}$"
_URL = r"^(s3://|file://|\{\{).+"
_TIME = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})$"
_CLOCK = re.compile(r"[\d:.TZ +-]{10,40}", re.ASCII)
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_NAME_RULE = "a-z 0-9 and -, at most 40 characters, starting with a letter"
_OWN = "own"  # type of the errors that bring their own sentence


def _wrong(sentence: str) -> PydanticCustomError:
    return PydanticCustomError(_OWN, "{sentence}", {"sentence": sentence})


def _parameter(value: object) -> object:
    if not isinstance(value, str | int | float):
        raise _wrong("must be a string, a number or a boolean; write lists and mappings as a string that holds JSON")
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong('must be a finite number; quote it if the program wants the word: "nan", "inf"')
    return value


def _environment_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", name, re.ASCII):
        raise _wrong("is no name of an environment variable: A-Z a-z 0-9 and _, not starting with a digit")
    if name.upper().startswith("GPUJOB_"):
        raise _wrong("must not start with GPUJOB_; those names are ours")
    return name


def _moment(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) and _CLOCK.fullmatch(value) else None
        utc = moment.astimezone(UTC) if moment is not None and moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        moment = utc = None
    if moment is None:
        raise _wrong("must be a time with its zone, like 2026-12-01T20:00+09:00")
    if utc is None:
        raise _wrong(f"has no time zone; write {moment:%Y-%m-%dT%H:%M}+09:00, or Z for UTC")
    return utc


def _duration(value: object) -> float:
    seconds = durations.seconds(value) if isinstance(value, str) else None
    if seconds is None:
        raise _wrong("must be a duration with its unit: 60s, 30m, 12h or 1h30m")
    return seconds


def _exec_form(value: object) -> object:
    if not isinstance(value, str):
        return value
    # A template is one word, whatever spaces it has.
    text = _TEMPLATE.sub(lambda match: "".join(match[0].split()), value)
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    raise _wrong(f"must be a list, one word each: [{', '.join(shown_value(word) for word in words[:8])}]")


def _kind_of_sweep(value: object) -> str | None:
    if isinstance(value, dict):
        return "<grid>"
    return "<list>" if isinstance(value, list) else None


def _kind_of_checkpoint(value: object) -> str:
    return "<mapping>" if isinstance(value, dict) else "<none>"


_SCALARS = ["string", "number", "boolean"]
Name = Annotated[str, StringConstraints(pattern=_NAME)]
Word = Annotated[str, StringConstraints(pattern=_WORD)]
Image = Annotated[str, StringConstraints(pattern=_IMAGE)]
Parameter = Annotated[Any, AfterValidator(_parameter), WithJsonSchema({"type": _SCALARS})]
EnvironmentName = Annotated[
    str, AfterValidator(_environment_name), WithJsonSchema({"type": "string", "pattern": r"^(?!GPUJOB_)[A-Za-z_]\w*$"})
]
SecretRef = Annotated[str, StringConstraints(pattern=_KUBERNETES_KEY)]
Url = Annotated[str, StringConstraints(pattern=_URL)]
Moment = Annotated[datetime, BeforeValidator(_moment), WithJsonSchema({"type": "string", "pattern": _TIME})]
Duration = Annotated[
    float, BeforeValidator(_duration), WithJsonSchema({"type": "string", "pattern": durations.PATTERN})
]
Hours = Annotated[float, Field(gt=0, le=8760, allow_inf_nan=False)]
Argument = Annotated[str, WithJsonSchema({"type": _SCALARS})]
Command = Annotated[list[Argument], Field(min_length=1, max_length=1000), BeforeValidator(_exec_form)]
Outputs = dict[Word, Url]
Gpus = Annotated[int, Field(ge=0, le=1024)]
Nodes = Annotated[int, Field(ge=1, le=1024)]
Grid = Annotated[dict[Word, Annotated[list[Parameter], Field(min_length=1)]], Field(min_length=1)]
Points = Annotated[list[Annotated[dict[Word, Parameter], Field(min_length=1)]], Field(min_length=1)]
Sweep = Annotated[Annotated[Grid, Tag("<grid>")] | Annotated[Points, Tag("<list>")], Discriminator(_kind_of_sweep)]

_GPUS = "GPUs on each node. Must be a whole number of 0 to 1024, like `gpus: 4`."
_ELASTIC = "Several numbers of GPUs, of which the first that fits is taken. Must be {gpus: [8, 4]}."
_NODES = "Nodes of a gang; `gpus` is on each. Must be a whole number of 1 to 1024."
_COMMAND = 'What runs, without a shell. Must be a list of words: [python, train.py, --lr, "{{ params.lr }}"].'
_OUTPUTS = (
    'What it leaves behind. Must be names with URLs of s3:// or file://: {model: "s3://runs/{{ job.id }}/model"}.'
)
_SWEEP = "Makes the step many tasks. Must be a grid, {lr: [1e-5, 2e-5]}, or a list of maps, [{lr: 1e-5}, {lr: 2e-5}]."
_PARALLEL = "Tasks of a sweep that run at once. Must be a whole number of 1 or more."
_IMAGE_ABOUT = (
    "Docker image. Must be a name without spaces, like registry.example.com/nlp/train:1.2 or one with @sha256:."
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class CheckpointFile(_Model):
    """How the program saves its work."""

    every: Duration = Field(
        default=1800.0, gt=0, description="Time between two checkpoints. Must be a duration above 0 like 30m."
    )
    on_sigterm: bool = Field(default=True, description="It saves when it is asked to end. Must be true or false.")
    save: Duration = Field(default=60.0, description="How long one save takes. Must be a duration like 60s.")


class ElasticFile(_Model):
    """Choices of GPUs."""

    gpus: list[Annotated[int, Field(ge=1, le=1024)]] = Field(
        min_length=1, max_length=20, description="Choices, largest first. Must be a list of whole numbers: [8, 4]."
    )


class StepFile(_Model):
    """One step."""

    name: Name = Field(description=f"Name of the step. Must be {_NAME_RULE}.")
    command: Command = Field(description=_COMMAND)
    needs: list[str] = Field(
        default=[], description="Steps that must be done before it starts. Must be a list of names: [preprocess]."
    )
    any: bool = Field(
        default=False,
        description="Starts when none of its needs is left, with those that succeeded. Must be true or false.",
    )
    image: Image | None = Field(default=None, description=_IMAGE_ABOUT)
    gpus: Gpus | None = Field(default=None, description=_GPUS)
    elastic: ElasticFile | None = Field(default=None, description=_ELASTIC)
    nodes: Nodes = Field(default=1, description=_NODES)
    sweep: Sweep | None = Field(default=None, description=_SWEEP)
    parallel: Annotated[int, Field(ge=1)] | None = Field(default=None, description=_PARALLEL)
    outputs: Outputs = Field(default={}, description=_OUTPUTS)


class JobFile(_Model):
    """A job file of gpujob."""

    model_config = ConfigDict(
        title="gpujob job file",
        json_schema_extra={
            "oneOf": [
                {"required": ["steps"], "properties": dict.fromkeys(STEP_KEYS, False)},
                {"required": ["command"], "properties": {"steps": False}},
            ]
        },
    )

    gpujob: Literal[1] = Field(description="Version of the format. Must be 1, the only one so far.")
    name: Name = Field(description=f"Name of the job. Must be {_NAME_RULE}.")
    team: Name | None = Field(default=None, description=f"Whose budget it uses. Must be {_NAME_RULE}.")
    image: Image | None = Field(default=None, description=_IMAGE_ABOUT)
    params: dict[Word, Parameter] = Field(
        default={}, description="Parameters of all steps. Must be names with strings, numbers or booleans: {lr: 1e-5}."
    )
    secrets: dict[EnvironmentName, SecretRef] = Field(
        default={},
        description="Environment variables from Kubernetes Secrets. "
        "Must be a Secret and its key, never the value: {HF_TOKEN: nlp-secrets/hf-token}.",
    )
    max_hours: Hours | None = Field(
        default=None, description="Running time of a task, all its runs together. Must be hours above 0, at most 8760."
    )
    estimate_hours: Hours | None = Field(
        default=None, description="Probable running time of one task. Must be hours above 0, at most 8760."
    )
    checkpoint: Annotated[
        Annotated[CheckpointFile, Tag("<mapping>")] | Annotated[Literal["none"], Tag("<none>")],
        Discriminator(_kind_of_checkpoint),
    ] = Field(
        default=CheckpointFile(),
        description="How the program saves its work. Must be none or {every: 30m, on_sigterm: true, save: 60s}.",
    )
    priority: Literal["low", "normal", "high"] = Field(
        default="normal", description="Place in the queue; high needs approval. Must be low, normal or high."
    )
    retries: Annotated[int, Field(ge=0, le=20)] = Field(
        default=0, description="Real failures of a task that are tried again. Must be a whole number of 0 to 20."
    )
    start_after: Moment | None = Field(
        default=None, description="Not before. Must be a time with its zone, like 2026-12-01T20:00+09:00."
    )
    deadline: Moment | None = Field(
        default=None, description="Should be done by. Must be a time with its zone, like 2026-12-03T09:00+09:00."
    )
    workdir: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(
        default=None, description="Folder in which commands run, on a local cluster only. Must be a path."
    )
    steps: list[StepFile] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_STEPS,
        description=f"The pipeline. Must be a list of 1 to {MAX_STEPS} steps, each with a name and a command.",
    )
    gpus: Gpus | None = Field(default=None, description=_GPUS)
    elastic: ElasticFile | None = Field(default=None, description=_ELASTIC)
    nodes: Nodes = Field(default=1, description=_NODES)
    command: Command | None = Field(default=None, description=_COMMAND)
    sweep: Sweep | None = Field(default=None, description=_SWEEP)
    parallel: Annotated[int, Field(ge=1)] | None = Field(default=None, description=_PARALLEL)
    outputs: Outputs = Field(default={}, description=_OUTPUTS)


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the job file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **JobFile.model_json_schema()}


_BETWEEN = frozenset({"<grid>", "<list>", "<mapping>", "<none>", "[key]"})


def validated(plain: object) -> tuple[JobFile | None, tuple[Fault, ...]]:
    """The file, or everything that is wrong with its shape."""
    try:
        return JobFile.model_validate(plain), ()
    except ValidationError as error:
        return None, tuple(_faults(error))


def values_of(parameters: dict[str, Any]) -> dict[str, Value]:
    """Parameters, which `_parameter` has checked."""
    return parameters


def _faults(error: ValidationError) -> Iterator[Fault]:
    for details in error.errors(include_url=False, include_context=False)[:MAX_FAULTS]:
        path = _path(details)
        yield Fault(path=path, value=_shown(details, path), message=_message(details, path))


def _path(details: ErrorDetails) -> Path:
    """Where a fault is, without the names that pydantic puts between: tags of unions, and its mark of a bad key.

    A key that a person wrote may look like one of them; the top of the file has none.
    """
    first, *rest = details["loc"] or ("",)
    return (first, *(part for part in rest if part not in _BETWEEN)) if details["loc"] else ()


def _shown(details: ErrorDetails, path: Path) -> str:
    if details["type"] == "missing" or not path:
        return ""
    # A person who writes a secret into the file must not find it again in a message.
    hidden = "[key]" not in details["loc"] and sounds_secret(dotted(path))
    return HIDDEN if hidden else shown_value(details["input"])


def _message(details: ErrorDetails, path: Path) -> str:
    kind = details["type"]
    if kind == _OWN:
        return details["msg"]
    if kind == "extra_forbidden":
        return _unknown_key(path)
    allowed = _allowed(path)
    if kind == "missing":
        return f"is missing; must be {allowed}"
    if "[key]" in details["loc"]:
        return "is no name for this: use letters, digits and _, not starting with a digit, at most 60 characters"
    if kind == "list_type" and isinstance(details["input"], str):
        return f"must be a list, also of one: [{details['input'][:60]}]"
    return f"must be {allowed}"


def _model_at(path: Path) -> type[_Model]:
    nested: dict[object, type[_Model]] = {"checkpoint": CheckpointFile, "elastic": ElasticFile, "steps": StepFile}
    inside = [nested[part] for part in path[:-1] if part in nested]
    return inside[-1] if inside else JobFile


def _allowed(path: Path) -> str:
    if not path:
        return "a mapping of keys, with `gpujob: 1` first"
    if path[0] == "steps" and len(path) == 2:
        return "a mapping with a name and a command"
    for end in range(len(path), 0, -1):
        field = _model_at(path[:end]).model_fields.get(str(path[end - 1]))
        if field is not None:
            return (field.description or "").partition("Must be ")[2].rstrip(".")
    return "something else"


def _unknown_key(path: Path) -> str:
    model, key = _model_at(path), str(path[-1])
    if model is StepFile and key in JobFile.model_fields:
        return "is a key of the whole job; move it to the top of the file"
    if model is JobFile and key in StepFile.model_fields:
        return "is a key of a step; move it under `steps`"
    return f"is no known key; {nearest(key, model.model_fields)}"
