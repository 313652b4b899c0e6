"""The benchmark's world: nodes, replicas, jobs, and what happens between two turns. Times are seconds, not rounded."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from scheduler.sim.jobs import Fate, Run, SimJob
from scheduler.sim.scenario import Scenario

Event = Mapping[str, Any]
Log = Callable[[float, str, Mapping[str, Any]], None]
Ended = Callable[[Run, float, float], None]  # a run, when it ended, the progress of its job that is kept
Seat = Callable[[Mapping[int, int], int, Collection[int]], int | None]  # free GPUs by node, GPUs, nodes with replicas


@dataclass(slots=True, kw_only=True)
class SimReplica:
    """One replica; `node` None while it waits."""

    id: int
    service: int
    gpus: int
    asked: float
    node: int | None = None
    started: float | None = None
    leaving: bool = False
    moved_from: int | None = None


class World:
    """The truth. `seat` is asked for the node of each replica at the moment at which it can be placed."""

    def __init__(self, scenario: Scenario, jobs: Sequence[SimJob], seat: Seat, log: Log, ended: Ended) -> None:
        self.scenario = scenario
        self.now = float(scenario.start_s)
        self.version = 0  # grows with every change that a plan could depend on
        self.sizes = dict.fromkeys(range(scenario.nodes), scenario.gpus_per_node)
        self.free = dict(self.sizes)
        self.replicas: dict[int, SimReplica] = {}  # by id, also leaving ones
        self.queue: deque[SimReplica] = deque()  # replicas that wait
        self.wanted = [0] * len(scenario.services)
        self.runs: dict[int, Run] = {}  # by job id, also those that save
        self.fates: dict[int, Fate] = {}
        self.visible: dict[int, SimJob] = {}  # unfinished jobs that a policy may see, in the order of the file
        self._jobs = jobs
        self._next_job = 0
        self._seat = seat
        self._log = log
        self._ended = ended
        self._numbers = count()
        self._order = count()
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []

    # what happens by itself

    def advance(self, until: float) -> None:
        """Everything that happens up to and at `until`: all GPUs of one instant come free, then replicas take them."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            at = heap[0][0]
            while heap and heap[0][0] == at:
                heapq.heappop(heap)[2](at)
            self._place_waiting(at)
        self.now = until

    def _at(self, at: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._heap, (at, next(self._order), what))

    # services

    def ask(self, wanted: Sequence[int], leave: Callable[[int], int]) -> None:
        """What the autoscalers want from now on; `leave(service)` is asked which replica goes."""
        for service, want in enumerate(wanted):
            for _ in range(want - self.wanted[service]):
                self._rise(service)
            for _ in range(self.wanted[service] - want):
                self._drop(service, leave)
            self.wanted[service] = want

    def _rise(self, service: int) -> None:
        gpus = self.scenario.services[service].gpus_per_replica
        replica = SimReplica(id=next(self._numbers), service=service, gpus=gpus, asked=self.now)
        self.replicas[replica.id] = replica
        self._log(self.now, "replica_asked", {"service": self._name(service), "replica": replica.id})
        self.queue.append(replica)
        self._place_waiting(self.now)
        self.version += 1

    def _drop(self, service: int, leave: Callable[[int], int]) -> None:
        self.version += 1
        waiting = next((one for one in reversed(self.queue) if one.service == service), None)
        if waiting is not None:
            self.queue.remove(waiting)
            del self.replicas[waiting.id]
            self._log(self.now, "replica_cancelled", {"service": self._name(service), "replica": waiting.id})
            return
        replica = self.replicas[leave(service)]
        self._log(self.now, "replica_leave", {"service": self._name(service), "replica": replica.id})
        self._let_go(replica, self.scenario.drain_s)

    def _let_go(self, replica: SimReplica, after_s: float) -> None:
        replica.leaving = True

        def gone(at: float) -> None:
            assert replica.node is not None
            self.free[replica.node] += replica.gpus
            del self.replicas[replica.id]
            self.version += 1
            self._log(at, "replica_gone", {"service": self._name(replica.service), "replica": replica.id})

        self._at(self.now + after_s, gone)

    def _place_waiting(self, at: float) -> None:
        while self.queue:
            replica = self.queue[0]
            node = self._seat(self.free, replica.gpus, self.hosting())
            if node is None:
                return
            self.queue.popleft()
            self._start_replica(replica, node, at)

    def _start_replica(self, replica: SimReplica, node: int, at: float) -> None:
        self.free[node] -= replica.gpus
        replica.node, replica.started = node, at
        self.version += 1
        what = {"service": self._name(replica.service), "replica": replica.id, "node": node}
        more = {} if replica.moved_from is None else {"moved_from": replica.moved_from}
        self._log(at, "replica_start", what | more)

    def move(self, replica_id: int, node: int) -> None:
        """The new one holds its GPUs from now, the old one for move_s more."""
        old = self.replicas[replica_id]
        new = SimReplica(
            id=next(self._numbers), service=old.service, gpus=old.gpus, asked=self.now, moved_from=replica_id
        )
        self.replicas[new.id] = new
        self._start_replica(new, node, self.now)
        what = {"service": self._name(old.service), "replica": old.id, "moved": True}
        self._log(self.now, "replica_leave", what)
        self._let_go(old, self.scenario.move_s)

    def hosting(self) -> set[int]:
        """Nodes on which a replica holds GPUs."""
        return {one.node for one in self.replicas.values() if one.node is not None}

    def _name(self, service: int) -> str:
        return self.scenario.services[service].name

    # jobs

    def reveal(self) -> None:
        """Jobs that a policy may see from now on."""
        saturated = self.scenario.arrivals == "saturated"
        while self._next_job < len(self._jobs):
            job = self._jobs[self._next_job]
            if len(self.visible) >= self.scenario.visible_jobs if saturated else job.submit_s > self.now:
                return
            self._next_job += 1
            self.visible[job.id] = job
            self.fates[job.id] = Fate(visible_since=self.now if saturated else job.submit_s)
            self.version += 1

    def start(self, job_id: int, placement: Mapping[int, int]) -> None:
        """A job begins on these nodes."""
        job, fate = self.visible[job_id], self.fates[job_id]
        for node, gpus in placement.items():
            self.free[node] -= gpus
            if self.free[node] < 0:
                raise ValueError(f"job {job_id} was started on GPUs of node {node} that are not free")
        run = Run(job=job, placement=placement, since=self.now, base_s=fate.kept_s)
        self.runs[job_id] = fate.run = run
        fate.runs += 1
        if fate.first_start is None:
            fate.first_start = self.now
        self.version += 1
        self._log(self.now, "job_start", {"job": job_id, "gpus": {str(n): g for n, g in placement.items()}})
        self._at(run.done_at, lambda at: self._done(run, at))

    def _done(self, run: Run, at: float) -> None:
        if run.stopped is not None:
            return
        fate = self.fates[run.job.id]
        fate.kept_s, fate.done_at, fate.run = run.job.work_s, at, None
        del self.visible[run.job.id]
        self._log(at, "job_done", {"job": run.job.id})
        self._ended(run, at, run.job.work_s)
        self._free(run)

    def stop(self, job_id: int, *, urgent: bool) -> None:
        """A run is told to go; one that is warned early may take its whole time to save."""
        run = self.runs[job_id]
        job, grace_s = run.job, self.scenario.grace_s
        self._log(self.now, "job_stop", {"job": job_id, "urgent": urgent})
        run.stopped = self.now
        if job.saves_on_sigterm and (not urgent or job.save_s <= grace_s):
            kept_s, held_s = run.progress_s(self.now), job.save_s
        else:
            kept_s = run.saved_s(self.now)
            held_s = grace_s if job.saves_on_sigterm else min(_DEAF_S, grace_s)
        self.fates[job_id].kept_s = kept_s
        self._ended(run, self.now, kept_s)
        run.free_at = self.now + held_s + self.scenario.cleanup_s
        self.version += 1

        def gone(at: float) -> None:
            self._log(at, "job_gone", {"job": job_id, "kept_s": kept_s})
            self.fates[job_id].run = None
            self._free(run)

        self._at(run.free_at, gone)

    def _free(self, run: Run) -> None:
        for node, gpus in run.placement.items():
            self.free[node] += gpus
        del self.runs[run.job.id]
        self.version += 1

    def waiting(self) -> Iterable[SimJob]:
        """Visible jobs without a run."""
        runs = self.runs
        return (job for job in self.visible.values() if job.id not in runs)


_DEAF_S = 30.0  # a job that does not save is gone after so long
