"""Recorded pages and series of real vLLM servers (tests/data/vllm/README.md), and series made of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from scheduler.adapters.vllm import exposition
from scheduler.fleet.pool import ReplicaId
from scheduler.fleet.readings import Counters, Sample, Series, Target

FOLDER = Path(__file__).parent / "data" / "vllm"
START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
PAGES = tuple(sorted(path.name.removesuffix(".prom.gz") for path in (FOLDER / "fixtures").iterdir()))


@dataclass(frozen=True)
class Scrape:
    """One line of a recorded series."""

    clients: int  # the truth
    sample: Sample


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def page(name: str) -> str:
    return gzip.decompress((FOLDER / "fixtures" / f"{name}.prom.gz").read_bytes()).decode()


def read(text: str, prefix: str = "vllm:", at: datetime = START) -> Sample:
    return exposition.read(text, prefix, at)


def sample(name: str, at: datetime = START) -> Sample:
    return read(page(name), at=at)


def recorded(name: str) -> list[Scrape]:
    lines = gzip.decompress((FOLDER / "series" / f"{name}.jsonl.gz").read_bytes()).decode().splitlines()
    rows = [json.loads(line) for line in lines]
    return [Scrape(clients=row["clients"], sample=_recorded_sample(row, rows[0]["t"])) for row in rows]


def api_answer(name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((FOLDER / "prometheus-api" / f"{name}.json").read_text())
    return answer


def names_by_version() -> tuple[dict[str, frozenset[str]], frozenset[str]]:
    """Metric as it stands on the page, without parts of histograms -> releases that define it; and all releases."""
    found = json.loads(gzip.decompress((FOLDER / "metric-names-by-version.json.gz").read_bytes()))
    every = frozenset(found["versions_sampled"])
    releases: dict[str, frozenset[str]] = {}
    for name, metric in found["metrics"].items():
        # Old releases write the `_total` of a counter in its name, new ones leave it to the page.
        shown = name if metric["type"] != "counter" or name.endswith("_total") else f"{name}_total"
        these = every if metric["versions"] == "all" else frozenset(metric["versions"])
        releases[shown] = releases.get(shown, frozenset()) | these
    return releases, every


def a_series(samples: Iterable[Sample], interval_s: float = 10.0, replica: str = "chat-1") -> Series:
    return Series(replica=ReplicaId(replica), samples=tuple(samples), interval_s=interval_s)


def times(until: datetime, seconds: float, interval_s: float = 10.0) -> list[datetime]:
    """The times of scrapes over the last `seconds`, oldest first, the last at `until`."""
    count = int(seconds / interval_s)
    return [until - timedelta(seconds=interval_s * back) for back in range(count, -1, -1)]


def repeated(one: Sample, until: datetime, seconds: float, interval_s: float = 10.0) -> list[Sample]:
    """The same page again and again: what a server shows that does nothing."""
    return [replace(one, at=at) for at in times(until, seconds, interval_s)]


def working(
    one: Sample, until: datetime, seconds: float, interval_s: float = 10.0, per_s: float = 100.0
) -> list[Sample]:
    """The same gauges, with counters that go on: what a server shows that works at a steady pace."""
    made = []
    for i, at in enumerate(times(until, seconds, interval_s)):
        counters = replace(
            one.counters,
            steps=(one.counters.steps or 0) + i * interval_s * 10,
            generation_tokens=(one.counters.generation_tokens or 0) + i * interval_s * per_s,
            arrivals=(one.counters.arrivals or 0) + i * interval_s,
        )
        made.append(replace(one, at=at, counters=counters, ttft_sum_s=(one.ttft_sum_s or 0) + i * interval_s * 0.05))
    return made


def quiet_sample(at: datetime = START, **fields: Any) -> Sample:
    """A server that has worked once and does nothing now."""
    given: dict[str, Any] = {
        "target": Target.UP,
        "vllm_series": 100,
        "engines": 1,
        "running": 0.0,
        "waiting": 0.0,
        "deferred": 0.0,
        "kv_use": 0.0,
        "awake": True,
        "process_start": 1.0,
        "ttft_sum_s": 5.0,
        "counters": Counters(
            steps=1000.0, prompt_tokens=500.0, generation_tokens=9000.0, arrivals=50.0, finished=50.0, preemptions=0.0
        ),
    }
    return Sample(at=at, **{**given, **fields})


def failed(at: datetime, error: str = "refused") -> Sample:
    return Sample(at=at, target=Target.DOWN, error=error)


def at_times(samples: Sequence[Sample], until: datetime, interval_s: float) -> list[Sample]:
    """These samples, the last of them at `until`."""
    last = len(samples) - 1
    return [replace(one, at=until - timedelta(seconds=interval_s * (last - i))) for i, one in enumerate(samples)]


def _recorded_sample(row: dict[str, Any], start: float) -> Sample:
    at = after(row["t"] - start)
    if not row["up"]:
        return failed(at, row["error"])
    return read("\n".join(f"{name} {value}" for name, value in row["samples"].items()), at=at)
