"""In which state a replica is, from the samples of its metrics. Unknown is neither idle nor busy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

from scheduler.fleet.pool import Replica, ReplicaPhase
from scheduler.fleet.readings import Sample, Series, Target
from scheduler.fleet.services import Service
from scheduler.policy import Policy


class ReplicaState(StrEnum):
    """Evaluated in this order; the first that holds is the state."""

    TARGET_MISSING = "target_missing"
    DOWN = "down"
    NO_VLLM_SERIES = "no_vllm_series"
    LOADING = "loading"
    SLEEPING = "sleeping"
    STALLED = "stalled"
    STALE_GAUGE = "stale_gauge"
    SATURATED = "saturated"
    BUSY = "busy"
    UNSURE = "unsure"  # quiet, but with too few samples, or too short a time, to call it idle
    FRESH_IDLE = "fresh_idle"
    IDLE = "idle"


LENDABLE = frozenset({ReplicaState.IDLE, ReplicaState.FRESH_IDLE})
UNKNOWN = frozenset(
    {
        ReplicaState.TARGET_MISSING,
        ReplicaState.DOWN,
        ReplicaState.NO_VLLM_SERIES,
        ReplicaState.UNSURE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """One replica, judged.

    Keys of `signals`; a value is None where nothing is known.
    Newest sample: `running`, `waiting`, `kv`, `engines`, `age_s`, and `max_inflight` (max_num_seqs of all engines).
    Busy window, peaks: `running_peak`, `waiting_peak`, `kv_peak`, `deferred_peak`, `inflight_peak` (running + waiting).
    Busy window, from counters: `tokens_per_s` (generated), `prompt_tokens_per_s` (computed), `steps_per_s`,
    `arrivals_per_s`, `preemptions_per_s`, `ttft_mean_s`, `queue_mean_s`, `itl_mean_s`.
    Busy window: `full_ratio`, the share of samples with a queue or with running at its limit.
    Idle window: `samples` that are good, `samples_expected`; and `quiet_s` since the last progress, restart or gap.
    """

    replica: Replica
    state: ReplicaState
    why: str  # a sentence
    signals: Mapping[str, float | None]  # what the state was judged by; the keys `gpujob scale` shows
    inflight: tuple[tuple[datetime, float], ...] = ()  # running + waiting, sample by sample, over the busy window


def judge(replica: Replica, series: Series, service: Service, policy: Policy, now: datetime) -> ReplicaView:
    """The state of one replica, with the sentence and the numbers behind it.

    Idle is no progress over a whole window, never one zero: gauges fall between requests, freeze and go missing.
    After a gap or a restart the window starts anew. Source: docs/decisions/0003.
    """
    look = _Look(replica, series, service, policy, now)
    state, why = look.verdict()
    return ReplicaView(replica=replica, state=state, why=why, signals=look.signals(), inflight=look.inflight())


_PROGRESS: tuple[Callable[[Sample], float | None], ...] = (
    lambda sample: sample.counters.steps,
    lambda sample: sample.counters.prompt_tokens,
    lambda sample: sample.counters.generation_tokens,
    lambda sample: sample.counters.arrivals,
    lambda sample: sample.counters.finished,
)


class _Look:
    """One look at one replica: its samples, cut into the windows of the policy."""

    def __init__(self, replica: Replica, series: Series, service: Service, policy: Policy, now: datetime) -> None:
        self._replica = replica
        self._policy = policy
        self._now = now
        self._interval_s = series.interval_s
        self._newest = series.samples[-1] if series.samples else None
        self._good = [s for s in series.samples if s.target is Target.UP and s.vllm_series > 0]
        self._busy = self._within(max(policy.busy_window_s, 4 * series.interval_s))
        self._limit = service.max_num_seqs * max(self._good[-1].engines if self._good else 1, 1)
        self._quiet_since = self._find_quiet_since()

    def verdict(self) -> tuple[ReplicaState, str]:
        for rule in (self._blind, self._asleep, self._stuck, self._full, self._working, self._unsure):
            found = rule()
            if found is not None:
                return found
        quiet = f"No progress for {self._quiet_s():.0f} s"
        if not any(read(self._good[-1]) for read in _PROGRESS):
            return ReplicaState.FRESH_IDLE, f"{quiet}; it has served nothing since it started."
        return ReplicaState.IDLE, f"{quiet}, nothing running or waiting."

    def signals(self) -> Mapping[str, float | None]:
        newest = self._good[-1] if self._good else None
        arrivals = self._growth(lambda sample: sample.counters.arrivals)
        finished = self._growth(lambda sample: sample.counters.finished)
        return {
            "running": newest.running if newest else None,
            "waiting": newest.waiting if newest else None,
            "kv": newest.kv_use if newest else None,
            "running_peak": self._peak(lambda sample: sample.running),
            "waiting_peak": self._peak(lambda sample: sample.waiting),
            "kv_peak": self._peak(lambda sample: sample.kv_use),
            "inflight_peak": self._peak(_inflight),
            "deferred_peak": self._peak(lambda sample: sample.deferred),
            "tokens_per_s": self._rate(lambda sample: sample.counters.generation_tokens),
            "prompt_tokens_per_s": self._rate(_prompt_tokens),
            "steps_per_s": self._rate(lambda sample: sample.counters.steps),
            "arrivals_per_s": self._rate(lambda sample: sample.counters.arrivals),
            "preemptions_per_s": self._rate(lambda sample: sample.counters.preemptions),
            "ttft_mean_s": _mean(self._growth(lambda sample: sample.ttft_sum_s), arrivals),
            "queue_mean_s": _mean(self._growth(lambda sample: sample.queue_sum_s), finished),
            "itl_mean_s": _mean(
                self._growth(lambda sample: sample.itl_sum_s), self._growth(lambda sample: sample.itl_count)
            ),
            "full_ratio": _mean(float(sum(map(self._is_full, self._busy))), float(len(self._busy))),
            "engines": float(newest.engines) if newest else None,
            "max_inflight": float(self._limit),
            "quiet_s": self._quiet_s(),
            "samples": float(len(self._within(self._policy.idle_window_s))),
            "samples_expected": self._expected(),
            "age_s": (self._now - self._newest.at).total_seconds() if self._newest else None,
        }

    def inflight(self) -> tuple[tuple[datetime, float], ...]:
        pairs = ((sample.at, _inflight(sample)) for sample in self._busy)
        return tuple((at, load) for at, load in pairs if load is not None)

    # -- The rules, in the order of the states

    def _blind(self) -> tuple[ReplicaState, str] | None:
        # A replica that is not ready is not expected to answer: vLLM listens only once its model is loaded.
        if self._replica.phase is ReplicaPhase.PENDING:
            return ReplicaState.LOADING, "It waits for GPUs."
        if self._replica.phase is ReplicaPhase.STARTING:
            return ReplicaState.LOADING, "It has its GPUs and loads the model."
        newest = self._newest
        if newest is None:
            return ReplicaState.TARGET_MISSING, "Nothing has been read from it yet."
        if newest.target is Target.MISSING:
            return ReplicaState.TARGET_MISSING, f"Nobody reads its metrics: {newest.error or 'no such target'}."
        age = (self._now - newest.at).total_seconds()
        limit = max(self._policy.stale_after_s, self._interval_s)
        if newest.target is not Target.UP:
            return ReplicaState.DOWN, f"Its metrics cannot be read: {newest.error or newest.target}."
        if abs(age) > limit:
            old = f"{age:.0f} s old, the limit is {limit:.0f} s."
            ahead = f"{-age:.0f} s ahead of our clock; set the clocks right."
            return ReplicaState.DOWN, f"Its newest sample is {old if age > 0 else ahead}"
        if newest.vllm_series == 0:
            return ReplicaState.NO_VLLM_SERIES, (
                "It answers without any vLLM series: remove --disable-log-stats, or set metrics.prefix to its prefix."
            )
        return None

    def _asleep(self) -> tuple[ReplicaState, str] | None:
        if self._good[-1].awake is False:
            return ReplicaState.SLEEPING, "vLLM says it sleeps; it serves nothing, and its GPUs stay its own."
        return None

    def _stuck(self) -> tuple[ReplicaState, str] | None:
        newest = self._good[-1]
        load, kv = _inflight(newest) or 0.0, newest.kv_use or 0.0
        if load <= 0 and kv <= 0:
            return None
        since = newest.at
        for later, earlier in pairwise(reversed(self._good)):
            if _moved(earlier, later) or not _is_held(earlier) or self._is_gap(earlier, later):
                break
            since = earlier.at
        stuck_s = (newest.at - since).total_seconds()
        if stuck_s < self._policy.stall_s:
            return None
        if load > 0:
            return ReplicaState.STALLED, (
                f"{load:.0f} requests, but the engine made no step for {stuck_s:.0f} s; look at it or restart it."
            )
        return ReplicaState.STALE_GAUGE, (
            f"No requests, but {kv:.0%} of the KV cache is held without a step for {stuck_s:.0f} s; restart it."
        )

    def _full(self) -> tuple[ReplicaState, str] | None:
        waiting, kv = self._peak(lambda s: s.waiting) or 0.0, self._peak(lambda s: s.kv_use) or 0.0
        running = self._peak(lambda s: s.running) or 0.0
        policy = self._policy
        limit = policy.running_saturated_ratio * self._limit
        if waiting >= policy.waiting_saturated:
            return ReplicaState.SATURATED, f"{waiting:.0f} requests waited; {policy.waiting_saturated:g} are its limit."
        if kv >= policy.kv_saturated:
            return ReplicaState.SATURATED, f"{kv:.0%} of the KV cache was used; {policy.kv_saturated:.0%} is its limit."
        if running >= limit:
            return ReplicaState.SATURATED, f"{running:.0f} requests ran at once; {limit:.0f} are its limit."
        return None

    def _working(self) -> tuple[ReplicaState, str] | None:
        start = self._now - timedelta(seconds=self._policy.idle_window_s)
        for later, earlier in pairwise(reversed(self._good)):
            if later.at <= start:
                break
            if _moved(earlier, later) or _is_held(later):
                return ReplicaState.BUSY, f"It last worked {(self._now - later.at).total_seconds():.0f} s ago."
        if _is_held(self._good[0]) and self._good[0].at > start:
            return ReplicaState.BUSY, "It has requests."
        return None

    def _unsure(self) -> tuple[ReplicaState, str] | None:
        newest, needed_s = self._good[-1], self._policy.idle_window_s
        if newest.counters.steps is None and newest.counters.generation_tokens is None:
            return ReplicaState.UNSURE, "It does not say what it has done: its counters are missing."
        if newest.running is None and any(read(newest) for read in _PROGRESS):
            return ReplicaState.UNSURE, "It does not say how many requests it has: its gauges are missing."
        if newest.running is not None and newest.kv_use is None:
            return ReplicaState.UNSURE, "It does not say how much of its KV cache is used: that gauge is missing."
        good, expected = len(self._within(needed_s)), self._expected()
        if good < self._policy.min_samples_ratio * expected:
            return ReplicaState.UNSURE, f"Quiet, but only {good} of {expected:.0f} samples of the window are there."
        if (self._quiet_s() or 0.0) + self._interval_s < needed_s:
            return ReplicaState.UNSURE, f"Quiet for {self._quiet_s():.0f} s, but only {needed_s:.0f} s are a proof."
        return None

    # -- What they look at

    def _within(self, window_s: float) -> list[Sample]:
        start = self._now - timedelta(seconds=window_s)
        return [sample for sample in self._good if sample.at > start]

    def _expected(self) -> float:
        return math.floor(self._policy.idle_window_s / self._interval_s)

    def _peak(self, read: Callable[[Sample], float | None]) -> float | None:
        return max((value for value in map(read, self._busy) if value is not None), default=None)

    def _growth(self, read: Callable[[Sample], float | None]) -> float | None:
        """Increase over the busy window, from the last sample before it; a smaller value is a restart at 0."""
        if not self._busy:
            return None
        first = len(self._good) - len(self._busy)
        samples = self._good[max(first - 1, 0) :]
        steps = [_increase(read(before), read(after)) for before, after in pairwise(samples)]
        known = [step for step in steps if step is not None]
        return sum(known) if known else None

    def _rate(self, read: Callable[[Sample], float | None]) -> float | None:
        growth = self._growth(read)
        first = max(len(self._good) - len(self._busy) - 1, 0)
        return growth if growth is None else growth / (self._good[-1].at - self._good[first].at).total_seconds()

    def _is_full(self, sample: Sample) -> bool:
        limit = self._policy.running_saturated_ratio * self._limit
        return (sample.waiting or 0.0) > 0 or (sample.running or 0.0) >= limit

    def _is_gap(self, before: Sample, after: Sample) -> bool:
        limit = max(self._policy.stale_after_s, 2 * self._interval_s)
        return (after.at - before.at).total_seconds() > limit

    def _find_quiet_since(self) -> datetime | None:
        for later, earlier in pairwise(reversed(self._good)):
            gone = earlier.process_start != later.process_start or self._is_gap(earlier, later)
            if gone or _moved(earlier, later) or _is_held(later):
                return later.at
        return self._good[0].at if self._good else None

    def _quiet_s(self) -> float | None:
        return None if self._quiet_since is None else (self._now - self._quiet_since).total_seconds()


def _inflight(sample: Sample) -> float | None:
    if sample.running is None and sample.waiting is None:
        return None
    return (sample.running or 0.0) + (sample.waiting or 0.0)


def _is_held(sample: Sample) -> bool:
    """It has requests, or something in its KV cache."""
    return (_inflight(sample) or 0.0) > 0 or (sample.kv_use or 0.0) > 0


def _prompt_tokens(sample: Sample) -> float | None:
    computed = sample.counters.computed_prompt_tokens
    return computed if computed is not None else sample.counters.prompt_tokens


def _moved(before: Sample, after: Sample) -> bool:
    """It worked in between; a counter that was not there before began at 0, one that fell began again at 0."""
    pairs = ((read(before) or 0.0, read(after) or 0.0) for read in _PROGRESS)
    return any((new > old) or (0 < new < old) for old, new in pairs)


def _increase(before: float | None, after: float | None) -> float | None:
    """Never negative. None beside a missing value: what was counted before it was there is not known."""
    if before is None or after is None:
        return None
    return after if after < before else after - before


def _mean(total: float | None, count: float | None) -> float | None:
    return total / count if total is not None and count else None
