"""From series to services: who is whose, what counts twice, and what nobody knows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduler.adapters.vllm.history import SAMPLES, UP
from scheduler.adapters.vllm.names import GENERATION_TOKENS, RUNNING, WAITING
from scheduler.sim.whatif_services import KnownService, workload_of
from tests.sim.whatif_pieces import CHAT, line, observed, piece, pod

NAN = math.nan


def test_requests_of_all_replicas_are_load_at_the_target():
    lines = {RUNNING: [line(pod(), [4, 8]), line(pod("chat-6d4f9c8b7d-bbbbb"), [4, 4])], WAITING: [line(pod(), [0, 4])]}

    (seen,) = observed(piece(lines, 2), points=2).seen

    assert seen.load.tolist() == [1.0, 2.0]
    assert seen.there.tolist() == [2.0, 2.0]


def test_vllm_r25_a_pod_that_two_jobs_scrape_counts_once():
    lines = {RUNNING: [line(pod(job="a"), [8, 8]), line(pod(job="b", instance="chat:8000"), [8, 8])]}

    (seen,) = observed(piece(lines, 2), points=2).seen

    assert (seen.there.tolist(), seen.load.tolist()) == ([1.0, 1.0], [1.0, 1.0])


def test_engines_of_one_replica_are_added_up_and_share_its_target():
    lines = {RUNNING: [line(pod(engine=str(engine)), [8]) for engine in range(2)]}

    (seen,) = observed(piece(lines, 1), points=1).seen

    assert (seen.there.tolist(), seen.load.tolist()) == ([1.0], [1.0])


def test_pods_that_come_and_go_are_counted_while_they_are_there():
    first = {RUNNING: [line(pod("chat-6d4f9c8b7d-bbbbb"), [8, 8])]}
    second = {RUNNING: [line(pod("chat-6d4f9c8b7d-bbbbb"), [8], 2), line(pod("chat-6d4f9c8b7d-ccccc"), [8, 8], 2)]}

    (seen,) = observed(piece(first, 2), piece(second, 2, 2), points=4).seen

    assert seen.there.tolist() == [1.0, 1.0, 2.0, 1.0]


def test_a_replica_that_cannot_be_scraped_is_there_but_unread():
    lines = {RUNNING: [line(pod(), [8, None, 8])], UP: [line(pod(), [1, 1, 1])]}

    (seen,) = observed(piece(lines, 3), points=3).seen

    assert seen.there.tolist() == [1.0, 1.0, 1.0]
    assert seen.unread.tolist() == [0, 1, 0]


def test_the_mean_of_a_replica_that_came_in_the_window_counts_for_its_own_part():
    lines = {
        RUNNING: [line(pod(), [8.0]), line(pod("chat-6d4f9c8b7d-bbbbb"), [8.0])],
        SAMPLES: [line(pod(), [4]), line(pod("chat-6d4f9c8b7d-bbbbb"), [1])],
    }

    (seen,) = observed(piece(lines, 1, expected=4), points=1).seen

    assert (seen.load.tolist(), seen.there.tolist()) == ([1.25], [2.0])


def test_a_replica_that_follows_another_within_a_window_is_one_with_it():
    lines = {
        RUNNING: [line(pod(), [8.0]), line(pod("chat-6d4f9c8b7d-bbbbb"), [8.0])],
        SAMPLES: [line(pod(), [3]), line(pod("chat-6d4f9c8b7d-bbbbb"), [1])],
    }

    (seen,) = observed(piece(lines, 1, expected=4), points=1).seen

    assert (seen.load.tolist(), seen.there.tolist()) == ([1.0], [1.0])


def test_scrapes_that_fail_make_a_replica_no_smaller():
    lines = {RUNNING: [line(pod(), [8.0])], SAMPLES: [line(pod(), [1])], UP: [line(pod(), [4])]}

    (seen,) = observed(piece(lines, 1, expected=4), points=1).seen

    assert (seen.load.tolist(), seen.there.tolist()) == ([1.0], [1.0])


def test_nan_is_not_read_as_a_number():
    lines = {RUNNING: [line(pod(), [8, NAN])], UP: [line(pod(), [1, 1])]}

    (seen,) = observed(piece(lines, 2), points=2).seen

    assert (seen.load.tolist(), seen.unread.tolist()) == ([1.0, 0.0], [0, 1])


def test_where_there_is_no_series_nothing_is_known():
    (seen,) = observed(piece({RUNNING: [line(pod(), [8, None, 8])]}, 3), points=3).seen

    assert np.isnan(seen.there).tolist() == [False, True, False]
    assert np.isnan(seen.load).tolist() == [False, True, False]


def test_other_targets_of_the_same_scrape_job_are_no_replicas():
    lines = {RUNNING: [line(pod(), [8])], UP: [line(pod(), [1]), line(pod("router-5d8f9c7b6d-zzzzz"), [1])]}

    (seen,) = observed(piece(lines, 1), points=1, known=()).seen

    assert (seen.service.name, seen.there.tolist()) == ("chat", [1.0])


def test_replicas_of_no_service_of_the_settings_are_named():
    lines = {RUNNING: [line(pod(), [8]), line(pod("other-6d4f9c8b7d-x2k4p"), [8])]}

    got = observed(piece(lines, 1), points=1)

    assert [one.service.name for one in got.seen] == ["chat"]
    assert got.strangers == ("llm/other-6d4f9c8b7d-x2k4p",)


def test_without_settings_each_workload_or_model_is_a_service():
    lines = {
        RUNNING: [
            line(pod("chat-6d4f9c8b7d-x2k4p"), [8]),
            line(pod("code-0"), [8]),
            line({"instance": "10.0.0.7:8000", "model_name": "tiny"}, [8]),
        ]
    }

    got = observed(piece(lines, 1), points=1, known=())

    assert [one.service.name for one in got.seen] == ["chat", "code", "tiny"]


def test_a_full_replica_shows_its_rate_and_the_token_rate_then_counts():
    # With 4 running of 10, its cache is full: requests wait, and the number of requests says too little.
    queue, quiet = [20.0] * 40, [0.0] * 40
    lines = {
        RUNNING: [line(pod(), [4.0] * 80)],
        WAITING: [line(pod(), [*queue, *quiet])],
        GENERATION_TOKENS: [line(pod(), [1000.0] * 80)],
    }

    (seen,) = observed(piece(lines, 80), points=80).seen

    assert seen.capacity == 1000.0
    assert seen.load[-1] == pytest.approx(1 / 0.8)
    assert seen.by_tokens_share == 0.5


def test_a_service_is_found_by_the_address_of_its_replicas():
    local = KnownService(name="demo", addresses=frozenset({"127.0.0.1:9"}), gpus_per_replica=2, max_num_seqs=10)
    lines = {RUNNING: [line({"instance": "127.0.0.1:9"}, [8])]}

    (seen,) = observed(piece(lines, 1), points=1, known=(CHAT, local)).seen

    assert seen.service.name == "demo"


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("chat-7b-6d4f9c8b7d-x2k4p", "chat-7b"),
        ("chat-7b-3", "chat-7b"),
        ("chat-7b-0-1", "chat-7b-0"),
        ("chat", ""),
        ("", ""),
    ],
)
def test_the_name_of_a_pod_tells_its_workload(name: str, workload: str):
    assert workload_of(name) == workload
