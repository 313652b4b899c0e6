"""The series of vLLM that we read: their names over the versions 0.7 to 0.33, and what one scrape of them says.

Arrivals are counted by first tokens: `request_success_total` misses what clients aborted, and old versions count a
request with `n` answers `n` times there. `lora_requests_info` is not read: its value is a time, its labels never end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from scheduler.fleet.readings import Counters, Sample, Target

RUNNING = "num_requests_running"
WAITING = "num_requests_waiting"
WAITING_BY_REASON = "num_requests_waiting_by_reason"  # since 0.20
KV_USE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")  # the second until 0.11; for a while both, with one meaning
SLEEP_STATE = "engine_sleep_state"
CACHE_CONFIG = "cache_config_info"
STEPS = "iteration_tokens_total_count"  # a histogram whose name ends in _total
PROMPT_TOKENS = "prompt_tokens_total"
PROMPT_TOKENS_BY_SOURCE = "prompt_tokens_by_source_total"  # since 0.16
GENERATION_TOKENS = "generation_tokens_total"
PREEMPTIONS = "num_preemptions_total"
TTFT = "time_to_first_token_seconds"
ITL = ("inter_token_latency_seconds", "time_per_output_token_seconds")  # for a while both, with the same data
FINISHED = "e2e_request_latency_seconds_count"
QUEUE_SUM = "request_queue_time_seconds_sum"
PROCESS_START = "process_start_time_seconds"  # has no prefix

READ = (
    RUNNING,
    WAITING,
    WAITING_BY_REASON,
    *KV_USE,
    SLEEP_STATE,
    CACHE_CONFIG,
    STEPS,
    PROMPT_TOKENS,
    PROMPT_TOKENS_BY_SOURCE,
    GENERATION_TOKENS,
    PREEMPTIONS,
    f"{TTFT}_sum",
    f"{TTFT}_count",
    *(f"{name}_{part}" for name in ITL for part in ("sum", "count")),
    FINISHED,
    QUEUE_SUM,
)

PREFIXES = ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_", "kserve_vllm:")

# Each line: one of these must be there, or a state cannot be judged. Gauges are missing in a fresh server that has
# several API processes, so they are asked for only once something was counted.
_NEEDED_ALWAYS = ((GENERATION_TOKENS,), (PROMPT_TOKENS,), (f"{TTFT}_count",))
_NEEDED_IN_USE = ((RUNNING,), (WAITING, WAITING_BY_REASON), KV_USE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The value of one series at one time."""

    name: str  # without the prefix
    labels: Mapping[str, str]
    value: float


def sample(points: Iterable[Point], at: datetime, vllm_series: int, process_start: float | None) -> Sample:
    """What one good scrape says.

    A series that comes twice, because two scrape jobs see the same replica, counts once.
    """
    book = _Book(points)
    capacity = book.total(WAITING_BY_REASON, "capacity")
    itl = next((name for name in ITL if book.total(f"{name}_count") is not None), ITL[0])
    return Sample(
        at=at,
        target=Target.UP,
        vllm_series=vllm_series,
        engines=book.engines(),
        running=book.total(RUNNING),
        waiting=capacity if capacity is not None else book.total(WAITING),
        deferred=book.total(WAITING_BY_REASON, "deferred"),
        kv_use=next((use for use in map(book.peak, KV_USE) if use is not None), None),
        kv_tokens=book.total(CACHE_CONFIG),
        awake=book.all_set(SLEEP_STATE, "awake"),
        process_start=_finite(process_start),
        ttft_sum_s=book.total(f"{TTFT}_sum"),
        queue_sum_s=book.total(QUEUE_SUM),
        itl_sum_s=book.total(f"{itl}_sum"),
        itl_count=book.total(f"{itl}_count"),
        counters=Counters(
            steps=book.total(STEPS),
            prompt_tokens=book.total(PROMPT_TOKENS),
            computed_prompt_tokens=book.total(PROMPT_TOKENS_BY_SOURCE, "local_compute"),
            generation_tokens=book.total(GENERATION_TOKENS),
            arrivals=book.total(f"{TTFT}_count"),
            finished=book.total(FINISHED),
            preemptions=book.total(PREEMPTIONS),
        ),
    )


def check_names(found: Collection[str], prefix: str, used: bool) -> tuple[str, ...]:
    """What is wrong with the names of a replica's series, one sentence a fault; () if all that is needed is there.

    `found` are full sample names; `used`: the replica has served something, so its gauges must be there too.
    """
    if not any(name.startswith(prefix) for name in found):
        other = next((p for p in PREFIXES if any(name.startswith(p) for name in found)), None)
        if other is not None:
            return (
                f'No series begins with "{prefix}", but some begin with "{other}"; set metrics.prefix = "{other}".',
            )
        return (
            f'No series begins with "{prefix}". vLLM was started with --disable-log-stats, or this is not vLLM; '
            "remove that option and restart the replica.",
        )
    needed = _NEEDED_ALWAYS + (_NEEDED_IN_USE if used else ())
    return tuple(
        f"The series {' or '.join(prefix + name for name in names)} is missing; without it no replica is idle. "
        "Check that the scrape configuration keeps it, and that vLLM is 0.7.3 or newer."
        for names in needed
        if not any(prefix + name in found for name in names)
    )


class _Book:
    """Values by name, one for each engine, model and detail."""

    def __init__(self, points: Iterable[Point]) -> None:
        self._values: dict[str, dict[tuple[str, str, str], float]] = {}
        for point in points:
            detail = _detail(point)
            value = _kv_tokens(point.labels) if point.name == CACHE_CONFIG else point.value
            if detail is None or value is None:
                continue
            key = (point.labels.get("engine", ""), point.labels.get("model_name", ""), detail)
            values = self._values.setdefault(point.name, {})
            values[key] = value if key not in values else _larger(values[key], value)

    def engines(self) -> int:
        return len({engine for values in self._values.values() for engine, _, _ in values})

    def total(self, name: str, detail: str = "") -> float | None:
        values = self._of(name, detail)
        return _finite(sum(values)) if values else None

    def peak(self, name: str) -> float | None:
        values = self._of(name, "")
        return max(values) if values and all(map(math.isfinite, values)) else None

    def all_set(self, name: str, detail: str) -> bool | None:
        values = self._of(name, detail)
        return all(value > 0 for value in values) if values else None

    def _of(self, name: str, detail: str) -> list[float]:
        return [value for (_, _, of), value in self._values.get(name, {}).items() if of == detail]


def _detail(point: Point) -> str | None:
    """The label that tells series of one name and engine apart; None if the series is of no use."""
    match point.name:
        case "num_requests_waiting_by_reason":
            return point.labels.get("reason")
        case "prompt_tokens_by_source_total":
            return point.labels.get("source")
        case "engine_sleep_state":
            return point.labels.get("sleep_state")
        case _:
            return ""


def _kv_tokens(labels: Mapping[str, str]) -> float | None:
    """Capacity of the KV cache. What vLLM does not know is the text "None"."""
    tokens = _number(labels.get("kv_cache_size_tokens"))
    if tokens is not None:
        return tokens
    blocks, size = _number(labels.get("num_gpu_blocks")), _number(labels.get("block_size"))
    return None if blocks is None or size is None else blocks * size


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else _finite(float(text))
    except ValueError:
        return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _larger(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)
