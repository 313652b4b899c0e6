"""Weeks of series over real HTTP: in pieces, with patience, and with the operator's keys."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from scheduler.adapters.vllm import Access, PrometheusHistory
from scheduler.adapters.vllm.history import SAMPLES, UP, Piece
from scheduler.adapters.vllm.names import GENERATION_TOKENS, RUNNING
from scheduler.adapters.vllm.prometheus_api import OPEN
from scheduler.errors import Unavailable
from tests.cluster.keys import make_keys
from tests.fake_prometheus import FakePrometheus
from tests.vllm_data import START, after, page

T0 = START.timestamp()
POD = {"pod": "chat-1", "namespace": "llm", "job": "llm/vllm", "instance": "10.0.0.9:8000"}


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    with FakePrometheus() as fake:
        yield fake


@contextmanager
def reading(
    url: str, *, prefix: str = "vllm:", access: Access = OPEN, pauses: list[float] | None = None, selector: str = ""
) -> Iterator[PrometheusHistory]:
    waited = [] if pauses is None else pauses
    history = PrometheusHistory(url, prefix, waited.append, access, timeout_s=5, selector=selector)
    try:
        yield history
    finally:
        history.close()


def scraped(fake: FakePrometheus, hours: int, prefix: str = "vllm:", **labels: str) -> None:
    """A replica with 2 requests that makes 20 tokens a second, scraped each 30 s."""
    for second in range(0, hours * 3600 + 1, 30):
        lines = ('num_requests_running{engine="0"} 2', f'generation_tokens_total{{engine="0"}} {20 * second}')
        fake.scrape(after(second), "".join(f"{prefix}{line}\n" for line in lines), **{**POD, **labels})


def pieces(history: PrometheusHistory, hours: int, step: float = 60.0) -> list[Piece]:
    found = history.find(T0, T0 + hours * 3600)
    return list(history.pieces(found, T0 + step, T0 + hours * 3600, step))


def points(got: list[Piece], name: str) -> list[tuple[float, float]]:
    return [value for piece in got for line in piece.lines[name] for value in line.values]


def test_what_is_there_is_found_with_its_jobs_and_how_often_it_is_scraped(prometheus: FakePrometheus):
    scraped(prometheus, 2)

    with reading(prometheus.url) as history:
        found = history.find(T0, T0 + 7200)

    assert (found.prefixes, found.jobs, found.scrape_s) == (("vllm:",), ("llm/vllm",), 30.0)


@pytest.mark.parametrize("prefix", ["vllm:", "vllm_", "ray_vllm:", "kserve_vllm:", "own:"])
def test_series_are_found_under_every_prefix_that_is_known_or_set(prometheus: FakePrometheus, prefix: str):
    scraped(prometheus, 1, prefix)

    with reading(prometheus.url, prefix=prefix if prefix == "own:" else "vllm:") as history:
        assert history.find(T0, T0 + 3600).prefixes == (prefix,)


@pytest.mark.parametrize("version", ["exposition-v0.8.5-V0", "exposition-v0.10.2-V1-dp2", "v0.32.0-light"])
def test_pages_of_old_and_new_engines_are_found(prometheus: FakePrometheus, version: str):
    for second in range(0, 3601, 60):
        prometheus.scrape(after(second), page(version), **POD)

    with reading(prometheus.url) as history:
        got = pieces(history, 1)

    assert points(got, RUNNING)


def test_without_any_the_names_looked_for_and_the_nearest_are_told(prometheus: FakePrometheus):
    prometheus.scrape(after(0), "sglang:num_running_reqs 3\nvllm:num_requests_swapped 0\nnode_load1 2\n", **POD)

    with reading(prometheus.url) as history:
        found = history.find(T0, T0 + 3600)

    assert found.prefixes == ()
    assert "vllm:num_requests_running" in found.looked_for
    assert "vllm:num_requests_swapped" in found.nearest
    assert "node_load1" not in found.nearest


def test_gauges_come_as_means_and_counters_as_rates(prometheus: FakePrometheus):
    scraped(prometheus, 2)

    with reading(prometheus.url) as history:
        got = pieces(history, 2)

    assert {value for _, value in points(got, RUNNING)} == {2.0}
    assert {round(value, 6) for _, value in points(got, GENERATION_TOKENS)} == {20.0}


def test_samples_are_counted_so_that_replicas_that_come_or_go_are_known(prometheus: FakePrometheus):
    scraped(prometheus, 1)

    with reading(prometheus.url) as history:
        got = pieces(history, 2)

    counted = points(got, SAMPLES)
    assert got[0].expected == 2
    assert {value for at, value in counted if at <= T0 + 3600} == {2.0}
    assert counted[-1] == (T0 + 3600, 2.0)
    assert points(got, UP) == counted


@pytest.mark.parametrize(("each", "told"), [(10, 10.0), (25, 25.0), (60, 60.0), (120, 120.0)])
def test_the_scrape_interval_is_found(prometheus: FakePrometheus, each: int, told: float):
    for second in range(0, 3601, each):
        prometheus.scrape(after(second), "vllm:num_requests_running 1\n", **POD)

    with reading(prometheus.url) as history:
        assert history.find(T0, T0 + 3600).scrape_s == told


def test_vllm_r34_pieces_join_without_gap_or_repeat_and_none_is_too_long(prometheus: FakePrometheus):
    scraped(prometheus, 1)
    hours, step = 24 * 9, 10.0

    with reading(prometheus.url) as history:
        found = history.find(T0, T0 + hours * 3600)
        got = list(history.pieces(found, T0, T0 + hours * 3600, step))

    assert (got[0].start, got[-1].end) == (T0, T0 + hours * 3600)
    assert all(later.start - earlier.end == step for earlier, later in pairwise(got))
    assert all((piece.end - piece.start) / step + 1 <= 11_000 for piece in got)


def test_a_prometheus_that_finds_it_too_much_is_asked_for_less_at_once(prometheus: FakePrometheus):
    scraped(prometheus, 8)
    prometheus.most_points = 100

    with reading(prometheus.url) as history:
        got = pieces(history, 8)

    times = [at for at, _ in points(got, RUNNING)]
    assert times == [T0 + 60 * number for number in range(1, 8 * 60 + 1)]


def test_one_that_finds_any_piece_too_much_is_told_so(prometheus: FakePrometheus):
    scraped(prometheus, 2)
    prometheus.most_points = 3

    with reading(prometheus.url) as history, pytest.raises(Unavailable, match="too many samples"):
        pieces(history, 2)


def test_what_fails_now_and_then_is_asked_again_after_growing_pauses(prometheus: FakePrometheus):
    scraped(prometheus, 1)
    pauses: list[float] = []
    prometheus.failures = [(502, "bad gateway"), (500, "oops")]

    with reading(prometheus.url, pauses=pauses) as history:
        assert history.find(T0, T0 + 3600).prefixes == ("vllm:",)

    assert pauses == [1.0, 2.0]


def test_what_fails_always_is_given_up(prometheus: FakePrometheus):
    prometheus.failures = [(502, "bad gateway")] * 9

    with reading(prometheus.url) as history, pytest.raises(Unavailable, match="failed \\(502, bad gateway\\)"):
        history.find(T0, T0 + 3600)

    assert len(prometheus.failures) == 9 - 4


@pytest.mark.parametrize(("status", "words"), [(401, "wants to know who asks"), (403, "does not let us ask")])
def test_one_that_turns_us_away_is_not_asked_again(prometheus: FakePrometheus, status: int, words: str):
    prometheus.failures = [(status, "no")] * 2

    with reading(prometheus.url) as history, pytest.raises(Unavailable, match=f"{words} \\({status}, no\\)"):
        history.find(T0, T0 + 3600)

    assert len(prometheus.failures) == 1


def test_a_token_opens_the_door(prometheus: FakePrometheus):
    scraped(prometheus, 1)
    prometheus.authorization = "Bearer s3cret"

    with reading(prometheus.url, access=Access(token="s3cret")) as history:
        assert history.find(T0, T0 + 3600).prefixes == ("vllm:",)
    with reading(prometheus.url, access=Access(token="other")) as history, pytest.raises(Unavailable, match="401"):
        history.find(T0, T0 + 3600)


def test_a_name_and_password_of_the_url_are_sent(prometheus: FakePrometheus):
    scraped(prometheus, 1)
    prometheus.authorization = "Basic YW5hOmh1bnRlcjI="

    with reading(prometheus.url.replace("//", "//ana:hunter2@")) as history:
        assert history.find(T0, T0 + 3600).prefixes == ("vllm:",)


def test_a_password_of_the_url_is_never_told(prometheus: FakePrometheus):
    prometheus.authorization = "Bearer other"

    with reading(prometheus.url.replace("//", "//ana:hunter2@")) as history, pytest.raises(Unavailable) as raised:
        history.find(T0, T0 + 3600)

    assert "hunter2" not in str(raised.value)
    assert prometheus.url in str(raised.value)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_is_trusted_if_it_comes_from_the_authority_that_was_named(tmp_path: Path):
    make_keys(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "apiserver.crt", tmp_path / "apiserver.key")

    with FakePrometheus(tls) as prometheus:
        scraped(prometheus, 1)
        with reading(prometheus.url, access=Access(ca_file=str(tmp_path / "ca.crt"))) as history:
            assert history.find(T0, T0 + 3600).prefixes == ("vllm:",)
        with reading(prometheus.url) as history, pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            history.find(T0, T0 + 3600)


def test_a_file_that_holds_no_authority_is_named(tmp_path: Path):
    (tmp_path / "ca.pem").write_text("hello")

    with pytest.raises(Unavailable, match=r"ca\.pem holds no certificate"):
        PrometheusHistory("https://localhost", "vllm:", print, Access(ca_file=str(tmp_path / "ca.pem")))


def test_nobody_there_is_told_after_all_tries():
    with FakePrometheus() as gone:
        url = gone.url

    with reading(url) as history, pytest.raises(Unavailable, match="cannot be reached"):
        history.find(T0, T0 + 3600)


def test_a_selector_is_part_of_every_question(prometheus: FakePrometheus):
    scraped(prometheus, 1)

    with reading(prometheus.url, selector='namespace="llm"') as history:
        pieces(history, 1)

    assert all('namespace="llm"' in asked.get("query", asked.get("match[]", "")) for asked in prometheus.questions)


def test_warnings_are_kept_to_be_told(prometheus: FakePrometheus):
    scraped(prometheus, 1)
    prometheus.warnings = ["a store did not answer"]

    with reading(prometheus.url) as history:
        pieces(history, 1)
        assert history.warnings == {"a store did not answer"}
