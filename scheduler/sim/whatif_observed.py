"""What services did, from their series: replicas that were there, and load, on one grid of times.

Pieces come in order of time; only sums of each service are kept, so memory grows with services times points.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scheduler.adapters.vllm.history import COUNTERS, GAUGES, SAMPLES, UP, Piece
from scheduler.adapters.vllm.names import GENERATION_TOKENS, PROMPT_TOKENS, RUNNING, WAITING
from scheduler.adapters.vllm.prometheus_api import Line
from scheduler.policy import Policy
from scheduler.sim.whatif_services import Directory, KnownService, ReplicaKey, replica_key

Row = NDArray[np.float64]
Flags = NDArray[np.bool_]

ASSUMED_SEQS = 256  # vLLM's own default on large GPUs
_LEAST_FULL = 30  # points of full replicas before their rate is believed
_ROUNDING = 0.01  # replicas
_MOST_FULL = 20_000  # points of them that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One service on the grid. NaN where nothing is known."""

    service: KnownService
    there: Row  # replicas, each that was there for a part of the step
    mean: Row  # the same, each by its part; as `there` where that is not known
    unread: NDArray[np.int64]  # of these, replicas whose load could not be read
    load: Row  # replicas that the load fills to the target, of those that could be read
    capacity: float | None  # work per second of a full replica, if one was seen full; decode tokens
    by_tokens_share: float  # share of points in which the token rate asked for more than the requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was read of all services."""

    start: float  # unix time of the first point
    step: float
    points: int
    seen: tuple[Seen, ...]
    strangers: tuple[str, ...] = ()  # replicas of vLLM that belong to no service of the settings


@dataclass(slots=True)
class _Sums:
    """Of one service, over its replicas."""

    there: Row
    mean: Row
    unread: NDArray[np.int64]
    requests: Row
    work: Row
    engines: int = 1
    full: list[float] = field(default_factory=list)  # work per second of replicas that were full


class Observations:
    """Takes pieces in, gives what they say of each service."""

    def __init__(self, start: float, step: float, points: int, directory: Directory, policy: Policy) -> None:
        self._start, self._step, self._points = start, step, points
        self._directory = directory
        self._policy = policy
        self._sums: dict[str, _Sums] = {}
        self._replicas: dict[ReplicaKey, str] = {}  # those that showed series of vLLM -> service

    def take(self, piece: Piece) -> None:
        """Add one piece."""
        first = round((piece.start - self._start) / self._step)
        count = min(round((piece.end - self._start) / self._step) + 1, self._points) - first
        if count <= 0:
            return
        sheet = _Sheet(piece.start, self._step, count, piece.expected)
        for name in (*GAUGES, *COUNTERS, SAMPLES):
            for line in piece.lines.get(name, ()):
                service = self._directory.whose(line.labels)
                if service is not None:
                    self._replicas[replica_key(line.labels)] = service
                    sheet.note(name, line)
        for line in piece.lines.get(UP, ()):
            # Other targets of the same scrape job, a router for example, are no replicas.
            if self._is_replica(line.labels):
                sheet.note(UP, line)
        for service, keys in self._by_service(sheet.replicas()).items():
            self._add(service, keys, sheet, slice(first, first + count), exact=abs(piece.window_s - self._step) < 1)

    def observed(self) -> Observed:
        """All that was taken in."""
        seen = tuple(self._seen(name, self._sums[name]) for name in sorted(self._sums))
        return Observed(
            start=self._start,
            step=self._step,
            points=self._points,
            seen=seen,
            strangers=tuple(sorted("/".join(filter(None, key)) for key in self._directory.strangers)),
        )

    def _is_replica(self, labels: Mapping[str, str]) -> bool:
        key = replica_key(labels)
        if key not in self._replicas and self._directory.known and "pod" in labels:
            service = self._directory.whose(labels)
            if service is not None:
                self._replicas[key] = service
        return key in self._replicas

    def _by_service(self, keys: Iterable[ReplicaKey]) -> Mapping[str, Sequence[ReplicaKey]]:
        services: dict[str, list[ReplicaKey]] = defaultdict(list)
        for key in keys:
            services[self._replicas[key]].append(key)
        return services

    def _add(self, service: str, keys: Sequence[ReplicaKey], sheet: _Sheet, where: slice, *, exact: bool) -> None:
        sums = self._sums.setdefault(service, _empty(self._points))
        there = np.zeros((len(keys), sheet.count))
        read = np.zeros(there.shape, dtype=bool)
        for row, key in enumerate(keys):
            running, waiting = sheet.total(RUNNING, key), sheet.total(WAITING, key)
            work = sheet.total(GENERATION_TOKENS, key) + self._policy.prefill_cost_ratio * np.nan_to_num(
                sheet.total(PROMPT_TOKENS, key)
            )
            read[row] = ~np.isnan(running)
            # The mean of a replica that came or went is that of its own time, not of the whole window.
            there[row] = sheet.share(key)
            sums.requests[where] += there[row] * (np.nan_to_num(running) + np.nan_to_num(waiting))
            sums.work[where] += there[row] * np.nan_to_num(work)
            sums.engines = max(sums.engines, sheet.engines(RUNNING, key))
            self._learn(sums, waiting, work)
        # A replica that was there for a part of a window counts for all of it, but one that followed another does not.
        counted = np.ceil(there.sum(axis=0) - _ROUNDING)
        sums.there[where] = np.where(counted > 0, counted, np.nan)
        # Windows longer than a step tell of the step before too.
        sums.mean[where] = np.minimum(there.sum(axis=0), sums.there[where]) if exact else sums.there[where]
        sums.unread[where] = ((there > 0) & ~read).sum(axis=0)

    def _learn(self, sums: _Sums, waiting: Row, work: Row) -> None:
        """A replica that had a queue all the time shows what one can do; else its rate is just its load."""
        if len(sums.full) < _MOST_FULL:
            sums.full += work[(waiting >= self._policy.waiting_saturated) & (work > 0)].tolist()

    def _seen(self, name: str, sums: _Sums) -> Seen:
        service = self._directory.of(name)
        target = (service.max_num_seqs or ASSUMED_SEQS) * sums.engines * self._policy.fill_ratio
        requests = sums.requests / target
        capacity = float(np.median(sums.full)) if len(sums.full) >= _LEAST_FULL else None
        tokens = sums.work / (capacity * self._policy.fill_ratio) if capacity else np.zeros_like(requests)
        known = ~np.isnan(sums.there)
        return Seen(
            service=service,
            there=sums.there,
            mean=sums.mean,
            unread=sums.unread,
            load=np.where(known, np.maximum(requests, tokens), np.nan),
            capacity=capacity,
            by_tokens_share=float((tokens > requests)[known].mean()) if known.any() else 0.0,
        )


