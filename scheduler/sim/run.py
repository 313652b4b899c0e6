"""A whole simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from scheduler.fleet.forecast import Forecaster, Soon
from scheduler.sim import files, lend
from scheduler.sim.books import Books
from scheduler.sim.presets import BASELINES, Foreseen
from scheduler.sim.scenario import Scenario
from scheduler.sim.world import World

STEP_S = 10
_LEAD_S = 120  # that the clairvoyant sees


class Brain(Protocol):
    """A policy, beside its way to seat replicas. It acts on the world that it was made with."""

    turns: int
    plans: int

    def observe(self) -> None:
        """The services want what they want since this instant."""

    def leave(self, service: int) -> int:
        """The replica that goes."""

    def turn(self, soon: tuple[Soon, ...], /) -> None:
        """Decides and acts."""


class Foresight(Protocol):
    """What a policy is told of the next minutes."""

    def learn(self, at_s: float, loads: Sequence[float | None], wanted: Sequence[int], /) -> None:
        """What services load and want now."""

    def soon(self) -> tuple[Soon, ...]:
        """The places to keep free."""


def run(
    scenario: Scenario,
    tell: Callable[[float, str, Mapping[str, Any]], None] | None = None,
    watch: Callable[[float, int], None] | None = None,
) -> Mapping[str, Any]:
    """The figures; `tell` hears every event, `watch` after each turn how many free GPUs are kept back from then on."""
    seen = files.traffic(scenario.demand)
    books = Books(scenario)

    def log(at: float, what: str, more: Mapping[str, Any]) -> None:
        books.log(at, what, more)
        if tell is not None:
            tell(at, what, more)

    wants = seen.wanted.tolist()
    kind = BASELINES.get(scenario.preset)
    seat = lend.seat if kind is None else kind.seat
    world = World(scenario, files.jobs(scenario.jobs), seat, log, books.ended)
    brain: Brain = lend.Lend(world, scenario.policy) if kind is None else kind(world, scenario.policy)
    foresight = _foresight(scenario, wants)
    loads = seen.load.tolist()
    gpus = max(one.gpus_per_replica for one in scenario.services)
    first = int(scenario.start_s // STEP_S)
    before: list[int] = []
    for step in range(first, int(scenario.end_s // STEP_S)):
        world.advance(float(step * STEP_S))
        if wants[step] != before:
            before = wants[step]
            world.ask(before, brain.leave)
        brain.observe()
        world.reveal()
        soon: tuple[Soon, ...] = ()
        if foresight is not None:
            foresight.learn(step * STEP_S, loads[step], wants[step])
            soon = foresight.soon()
        brain.turn(soon)
        kept = min(max(sum(one.gpus for one in soon), scenario.policy.reserve_slots * gpus), sum(world.free.values()))
        books.idle_time(world, kept, STEP_S)
        if watch is not None:
            watch(world.now, kept)
    world.advance(scenario.end_s)
    return dict(books.close(world, seen)) | {"turns": brain.turns, "plans": brain.plans}


def _foresight(scenario: Scenario, wants: Sequence[Sequence[int]]) -> Foresight | None:
    """None: nothing is known ahead, as with a fixed reserve."""
    if scenario.preset == "clairvoyant":
        names = [(one.name, one.gpus_per_replica) for one in scenario.services]
        return Foreseen(names, wants, _LEAD_S // STEP_S)
    if scenario.preset != "gpujob" or scenario.policy.reserve_slots > 0:
        return None
    return Forecaster(lend.services(scenario), scenario.policy)
