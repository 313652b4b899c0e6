"""What every reader of metrics promises, said once and held against both of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime

import pytest

from scheduler.adapters.vllm import PrometheusMetrics, ScrapedMetrics
from scheduler.fleet.pool import Replica
from scheduler.fleet.readings import Counters, Series, Target
from scheduler.ports import Metrics
from tests.build import a_replica
from tests.fake_prometheus import FakePrometheus
from tests.fake_vllm import FakeVllm
from tests.vllm_data import after, page, sample

INTERVAL_S = 10.0
KEEP_S = 60.0


class Stage:
    """Replicas on a stage, whose pages the reader sees one way or the other."""

    def __init__(self, kind: str, prefix: str, stack: ExitStack) -> None:
        self._kind = kind
        self._seconds = 0.0
        self._vllm = stack.enter_context(FakeVllm())
        self._prometheus = stack.enter_context(FakePrometheus())
        self._pages: dict[str, str | None] = {}
        self.metrics: Metrics
        if kind == "scraped":
            scraped = ScrapedMetrics(prefix, INTERVAL_S, KEEP_S, lambda: self.now, timeout_s=2)
            stack.callback(scraped.close)
            self.metrics = scraped
        else:
            asked = PrometheusMetrics(self._prometheus.url, prefix, INTERVAL_S, KEEP_S, timeout_s=2)
            stack.callback(asked.close)
            self.metrics = asked

    @property
    def now(self) -> datetime:
        return after(self._seconds)

    def replica(self, name: str, text: str | None) -> Replica:
        """A replica that shows this page from now on; None: it does not answer."""
        self._pages[name] = text
        if text is None:
            self._vllm.statuses[name] = 500
        else:
            self._vllm.statuses.pop(name, None)
            self._vllm.pages[name] = text
        return a_replica(name, url=self._vllm.url(name))

    def tick(self, replicas: Sequence[Replica]) -> tuple[Series, ...]:
        """One interval later, one look."""
        self._seconds += INTERVAL_S
        for name, text in self._pages.items():
            self._prometheus.scrape(self.now, text, pod=name, namespace="llm", job="vllm")
        return self.metrics.series(replicas, self.now)

    def break_outside(self) -> None:
        """Nobody answers any more."""
        self._prometheus.stop()
        for name in self._pages:
            self.replica(name, None)


@pytest.fixture(params=["scraped", "prometheus"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def stage(kind: str, stack: ExitStack) -> Stage:
    return Stage(kind, "vllm:", stack)


def test_there_is_one_series_a_replica_in_the_order_asked(stage: Stage):
    replicas = [stage.replica(name, page("v0.32.0-light")) for name in ("chat-2", "chat-1", "code-1")]

    series = stage.tick(replicas)

    assert [one.replica for one in series] == ["chat-2", "chat-1", "code-1"]
    assert {one.interval_s for one in series} == {INTERVAL_S}


def test_nobody_asked_for_nothing_told(stage: Stage):
    assert stage.tick([]) == ()


@pytest.mark.parametrize(
    "name", ["v0.32.0-saturated-seqs", "v0.32.0-dp2-saturated", "v0.32.0-multiproc-fresh", "exposition-v0.8.5-V0"]
)
def test_a_page_is_read_as_it_stands(stage: Stage, name: str):
    replica = stage.replica("chat-1", page(name))

    (series,) = stage.tick([replica])

    expected = replace(sample(name, stage.now), vllm_series=series.samples[-1].vllm_series)
    assert series.samples[-1] == expected
    assert expected.vllm_series > 0


def test_samples_come_oldest_first_one_an_interval(stage: Stage):
    replica = stage.replica("chat-1", page("v0.32.0-light"))
    for _ in range(3):
        (series,) = stage.tick([replica])

    assert [one.at for one in series.samples] == [after(10), after(20), after(30)]


def test_what_is_older_than_asked_for_is_left_out(stage: Stage):
    replica = stage.replica("chat-1", page("v0.32.0-light"))
    for _ in range(12):
        (series,) = stage.tick([replica])

    assert [one.at for one in series.samples] == [after(seconds) for seconds in range(60, 121, 10)]


def test_vllm_r01_a_replica_that_does_not_answer_is_down_and_has_no_numbers(stage: Stage):
    well, ill = stage.replica("chat-1", page("v0.32.0-light")), stage.replica("chat-2", None)

    one, other = stage.tick([well, ill])

    assert one.samples[-1].target is Target.UP
    assert other.samples[-1].target is Target.DOWN
    assert (other.samples[-1].running, other.samples[-1].counters) == (None, Counters())
    assert other.samples[-1].error


def test_vllm_r01_when_nobody_answers_every_replica_says_why(stage: Stage):
    replicas = [stage.replica(name, page("v0.32.0-light")) for name in ("chat-1", "chat-2")]
    stage.tick(replicas)
    stage.break_outside()

    series = stage.tick(replicas)

    assert [one.samples[-1].target for one in series] == [Target.DOWN, Target.DOWN]
    assert all(one.samples[-1].error and one.samples[-1].running is None for one in series)


def test_vllm_r02_nan_and_infinities_are_no_numbers(stage: Stage):
    text = 'vllm:num_requests_running{engine="0"} NaN\nvllm:kv_cache_usage_perc{engine="0"} +Inf\n'
    replica = stage.replica("chat-1", text + 'vllm:num_requests_waiting{engine="0"} 3\n')

    (series,) = stage.tick([replica])

    newest = series.samples[-1]
    assert (newest.target, newest.running, newest.kv_use, newest.waiting) == (Target.UP, None, None, 3.0)


def test_vllm_r03_replicas_that_are_not_asked_for_are_not_told_of(stage: Stage):
    staying, leaving = (stage.replica(name, page("v0.32.0-light")) for name in ("chat-1", "chat-2"))
    stage.tick([staying, leaving])

    assert [one.replica for one in stage.tick([staying])] == ["chat-1"]


def test_vllm_r05_one_replica_that_loads_leaves_the_others_readable(stage: Stage):
    loading, ready = stage.replica("chat-1", None), stage.replica("chat-2", page("v0.32.0-busy-no-queue"))

    series = stage.tick([loading, ready])

    assert [one.samples[-1].running for one in series] == [None, 6.0]


def test_a_replica_that_nobody_scrapes_is_missing(stage: Stage):
    (series,) = stage.tick([a_replica("chat-9", url="")])

    assert (series.samples[-1].target, series.samples[-1].running) == (Target.MISSING, None)


@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm_", "ray_vllm:", "kserve_vllm:"])
def test_vllm_r10_the_prefix_is_a_setting(kind: str, stack: ExitStack, prefix: str):
    stage = Stage(kind, prefix, stack)
    text = page("v0.32.0-saturated-seqs").replace("\nvllm:", f"\n{prefix}").replace(" vllm:", f" {prefix}")
    replica = stage.replica("chat-1", text)

    (series,) = stage.tick([replica])

    assert (series.samples[-1].running, series.samples[-1].waiting) == (8.0, 22.0)


def test_vllm_r13_a_server_without_vllm_series_is_up_and_has_none(stage: Stage):
    replica = stage.replica("chat-1", page("v0.32.0-disable-log-stats"))

    (series,) = stage.tick([replica])

    assert (series.samples[-1].target, series.samples[-1].vllm_series) == (Target.UP, 0)


def test_vllm_r18_a_restart_shows_as_lower_counters_and_a_new_start(stage: Stage):
    stage.tick([stage.replica("chat-1", page("v0.32.0-before-restart"))])
    stage.tick([stage.replica("chat-1", None)])
    (series,) = stage.tick([stage.replica("chat-1", page("v0.32.0-after-restart"))])

    before, gap, later = series.samples
    assert (before.counters.generation_tokens, later.counters.generation_tokens) == (30058.0, 1097.0)
    assert gap.target is Target.DOWN
    assert before.process_start != later.process_start


def test_vllm_r24_series_that_appear_later_are_seen(stage: Stage):
    stage.tick([stage.replica("chat-1", page("v0.32.0-multiproc-fresh"))])
    (series,) = stage.tick([stage.replica("chat-1", page("v0.32.0-multiproc-saturated"))])

    assert [one.running for one in series.samples] == [None, 4.0]


def test_vllm_r28_an_error_of_the_metrics_page_is_no_number(stage: Stage):
    stage.tick([stage.replica("chat-1", page("v0.32.0-light"))])
    (series,) = stage.tick([stage.replica("chat-1", None)])

    assert [one.target for one in series.samples] == [Target.UP, Target.DOWN]
    assert series.samples[-1].counters.generation_tokens is None
