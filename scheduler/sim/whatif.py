"""`gpujob whatif`: what would have been harvested from what the services really did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import BadInput, NoAnswer
from scheduler.sim.oracle import harvestable_slot_s
from scheduler.sim.whatif_demand import TICK_S, Demand, Wanting
from scheduler.sim.whatif_observed import Flags, Row
from scheduler.sim.whatif_replay import Pool, Replayed

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LEAST_HOURS = 24.0
COARSEST_S = 600.0
MONTH_HOURS = 30 * 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a GPU-hour would cost elsewhere; 0: not said."""

    per_gpu_hour: float
    currency: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """Means over one hour of the clock."""

    at: datetime  # its start
    serving: float  # GPUs
    lent: float
    held: float  # free, and kept back for services
    idle: float  # free, and nobody's
    missing: bool  # something was not known for most of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer; `plain` has the promised keys of `--json` (docs/simulator.md), the rest is for pictures."""

    plain: Mapping[str, Any]
    hours: tuple[Hour, ...]
    heat: Row  # (7, 24): idle GPUs by weekday and hour, NaN where there is no data
    zone: ZoneInfo


def check_step(step_s: float) -> None:
    """Whether points of this distance tell enough.

    Raises:
        BadInput: no; the sentence says which would.
    """
    if step_s > COARSEST_S:
        raise BadInput(
            f"--step {step_s:g}s is too coarse: an autoscaler acts within minutes, and what it did between two points "
            f"is lost; take {COARSEST_S:.0f}s at most, 60s suits most"
        )
    if step_s < TICK_S or step_s % TICK_S:
        raise BadInput(f"--step {step_s:g}s: must be whole tens of seconds from {TICK_S}s on; 60s suits most")


def trimmed(demand: Demand, days: float) -> Demand:
    """Without the time before the first data.

    Raises:
        NoAnswer: less than a day is left.
    """
    first = int(np.argmin(demand.blind))
    hours = float((~demand.blind).sum()) * TICK_S / 3600
    if hours < LEAST_HOURS:
        raise NoAnswer(
            f"{demand.source} has {hours:.1f} h of vLLM metrics in the {days:g} days asked for; "
            f"at least {LEAST_HOURS:.0f} h are needed to see a day and a night. Prometheus keeps 15 days unless "
            "--storage.tsdb.retention.time says otherwise; if gpujob looks at the wrong days, say --until TIME."
        )
    if not first:
        return demand
    notes = (
        *demand.notes,
        f"The data begins {first * TICK_S / 3600:.1f} h after the time asked for; so does the replay.",
    )
    return replace(
        demand,
        start=demand.start + first * TICK_S,
        services=tuple(_later(one, first) for one in demand.services),
        blind=demand.blind[first:],
        notes=notes,
    )


