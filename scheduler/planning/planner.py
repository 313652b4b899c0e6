"""One turn's decision, as a function of one snapshot: hand back first, then scale, then start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from scheduler.fleet import seats
from scheduler.fleet.pool import HolderKind, Pool, ReplicaPhase
from scheduler.fleet.seats import Missing
from scheduler.fleet.services import Mode
from scheduler.jobs.waits import WaitReason
from scheduler.planning import reclaim
from scheduler.planning.gather import gather
from scheduler.planning.moves import moves
from scheduler.planning.placement import Room
from scheduler.planning.plan import Move, Plan, Release, ScaleDown, ScaleUp, TakeBack, TaskWait
from scheduler.planning.reclaim import Candidate, Seat, Victim
from scheduler.planning.snapshot import Lease, Snapshot, WaitingTask
from scheduler.planning.starts import starts
from scheduler.policy import Policy


def plan(snapshot: Snapshot, policy: Policy) -> Plan:
    """Who gives GPUs back, which services grow or shrink, which tasks start, and why the rest waits.

    Pure: the same snapshot, in whatever order its parts stand, gives the same plan.
    """
    downs = tuple(_scale_down(snapshot))
    pool = _once_told(snapshot.pool, downs)
    ground = _survey(pool, snapshot.leases)
    seating = _seat(pool, snapshot, ground)

    take_backs, left = _hand_back(snapshot, ground, seating, policy)
    ups = _scale_up(seating)
    room = _room(snapshot, ground, left)
    releases, waits = _start(snapshot, room, seating, policy)
    shifts: tuple[Move, ...] = ()
    if not take_backs and not seating.unseated and snapshot.lending_open:
        short = _short(snapshot, waits)
        shifts = moves(pool, snapshot.services, short, room.free, policy)
        take_backs = () if shifts else _gather(snapshot, ground, short, room.free, policy)

    return Plan(at=snapshot.now, actions=(*take_backs, *downs, *ups, *releases, *shifts), waits=waits)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """The known nodes, as far as GPUs go. What is not in here is never touched."""

    sizes: Mapping[str, int]
    free: Mapping[str, int]  # nobody holds them, and no run is about to
    coming: Mapping[str, int]  # come free by themselves: nobody else need stop for them
    hosting: frozenset[str]  # nodes with replicas
    gains: Mapping[str, Mapping[str, int]]  # uid -> GPUs by node that its end would free


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seating:
    """Where the replicas that lack GPUs go."""

    lacking: tuple[Missing, ...]
    nodes: Mapping[str, tuple[str, ...]]  # service -> a node for each replica seated on idle GPUs; pending ones first
    unseated: tuple[Seat, ...]  # those that wait, the largest first
    left: Mapping[str, int]  # free GPUs that no replica is about to take


def _once_told(pool: Pool, downs: Iterable[ScaleDown]) -> Pool:
    """The pool once these replicas know that they leave: nobody need stop for GPUs that they give up."""
    leaving = {replica for down in downs for replica in down.leave_first}
    replicas = (
        replace(replica, phase=ReplicaPhase.LEAVING) if replica.id in leaving else replica for replica in pool.replicas
    )
    return replace(pool, replicas=tuple(replicas))


def _survey(pool: Pool, leases: Sequence[Lease]) -> _Ground:
    sizes = {node.name: node.gpus for node in sorted(pool.nodes, key=lambda node: node.name) if not node.unknown}
    held = _held_by_runs(pool)
    # A run that was released a moment ago may not be seen on its node yet: its GPUs are taken all the same.
    gains: dict[str, Mapping[str, int]] = {
        lease.uid: held.get(lease.uid) or _positive(lease.placement) for lease in leases
    }
    unseen = [lease for lease in leases if lease.uid not in held]
    idle = pool.idle()
    taken: Counter[str] = Counter()
    for lease in unseen:
        taken.update(_positive(lease.placement))
    stopping = {lease.uid for lease in leases if lease.stopping}
    coming = Counter(seats.coming(pool, stopping))
    for lease in unseen:
        if lease.stopping:
            coming.update({node: gpus for node, gpus in lease.placement.items() if node in sizes})
    return _Ground(
        sizes=sizes,
        free={node: max(idle[node] - taken[node], 0) for node in sizes},
        coming=coming,
        hosting=seats.hosts(pool),
        gains=gains,
    )


def _seat(pool: Pool, snapshot: Snapshot, ground: _Ground) -> _Seating:
    lacking = seats.missing(snapshot.services, snapshot.demands, pool)
    left = dict(ground.free)
    nodes: dict[str, tuple[str, ...]] = {}
    unseated: list[Seat] = []
    for service in lacking:
        if seats.fits_nowhere(service.gpus, pool):
            nodes[service.service] = ()  # whoever waited for it would wait for ever
            continue
        found = [seats.seat(left, service.gpus, ground.hosting) for _ in range(service.waiting)]
        nodes[service.service] = tuple(node for node in found if node is not None)
        unseated += [Seat(service=service.service, gpus=service.gpus) for node in found if node is None]
    return _Seating(lacking=lacking, nodes=nodes, unseated=tuple(unseated), left=left)


def _hand_back(
    snapshot: Snapshot, ground: _Ground, seating: _Seating, policy: Policy
) -> tuple[tuple[TakeBack, ...], Mapping[str, int]]:
    """Who ends, for replicas that wait and then for those that are wanted soon; and the free GPUs that this leaves."""
    if not snapshot.lending_open:
        why = "the hours in which GPUs may be lent are over"
        ordered = sorted(_candidates(snapshot, ground, policy), key=lambda candidate: candidate.lease.uid)
        return tuple(_take_back(candidate, "", why, policy) for candidate in ordered), seating.left
    room = Counter(seating.left)
    room.update(ground.coming)
    now_seats = _not_settling(seating)
    urgent = (
        reclaim.victims(now_seats, room, _candidates(snapshot, ground, policy), ground.hosting, policy)
        if now_seats
        else ()
    )
    gpus = {service.service: service.gpus for service in seating.lacking}
    found = [_urgent(victim, gpus[victim.service], policy) for victim in urgent]
    found += _hurry(snapshot, ground, now_seats, room, urgent, policy)
    soon = _soon_seats(snapshot, policy)
    if not soon:
        return tuple(found), seating.left
    free = dict(seating.left)  # what is free already is kept free, before anybody ends
    unready = [seat for seat in soon if seats.seat(free, seat.gpus, ground.hosting) is None]
    room = Counter(free)
    room.update(ground.coming)
    for victim in urgent:
        room.update(victim.candidate.gains)
    ended = {victim.candidate.lease.uid for victim in urgent}
    # Whoever has hardly begun is left alone as long as nobody really waits.
    wanted = [*now_seats, *unready]
    spare = (
        [
            one
            for one in _candidates(snapshot, ground, policy, urgent=False)
            if one.lease.uid not in ended and not one.young
        ]
        if unready
        else []
    )
    early = reclaim.victims(wanted, room, spare, ground.hosting, policy)
    for victim in early:
        room.update(victim.candidate.gains)
    whys = {one.service: one.why for one in sorted(snapshot.soon, key=lambda one: (one.chance, one.why))}
    found += [_early(victim, whys.get(victim.service, ""), policy) for victim in early]
    return tuple(found), _left_beside(free, room, wanted, ground.hosting)


def _hurry(
    snapshot: Snapshot,
    ground: _Ground,
    waiting: Sequence[Seat],
    room: Mapping[str, int],
    urgent: Sequence[Victim],
    policy: Policy,
) -> Iterator[TakeBack]:
    """Runs that were given more time than the grace, as nobody waited then, on nodes where replicas wait now."""
    latest = snapshot.now + timedelta(seconds=policy.grace_s + 1)
    slow = [lease for lease in snapshot.leases if lease.stopping and lease.kill_at and lease.kill_at > latest]
    if not waiting or not slow:
        return
    nodes = reclaim.nodes(waiting, room, [victim.candidate for victim in urgent], ground.hosting)
    for lease in sorted(slow, key=lambda lease: lease.uid):
        gains = ground.gains[lease.uid]
        if nodes is None or not gains.keys().isdisjoint(nodes):
            candidate = reclaim.candidate(lease, gains, policy, snapshot.now)
            yield _take_back(candidate, waiting[0].service, "a replica waits for its GPUs by now", policy)


def _candidates(snapshot: Snapshot, ground: _Ground, policy: Policy, *, urgent: bool = True) -> list[Candidate]:
    return [
        reclaim.candidate(lease, ground.gains[lease.uid], policy, snapshot.now, urgent=urgent)
        for lease in _movable(snapshot, ground)
    ]


def _soon_seats(snapshot: Snapshot, policy: Policy) -> list[Seat]:
    """Places to keep free, the largest first: those that will probably be wanted, and never fewer than the reserve."""
    found = [Seat(service=one.service, gpus=one.gpus) for one in snapshot.soon]
    largest = max(snapshot.services, key=lambda service: (service.gpus_per_replica, service.name), default=None)
    if largest is not None:
        reserve = Seat(service=largest.name, gpus=largest.gpus_per_replica)
        found += [reserve] * (policy.reserve_slots - len(found))
    fitting = [seat for seat in found if not seats.fits_nowhere(seat.gpus, snapshot.pool)]
    return sorted(fitting, key=lambda seat: (-seat.gpus, seat.service))


def _left_beside(
    free: Mapping[str, int], room: Mapping[str, int], wanted: Sequence[Seat], hosting: Collection[str]
) -> Mapping[str, int]:
    """The free GPUs without those on which the wanted seats stand once everybody who is ending has ended."""
    after = dict(room)
    for seat in wanted:
        seats.seat(after, seat.gpus, hosting)
    return {node: min(gpus, after.get(node, gpus)) for node, gpus in free.items()}


def _not_settling(seating: _Seating) -> list[Seat]:
    """Replicas that runs must end for: as many of each service are left out as somebody else makes room for."""
    settling = Counter({service.service: service.settling for service in seating.lacking})
    staying = []
    for seat in seating.unseated:
        if settling[seat.service] > 0:
            settling[seat.service] -= 1
        else:
            staying.append(seat)
    return staying


def _movable(snapshot: Snapshot, ground: _Ground) -> Iterator[Lease]:
    """Runs that may be asked to end: they hold GPUs, all of them on nodes that are known."""
    for lease in snapshot.leases:
        nodes = {*ground.gains[lease.uid], *lease.placement}
        if not lease.stopping and ground.gains[lease.uid] and all(node in ground.sizes for node in nodes):
            yield lease


def _scale_down(snapshot: Snapshot) -> Iterator[ScaleDown]:
    managed = {service.name for service in snapshot.services if service.mode is Mode.MANAGE}
    known = {"", *(node.name for node in snapshot.pool.nodes if not node.unknown)}
    for demand in sorted(snapshot.demands, key=lambda demand: demand.service):
        if demand.service not in managed or demand.service in snapshot.pool.unknown_services or not demand.known:
            continue
        staying: dict[str, str] = {
            replica.id: replica.node
            for replica in snapshot.pool.replicas
            if replica.service == demand.service and replica.phase is not ReplicaPhase.LEAVING
        }
        may_leave = [replica for replica in demand.leave_first if staying.get(replica) in known]
        leaving = tuple(may_leave[: max(len(staying) - demand.want, 0)])
        if leaving:
            replicas = len(staying) - len(leaving)
            yield ScaleDown(service=demand.service, replicas=replicas, leave_first=leaving, why=demand.why)


def _scale_up(seating: _Seating) -> Iterator[ScaleUp]:
    for service in sorted(seating.lacking, key=lambda service: service.service):
        nodes = seating.nodes[service.service][service.pending :]
        if nodes:
            want = service.standing + service.unasked
            gpus = "GPU is" if service.gpus == 1 else "GPUs are"
            yield ScaleUp(
                service=service.service,
                replicas=service.standing + len(nodes),
                nodes=nodes,
                why=f"wants {want}, has {service.standing}; {service.gpus} {gpus} idle on each node named",
            )


def _room(snapshot: Snapshot, ground: _Ground, left: Mapping[str, int]) -> Room:
    open_now = [window for window in snapshot.windows if window.since <= snapshot.now < window.until]
    return Room(open_now, left, ground.sizes, ground.hosting)


def _start(
    snapshot: Snapshot, room: Room, seating: _Seating, policy: Policy
) -> tuple[tuple[Release, ...], tuple[TaskWait, ...]]:
    kept = sum(seating.left.values()) - sum(room.free.values())
    service_waits = sorted({seat.service for seat in seating.unseated})
    return starts(snapshot, room, kept, service_waits, policy)


def _short(snapshot: Snapshot, waits: Sequence[TaskWait]) -> list[WaitingTask]:
    """Tasks that only lack GPUs, in the order of the queue."""
    tasks = {(task.job, task.task): task for task in snapshot.waiting}
    return [tasks[one.job, one.task] for one in waits if one.wait.reason is WaitReason.GPUS]


def _gather(
    snapshot: Snapshot, ground: _Ground, short: Sequence[WaitingTask], left: Mapping[str, int], policy: Policy
) -> tuple[TakeBack, ...]:
    """Runs that go elsewhere for a task that needs their node; one task at a time."""
    if not short or any(lease.stopping for lease in snapshot.leases):
        return ()
    candidates = _candidates(snapshot, ground, policy, urgent=False)
    found = gather(candidates, short, left, policy, snapshot.now)
    if found is None:
        return ()
    runs, task = found
    why = f"it goes on elsewhere, so that job-{task.job} finds {task.gpus[-1]} GPUs on one node"
    return tuple(_at_leisure(_take_back(run, "", why, policy), run, policy) for run in runs)


def _urgent(victim: Victim, gpus: int, policy: Policy) -> TakeBack:
    why = f"{victim.service} needs {gpus} GPUs for a replica; {_loss(victim.candidate)}"
    return _take_back(victim.candidate, victim.service, why, policy)


def _loss(candidate: Candidate) -> str:
    return f"ending this run loses {candidate.lost_s / 60:.0f} min of work"


def _early(victim: Victim, why: str, policy: Policy) -> TakeBack:
    why = f"{why or 'a place for a replica is kept free'}; {_loss(victim.candidate)}"
    action = _take_back(victim.candidate, victim.service, why, policy)
    return _at_leisure(action, victim.candidate, policy)


def _at_leisure(action: TakeBack, candidate: Candidate, policy: Policy) -> TakeBack:
    """Nobody waits yet, so that it gets the time that it needs to save."""
    lease = candidate.lease
    needs_s = min(lease.save_s, policy.early_grace_s) if lease.can_save else 0.0
    return replace(action, grace_s=max(policy.grace_s, needs_s), urgent=False)


def _take_back(candidate: Candidate, service: str, why: str, policy: Policy) -> TakeBack:
    lease = candidate.lease
    return TakeBack(
        uid=lease.uid,
        job=lease.job,
        task=lease.task,
        placement=lease.placement,
        service=service,
        grace_s=policy.grace_s,
        why=why,
    )


def _held_by_runs(pool: Pool) -> dict[str, dict[str, int]]:
    held: dict[str, dict[str, int]] = {}
    for hold in pool.holds:
        if hold.kind is HolderKind.RUN and hold.gpus > 0:
            nodes = held.setdefault(hold.holder, {})
            nodes[hold.node] = nodes.get(hold.node, 0) + hold.gpus
    return held


def _positive(placement: Mapping[str, int]) -> dict[str, int]:
    return {node: gpus for node, gpus in placement.items() if gpus > 0}
