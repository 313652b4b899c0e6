"""gpujob itself in the pretended world: a real snapshot each turn, the real plan, and what it says carried out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from scheduler.fleet import seats
from scheduler.fleet.calendar import Calendar
from scheduler.fleet.demand import ServiceDemand
from scheduler.fleet.forecast import Soon
from scheduler.fleet.pattern import Pattern, pattern
from scheduler.fleet.pool import Hold, HolderKind, Node, Pool, Replica, ReplicaId, ReplicaPhase
from scheduler.fleet.services import Mode, Service
from scheduler.fleet.windows import Window, windows
from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.planning.plan import Move, Release, TakeBack
from scheduler.planning.planner import plan
from scheduler.planning.snapshot import Lease, Snapshot, WaitingTask
from scheduler.policy import Policy
from scheduler.sim.jobs import Fate, Run, SimJob
from scheduler.sim.scenario import Scenario
from scheduler.sim.world import SimReplica, World

EPOCH = datetime(2026, 1, 5, tzinfo=UTC)  # a Monday; t_s = 0
_MAIN = TaskName("main")
_ALWAYS = Calendar()
_TOLD_S = 600  # what services want is remembered so often also when it stays the same
_PATTERN_AGE = timedelta(hours=1)


def at(seconds: float) -> datetime:
    """A time of the demand file as the rooms know it."""
    return EPOCH + timedelta(seconds=seconds)


def services(scenario: Scenario) -> tuple[Service, ...]:
    """The services as the rooms know them: somebody else scales them, and their replicas may be moved."""
    return tuple(
        Service(
            name=one.name,
            gpus_per_replica=one.gpus_per_replica,
            max_num_seqs=64,
            min_replicas=one.min_replicas,
            max_replicas=one.max_replicas,
            mode=Mode.OBSERVE,
            moves=True,
        )
        for one in scenario.services
    )


class Lend:
    """One turn after the other."""

    def __init__(self, world: World, policy: Policy) -> None:
        self._world = world
        self._policy = policy
        self._names = {node: f"node-{node:03}" for node in world.sizes}
        self._numbers = {name: node for node, name in self._names.items()}
        self._nodes = tuple(Node(name=self._names[node], gpus=gpus) for node, gpus in world.sizes.items())
        self.services = services(world.scenario)
        self._waiting: dict[int, tuple[int, WaitingTask]] = {}
        self._leases: dict[int, tuple[Run, bool, Lease, tuple[Hold, ...]]] = {}
        self._replicas: dict[int, tuple[bool, bool, Replica, tuple[Hold, ...]]] = {}
        self._settled: tuple[int, tuple[Soon, ...]] | None = None
        self._observed: list[tuple[datetime, str, int]] = []
        self._wanted: dict[int, int] = {}
        self._known: tuple[datetime, Pattern] | None = None
        self.turns = 0
        self.plans = 0

    def turn(self, soon: tuple[Soon, ...]) -> None:
        """Decides and acts."""
        self.turns += 1
        key = (self._world.version, soon)
        if key == self._settled and self.turns % 6:
            return  # what the plan depends on is as it was when there was nothing to do
        self.plans += 1
        decided = plan(self.snapshot(soon), self._policy)
        for action in decided.actions:
            match action:
                case TakeBack():
                    job = int(action.job)
                    hurried = action.urgent or action.grace_s < self._world.visible[job].save_s
                    self._world.stop(job, urgent=hurried)
                case Release():
                    self._world.start(
                        int(action.job), {self._numbers[name]: gpus for name, gpus in action.placement.items()}
                    )
                case Move():
                    self._world.move(int(action.replica.rpartition("-")[2]), self._numbers[action.node])
                case _:
                    raise ValueError(f"the simulator's services are only observed: {action}")
        self._settled = None if decided.actions else key

    def snapshot(self, soon: tuple[Soon, ...]) -> Snapshot:
        """What the planner sees of the world now."""
        world = self._world
        now = at(world.now)
        holds: list[Hold] = []
        leases: list[Lease] = []
        for run in world.runs.values():
            lease, held = self._lease(run)
            leases.append(lease)
            holds += held
        replicas: list[Replica] = []
        for one in world.replicas.values():
            replica, held = self._replica(one)
            replicas.append(replica)
            holds += held
        pool = Pool(at=now, nodes=self._nodes, holds=tuple(holds), replicas=tuple(replicas))
        demands = tuple(
            ServiceDemand(
                service=one.name, have=want, want=want, known=True, why=f"its autoscaler asks for {want}.", estimates={}
            )
            for one, want in zip(self.services, world.wanted, strict=True)
        )
        return Snapshot(
            now=now,
            pool=pool,
            services=self.services,
            demands=demands,
            windows=self._windows(pool, demands),
            soon=soon,
            waiting=tuple(self._task(job) for job in world.waiting()),
            leases=tuple(leases),
        )

    def _windows(self, pool: Pool, demands: Sequence[ServiceDemand]) -> tuple[Window, ...]:
        """The real ones where a task that waits needs to know how long GPUs stay; else any will do, and quickly."""
        if any(job.checkpoint_s is None for job in self._world.waiting()):
            return windows(
                pool=pool,
                services=self.services,
                demands=demands,
                pattern=self._pattern(pool.at),
                calendar=_ALWAYS,
                policy=self._policy,
                now=pool.at,
            )
        until = pool.at + timedelta(seconds=self._policy.horizon_s)
        return tuple(
            Window(node=self._names[node], gpus=gpus, since=pool.at, until=until, confidence=0.5, why="idle")
            for node, gpus in self._world.free.items()
            if gpus
        )

    def observe(self) -> None:
        """Remembers what services want, as the store of a scheduler does."""
        now = self._world.now
        for row, want in enumerate(self._world.wanted):
            if self._wanted.get(row) != want or now % _TOLD_S == 0:
                self._wanted[row] = want
                self._observed.append((at(now), self.services[row].name, want))

    def _pattern(self, now: datetime) -> Pattern:
        if self._known is None or now - self._known[0] >= _PATTERN_AGE:
            self._known = (now, pattern(self._observed, _ALWAYS.timezone))
        return self._known[1]

    def _task(self, job: SimJob) -> WaitingTask:
        fate = self._world.fates[job.id]
        known = self._waiting.get(job.id)
        if known is None or known[0] != fate.runs:
            known = self._waiting[job.id] = (fate.runs, _task(job, fate, self._world))
        return known[1]

    def _lease(self, run: Run) -> tuple[Lease, tuple[Hold, ...]]:
        stopping = run.stopped is not None
        known = self._leases.get(run.job.id)
        if known is None or known[0] is not run or known[1] != stopping:
            lease = _lease(run, self._world.fates[run.job.id], self._names)
            holds = tuple(
                Hold(node=node, gpus=gpus, kind=HolderKind.RUN, holder=lease.uid, ending=stopping)
                for node, gpus in lease.placement.items()
            )
            known = self._leases[run.job.id] = (run, stopping, lease, holds)
        return known[2], known[3]

    def _replica(self, one: SimReplica) -> tuple[Replica, tuple[Hold, ...]]:
        known = self._replicas.get(one.id)
        if known is None or known[:2] != (one.node is None, one.leaving):
            replica = _replica(one, self.services[one.service].name, self._names)
            holds = (
                ()
                if one.node is None
                else (
                    Hold(
                        node=replica.node,
                        gpus=one.gpus,
                        kind=HolderKind.REPLICA,
                        holder=replica.id,
                        ending=one.leaving,
                    ),
                )
            )
            known = self._replicas[one.id] = (one.node is None, one.leaving, replica, holds)
        return known[2], known[3]

    # what the world asks of its policy

    def leave(self, service: int) -> int:
        """The replica that empties its node, else the one beside most idle GPUs: as `scaling.leave_first`."""
        world = self._world
        staying = [one for one in world.replicas.values() if one.service == service and one.node is not None]
        held = {node: size - world.free[node] for node, size in world.sizes.items()}

        def rank(one: SimReplica) -> tuple[bool, int, int, int]:
            assert one.node is not None
            return held[one.node] > one.gpus, -(world.free[one.node] + one.gpus), one.node, one.id

        return min((one for one in staying if not one.leaving), key=rank).id


def seat(free: Mapping[int, int], gpus: int, hosting: Collection[int]) -> int | None:
    """The node for one replica: the room's own rule, over numbers of nodes."""
    names = {f"{node:03}": left for node, left in free.items()}
    found = seats.seat(names, gpus, {f"{node:03}" for node in hosting})
    return None if found is None else int(found)


