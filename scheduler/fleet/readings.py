"""What the metrics of one replica said, scrape by scrape."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from scheduler.fleet.pool import ReplicaId


class Target(StrEnum):
    """What became of one scrape."""

    UP = "up"
    DOWN = "down"  # refused, timed out, an error status: nothing is known, and never "idle"
    MISSING = "missing"  # nobody scrapes it
    PARTIAL = "partial"  # answered with warnings, or with something that is no exposition


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters of one scrape, summed over engines; None where the series does not exist."""

    steps: float | None = None  # iteration_tokens_total_count: the engine's heartbeat
    prompt_tokens: float | None = None
    computed_prompt_tokens: float | None = None  # source="local_compute", where known
    generation_tokens: float | None = None
    arrivals: float | None = None  # time_to_first_token count: also counts what was aborted later
    finished: float | None = None  # e2e count
    preemptions: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One scrape. Gauges are None where the series does not exist; NaN and infinities are None too."""

    at: datetime
    target: Target
    error: str = ""  # why it is not UP, for the operator
    vllm_series: int = 0  # how many series with vLLM's prefix; 0 with UP = --disable-log-stats
    engines: int = 0
    running: float | None = None  # sum over engines
    waiting: float | None = None  # sum over engines, capacity only where the reason is told
    deferred: float | None = None  # sum; KV transfer or LoRA budget, not load
    kv_use: float | None = None  # 0 to 1, max over engines
    kv_tokens: float | None = None  # capacity, summed over engines
    awake: bool | None = None  # None: no sleep series
    process_start: float | None = None  # unix time
    ttft_sum_s: float | None = None  # sum of the time-to-first-token histogram
    queue_sum_s: float | None = None
    itl_sum_s: float | None = None  # inter-token latency, or the older time per output token; never both
    itl_count: float | None = None
    counters: Counters = Counters()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The samples of one replica within the window that was asked for, oldest first."""

    replica: ReplicaId
    samples: tuple[Sample, ...]
    interval_s: float  # expected distance of two samples
