"""The text of a /metrics page, as one sample."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from prometheus_client.parser import text_string_to_metric_families

from scheduler.adapters.vllm import names
from scheduler.fleet.readings import Sample, Target

_READ = frozenset(names.READ)


def read(text: str, prefix: str, at: datetime) -> Sample:
    """What one page says; a page that is no exposition is PARTIAL."""
    points: list[names.Point] = []
    process_start: float | None = None
    try:
        for name, labels, value in values(text):
            bare = name.removeprefix(prefix)
            if name == names.PROCESS_START:
                process_start = value
            elif bare != name and bare in _READ:
                points.append(names.Point(name=bare, labels=labels, value=value))
    except ValueError as error:
        return Sample(at=at, target=Target.PARTIAL, error=f"the answer is no page of metrics: {str(error)[:120]}")
    series = sum(line.startswith(prefix) for line in text.splitlines())
    return names.sample(points, at, series, process_start)


def values(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of all samples of a page but buckets.

    Raises:
        ValueError: the page is no exposition.
    """
    # Families are of no use: the parser takes _total from the names of counters, but not from that of a histogram.
    # Four lines in five are buckets, which we do not read; leaving them out makes a page five times cheaper.
    kept = (line for line in text.splitlines() if not line.startswith("#") and not _is_bucket(line))
    for family in text_string_to_metric_families("\n".join(kept) + "\n"):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def _is_bucket(line: str) -> bool:
    return line.partition("{")[0].endswith("_bucket")
