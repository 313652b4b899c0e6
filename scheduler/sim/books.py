"""The figures of a run, kept while it goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.sim.files import Traffic
from scheduler.sim.jobs import Run
from scheduler.sim.oracle import harvestable_slot_s
from scheduler.sim.scenario import Scenario
from scheduler.sim.world import World

Figures = Mapping[str, float | int]


@dataclass(slots=True)
class Books:
    """GPU-seconds in the measured time."""

    scenario: Scenario
    useful: float = 0.0
    lost: float = 0.0
    restart: float = 0.0
    held: float = 0.0
    unfilled: float = 0.0
    preemptions: int = 0
    asked: dict[int, float] = field(default_factory=dict)  # replica -> when it was asked, those still waiting
    waits: list[float] = field(default_factory=list)

    def log(self, at: float, what: str, more: Mapping[str, object]) -> None:
        """Listens to the world's events."""
        inside = at >= self.scenario.measure_from_s
        match what:
            case "replica_asked" if inside and at > self.scenario.start_s:
                self.asked[int(str(more["replica"]))] = at
            case "replica_start" | "replica_cancelled":
                began = self.asked.pop(int(str(more["replica"])), None)
                if began is not None:
                    self.waits.append(at - began)
            case "job_stop" if inside:
                self.preemptions += 1

    def ended(self, run: Run, at: float, kept_s: float) -> None:
        """A run ended at `at`, for good or not, and so much of its job's progress is kept."""
        start, gpus = self.scenario.measure_from_s, run.job.gpus
        before = run.progress_s(start) if run.since < start else run.base_s
        self.useful += max(kept_s - before, 0.0) * gpus
        if run.stopped is not None and at >= start:
            self.lost += (run.progress_s(at) - kept_s) * gpus
        begun = min(run.since + run.job.restart_s, at)
        self.restart += max(begun - max(run.since, start), 0.0) * gpus

    def idle_time(self, world: World, kept: int, seconds: float) -> None:
        """So long the world stays as it is now, with so many free GPUs kept back."""
        if world.now < self.scenario.measure_from_s:
            return
        free = sum(world.free.values())
        held = min(kept, free)
        self.held += held * seconds
        if any(True for _ in world.waiting()):
            self.unfilled += (free - held) * seconds

    def close(self, world: World, seen: Traffic) -> Figures:
        """Everything at the end."""
        end, start = self.scenario.end_s, self.scenario.measure_from_s
        for run in list(world.runs.values()):
            if run.stopped is None:
                self.ended(run, end, run.progress_s(end))
        self.waits += [end - at for at in self.asked.values()]
        sizes = [one.gpus_per_replica for one in self.scenario.services]
        gpus = math.gcd(*sizes)  # of a slot
        inside = (seen.t_s >= start) & (seen.t_s < end)
        wanted = (seen.wanted[inside] @ np.array(sizes)) // gpus
        step = float(seen.t_s[1] - seen.t_s[0])
        size = self.scenario.nodes * self.scenario.gpus_per_node
        idle = float((size - gpus * wanted).sum()) * step
        oracle = harvestable_slot_s(wanted, size // gpus, step) * gpus
        work = self.useful + self.lost + self.restart
        done = [fate for fate in world.fates.values() if fate.done_at is not None]
        saturated = self.scenario.arrivals == "saturated"
        in_time = [fate for fate in done if not saturated or (fate.done_at or 0.0) >= start]
        jct = np.array([(fate.done_at or 0.0) - fate.visible_since for fate in done] or [0.0])
        queue = np.array([(fate.first_start or 0.0) - fate.visible_since for fate in done] or [0.0])
        waits = np.array(self.waits or [0.0])
        return {
            "useful_gpu_hours": self.useful / 3600,
            "idle_gpu_hours": idle / 3600,
            "oracle_gpu_hours": oracle / 3600,
            "useful_over_oracle": _over(self.useful, oracle),
            "lost_share": _over(self.lost, work),
            "restart_share": _over(self.restart, work),
            "unfilled_share": _over(self.unfilled, idle),
            "held_share": _over(self.held, idle),
            "preemptions": self.preemptions,
            "preemptions_per_1000_gpu_hours": _over(self.preemptions, self.useful / 3.6e6),
            "scale_ups": len(self.waits),
            "scale_ups_waited_share": _mean(waits > 0),
            "scale_up_wait_mean_s": _mean(waits),
            "scale_up_wait_p99_s": _percentile(waits, 99),
            "scale_up_wait_max_s": _percentile(waits, 100),
            "jobs_done": len(in_time),
            "jobs_done_share": _over(len(done), len(world.fates)) if world.fates else 0.0,
            "jct_mean_h": _mean(jct) / 3600,
            "jct_p90_h": _percentile(jct, 90) / 3600,
            "queue_mean_h": _mean(queue) / 3600,
        }


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else 0.0


def _percentile(values: NDArray[Any], percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else 0.0


def _over(part: float, whole: float) -> float:
    """A share; 0 of nothing."""
    return part / whole if whole else 0.0
