"""What services want, every ten seconds: as many replicas as there were, or as an autoscaler would ask for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from scheduler.sim.whatif_observed import Flags, Observed, Row, Seen
from scheduler.sim.whatif_services import KnownService

TICK_S = 10
CARRIED_S = 300  # over gaps up to this the last value is taken, as Prometheus itself does
_ROUNDING = 0.01  # replicas
_SYNC_TICKS = 3  # the autoscaler looks every 30 s

# Of a HorizontalPodAutoscaler with its defaults (shared/reference/harvest.md 2): scale-down waits for five minutes.
_TOLERANCE = 0.1
_STABLE_SYNCS = 10
_GROWTH = (4, 2)  # replicas, factor: the larger of both at once


class Replicas(StrEnum):
    """Which number of replicas a service is taken to hold."""

    AUTO = "auto"  # those that there were if their number ever changed or another autoscaler is set; else those needed
    THERE = "there"
    NEEDED = "needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanting:
    """One service as it is replayed, one value a tick."""

    name: str
    gpus_per_replica: int
    min_replicas: int
    max_replicas: int
    max_num_seqs: int
    replicas: Replicas  # THERE or NEEDED
    load: Row  # in replicas at the target
    wanted: NDArray[np.int64]
    missing: Flags  # nothing was known: wants all it may have
    there_mean: float  # replicas, over the time in which they could be seen
    by_tokens_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """All services, from `start` on, a value every `TICK_S` seconds."""

    start: float  # unix time of the first tick
    services: tuple[Wanting, ...]
    blind: Flags  # nothing at all was known
    source: str
    step_s: float
    notes: tuple[str, ...] = ()

    @property
    def ticks(self) -> int:
        """How many values."""
        return len(self.blind)

    @property
    def hours(self) -> float:
        """How long, in hours."""
        return self.ticks * TICK_S / 3600

    @property
    def missing(self) -> Flags:
        """Ticks in which something was not known of at least one service."""
        found: Flags = np.logical_or.reduce([one.missing for one in self.services])
        return found

    def serving_gpus(self) -> NDArray[np.int64]:
        """GPUs that the services want, each tick."""
        gpus: NDArray[np.int64] = np.add.reduce([one.gpus_per_replica * one.wanted for one in self.services])
        return gpus


def demand(observed: Observed, replicas: Replicas, default_gpus: int, source: str, notes: Sequence[str] = ()) -> Demand:
    """What the services that were observed want; times between two points go by the later one."""
    each = round(observed.step / TICK_S)
    blind = np.all([np.isnan(seen.there) for seen in observed.seen], axis=0)
    blind &= ~_carried(blind, observed.step)
    services = tuple(_wanting(seen, blind, each, observed.step, replicas, default_gpus) for seen in observed.seen)
    return Demand(
        start=observed.start - observed.step,
        services=services,
        blind=np.repeat(blind, each),
        source=source,
        step_s=observed.step,
        notes=(*notes, *_notes(observed, default_gpus)),
    )


def autoscaled(load: Row, least: int, most: int, first: int | None = None) -> NDArray[np.int64]:
    """Replicas that a HorizontalPodAutoscaler asks for, from the load each tick; `first`: those it begins with."""
    loads = load.tolist()
    now = min(max(math.ceil(loads[0] - 1e-9) if first is None else first, least, 1), most)
    asked: list[int] = []
    recent: deque[int] = deque(maxlen=_STABLE_SYNCS)
    for tick in range(0, len(loads), _SYNC_TICKS):
        near = abs(loads[tick] / now - 1) <= _TOLERANCE if now else False
        wish = now if near else math.ceil(loads[tick] - 1e-9)
        recent.append(min(max(wish, least), most))
        grown = max(now + _GROWTH[0], now * _GROWTH[1])
        now = min(recent[-1], grown) if recent[-1] > now else min(now, max(recent))
        asked.append(now)
    return np.repeat(np.array(asked, dtype=np.int64), _SYNC_TICKS)[: len(loads)]


def between(values: Row, each: int) -> Row:
    """A value a tick from one a step, on straight lines; the first step is level. NaN must be filled before."""
    ticks = np.arange(1, len(values) * each + 1) / each - 1
    return np.interp(ticks, np.arange(len(values)), values)


def placed(there: Row, mean: Row, each: int) -> NDArray[np.int64]:
    """Replicas each tick. In a step in which some came, or some went, they do so at the time that the mean tells."""
    ticks = np.repeat(there, each).astype(np.int64).reshape(-1, each)
    before = np.concatenate((there[:1], there[:-1]))
    after = np.concatenate((there[1:], there[-1:]))
    for step in np.flatnonzero(np.nan_to_num(there - mean) > _ROUNDING):
        came, went = there[step] - before[step], there[step] - after[step]
        if came > 0 >= went:
            late = min(each, round(each * (there[step] - mean[step]) / came))
            ticks[step, :late] = before[step]
        elif went > 0 >= came:
            early = min(each, round(each * (there[step] - mean[step]) / went))
            ticks[step, each - early :] = after[step]
    return ticks.reshape(-1)


def _wanting(seen: Seen, blind: Flags, each: int, step: float, replicas: Replicas, default_gpus: int) -> Wanting:
    there, missing = _known(seen, blind, step)
    most_seen = int(np.nanmax(there, initial=0.0))
    least = 1 if seen.service.min_replicas is None else seen.service.min_replicas
    most = max(seen.service.max_replicas or 1, most_seen, least)
    how = _how(seen.service, there, replicas)
    load = between(_filled(np.where(missing, np.nan, seen.load)), each)
    held = placed(np.where(missing, most, np.nan_to_num(there)), np.where(missing, np.nan, seen.mean), each)
    wanted = held
    if how is Replicas.NEEDED:
        # Of replicas that cannot be read nobody knows what they serve; and none is needed where no service was.
        asked = np.where(held == 0, 0, autoscaled(load, least, most))
        unsure = np.repeat(missing | (seen.unread > 0), each)
        wanted = np.where(unsure, np.maximum(held, asked), asked)
    known = there[~missing]
    return Wanting(
        name=seen.service.name,
        gpus_per_replica=seen.service.gpus_per_replica or default_gpus,
        min_replicas=min(least, int(wanted.min(initial=least))),
        max_replicas=most,
        max_num_seqs=seen.service.max_num_seqs or 0,
        replicas=how,
        load=load,
        wanted=wanted,
        missing=np.repeat(missing, each),
        there_mean=float(known.mean()) if len(known) else 0.0,
        by_tokens_share=seen.by_tokens_share,
    )


def _known(seen: Seen, blind: Flags, step: float) -> tuple[Row, Flags]:
    """Replicas with gaps filled as far as that is fair, and the points at which nothing is known.

    Before it was first seen and after it was last seen a service was not there, as long as others were seen.
    """
    absent = np.isnan(seen.there)
    there = _forward(seen.there, _carried(absent, step))
    absent = np.isnan(there)
    known = np.flatnonzero(~absent)
    points = np.arange(len(there))
    outside = (points < known[0]) | (points > known[-1]) if len(known) else np.ones(len(there), dtype=bool)
    away = absent & ~blind & (outside | (seen.service.min_replicas == 0))
    there[away] = 0.0
    return there, absent & ~away


def _carried(absent: Flags, step: float) -> Flags:
    """Points of gaps over which the last value is taken: the first `CARRIED_S` seconds of those that are short."""
    carried = np.zeros_like(absent)
    most = int(CARRIED_S / step)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], absent.astype(np.int8), [0]))))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if start > 0 and end - start <= most:
            carried[start:end] = True
    return carried


def _forward(values: Row, where: Flags) -> Row:
    filled = values.copy()
    for point in np.flatnonzero(where):
        filled[point] = filled[point - 1]
    return filled


def _filled(values: Row) -> Row:
    """The last known value in place of NaN; the first one before that; 0 if there is none."""
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return np.zeros_like(values)
    last = np.searchsorted(known, np.arange(len(values)), side="right") - 1
    return values[known[np.maximum(last, 0)]]


def _how(service: KnownService, there: Row, replicas: Replicas) -> Replicas:
    if replicas is not Replicas.AUTO:
        return replicas
    if service.managed is not None:
        return Replicas.NEEDED if service.managed else Replicas.THERE
    counts = there[~np.isnan(there) & (there > 0)]
    return Replicas.THERE if len(counts) and counts.min() < counts.max() else Replicas.NEEDED


def _notes(observed: Observed, default_gpus: int) -> Sequence[str]:
    notes = []
    unsized = [seen.service.name for seen in observed.seen if seen.service.gpus_per_replica is None]
    if unsized:
        notes.append(
            f"Nothing says how many GPUs a replica of {', '.join(unsized)} holds; {default_gpus} "
            f"{'is' if default_gpus == 1 else 'are'} taken. Say it with --gpus-per-replica or as a [[service]]."
        )
    if observed.strangers:
        notes.append(
            f"{len(observed.strangers)} replicas of vLLM belong to no [[service]] of the settings and are left out, "
            f"such as {observed.strangers[0]}."
        )
    return notes