def pool_for(demand: Demand, nodes: int | None, gpus_per_node: int) -> Pool:
    """The pool that was said; else as many nodes as all services need at their largest.

    Raises:
        BadInput: the services did not fit into it.
    """
    wide = max(demand.services, key=lambda one: one.gpus_per_replica)
    if wide.gpus_per_replica > gpus_per_node:
        raise BadInput(
            f"A replica of {wide.name} holds {wide.gpus_per_replica} GPUs, a node has {gpus_per_node}; "
            "say --gpus-per-node. Replicas over several nodes cannot be replayed."
        )
    slots = [gpus_per_node // one.gpus_per_replica for one in demand.services]
    at_once = np.add.reduce([one.wanted / fit for one, fit in zip(demand.services, slots, strict=True)])
    # While nothing is known of a service it counts at its largest; all of them need not have fitted at once.
    needed = int(np.ceil(np.where(demand.missing, 0.0, at_once).max() - 1e-9))
    if nodes is None:
        largest = sum(one.max_replicas / fit for one, fit in zip(demand.services, slots, strict=True))
        return Pool(nodes=int(np.ceil(largest - 1e-9)), gpus_per_node=gpus_per_node)
    if nodes < needed:
        raise BadInput(
            f"The services wanted more at once than {nodes} nodes with {gpus_per_node} GPUs hold, {needed} would do: "
            "say --nodes"
        )
    return Pool(nodes=nodes, gpus_per_node=gpus_per_node)


def answer(demand: Demand, pool: Pool, replayed: Replayed, jobs: str, price: Price, zone: ZoneInfo) -> Answer:
    """Everything that is said, from the demand and what the simulator did with it."""
    idle = idle_gpus(demand, pool)
    clock = _Clock(demand, zone)
    heat = clock.by_weekday_and_hour(np.where(demand.blind, np.nan, idle))
    hours = _hours(demand, pool, replayed, clock)
    figures = replayed.figures
    idle_hours = _gpu_hours(idle)
    useful = float(figures["useful_gpu_hours"])
    month = MONTH_HOURS / demand.hours
    oracle = harvestable_slot_s((pool.gpus - idle).astype(np.int64), pool.gpus, TICK_S) / 3600
    plain = {
        "source": demand.source,
        "from": _at(demand.start, zone).isoformat(),
        "until": _at(demand.start + demand.ticks * TICK_S, zone).isoformat(),
        "timezone": zone.key,
        "days": round(demand.hours / 24, 3),
        "step_s": demand.step_s,
        "nodes": pool.nodes,
        "gpus_per_node": pool.gpus_per_node,
        "gpus": pool.gpus,
        "jobs": jobs,
        "idle_gpu_hours": round(idle_hours, 1),
        "useful_gpu_hours": round(useful, 1),
        "lent_gpu_hours": round(_gpu_hours(replayed.lent), 1),
        "oracle_gpu_hours": round(oracle, 1),
        "useful_over_oracle": _share(useful, oracle),
        "useful_over_idle": _share(useful, idle_hours),
        "held_share": _share(_gpu_hours(replayed.held), idle_hours),
        **{key: figures[key] for key in ("lost_share", "restart_share", "unfilled_share")},
        **{key: figures[key] for key in ("preemptions", "preemptions_per_1000_gpu_hours", "jobs_done")},
        **_waits(replayed.waits),
        "missing_hours": round(float(demand.missing.sum()) * TICK_S / 3600, 2),
        "blind_hours": round(float(demand.blind.sum()) * TICK_S / 3600, 2),
        "missing_gpu_hours": round(_missing_gpu_hours(demand, pool), 1),
        "currency": price.currency,
        "per_gpu_hour": price.per_gpu_hour,
        "idle_money": round(idle_hours * price.per_gpu_hour, 2),
        "useful_money": round(useful * price.per_gpu_hour, 2),
        "useful_money_30_days": round(useful * price.per_gpu_hour * month, 2),
        "useful_gpu_hours_30_days": round(useful * month, 1),
        "hours": clock.day(idle, replayed.lent, demand.blind),
        "heat": {"weekdays": list(WEEKDAYS), "idle_gpus": _rounded(heat)},
        "pool": [_hour_plain(hour) for hour in hours],
        "services": [_service_plain(one) for one in demand.services],
        "notes": list(demand.notes),
    }
    return Answer(plain=plain, hours=hours, heat=heat, zone=zone)


def idle_gpus(demand: Demand, pool: Pool) -> Row:
    """GPUs that no service wants, each tick; none while nothing is known."""
    idle = (pool.gpus - demand.serving_gpus()).clip(0).astype(float)
    return np.where(demand.blind, 0.0, idle)


class _Clock:
    """Ticks by the operator's clock. Buckets are hours of the clock; a zone's half hours are kept."""

    def __init__(self, demand: Demand, zone: ZoneInfo) -> None:
        self.zone = zone
        # Clocks change at most every quarter of an hour; that many times are cheap to convert, each tick is not.
        quarters = np.arange(demand.start // 900, (demand.start + demand.ticks * TICK_S) // 900 + 1)
        times = [_at(float(quarter * 900), zone) for quarter in quarters]
        unix = demand.start + np.arange(demand.ticks) * TICK_S
        place = (unix // 900 - quarters[0]).astype(int)
        self._hour = np.array([at.hour for at in times])[place]
        self._weekday = np.array([at.weekday() for at in times])[place]
        # An hour that comes twice has two numbers: they count hours of the day and of its offset.
        starts = [at.replace(minute=0).timestamp() for at in times]
        self.start = np.array(starts)[place]

    def by_weekday_and_hour(self, values: Row) -> Row:
        """(7, 24): means of what is no NaN."""
        cell = self._weekday * 24 + self._hour
        known = ~np.isnan(values)
        counts = np.bincount(cell[known], minlength=168)
        sums = np.bincount(cell[known], weights=values[known], minlength=168)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).reshape(7, 24)

    def day(self, idle: Row, lent: Row, blind: Flags) -> list[dict[str, float]]:
        """By hour of the day, over the time of which something is known."""
        hour = self._hour[~blind]
        counts = np.maximum(np.bincount(hour, minlength=24), 1)
        rows = [np.bincount(hour, weights=values[~blind], minlength=24) / counts for values in (idle, lent)]
        return [
            {"hour": hour, "idle_gpus": round(float(rows[0][hour]), 1), "lent_gpus": round(float(rows[1][hour]), 1)}
            for hour in range(24)
        ]

    def each_hour(self, values: NDArray[Any]) -> tuple[Row, Row]:
        """Starts of hours (unix time) and means in them."""
        starts, place, counts = np.unique(self.start, return_inverse=True, return_counts=True)
        return starts, np.bincount(place, weights=values) / counts


def _hours(demand: Demand, pool: Pool, replayed: Replayed, clock: _Clock) -> tuple[Hour, ...]:
    starts, serving = clock.each_hour(replayed.serving)
    lent, held, missing = (
        clock.each_hour(values)[1] for values in (replayed.lent, replayed.held, demand.missing | demand.blind)
    )
    return tuple(
        Hour(
            at=datetime.fromtimestamp(starts[i], UTC).astimezone(clock.zone),
            serving=float(serving[i]),
            lent=float(lent[i]),
            held=float(held[i]),
            idle=max(0.0, float(pool.gpus - serving[i] - lent[i] - held[i])),
            missing=bool(missing[i] > 0.5),
        )
        for i in range(len(starts))
    )


def _later(one: Wanting, first: int) -> Wanting:
    return replace(one, load=one.load[first:], wanted=one.wanted[first:], missing=one.missing[first:])


def _waits(waits: Row) -> Mapping[str, Any]:
    some = waits if len(waits) else np.zeros(1)
    return {
        "scale_ups": len(waits),
        "scale_ups_waited_share": round(float((some > 0).mean()), 4),
        "scale_up_wait_mean_s": round(float(some.mean()), 3),
        "scale_up_wait_p99_s": round(float(np.percentile(some, 99)), 3),
        "scale_up_wait_max_s": round(float(some.max()), 3),
    }


def _missing_gpu_hours(demand: Demand, pool: Pool) -> float:
    """GPU-hours that count as not idle because nobody knows."""
    parts = [one.gpus_per_replica * one.max_replicas * one.missing.astype(float) for one in demand.services]
    return _gpu_hours(np.where(demand.blind, pool.gpus, np.add.reduce(parts)))


def _service_plain(one: Wanting) -> Mapping[str, Any]:
    return {
        "name": one.name,
        "gpus_per_replica": one.gpus_per_replica,
        "min_replicas": one.min_replicas,
        "max_replicas": one.max_replicas,
        "replicas": str(one.replicas),
        "there_mean": round(one.there_mean, 3),
        "wanted_mean": round(float(one.wanted.mean()), 3),
        "wanted_max": int(one.wanted.max()),
        "load_mean": round(float(one.load.mean()), 3),
        "load_p99": round(float(np.percentile(one.load, 99)), 3),
        "gpu_hours": round(_gpu_hours(one.gpus_per_replica * one.wanted), 1),
        "missing_hours": round(float(one.missing.sum()) * TICK_S / 3600, 2),
        "by_tokens_share": round(one.by_tokens_share, 4),
    }


def _hour_plain(hour: Hour) -> Mapping[str, Any]:
    gpus = {key: round(getattr(hour, key), 1) for key in ("serving", "lent", "held", "idle")}
    return {"at": hour.at.isoformat(), **gpus, "missing": hour.missing}


def _rounded(heat: Row) -> list[list[float | None]]:
    return [[None if np.isnan(value) else round(float(value), 1) for value in row] for row in heat]


def _gpu_hours(gpus: NDArray[Any]) -> float:
    return float(gpus.sum()) * TICK_S / 3600


def _share(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 0.0


def _at(unix: float, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(unix, UTC).astimezone(zone)
