"""A whole simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduler.fleet.forecast import Forecaster
from scheduler.sim import files, lend
from scheduler.sim.books import Books
from scheduler.sim.scenario import Scenario
from scheduler.sim.world import World

STEP_S = 10


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

    world = World(scenario, files.jobs(scenario.jobs), lend.seat, log, books.ended)
    brain = lend.Lend(world, scenario.policy)
    forecaster = Forecaster(brain.services, scenario.policy)
    loads = seen.load.tolist()
    gpus = max(one.gpus_per_replica for one in scenario.services)
    wants = seen.wanted.tolist()
    first = int(scenario.start_s // STEP_S)
    before: list[int] = []
    for step in range(first, int(scenario.end_s // STEP_S)):
        world.advance(float(step * STEP_S))
        if wants[step] != before:
            before = wants[step]
            world.ask(before, brain.leave)
        brain.observe()
        world.reveal()
        forecaster.learn(step * STEP_S, loads[step], wants[step])
        soon = forecaster.soon() if scenario.policy.reserve_slots == 0 else ()
        brain.turn(soon)
        kept = min(max(sum(one.gpus for one in soon), scenario.policy.reserve_slots * gpus), sum(world.free.values()))
        books.idle_time(world, kept, STEP_S)
        if watch is not None:
            watch(world.now, kept)
    world.advance(scenario.end_s)
    return dict(books.close(world, seen)) | {"turns": brain.turns, "plans": brain.plans}
