"""The simulator on a demand that was observed, and what it did with the pool, tick by tick."""

from __future__ import annotations

import csv
import gzip
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from scheduler.errors import BadInput
from scheduler.policy import Policy
from scheduler.sim import files
from scheduler.sim.jobs import SimJob
from scheduler.sim.run import run
from scheduler.sim.scenario import Scenario, SimService
from scheduler.sim.whatif_demand import TICK_S, Demand
from scheduler.sim.whatif_observed import Row

MIXES = ("itp", "seed", "philly")
_ENOUGH = 2.0  # times the idle GPU-hours: so much work is put into the queue
_VISIBLE = 60  # jobs that wait and are seen at once

Progress = Callable[[float], None]  # told the share that is done


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal nodes."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """Of all nodes."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What the simulator did; rows have a value each tick."""

    figures: Mapping[str, Any]  # of SURFACE 5
    serving: Row  # GPUs that replicas held
    lent: Row  # GPUs that jobs held
    held: Row  # free GPUs that were kept back for services
    waits: Row  # seconds, one for each replica asked for; not those that only a gap in the data asked for


def mix(name: str) -> Sequence[SimJob]:
    """One of the built-in mixes, or a file of the benchmark's form.

    Raises:
        BadInput: the file cannot be read, or is no such file.
    """
    if name in MIXES:
        with resources.as_file(resources.files("scheduler.sim") / "mixes" / f"{name}.csv.gz") as path:
            return files.jobs(path)
    path = Path(name)
    if not path.is_file():
        raise BadInput(f'--jobs "{name}" is no file and no mix; the mixes are {", ".join(MIXES)}')
    try:
        return files.jobs(path)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as gzipped CSV: {error}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise BadInput(
            f"{path} is no job file ({error}); its columns are job, submit_s, gpus, work_s, checkpoint_s, restart_s, "
            "save_s, saves_on_sigterm, estimate_s"
        ) from error


def replay(
    demand: Demand, pool: Pool, jobs: Sequence[SimJob], policy: Policy, zone: ZoneInfo, progress: Progress
) -> Replayed:
    """Lends what the services leave idle to the jobs of the mix, whose queue never runs dry."""
    start_s = _since_monday(demand.start, zone)
    end_s = start_s + demand.ticks * TICK_S
    idle_hours = float((pool.gpus - demand.serving_gpus()).clip(0).sum()) * TICK_S / 3600
    with tempfile.TemporaryDirectory(prefix="gpujob-whatif-") as folder:
        scenario = Scenario(
            demand=Path(folder) / "demand.csv.gz",
            jobs=Path(folder) / "jobs.csv.gz",
            services=tuple(
                SimService(
                    name=one.name,
                    gpus_per_replica=one.gpus_per_replica,
                    min_replicas=one.min_replicas,
                    max_replicas=one.max_replicas,
                )
                for one in demand.services
            ),
            nodes=pool.nodes,
            gpus_per_node=pool.gpus_per_node,
            start_s=start_s,
            measure_from_s=start_s,
            end_s=end_s,
            grace_s=policy.grace_s,
            visible_jobs=_VISIBLE,
            policy=policy,
        )
        _write_demand(scenario.demand, demand, start_s)
        _write_jobs(scenario.jobs, _queue(jobs, pool, idle_hours * _ENOUGH, end_s - start_s))
        ears = _Ears(demand, start_s, end_s, progress)
        figures = run(scenario, ears.hear, ears.watch)
    progress(1.0)
    return Replayed(
        figures=figures,
        serving=ears.serving.each_tick(start_s, demand.ticks),
        lent=ears.lent.each_tick(start_s, demand.ticks),
        held=np.array(ears.held, dtype=float),
        waits=np.array(ears.all_waits()),
    )


def _since_monday(start: float, zone: ZoneInfo) -> float:
    """Seconds since the Monday's midnight before, in local time: the simulator's t_s = 0 is one."""
    local = datetime.fromtimestamp(start, zone).replace(tzinfo=None)
    monday = (local - timedelta(days=local.weekday())).replace(hour=0, minute=0, second=0, microsecond=0)
    return (local - monday).total_seconds() // TICK_S * TICK_S


