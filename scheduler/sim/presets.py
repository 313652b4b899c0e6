"""Policies that people use today, to be measured on the same work: night window, FIFO, Kueue, Lyra.

They choose victims only when a replica waits (or the reserve is short), and know nothing of checkpoints. How each was
drawn from its source stands in docs/harvest.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from scheduler.fleet.forecast import Soon
from scheduler.policy import Policy
from scheduler.sim.jobs import Run, SimJob
from scheduler.sim.world import World

Room = dict[int, int]

_DAY_S = 86_400
_OPENS_S, _CLOSES_S = 20 * 3600, 8 * 3600


class Baseline:
    """First come, first served, packed; the newest run is killed first."""

    def __init__(self, world: World, policy: Policy) -> None:
        self._world = world
        self._policy = policy
        self._size = world.scenario.gpus_per_node
        self._gpus = max(one.gpus_per_replica for one in world.scenario.services)
        self.turns = 0
        self.plans = 0

    def observe(self) -> None:
        """It remembers nothing."""

    @staticmethod
    def seat(free: Mapping[int, int], gpus: int, hosting: Collection[int]) -> int | None:
        """The fullest node on which the replica fits."""
        fitting = [(left, node not in hosting, node) for node, left in free.items() if left >= gpus]
        return min(fitting)[2] if fitting else None

    def leave(self, service: int) -> int:
        """The newest replica."""
        staying = (one for one in self._world.replicas.values() if one.service == service and not one.leaving)
        return max((one.started or 0.0, one.id) for one in staying if one.node is not None)[1]

    def turn(self, _: Sequence[Soon]) -> None:
        """Ends runs for replicas, then starts jobs."""
        self.turns += 1
        for victim in self.victims():
            self._world.stop(victim, urgent=True)
        if self._world.queue or not self.open():
            return
        kept = self.kept()
        for job in sorted(self._world.waiting(), key=self.order):
            placement = self.place(job, kept)
            if placement is not None:
                self._world.start(job.id, placement)
                for node, gpus in placement.items():
                    kept[node] -= gpus

    # what the others do differently

    def open(self) -> bool:
        """Whether jobs may run now."""
        return True

    def order(self, job: SimJob) -> float:
        """Shortest first where jobs arrive one by one; else as the file has them."""
        return (job.estimate_s or 0.0) if self._world.scenario.arrivals == "open" else 0.0

    def nodes(self, room: Room, gpus: int) -> Iterable[int]:
        """Nodes on which so many GPUs are free, the best first: the tightest fit."""
        return [node for _, node in sorted((left, node) for node, left in room.items() if left >= gpus)]

    def victims(self) -> list[int]:
        """The newest runs, until every replica that waits, and the reserve, has a place."""
        chosen: list[int] = []
        room = self.room()
        if self.seated(room):
            return chosen
        for run in self.newest():
            _give(room, run)
            chosen.append(run.job.id)
            if self.seated(room):
                break
        return chosen

    # shared

    def newest(self) -> list[Run]:
        """Runs that may still be told to end."""
        running = (run for run in self._world.runs.values() if run.stopped is None)
        return sorted(running, key=lambda run: (run.since, run.job.id), reverse=True)

    def room(self) -> Room:
        """Free GPUs and those that come free by themselves."""
        room = dict(self._world.free)
        for run in self._world.runs.values():
            if run.stopped is not None:
                _give(room, run)
        for replica in self._world.replicas.values():
            if replica.leaving and replica.node is not None:
                room[replica.node] += replica.gpus
        return room

    def seated(self, room: Room) -> bool:
        """Whether all replicas that wait, and the reserve, would fit."""
        left = dict(room)
        hosting = self._world.hosting()
        asked = [one.gpus for one in self._world.queue] + [self._gpus] * self._policy.reserve_slots
        return all(self._take(left, gpus, hosting) for gpus in asked)

    def _take(self, left: Room, gpus: int, hosting: Collection[int]) -> bool:
        node = self.seat(left, gpus, hosting)
        if node is not None:
            left[node] -= gpus
        return node is not None

    def kept(self) -> Room:
        """Free GPUs without the reserve: it may stand where GPUs are still coming free."""
        free, after = self._world.free, self.room()
        hosting = self._world.hosting()
        for _ in range(self._policy.reserve_slots):
            self._take(after, self._gpus, hosting)
        return {node: min(left, after[node]) for node, left in free.items()}

    def place(self, job: SimJob, room: Room) -> Mapping[int, int] | None:
        """Where it starts; None: nowhere."""
        nodes = max(-(-job.gpus // self._size), 1)
        gpus = job.gpus // nodes
        chosen = list(self.nodes(room, gpus))[:nodes]
        return dict.fromkeys(chosen, gpus) if len(chosen) == nodes else None


class Night(Baseline):
    """The night window of the original project: 20:00 to 8:00, spread, first fit; at 8:00 everything is killed."""

    @staticmethod
    def seat(free: Mapping[int, int], gpus: int, _: Collection[int]) -> int | None:
        """The emptiest node: Kubernetes spreads."""
        fitting = [(-left, node) for node, left in free.items() if left >= gpus]
        return min(fitting)[1] if fitting else None

    def open(self) -> bool:
        """From eight to eight."""
        time = self._world.now % _DAY_S
        return time >= _OPENS_S or time < _CLOSES_S

    def nodes(self, room: Room, gpus: int) -> Iterable[int]:
        """The first that fit."""
        return [node for node, left in room.items() if left >= gpus]

    def victims(self) -> list[int]:
        """All of them when the window closes."""
        return super().victims() if self.open() else [run.job.id for run in self.newest()]


class Kueue(Baseline):
    """As its preemption: the newest first until the place is there; then those that are not needed stay."""

    def victims(self) -> list[int]:
        """Without those that can be filled back."""
        chosen = super().victims()
        runs = self._world.runs
        for job in reversed(chosen[:-1]):
            room = self.room()
            for other in chosen:
                if other != job:
                    _give(room, runs[other])
            if self.seated(room):
                chosen = [other for other in chosen if other != job]
        return chosen


class Lyra(Baseline):
    """Loans whole nodes, shortest job first, and returns the node whose jobs are cheapest to preempt."""

    def order(self, job: SimJob) -> float:
        """Shortest first."""
        return job.estimate_s or 0.0

    def nodes(self, room: Room, gpus: int) -> Iterable[int]:
        """Only nodes without replicas are loaned."""
        hosting = self._world.hosting()
        return [node for node in super().nodes(room, gpus) if node not in hosting]

    def victims(self) -> list[int]:
        """All jobs of the cheapest nodes; a job over several nodes costs its part on each."""
        chosen: list[int] = []
        room = self.room()
        while not self.seated(room):
            nodes: dict[int, list[Run]] = {}
            for run in self.newest():
                if run.job.id not in chosen:
                    for node in run.placement:
                        nodes.setdefault(node, []).append(run)
            if not nodes:
                break
            cheapest = min(nodes, key=lambda node: (sum(1 / len(run.placement) for run in nodes[node]), node))
            for run in nodes[cheapest]:
                _give(room, run)
                chosen.append(run.job.id)
        return chosen


BASELINES: Mapping[str, type[Baseline]] = {
    "night": Night,
    "fifo": Baseline,
    "kueue": Kueue,
    "lyra": Lyra,
}


class Foreseen:
    """Takes the place of the forecast: the replicas that will really be asked for within the lead time."""

    def __init__(self, names: Sequence[tuple[str, int]], wants: Sequence[Sequence[int]], steps: int) -> None:
        """`names` with the GPUs of a replica; `wants` by step and service."""
        self._names = names
        self._wants = wants
        self._steps = steps
        self._step = -1
        self._known: dict[tuple[int, ...], tuple[Soon, ...]] = {}

    def learn(self, at_s: float, _: Sequence[float | None], __: Sequence[int]) -> None:
        """It knows."""
        self._step = int(at_s // 10)

    def soon(self) -> tuple[Soon, ...]:
        """A place for each."""
        rises = tuple(self._rises(service) for service in range(len(self._names)))
        if rises not in self._known:
            self._known[rises] = tuple(self._places(rises))
        return self._known[rises]

    def _rises(self, service: int) -> int:
        ahead = self._wants[self._step : self._step + self._steps + 1]
        return sum(max(later[service] - now[service], 0) for now, later in pairwise(ahead))

    def _places(self, rises: Sequence[int]) -> Iterator[Soon]:
        for (name, gpus), count in zip(self._names, rises, strict=True):
            for _ in range(count):
                yield Soon(service=name, gpus=gpus, chance=1.0, why=f"{name} will ask for a replica")


def _give(room: Room, run: Run) -> None:
    for node, gpus in run.placement.items():
        room[node] += gpus
