"""Metrics asked of a Prometheus that scrapes the replicas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlsplit

from scheduler.adapters.vllm import names
from scheduler.adapters.vllm.prometheus_api import Answer, PrometheusApi
from scheduler.errors import Unavailable
from scheduler.fleet.pool import Replica, ReplicaId
from scheduler.fleet.readings import Sample, Series, Target

_AT_ONCE = 6  # questions on their way
_UP = "up"
_SCRAPED_AT = "scraped at"


@dataclass(slots=True)
class _Moment:
    """All that Prometheus said of one replica at one time."""

    up: float | None = None
    scraped_at: float = 0.0  # unix time of the scrape behind the values
    process_start: float | None = None
    points: list[names.Point] = field(default_factory=list)


_Moments = dict[float, _Moment]  # by unix time


class PrometheusMetrics:
    """Metrics by range queries, one for each name; a replica is found by `pod` (its id) or `instance` (its address).

    Asked at most once per `interval_s`, which must not be shorter than the scrape interval of the Prometheus.
    `selector` is added to every query, for example `job="vllm"`.
    """

    def __init__(
        self,
        url: str,
        prefix: str,
        interval_s: float,
        keep_s: float,
        timeout_s: float = 10.0,
        selector: str = "",
    ) -> None:
        self._url = url
        self._prefix = prefix
        self._interval_s = interval_s
        self._keep_s = keep_s
        self._selector = selector
        self._api = PrometheusApi(url, timeout_s)
        self._threads = ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="prometheus")
        self._asked: tuple[float, tuple[Replica, ...]] | None = None
        self._told: tuple[Series, ...] = ()

    def series(self, replicas: Sequence[Replica], now: datetime) -> tuple[Series, ...]:
        """One series a replica, in the same order; if Prometheus cannot be read, one DOWN sample that says why."""
        end = now.timestamp() // self._interval_s * self._interval_s
        if self._asked != (end, tuple(replicas)):
            self._told = self._read(replicas, end, now) if replicas else ()
            self._asked = (end, tuple(replicas))
        return self._told

    def check_names(self) -> tuple[str, ...]:
        """What is wrong with the names of the series that Prometheus has, one sentence a fault; () if nothing.

        Raises:
            Unavailable: it does not answer.
        """
        every = [prefix + name for prefix in {self._prefix, *names.PREFIXES} for name in names.READ]
        answers = self._threads.map(self._api.instant, (f"count({name})" for name in every))
        found = [name for name, answer in zip(every, answers, strict=True) if answer.lines]
        return tuple(f"{self._url}: {fault}" for fault in names.check_names(found, self._prefix, used=True))

    def close(self) -> None:
        """Give back connections and threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._api.close()

    def _read(self, replicas: Sequence[Replica], end: float, now: datetime) -> tuple[Series, ...]:
        start = end - self._keep_s // self._interval_s * self._interval_s
        questions = _questions(self._prefix, list(_matchers(replicas, self._selector)))
        try:
            answers = list(self._threads.map(lambda ask: self._range(ask, start, end), questions.values()))
        except Unavailable as error:
            failed = Sample(at=now, target=Target.DOWN, error=str(error))
            return tuple(self._series(replica.id, [failed]) for replica in replicas)
        moments = _moments(zip(questions, answers, strict=True), replicas)
        warnings = "; ".join(sorted({warning for answer in answers for warning in answer.warnings}))
        return tuple(
            self._series(replica.id, _samples(moments[replica.id], datetime.fromtimestamp(end, UTC), warnings))
            for replica in replicas
        )

    def _range(self, query: str, start: float, end: float) -> Answer:
        return self._api.range(query, start, end, self._interval_s)

    def _series(self, replica: ReplicaId, samples: Sequence[Sample]) -> Series:
        return Series(replica=replica, samples=tuple(samples), interval_s=self._interval_s)


def _questions(prefix: str, matchers: Sequence[str]) -> Mapping[str, str]:
    """Name without prefix -> query. No query matches `__name__` by a pattern: some stores refuse that."""
    every = {
        _UP: _UP + "{%s}",
        _SCRAPED_AT: f"timestamp({_UP}" + "{%s})",
        names.PROCESS_START: names.PROCESS_START + "{%s}",
        **{name: prefix + name + "{%s}" for name in names.READ},
    }
    return {name: " or ".join(query % matcher for matcher in matchers) for name, query in every.items()}


def _matchers(replicas: Sequence[Replica], selector: str) -> Iterator[str]:
    more = f",{selector}" if selector else ""
    pods = [str(replica.id).rpartition("/")[2] for replica in replicas]
    yield f'pod=~"{_any_of(pods)}"{more}'
    instances = [urlsplit(replica.url).netloc for replica in replicas if replica.url]
    if instances:
        yield f'instance=~"{_any_of(instances)}"{more}'


def _any_of(texts: Iterable[str]) -> str:
    return "|".join(re.escape(text).replace("\\", "\\\\") for text in texts)


def _moments(answers: Iterable[tuple[str, Answer]], replicas: Sequence[Replica]) -> Mapping[ReplicaId, _Moments]:
    """What was said of each replica that was asked for; the rest is dropped."""
    by_address = {urlsplit(replica.url).netloc: replica.id for replica in replicas if replica.url}
    moments: dict[ReplicaId, _Moments] = {replica.id: {} for replica in replicas}
    for name, answer in answers:
        for line in answer.lines:
            replica = _whose(line.labels, moments, by_address)
            if replica is None:
                continue
            for at, value in line.values:
                _note(moments[replica].setdefault(round(at, 3), _Moment()), name, line.labels, value)
    return moments


def _whose(
    labels: Mapping[str, str], known: Mapping[ReplicaId, _Moments], by_address: Mapping[str, ReplicaId]
) -> ReplicaId | None:
    pod = labels.get("pod", "")
    for name in (f"{labels.get('namespace', '')}/{pod}", pod):
        if ReplicaId(name) in known:
            return ReplicaId(name)
    return by_address.get(labels.get("instance", ""))


def _note(moment: _Moment, name: str, labels: Mapping[str, str], value: float) -> None:
    if name == _UP:
        moment.up = max(value, moment.up or 0.0)
    elif name == _SCRAPED_AT:
        moment.scraped_at = max(value, moment.scraped_at)
    elif name == names.PROCESS_START:
        moment.process_start = value
    else:
        moment.points.append(names.Point(name=name, labels=labels, value=value))


def _samples(moments: _Moments, end: datetime, warnings: str) -> Sequence[Sample]:
    # Prometheus repeats a value for minutes while it does not scrape itself. A sample has the time of its scrape, so
    # such repeats fall together and the gap shows.
    by_scrape = {moment.scraped_at: moment for _, moment in sorted(moments.items()) if moment.up is not None}
    samples = [_sample(moment, datetime.fromtimestamp(at, UTC), warnings) for at, moment in sorted(by_scrape.items())]
    newest = max(moments, default=None)
    if newest is None or newest < end.timestamp() or moments[newest].up is None:
        error = "Prometheus has no such target; it may have left service discovery"
        samples.append(Sample(at=end, target=Target.MISSING, error=error))
    return samples


def _sample(moment: _Moment, at: datetime, warnings: str) -> Sample:
    if warnings:
        return Sample(at=at, target=Target.PARTIAL, error=f"Prometheus warns: {warnings}")
    if not moment.up:
        return Sample(at=at, target=Target.DOWN, error="Prometheus cannot scrape it (up is 0)")
    return names.sample(moment.points, at, len(moment.points), moment.process_start)