def _write_demand(path: Path, demand: Demand, start_s: float) -> None:
    before = int(start_s // TICK_S)
    columns = [
        (np.arange(before + demand.ticks) * TICK_S).astype(float),
        *(np.concatenate((np.full(before, one.load[0]), one.load)) for one in demand.services),
        *(np.concatenate((np.full(before, one.wanted[0]), one.wanted)) for one in demand.services),
    ]
    head = ["t_s", *(f"{s.name}:load" for s in demand.services), *(f"{s.name}:wanted" for s in demand.services)]
    formats = ["%d", *["%.3f"] * len(demand.services), *["%d"] * len(demand.services)]
    with gzip.open(path, "wt", compresslevel=1) as file:
        np.savetxt(file, np.column_stack(columns), fmt=formats, delimiter=",", header=",".join(head), comments="")


def _queue(jobs: Sequence[SimJob], pool: Pool, gpu_hours: float, seconds: float) -> Iterator[SimJob]:
    """The mix again and again, until there is work enough; jobs that fit nowhere are left out."""
    size = pool.gpus_per_node
    fit = [job for job in jobs if job.gpus <= size or (job.gpus % size == 0 and job.gpus // size <= pool.nodes)]
    if not fit:
        raise BadInput(f"No job of the mix fits on {pool.nodes} nodes with {size} GPUs")
    hours = 0.0
    for number in count():
        job = fit[number % len(fit)]
        yield replace(job, id=number, submit_s=0.0)
        hours += job.gpus * min(job.work_s, seconds) / 3600  # more it cannot take in this time
        if hours >= gpu_hours and number >= _VISIBLE:
            return


def _write_jobs(path: Path, jobs: Iterator[SimJob]) -> None:
    names = ("submit_s", "gpus", "work_s", "checkpoint_s", "restart_s", "save_s", "saves_on_sigterm", "estimate_s")
    with gzip.open(path, "wt", newline="", compresslevel=1) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("job", *names))
        for job in jobs:
            values = (getattr(job, name) for name in names)
            writer.writerow((job.id, *(int(value) if isinstance(value, bool) else value for value in values)))


@dataclass(slots=True)
class _Level:
    """A number that changes at times."""

    times: list[float] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)

    def add(self, at: float, change: int) -> None:
        self.times.append(at)
        self.levels.append((self.levels[-1] if self.levels else 0) + change)

    def each_tick(self, start: float, ticks: int) -> Row:
        """Its mean over each tick."""
        edges = start + np.arange(ticks + 1) * float(TICK_S)
        times = np.array([start, *self.times, max(edges[-1], self.times[-1] if self.times else start)])
        levels = np.array([0, *self.levels], dtype=float)
        area = np.concatenate(([0.0], np.cumsum(levels * np.diff(times))))
        means: Row = np.diff(np.interp(edges, times, area)) / TICK_S
        return means


class _Ears:
    """Listens to the events of the simulator (SURFACE 5)."""

    def __init__(self, demand: Demand, start_s: float, end_s: float, progress: Progress) -> None:
        self._start_s, self._end_s = start_s, end_s
        self._progress = progress
        self._gpus = {one.name: one.gpus_per_replica for one in demand.services}
        self._missing = {one.name: one.missing for one in demand.services}
        self._asked: dict[int, float] = {}
        self._jobs: dict[int, int] = {}  # those with GPUs -> how many
        self._told = 0
        self.serving, self.lent = _Level(), _Level()
        self.held: list[int] = []  # one a tick
        self._waits: list[float] = []

    def hear(self, at: float, what: str, more: Mapping[str, Any]) -> None:
        match what:
            case "replica_asked":
                if at > self._start_s and not self._is_missing(more["service"], at):
                    self._asked[more["replica"]] = at
            case "replica_start" | "replica_cancelled":
                asked = self._asked.pop(more["replica"], None)
                if asked is not None:
                    self._waits.append(at - asked)
                if what == "replica_start":
                    self.serving.add(at, self._gpus[more["service"]])
            case "replica_gone":
                self.serving.add(at, -self._gpus[more["service"]])
            case "job_start":
                self._jobs[more["job"]] = sum(more["gpus"].values())
                self.lent.add(at, self._jobs[more["job"]])
            case "job_gone" | "job_done":
                self.lent.add(at, -self._jobs.pop(more["job"]))
            case _:
                pass  # told to go: GPUs are held until they are gone

    def watch(self, at: float, kept: int) -> None:
        self.held.append(kept)
        self._advance(at)

    def all_waits(self) -> list[float]:
        """With those of replicas that still wait at the end."""
        return [*self._waits, *(self._end_s - at for at in self._asked.values())]

    def _is_missing(self, service: str, at: float) -> bool:
        tick = min(int((at - self._start_s) // TICK_S), len(self._missing[service]) - 1)
        return bool(self._missing[service][tick])

    def _advance(self, at: float) -> None:
        percent = int(100 * (at - self._start_s) / (self._end_s - self._start_s))
        if percent > self._told:
            self._told = percent
            self._progress(min(percent, 100) / 100)
