"""What a job file says, as plain values; `jobs/jobfile.py` makes them from YAML and checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
