"""Replicas scraped over real HTTP on the loopback."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from scheduler.adapters.vllm import ScrapedMetrics, check_url
from scheduler.errors import Unavailable
from scheduler.fleet.readings import Target
from tests.build import a_replica
from tests.fake_vllm import FakeVllm
from tests.vllm_data import START, after, page


@pytest.fixture
def vllm() -> Iterator[FakeVllm]:
    with FakeVllm() as fake:
        fake.pages["chat-1"] = page("v0.32.0-light")
        yield fake


@contextmanager
def reading(
    *,
    interval_s: float = 10.0,
    keep_s: float = 600.0,
    timeout_s: float = 2.0,
    clock: Callable[[], datetime] = lambda: START,
) -> Iterator[ScrapedMetrics]:
    metrics = ScrapedMetrics("vllm:", interval_s, keep_s, clock, timeout_s=timeout_s)
    try:
        yield metrics
    finally:
        metrics.close()


def test_a_hundred_replicas_are_scraped_at_the_same_time(vllm: FakeVllm):
    names = [f"chat-{i}" for i in range(100)]
    vllm.pages = dict.fromkeys(names, "vllm:num_requests_running 1\n")
    vllm.answer_together(100)

    with reading(timeout_s=30) as metrics:
        series = metrics.series([a_replica(name, url=vllm.url(name)) for name in names], START)

    assert [one.samples[-1].running for one in series] == [1.0] * 100
    assert vllm.most_at_once == 100


def test_a_replica_is_scraped_once_an_interval_however_often_it_is_asked_for(vllm: FakeVllm):
    replica = a_replica("chat-1", url=vllm.url("chat-1"))

    with reading(interval_s=10) as metrics:
        for second in range(31):
            metrics.series([replica], after(second))

    assert vllm.scrapes["chat-1"] == 4


def test_a_turn_that_comes_a_little_early_still_scrapes(vllm: FakeVllm):
    replica = a_replica("chat-1", url=vllm.url("chat-1"))

    with reading(interval_s=10) as metrics:
        for second in (0, 9.98, 19.99, 29.97):
            metrics.series([replica], after(second))

    assert vllm.scrapes["chat-1"] == 4


def test_a_sample_has_the_time_at_which_it_was_read(vllm: FakeVllm):
    with reading(clock=lambda: after(3)) as metrics:
        (series,) = metrics.series([a_replica("chat-1", url=vllm.url("chat-1"))], START)

    assert series.samples[-1].at == after(3)


def test_a_replica_that_was_forgotten_begins_anew(vllm: FakeVllm):
    replica = a_replica("chat-1", url=vllm.url("chat-1"))

    with reading() as metrics:
        metrics.series([replica], START)
        metrics.series([], after(10))
        (series,) = metrics.series([replica], after(20))

    assert len(series.samples) == 1


def test_vllm_r01_a_timeout_is_down_and_says_so(vllm: FakeVllm):
    vllm.hang()

    with reading(timeout_s=0.2) as metrics:
        (series,) = metrics.series([a_replica("chat-1", url=vllm.url("chat-1"))], START)

    newest = series.samples[-1]
    assert newest.target is Target.DOWN
    assert newest.error.endswith("did not answer within 0.2 s")


def test_vllm_r28_a_page_that_never_ends_is_down(vllm: FakeVllm):
    vllm.drip("chat-1")

    with reading(timeout_s=0.3) as metrics:
        (series,) = metrics.series([a_replica("chat-1", url=vllm.url("chat-1"))], START)

    assert series.samples[-1].target is Target.DOWN
    assert "did not answer within 0.3 s" in series.samples[-1].error


def test_vllm_r28_headers_that_never_end_are_down_and_take_one_thread(vllm: FakeVllm):
    vllm.drip_headers("chat-2")
    replicas = [a_replica(name, url=vllm.url(name)) for name in ("chat-1", "chat-2")]

    with reading(timeout_s=0.3) as metrics:
        for second in (0, 10, 20):
            well, endless = metrics.series(replicas, after(second))

    assert [sample.target for sample in well.samples] == [Target.UP] * 3
    assert [sample.target for sample in endless.samples] == [Target.DOWN] * 3
    assert "did not answer within 0.3 s" in endless.samples[-1].error
    assert vllm.scrapes["chat-2"] == 1


def test_a_clock_that_goes_back_begins_anew(vllm: FakeVllm):
    replica = a_replica("chat-1", url=vllm.url("chat-1"))

    with reading(interval_s=10) as metrics:
        metrics.series([replica], after(3600))
        (series,) = metrics.series([replica], after(0))

    assert vllm.scrapes["chat-1"] == 2
    assert len(series.samples) == 1


@pytest.mark.parametrize("status", [301, 404, 500, 503])
def test_vllm_r28_every_status_but_200_is_down(vllm: FakeVllm, status: int):
    vllm.statuses["chat-1"] = status

    with reading() as metrics:
        (series,) = metrics.series([a_replica("chat-1", url=vllm.url("chat-1"))], START)

    assert series.samples[-1].target is Target.DOWN
    assert series.samples[-1].error.endswith(f"answered {status}")


def test_a_refused_connection_is_down():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/metrics"
        with reading() as metrics:
            (series,) = metrics.series([a_replica("chat-1", url=url)], START)

    assert series.samples[-1].target is Target.DOWN
    assert "cannot be read" in series.samples[-1].error


@pytest.mark.parametrize("url", ["http://[::1", "ftp://chat-1/metrics", "chat-1:8000/metrics", "http://chat 1/"])
def test_an_address_that_is_none_is_down_and_no_error(url: str):
    with reading() as metrics:
        (series,) = metrics.series([a_replica("chat-1", url=url)], START)

    assert series.samples[-1].target is Target.DOWN


def test_a_page_of_something_else_is_partial(vllm: FakeVllm):
    vllm.pages["chat-1"] = "<html><body>It works!</body></html>"

    with reading() as metrics:
        (series,) = metrics.series([a_replica("chat-1", url=vllm.url("chat-1"))], START)

    assert series.samples[-1].target is Target.PARTIAL


def test_vllm_r27_a_thousand_turns_keep_one_window_of_samples(vllm: FakeVllm):
    vllm.pages["chat-1"] = "vllm:num_requests_running 1\n"
    replica = a_replica("chat-1", url=vllm.url("chat-1"))
    now = START

    with reading(interval_s=10, keep_s=60, clock=lambda: now) as metrics:
        for turn in range(200):
            now = after(turn * 10)
            (series,) = metrics.series([replica], now)

    assert [one.at for one in series.samples] == [after(1990 - back) for back in range(60, -1, -10)]


def test_vllm_r09_a_healthy_replica_passes_the_check(vllm: FakeVllm):
    assert check_url(vllm.url("chat-1"), "vllm:") == ()


def test_vllm_r09_a_fresh_server_without_gauges_passes_the_check(vllm: FakeVllm):
    vllm.pages["chat-1"] = page("v0.32.0-multiproc-fresh")

    assert check_url(vllm.url("chat-1"), "vllm:") == ()


def test_vllm_r13_the_check_names_the_option_that_hides_the_series(vllm: FakeVllm):
    vllm.pages["chat-1"] = page("v0.32.0-disable-log-stats")

    (fault,) = check_url(vllm.url("chat-1"), "vllm:")

    assert fault.startswith(vllm.url("chat-1"))
    assert "--disable-log-stats" in fault


def test_vllm_r10_the_check_names_the_prefix_that_is_there(vllm: FakeVllm):
    (fault,) = check_url(vllm.url("chat-1"), "ray_vllm_")

    assert 'set metrics.prefix = "vllm:"' in fault


@pytest.mark.parametrize("text", ["<html></html>", None])
def test_the_check_of_something_else_says_that_nothing_can_be_read(vllm: FakeVllm, text: str | None):
    if text is None:
        vllm.statuses["chat-1"] = 502
    else:
        vllm.pages["chat-1"] = text

    with pytest.raises(Unavailable, match=r"answered"):
        check_url(vllm.url("chat-1"), "vllm:")
