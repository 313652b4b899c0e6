"""When turns happen: a list of ticks, hints that bring the next turn forward, and a watchdog."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobExecutionEvent
from apscheduler.schedulers.background import BackgroundScheduler

from scheduler.cycle.turn import Cycle
from scheduler.errors import Deposed, Unavailable
from scheduler.ports import Clock

log = logging.getLogger(__name__)

TAKE_IN_S = 0.25  # requests are answered this often, apart from the planning turn
_ENOUGH_S = 0.5  # a tick that has answered requests for so long leaves the rest to the next: a turn may be waiting
_JUMP_S = 0.5  # a clock that is only being set right moves by less between two looks
WATCHDOG_EXIT = 70  # the exit code of a process whose turns have stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """How often things happen, in seconds."""

    turn_s: float = 5.0
    take_in_s: float = TAKE_IN_S
    watchdog_s: float = 60.0  # without a finished turn the process ends itself


class Service:
    """Runs a cycle until it is told to stop.

    APScheduler only ticks: memory store, UTC, one instance of each tick, no misfire limit. One exception in its job
    store would end it silently while it still says `running` (seen in 3.11.3): a thread of our own watches the turns.
    """

    def __init__(self, cycle: Cycle, ticks: Ticks, clock: Clock, *, give_up: Callable[[int], None] = os._exit) -> None:
        self._cycle = cycle
        self._ticks = ticks
        self._clock = clock
        self._give_up = give_up
        self._one_at_a_time = threading.Lock()
        self._stopping = threading.Event()
        self._turning = threading.Event()
        self._hinted = threading.Event()  # something happened since the last turn began
        self._finished_at = time.monotonic()  # the clock of the day may jump
        self.scheduler = BackgroundScheduler(
            timezone=UTC,
            job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
        )

    def run(self) -> None:
        """Blocks until `stop`; then the turn under way is finished and recorded."""
        self.scheduler.add_listener(_tell_trouble, EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)
        now = self._clock()
        self.scheduler.add_job(
            self._take_in, "interval", seconds=self._ticks.take_in_s, id="take_in", next_run_time=now
        )
        self.scheduler.add_job(self._turn, "interval", seconds=self._ticks.turn_s, id="turn", next_run_time=now)
        watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self.scheduler.start()
        watchdog.start()
        self._stopping.wait()
        self.scheduler.shutdown(wait=True)

    def stop(self) -> None:
        """May be called from a signal handler."""
        self._stopping.set()

    def age_s(self) -> float:
        """Seconds since a turn ended."""
        return time.monotonic() - self._finished_at

    def hint(self) -> None:
        """Something happened: the next turn comes at once, or right after the one under way. From any thread."""
        self._hinted.set()
        if not self._turning.is_set():
            self._bring_forward()

    def _bring_forward(self) -> None:
        if not self._stopping.is_set() and self.scheduler.running:
            self.scheduler.modify_job("turn", next_run_time=self._clock())

    def _take_in(self) -> None:
        with self._one_at_a_time:
            try:
                until = time.monotonic() + _ENOUGH_S
                answered = self._cycle.take_in(self._clock(), lambda: time.monotonic() > until)
            except (Unavailable, Deposed) as error:
                log.warning("tick=take_in failed=%s", error)
                return
        if answered:
            self.hint()

    def _turn(self) -> None:
        self._turning.set()
        self._hinted.clear()
        try:
            self._one_turn()
        finally:
            self._turning.clear()
            if self._hinted.is_set():  # what happened meanwhile may have come too late for this turn
                self._bring_forward()

    def _one_turn(self) -> None:
        began = time.monotonic()
        try:
            fleet = self._cycle.observe(self._clock())
            with self._one_at_a_time:
                plan = self._cycle.turn(fleet)
        except (Unavailable, Deposed) as error:
            # The outside is away: that is known and said, and no reason to end the process.
            log.warning("tick=turn failed=%s", error)
            self._finished_at = time.monotonic()
            return
        self._finished_at = time.monotonic()
        if plan is None:
            log.info("tick=turn passive, another scheduler leads")
        elif plan.actions:
            took = self._finished_at - began
            log.info("tick=turn actions=%d waits=%d seconds=%.3f", len(plan.actions), len(plan.waits), took)

    def _watch(self) -> None:
        look_s = min(1.0, self._ticks.watchdog_s / 4)
        ahead = self._ahead()
        while not self._stopping.wait(timeout=look_s):
            ahead = self._after_a_jump(ahead)
            age_s = self.age_s()
            if age_s > self._ticks.watchdog_s:
                log.critical("watchdog: no turn finished for %.0f s, this process ends", age_s)
                self._give_up(WATCHDOG_EXIT)
                return

    def _after_a_jump(self, before_s: float) -> float:
        """APScheduler waits until a time of day: when the clock goes back, its ticks would come that much later."""
        ahead_s = self._ahead()
        if ahead_s < before_s - _JUMP_S:
            log.warning("the clock went back by %.1f s", before_s - ahead_s)
            for tick in ("take_in", "turn"):
                self.scheduler.modify_job(tick, next_run_time=self._clock())
        return ahead_s

    def _ahead(self) -> float:
        """The clock of the day against the one that never jumps."""
        return self._clock().timestamp() - time.monotonic()


def _tell_trouble(event: JobExecutionEvent) -> None:
    if event.code == EVENT_JOB_ERROR:
        log.error("tick=%s raised", event.job_id, exc_info=event.exception)
    else:
        log.warning("tick=%s was %s", event.job_id, "missed" if event.code == EVENT_JOB_MISSED else "still running")