class _Sheet:
    """The values of one piece, by name, replica and engine; a series that comes twice counts once."""

    def __init__(self, start: float, step: float, count: int, expected: float) -> None:
        self._start, self._step, self.count = start, step, count
        self._expected = expected
        self._rows: dict[str, dict[ReplicaKey, dict[tuple[str, str], Row]]] = defaultdict(dict)

    def note(self, name: str, line: Line) -> None:
        values = np.asarray(line.values, dtype=float).reshape(-1, 2)
        places = np.rint((values[:, 0] - self._start) / self._step).astype(int)
        inside = (places >= 0) & (places < self.count)
        row = np.full(self.count, np.nan)
        row[places[inside]] = np.where(np.isfinite(values[inside, 1]), values[inside, 1], np.nan)
        engines = self._rows[name].setdefault(replica_key(line.labels), {})
        # `up` of two scrape jobs: one of them sees it. An engine of two jobs: the same number twice.
        part = ("", "") if name == UP else (line.labels.get("engine", ""), line.labels.get("model_name", ""))
        engines[part] = row if part not in engines else np.fmax(engines[part], row)

    def replicas(self) -> list[ReplicaKey]:
        return list(dict.fromkeys(key for rows in self._rows.values() for key in rows))

    def engines(self, name: str, key: ReplicaKey) -> int:
        return len({engine for engine, _ in self._rows[name].get(key, {})})

    def share(self, key: ReplicaKey) -> Row:
        """Of each window the part in which the replica was there; all of it if nobody counted samples."""
        known = [row for name in (SAMPLES, UP) for row in self._rows[name].get(key, {}).values()]
        if not known:
            seen = np.stack([~np.isnan(self.total(name, key)) for name in (RUNNING, GENERATION_TOKENS)])
            return seen.any(axis=0).astype(float)
        most: Row = np.nan_to_num(np.fmax.reduce(known)) / self._expected
        return np.minimum(most, 1.0)

    def total(self, name: str, key: ReplicaKey) -> Row:
        """Over the engines of a replica; NaN where none of them says anything."""
        rows = list(self._rows[name].get(key, {}).values())
        if not rows:
            return np.full(self.count, np.nan)
        stacked = np.stack(rows)
        return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0))


def _empty(points: int) -> _Sums:
    return _Sums(
        there=np.full(points, np.nan),
        mean=np.full(points, np.nan),
        unread=np.zeros(points, dtype=np.int64),
        requests=np.zeros(points),
        work=np.zeros(points),
    )
