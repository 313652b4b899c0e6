"""What a job file says, as plain values; `jobs/jobfile.py` makes them from YAML and checks them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum

Value = str | int | float | bool  # of a parameter


class Priority(StrEnum):
    """`high` needs approval."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How a program saves its work. A job with `checkpoint: none` has no such value."""

    every_s: float = 1800.0
    on_sigterm: bool = True
    save_s: float = 60.0  # how long one save takes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """One step of a job."""

    name: str
    command: tuple[str, ...]  # exec form, templates not yet filled
    needs: tuple[str, ...] = ()
    any: bool = False  # starts when none of its needs is left, with those that succeeded
    image: str = ""  # "" = the job's
    gpus: tuple[int, ...] = (0,)  # a node; choices, largest first; more than one if elastic
    nodes: int = 1  # > 1: a gang
    sweep: tuple[Mapping[str, Value], ...] | None = None  # one mapping a task, in task order; None = not a sweep
    parallel: int | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job file."""

    name: str
    steps: tuple[StepSpec, ...]
    team: str = ""
    image: str = ""
    params: Mapping[str, Value] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)  # environment name -> "Secret/key"; never a value
    max_hours: float | None = None
    estimate_hours: float | None = None
    checkpoint: Checkpoint | None = field(default_factory=Checkpoint)
    priority: Priority = Priority.NORMAL
    retries: int = 0
    start_after: datetime | None = None
    deadline: datetime | None = None
    workdir: str = ""  # local only: where commands run; "" = a folder of the task's own


def images(spec: JobSpec) -> frozenset[str]:
    """The images of all its steps, as they are written; none for a job that names none."""
    return frozenset(step.image or spec.image for step in spec.steps) - {""}


# What moves a job in the queue, or names it, does not change what it computes.
_NOT_HASHED = ("name", "team", "priority", "start_after", "deadline", "estimate_hours", "image")


def spec_hash(spec: JobSpec, digests: Mapping[str, str]) -> str:
    """`sha256:..` of everything that changes what runs; the same for the same job, however its file is written.

    `digests` says which image a written name stands for; a name it does not know stands for itself.
    """
    plain = asdict(spec)
    for key in _NOT_HASHED:
        del plain[key]
    for step, written in zip(plain["steps"], spec.steps, strict=True):
        image = written.image or spec.image
        step["image"] = digests.get(image, image)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
