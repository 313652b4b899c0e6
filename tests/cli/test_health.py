"""What a probe and Prometheus are told, asked over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduler.cli.health import Health
from scheduler.errors import BadInput, Unavailable
from scheduler.jobs.mail import Board, BoardService
from scheduler.ports import HandBack

NOW = datetime(2026, 12, 1, 3, 0, tzinfo=UTC)
BOARD = Board(
    at=NOW,
    gpus=16,
    serving=8,
    running=4,
    idle=3,
    unknown=1,
    services=(BoardService(name="chat", have=2, want=3, gpus=8, why="busy"),),
    windows=(),
    waiting_tasks=5,
    waiting_gpus=20,
    alerts=("look here",),
)


class Told:
    def __init__(self) -> None:
        self.age_s = 1.0
        self.board: Board | None = BOARD
        self.away = False
        self.hand_backs = (
            HandBack(service="chat", signal_at=NOW, decided_at=NOW, freed_at=NOW + timedelta(seconds=7)),
            HandBack(service="chat", signal_at=NOW, decided_at=NOW, freed_at=NOW + timedelta(seconds=4)),
            HandBack(service="chat", signal_at=NOW, decided_at=NOW),
        )

    def seen(self) -> Board | None:
        if self.away:
            raise Unavailable("no route")
        return self.board


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def health(told: Told) -> Iterator[Health]:
    health = Health(
        0,
        age_s=lambda: told.age_s,
        limit_s=60,
        board=told.seen,
        hand_backs=lambda since: told.hand_backs,
        counts=lambda: {"gpujob_preempted_by_scheduler": 3},
        clock=lambda: NOW,
    )
    health.start()
    yield health
    health.stop()


def ask(health: Health, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{health.server_port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_scheduler_whose_turns_have_stopped_is_not_healthy(health: Health, told: Told):
    good = ask(health, "/healthz")
    told.age_s = 61.0

    assert good == (200, "the last turn ended 1.0 s ago\n")
    assert ask(health, "/healthz")[0] == 503


def test_it_is_ready_once_a_turn_has_seen_the_cluster(health: Health, told: Told):
    told.board = None
    before = ask(health, "/readyz")[0]
    told.board = BOARD

    assert (before, ask(health, "/readyz")[0]) == (503, 200)


def test_a_database_that_is_away_is_said_so(health: Health, told: Told):
    told.away = True

    assert ask(health, "/metrics") == (503, "the database does not answer: no route\n")
    assert ask(health, "/healthz")[0] == 200, "a restart would not bring the database back"


def test_prometheus_reads_the_board_and_the_slowest_hand_back(health: Health):
    status, text = ask(health, "/metrics")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

    assert status == 200
    assert samples["gpujob_gpus", "idle"] == 3
    assert sum(value for key, value in samples.items() if key[0] == "gpujob_gpus") == BOARD.gpus
    assert (samples["gpujob_replicas_have", "chat"], samples["gpujob_replicas_want", "chat"]) == (2, 3)
    assert samples["gpujob_hand_back_seconds_max", "chat"] == 7
    assert samples["gpujob_alerts",] == 1
    assert samples["gpujob_preempted_by_scheduler_total",] == 3


def test_other_paths_are_named(health: Health):
    status, text = ask(health, "/")

    assert status == 404
    assert "/healthz" in text


def test_a_port_that_is_taken_is_said_so(health: Health, told: Told):
    with pytest.raises(BadInput, match="choose another"):
        Health(
            health.server_port,
            age_s=lambda: 0.0,
            limit_s=1,
            board=told.seen,
            hand_backs=lambda since: (),
            counts=dict,
            clock=lambda: NOW,
        )
