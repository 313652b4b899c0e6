"""Prometheus asked over real HTTP: a stand-in that keeps scrapes, and recorded answers of a real one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from scheduler.adapters.vllm import PrometheusMetrics
from scheduler.adapters.vllm.prometheus_api import MOST_POINTS, PrometheusApi, parts_of
from scheduler.errors import Unavailable
from scheduler.fleet.readings import Target
from tests.build import a_replica
from tests.fake_prometheus import FakePrometheus
from tests.vllm_data import START, after, api_answer, page

RUNNING_2 = 'vllm:num_requests_running{engine="0",model_name="tiny"} 2\n'


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    with FakePrometheus() as fake:
        yield fake


@contextmanager
def asking(
    url: str, *, interval_s: float = 10.0, keep_s: float = 60.0, selector: str = ""
) -> Iterator[PrometheusMetrics]:
    metrics = PrometheusMetrics(url, "vllm:", interval_s, keep_s, timeout_s=5, selector=selector)
    try:
        yield metrics
    finally:
        metrics.close()


@contextmanager
def api(url: str) -> Iterator[PrometheusApi]:
    opened = PrometheusApi(url, timeout_s=5)
    try:
        yield opened
    finally:
        opened.close()


@pytest.mark.parametrize(
    "target",
    [
        {"pod": "chat-1", "namespace": "llm", "instance": "10.0.0.9:8000"},
        {"instance": "chat-1:8000"},
    ],
)
def test_a_replica_is_found_by_pod_or_by_address(prometheus: FakePrometheus, target: dict[str, str]):
    prometheus.scrape(after(10), RUNNING_2, **target)

    with asking(prometheus.url) as metrics:
        (series,) = metrics.series([a_replica("chat-1", url="http://chat-1:8000/metrics")], after(10))

    assert series.samples[-1].running == 2


def test_a_replica_with_its_namespace_in_its_id_is_told_from_its_twin(prometheus: FakePrometheus):
    prometheus.scrape(after(10), RUNNING_2, pod="chat-1", namespace="llm")
    prometheus.scrape(after(10), RUNNING_2.replace("2\n", "7\n"), pod="chat-1", namespace="test")

    with asking(prometheus.url) as metrics:
        (series,) = metrics.series([a_replica("llm/chat-1")], after(10))

    assert series.samples[-1].running == 2


def test_vllm_r03_pods_that_were_not_asked_for_are_dropped(prometheus: FakePrometheus):
    for pod in ("chat-1", "chat-10", "xchat-1", "router"):
        prometheus.scrape(after(10), RUNNING_2, pod=pod)

    with asking(prometheus.url) as metrics:
        series = metrics.series([a_replica("chat-1")], after(10))

    assert [(one.replica, one.samples[-1].running) for one in series] == [("chat-1", 2)]


def test_vllm_r03_a_target_that_left_service_discovery_is_missing(prometheus: FakePrometheus):
    prometheus.scrape(after(0), RUNNING_2, pod="chat-1")

    with asking(prometheus.url) as metrics:
        (series,) = metrics.series([a_replica("chat-1")], after(400))

    assert [one.target for one in series.samples] == [Target.MISSING]


def test_vllm_r04_values_that_prometheus_repeats_during_its_own_outage_are_no_samples(prometheus: FakePrometheus):
    for second in (0, 10, 20, 100):
        prometheus.scrape(after(second), RUNNING_2, pod="chat-1")

    with asking(prometheus.url, keep_s=100) as metrics:
        (series,) = metrics.series([a_replica("chat-1")], after(100))

    assert [one.at for one in series.samples] == [after(0), after(10), after(20), after(100)]


def test_vllm_r25_a_replica_that_two_jobs_scrape_counts_once(prometheus: FakePrometheus):
    for job in ("pod-monitor", "service-monitor"):
        prometheus.scrape(after(10), page("v0.32.0-saturated-seqs"), pod="chat-1", job=job)

    with asking(prometheus.url) as metrics:
        (series,) = metrics.series([a_replica("chat-1")], after(10))

    newest = series.samples[-1]
    assert (newest.running, newest.waiting, newest.counters.generation_tokens) == (8, 22, 58_158)


def test_vllm_r25_a_router_that_shows_the_same_names_is_not_counted(prometheus: FakePrometheus):
    prometheus.scrape(after(10), RUNNING_2, pod="chat-1", job="vllm")
    router = 'vllm:num_requests_running{server="http://chat-1:8000"} 2\n'
    prometheus.scrape(after(10), router, pod="router-1", job="router")

    with asking(prometheus.url) as metrics:
        (series,) = metrics.series([a_replica("chat-1")], after(10))

    assert series.samples[-1].running == 2


def test_vllm_r25_a_selector_leaves_out_other_jobs(prometheus: FakePrometheus):
    prometheus.scrape(after(10), RUNNING_2, pod="chat-1", job="vllm")
    prometheus.scrape(after(10), 'vllm:num_requests_running{engine="9"} 5\n', pod="chat-1", job="sidecar")

    with asking(prometheus.url, selector='job="vllm"') as metrics:
        (series,) = metrics.series([a_replica("chat-1")], after(10))

    assert series.samples[-1].running == 2
    assert all('job="vllm"' in question["query"] for question in prometheus.questions)


def test_vllm_r10_no_question_matches_names_by_a_pattern(prometheus: FakePrometheus):
    with asking(prometheus.url) as metrics:
        metrics.series([a_replica("chat-1")], after(10))

    assert prometheus.questions
    assert not any("__name__" in question["query"] for question in prometheus.questions)


def test_it_is_asked_once_an_interval(prometheus: FakePrometheus):
    replica = a_replica("chat-1")

    with asking(prometheus.url, interval_s=10) as metrics:
        metrics.series([replica], after(10))
        asked = len(prometheus.questions)
        for second in range(11, 20):
            metrics.series([replica], after(second))
        assert len(prometheus.questions) == asked
        metrics.series([replica], after(20))

    assert len(prometheus.questions) == 2 * asked


def test_vllm_r01_warnings_make_every_sample_partial(prometheus: FakePrometheus):
    prometheus.scrape(after(10), RUNNING_2, pod="chat-1")
    prometheus.warnings = ["a store did not answer"]

    with asking(prometheus.url) as metrics:
        (series,) = metrics.series([a_replica("chat-1")], after(10))

    assert [(one.target, one.running) for one in series.samples] == [(Target.PARTIAL, None)]
    assert "a store did not answer" in series.samples[-1].error


def _refusal(status: int, kind: str, error: str) -> dict[str, object]:
    return {"http_status": status, "body": {"status": "error", "errorType": kind, "error": error}}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (api_answer("error-parse"), ("refused the query as wrong (400, bad_data:", "parse error")),
        (api_answer("error-bad-step"), ("refused the query as wrong (400, bad_data:", "step widths")),
        (api_answer("range-too-many-points"), ("(400, bad_data:", "11,000 points")),
        (_refusal(422, "execution", "too many samples"), ("could not carry the query out (422, execution:",)),
        (_refusal(503, "timeout", "query timed out"), ("gave the query up", "(503, timeout:")),
        ({"http_status": 502, "body": "bad gateway"}, ("failed (502",)),
        ({"http_status": 200, "body": "hello"}, ("not as a Prometheus does",)),
        ({"http_status": 200, "body": {"status": "success", "data": {"result": [{}]}}}, ("not as a Prometheus does",)),
    ],
)
def test_vllm_r34_every_refusal_is_told_in_its_own_words(
    prometheus: FakePrometheus, answer: dict[str, object], words: tuple[str, ...]
):
    prometheus.verbatim = answer

    with asking(prometheus.url) as metrics:
        (series,) = metrics.series([a_replica("chat-1")], after(10))

    newest = series.samples[-1]
    assert (len(series.samples), newest.target) == (1, Target.DOWN)
    assert all(word in newest.error for word in words), newest.error


def test_after_a_refusal_it_is_asked_again(prometheus: FakePrometheus):
    prometheus.scrape(after(10), RUNNING_2, pod="chat-1")
    prometheus.verbatim = _refusal(503, "timeout", "query timed out")

    with asking(prometheus.url) as metrics:
        metrics.series([a_replica("chat-1")], after(10))
        prometheus.verbatim = None
        (series,) = metrics.series([a_replica("chat-1")], after(20))

    assert series.samples[-1].running == 2


@pytest.mark.parametrize("days", [1, 7, 15])
def test_vllm_r34_a_long_range_is_asked_for_in_parts_without_gap_or_repeat(prometheus: FakePrometheus, days: int):
    start, step = START.timestamp(), 15.0
    end = start + days * 86_400

    with api(prometheus.url) as opened:
        opened.range("up{}", start, end, step)

    parts = [(float(asked["start"]), float(asked["end"])) for asked in prometheus.questions]
    assert all((last - first) / step + 1 <= MOST_POINTS for first, last in parts)
    assert (parts[0][0], parts[-1][1]) == (start, end)
    assert all(later[0] - earlier[1] == step for earlier, later in pairwise(parts))


def test_vllm_r34_values_of_all_parts_are_joined(prometheus: FakePrometheus):
    for second in range(0, 40_000, 200):
        prometheus.scrape(after(second), "x 1\n", pod="chat-1")

    with api(prometheus.url) as opened:
        answer = opened.range("x{}", START.timestamp(), START.timestamp() + 20_000, 1.0)

    assert sum(len(line.values) for line in answer.lines) == 20_001


def test_one_point_is_one_part():
    assert list(parts_of(5.0, 5.0, 10.0)) == [(5.0, 5.0)]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("instant-busy", [8.0]),
        ("instant-idle", [0.0]),
        ("instant-busy-rate", [778.661974647099]),
        ("instant-up-one-down", [1.0, 0.0]),
        ("instant-absent-metric", []),
        ("instant-after-death-stale", []),
        ("after-death-sum-empty", []),
        ("after-death-up", [0.0, 0.0]),
        ("after-death-max-over-time", [16.0]),
        ("target-removed-max-over-time", [16.0]),
        ("target-removed-up", [0.0]),
        ("range-busy", [0.0, 0.0, 8.0, 8.0, 5.0, 8.0, 8.0, 8.0, 8.0, 8.0]),
        ("instant-cache-config-info", [1.0]),
    ],
)
def test_recorded_answers_are_read_as_they_stand(prometheus: FakePrometheus, name: str, values: list[float]):
    prometheus.verbatim = api_answer(name)

    with api(prometheus.url) as opened:
        answer = opened.instant("whatever")

    assert [value for line in answer.lines for _, value in line.values] == values


@pytest.mark.parametrize("name", ["instant-idle-quantile-nan", "instant-idle-mean-nan"])
def test_vllm_r02_nan_comes_as_text_and_stays_no_number(prometheus: FakePrometheus, name: str):
    prometheus.verbatim = api_answer(name)

    with api(prometheus.url) as opened:
        (line,) = opened.instant("whatever").lines

    ((_, value),) = line.values
    assert math.isnan(value)


def test_vllm_r09_the_check_of_a_prometheus_that_has_everything_finds_nothing(prometheus: FakePrometheus):
    prometheus.scrape(START, page("v0.32.0-light"), pod="chat-1")

    with asking(prometheus.url) as metrics:
        assert metrics.check_names() == ()


def test_vllm_r09_the_check_tells_what_the_scrape_configuration_drops(prometheus: FakePrometheus):
    kept = "\n".join(line for line in page("v0.32.0-light").splitlines() if "kv_cache_usage" not in line)
    prometheus.scrape(START, kept + "\n", pod="chat-1")

    with asking(prometheus.url) as metrics:
        (fault,) = metrics.check_names()

    assert "vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc is missing" in fault


def test_vllm_r10_the_check_tells_the_prefix_that_is_there(prometheus: FakePrometheus):
    prometheus.scrape(START, "ray_vllm_num_requests_running 1\n", pod="chat-1")

    with asking(prometheus.url) as metrics:
        (fault,) = metrics.check_names()

    assert 'set metrics.prefix = "ray_vllm_"' in fault


def test_the_check_without_an_answer_says_so(prometheus: FakePrometheus):
    prometheus.stop()

    with asking(prometheus.url) as metrics, pytest.raises(Unavailable, match="cannot be reached"):
        metrics.check_names()
