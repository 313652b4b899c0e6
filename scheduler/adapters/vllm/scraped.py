"""Metrics scraped from the replicas themselves, all at the same time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import httpx

from scheduler.adapters.vllm import exposition, names
from scheduler.errors import Unavailable
from scheduler.fleet.pool import Replica, ReplicaId
from scheduler.fleet.readings import Sample, Series, Target
from scheduler.ports import Clock

_THREADS = 128  # threads are made as they are needed; a fleet where nobody answers still costs about one timeout
_LARGEST_PAGE = 2_000_000  # bytes; real pages have 25 to 90 thousand, and reading one takes a second a megabyte
_EARLY = 0.1  # share of the interval by which a turn may come early and still scrape


@dataclass(slots=True)
class _Ring:
    """What is remembered of one replica."""

    url: str
    asked_at: datetime | None = None
    samples: deque[Sample] = field(default_factory=deque)
    answer: Future[Sample] | None = None


class ScrapedMetrics:
    """Metrics over HTTP from each replica's own /metrics.

    A replica is scraped at most once per `interval_s`; replicas that are not asked for any more are forgotten.
    """

    def __init__(self, prefix: str, interval_s: float, keep_s: float, clock: Clock, timeout_s: float = 5.0) -> None:
        self._prefix = prefix
        self._interval_s = interval_s
        self._keep = timedelta(seconds=keep_s)
        self._most = int(keep_s / (interval_s * (1 - _EARLY))) + 2
        self._clock = clock
        self._timeout_s = timeout_s
        self._rings: dict[ReplicaId, _Ring] = {}
        self._client = _client(timeout_s)
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="scrape")

    def series(self, replicas: Sequence[Replica], now: datetime) -> tuple[Series, ...]:
        """One series a replica, in the same order; scrapes those whose turn it is and waits for them."""
        self._rings = {replica.id: self._ring(replica, now) for replica in replicas}
        due = [ring for ring in self._rings.values() if self._is_due(ring, now)]
        for ring in due:
            ring.asked_at = now
            # One that is still under way is not joined by a second one: a server that never ends costs one thread.
            if ring.answer is None or ring.answer.done():
                ring.answer = self._threads.submit(self._scrape, ring.url)
        wait([ring.answer for ring in due if ring.answer is not None], timeout=self._timeout_s)
        for ring in due:
            ring.samples.append(self._sample(ring))
        return tuple(self._kept(replica.id, now) for replica in replicas)

    def close(self) -> None:
        """Give back connections and threads."""
        self._client.close()  # first: it ends what is under way
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _ring(self, replica: Replica, now: datetime) -> _Ring:
        ring = self._rings.get(replica.id)
        if ring is None or (ring.asked_at is not None and ring.asked_at > now):
            # Times from before the clock went back would look fresh until it has caught up.
            ring = _Ring(url=replica.url, samples=deque(maxlen=self._most))
        ring.url = replica.url
        return ring

    def _sample(self, ring: _Ring) -> Sample:
        if ring.answer is not None and ring.answer.done():
            return ring.answer.result()
        late = f"{ring.url} did not answer within {self._timeout_s:g} s"
        return Sample(at=self._clock(), target=Target.DOWN, error=late)

    def _is_due(self, ring: _Ring, now: datetime) -> bool:
        if ring.asked_at is None:
            return True
        return (now - ring.asked_at).total_seconds() >= self._interval_s * (1 - _EARLY)

    def _scrape(self, url: str) -> Sample:
        if not url:
            return Sample(at=self._clock(), target=Target.MISSING, error="the replica has no address yet")
        try:
            text = _page(self._client, url, self._timeout_s)
        except Unavailable as error:
            return Sample(at=self._clock(), target=Target.DOWN, error=str(error))
        return exposition.read(text, self._prefix, self._clock())

    def _kept(self, replica: ReplicaId, now: datetime) -> Series:
        samples = self._rings[replica].samples
        while samples and samples[0].at < now - self._keep:
            samples.popleft()
        return Series(replica=replica, samples=tuple(samples), interval_s=self._interval_s)


def check_url(url: str, prefix: str, timeout_s: float = 5.0) -> tuple[str, ...]:
    """What is wrong with the series at a replica's /metrics, one sentence a fault; () if nothing.

    Raises:
        Unavailable: it does not answer, or not with metrics.
    """
    with _client(timeout_s) as client:
        text = _page(client, url, timeout_s)
    try:
        values = {name: value for name, _, value in exposition.values(text)}
    except ValueError as error:
        raise Unavailable(f"{url} answered, but not with metrics; is it the /metrics of a vLLM server?") from error
    used = values.get(prefix + names.GENERATION_TOKENS, 0) > 0
    return tuple(f"{url}: {fault}" for fault in names.check_names(values.keys(), prefix, used))


def _client(timeout_s: float) -> httpx.Client:
    # Replicas are inside the cluster: a proxy of the environment is not for them.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=_THREADS)
    return httpx.Client(timeout=timeout_s, trust_env=False, limits=limits)


def _page(client: httpx.Client, url: str, timeout_s: float) -> str:
    # httpx's timeout is for one read; a server that sends a little now and then must end too.
    deadline = time.monotonic() + timeout_s
    body = bytearray()
    try:
        with client.stream("GET", url) as answer:
            if answer.status_code != httpx.codes.OK:
                raise Unavailable(f"{url} answered {answer.status_code}")
            for part in answer.iter_bytes():
                body += part
                if len(body) > _LARGEST_PAGE:
                    raise Unavailable(f"{url} sent more than {_LARGEST_PAGE} bytes")
                if time.monotonic() > deadline:
                    raise Unavailable(f"{url} did not answer within {timeout_s:g} s")
    except httpx.TimeoutException as error:
        raise Unavailable(f"{url} did not answer within {timeout_s:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(f"{url} cannot be read: {error or type(error).__name__}") from error
    return body.decode("utf-8", errors="replace")
