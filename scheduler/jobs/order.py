"""A job as the executor gets it: every template filled, every task named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.jobs.job import JobId, TaskName


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOrder:
    """One task, ready to run once its needs are done and its gate is open."""

    name: TaskName
    step: str
    needs: tuple[str, ...]  # steps
    any: bool
    gpus: tuple[int, ...]  # a node; choices, largest first
    nodes: int
    image: str
    command: tuple[str, ...]
    env: Mapping[str, str]  # GPUJOB_*; GPUJOB_RUN and the gang's variables are added by the executor
    outputs: Mapping[str, str]  # name -> URL


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOrder:
    """A whole job: its DAG, in task order."""

    job: JobId
    name: str
    spec_hash: str
    tasks: tuple[TaskOrder, ...]
    retries: int  # real failures of one task that are tried again
    secrets: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