def _task(job: SimJob, fate: Fate, world: World) -> WaitingTask:
    size = world.scenario.gpus_per_node
    nodes = max(-(-job.gpus // size), 1)
    left = None if job.estimate_s is None else max(job.estimate_s - fate.kept_s, 0.0)
    return WaitingTask(
        job=JobId(job.id),
        task=_MAIN,
        step="main",
        uid=Uid(f"job-{job.id}-{fate.runs}"),
        gpus=(job.gpus // nodes,),
        nodes=nodes,
        submitted_at=at(fate.visible_since),
        since=at(fate.visible_since),
        estimate_s=left,
        can_save=job.checkpoint_s is not None,
        saves=job.saves_on_sigterm,
        preempted=fate.runs > 0,
    )


def _lease(run: Run, fate: Fate, names: Mapping[int, str]) -> Lease:
    job = run.job
    return Lease(
        uid=Uid(f"job-{job.id}-{fate.runs - 1}"),
        job=JobId(job.id),
        task=_MAIN,
        step="main",
        placement={names[node]: gpus for node, gpus in run.placement.items()},
        since=at(run.since),
        stopping=run.stopped is not None,
        stop_by=None if run.free_at is None else at(run.free_at),
        can_save=job.saves_on_sigterm,
        save_s=job.save_s,
        every_s=job.checkpoint_s,
    )


def _replica(one: SimReplica, service: str, names: Mapping[int, str]) -> Replica:
    phase = ReplicaPhase.LEAVING if one.leaving else ReplicaPhase.READY
    return Replica(
        id=ReplicaId(f"{service}-{one.id}"),
        service=service,
        phase=ReplicaPhase.PENDING if one.node is None else phase,
        gpus=one.gpus,
        since=at(one.asked if one.started is None else one.started),
        node="" if one.node is None else names[one.node],
    )
