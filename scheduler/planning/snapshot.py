"""The world at one instant, as the planner gets it; it replays from JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from scheduler.fleet.demand import ServiceDemand
from scheduler.fleet.forecast import Soon
from scheduler.fleet.pool import Pool
from scheduler.fleet.services import Service
from scheduler.fleet.windows import Window
from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.jobs.spec import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTask:
    """A task that wants GPUs."""

    job: JobId
    task: TaskName
    step: str
    uid: Uid | None  # of its gated attempt; None while the executor has not made it yet
    gpus: tuple[int, ...]  # a node; choices, largest first
    nodes: int
    submitted_at: datetime  # of its job
    since: datetime  # waits since
    priority: Priority = Priority.NORMAL
    team: str = ""
    estimate_s: float | None = None  # what is probably left of it
    can_save: bool = True  # it checkpoints; one that cannot needs a window that outlasts its estimate
    saves: bool = True  # it saves when asked to end; who does not stands where GPUs are wanted back last
    preempted: bool = False
    start_after: datetime | None = None
    deadline: datetime | None = None
    parallel: int | None = None  # at most so many tasks of its step at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A run that holds GPUs."""

    uid: Uid
    job: JobId
    task: TaskName
    step: str
    placement: Mapping[str, int]
    since: datetime
    team: str = ""
    priority: Priority = Priority.NORMAL
    stopping: bool = False  # asked to end; its GPUs come free by themselves
    stop_by: datetime | None = None  # when a stopping run has probably ended
    kill_at: datetime | None = None  # when the time that a stopping run got is over
    can_save: bool = True  # it saves when asked to end
    save_s: float = 0.0
    every_s: float | None = None  # periodic checkpoints; None: none
    saved_at: datetime | None = None  # newest checkpoint; None: none yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a plan depends on.

    A lease may name a node that is not in the pool: nodes vanish. Such a lease is left alone.

    Raises:
        ValueError: it cannot be: one attempt twice, one task waiting twice, two demands or settings of one service.
    """

    now: datetime
    pool: Pool
    services: tuple[Service, ...]
    demands: tuple[ServiceDemand, ...]
    windows: tuple[Window, ...]  # open now or later, disjoint, of idle GPUs that may be lent
    soon: tuple[Soon, ...] = ()  # replicas that will probably be wanted before GPUs could be handed back for them
    waiting: tuple[WaitingTask, ...] = ()
    leases: tuple[Lease, ...] = ()
    team_gpus: Mapping[str, int] = field(default_factory=dict)  # team -> running GPUs it may have at once
    team_shares: Mapping[str, float] = field(default_factory=dict)  # team -> its part of the GPU-hours of the last days
    lending_open: bool = True  # the operator's hours
    opens_at: datetime | None = None  # when they open, if they are closed

    def __post_init__(self) -> None:
        attempts = [lease.uid for lease in self.leases] + [task.uid for task in self.waiting if task.uid is not None]
        _once(attempts, "attempt")
        _once([f"job-{task.job}/{task.task}" for task in self.waiting], "waiting task")
        _once([service.name for service in self.services], "service")
        _once([demand.service for demand in self.demands], "demand of")


def _once(names: Sequence[str], what: str) -> None:
    if len(set(names)) != len(names):
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        raise ValueError(f"{what} {', '.join(twice)} stands twice in the snapshot")
