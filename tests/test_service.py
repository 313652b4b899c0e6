"""Ticks, hints and the watchdog of the service, with the real APScheduler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import pytest
from apscheduler.triggers.cron import CronTrigger

from scheduler.errors import Unavailable
from scheduler.fleet.pool import Pool
from scheduler.service import WATCHDOG_EXIT, Service, Ticks

NOW = datetime(2026, 12, 1, tzinfo=UTC)
FAST = Ticks(turn_s=0.05, take_in_s=0.02, watchdog_s=5.0)


class Cycling:
    """A cycle that counts, and that can fail or hang."""

    def __init__(self) -> None:
        self.turns = 0
        self.taken = 0
        self.errors: list[Exception] = []
        self.requests = 0
        self.finished = threading.Event()
        self.enough = 5
        self.hang: threading.Event | None = None
        self.looking = threading.Event()

    def take_in(self, now: datetime, enough: Callable[[], bool]) -> bool:
        self.taken += 1
        asked, self.requests = self.requests, 0
        return asked > 0

    def observe(self, now: datetime) -> Pool:
        self.looking.set()
        if self.hang is not None:
            self.hang.wait(10)
        if self.errors:
            raise self.errors.pop(0)
        return Pool(at=now, nodes=())

    def turn(self, fleet: Pool) -> None:
        self.turns += 1
        if self.turns >= self.enough:
            self.finished.set()


def running(cycle: Cycling, ticks: Ticks = FAST, gave_up: list[int] | None = None) -> tuple[Service, threading.Thread]:
    codes = gave_up if gave_up is not None else []
    service = Service(cycle, ticks, lambda: datetime.now(UTC), give_up=codes.append)  # type: ignore[arg-type]
    thread = threading.Thread(target=service.run)
    thread.start()
    return service, thread


def test_turns_go_on_and_a_stop_finishes_the_one_under_way():
    cycle = Cycling()
    service, thread = running(cycle)

    assert cycle.finished.wait(10)
    service.stop()
    thread.join(10)

    assert not thread.is_alive()
    assert cycle.taken > 0


def test_a_request_brings_the_next_turn_forward():
    cycle = Cycling()
    cycle.enough = 2
    cycle.requests = 1
    service, thread = running(cycle, Ticks(turn_s=60, take_in_s=0.02, watchdog_s=60))

    came = cycle.finished.wait(10)
    service.stop()
    thread.join(10)

    assert came, "the second turn waited for its interval of 60 s"


def test_a_hint_that_comes_during_a_turn_brings_another_turn_after_it():
    cycle = Cycling()
    cycle.enough = 2
    cycle.hang = threading.Event()
    service, thread = running(cycle, Ticks(turn_s=60, take_in_s=0.02, watchdog_s=60))
    assert cycle.looking.wait(10)

    service.hint()
    cycle.hang.set()
    came = cycle.finished.wait(10)
    service.stop()
    thread.join(10)

    assert came, "what happened during the first turn waited for an interval of 60 s"


def test_argo_r23_an_error_inside_a_tick_does_not_end_the_ticks():
    cycle = Cycling()
    cycle.errors = [RuntimeError("a bug"), Unavailable("the database"), ValueError("another bug")]
    service, thread = running(cycle)

    came = cycle.finished.wait(10)
    service.stop()
    thread.join(10)

    assert came


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # that is how it dies
def test_argo_r23_a_scheduler_that_died_inside_is_noticed_by_the_watchdog():
    """An error in APScheduler's own job store ends its thread while it still says `running`."""
    cycle = Cycling()
    gave_up: list[int] = []
    service, thread = running(cycle, Ticks(turn_s=0.05, take_in_s=0.02, watchdog_s=0.4), gave_up)
    assert cycle.finished.wait(10)

    store = service.scheduler._jobstores["default"]

    def broken(job: object) -> None:
        raise RuntimeError("the store is gone")

    store.update_job = broken
    for _ in range(200):
        if gave_up:
            break
        threading.Event().wait(0.05)
    service.stop()
    thread.join(10)

    assert gave_up[0] == WATCHDOG_EXIT


def test_a_turn_that_hangs_is_noticed_by_the_watchdog():
    cycle = Cycling()
    cycle.hang = threading.Event()
    gave_up: list[int] = []
    service, thread = running(cycle, Ticks(turn_s=0.05, take_in_s=0.02, watchdog_s=0.3), gave_up)
    for _ in range(200):
        if gave_up:
            break
        threading.Event().wait(0.05)
    cycle.hang.set()
    service.stop()
    thread.join(10)

    assert gave_up == [WATCHDOG_EXIT]


def turns_go_on(cycle: Cycling) -> bool:
    cycle.finished.clear()
    cycle.enough = cycle.turns + 25  # more than a second, so that the watchdog looks in between
    return cycle.finished.wait(5)


def test_a_clock_that_jumps_back_stops_no_ticks_and_one_that_jumps_ahead_ends_no_process():
    cycle = Cycling()
    cycle.enough = 3
    gave_up: list[int] = []
    ahead = timedelta()
    service = Service(cycle, FAST, lambda: datetime.now(UTC) + ahead, give_up=gave_up.append)  # type: ignore[arg-type]
    thread = threading.Thread(target=service.run)
    thread.start()
    came = [cycle.finished.wait(10)]
    ahead = timedelta(hours=2)
    came.append(turns_go_on(cycle))
    # APScheduler reads the clock by itself; this is what a jump back by two hours makes of its plans.
    for tick in ("take_in", "turn"):
        service.scheduler.modify_job(tick, next_run_time=datetime.now(UTC) + timedelta(hours=2))
    ahead = timedelta()
    came.append(turns_go_on(cycle))
    service.stop()
    thread.join(10)

    assert came == [True, True, True]
    assert gave_up == []


def test_argo_r22_the_installed_apscheduler_gets_through_the_end_of_summer_time():
    """3.11.0 and 3.11.1 loop for ever here (agronholm/apscheduler #1021); the floor in pyproject forbids them."""
    assert tuple(map(int, version("apscheduler").split(".")[:3])) >= (3, 11, 2)
    trigger = CronTrigger.from_crontab("*/20 * * * *", timezone="America/New_York")
    at = datetime(2026, 11, 1, 5, 0, tzinfo=UTC)
    previous = None
    seen = []
    for _ in range(12):
        previous = trigger.get_next_fire_time(previous, at)
        seen.append(previous.astimezone(UTC))
        at = seen[-1] + timedelta(seconds=1)

    assert len(seen) == 12
    assert seen == sorted(seen)
