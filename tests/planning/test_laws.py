"""What holds for every plan, whatever the world looks like."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

from hypothesis import event, given, settings
from hypothesis import strategies as st

from scheduler.codec import from_plain, to_plain
from scheduler.fleet import seats
from scheduler.fleet.forecast import Soon
from scheduler.fleet.pool import Hold, HolderKind, Node, Pool, Replica, ReplicaPhase
from scheduler.fleet.services import Mode
from scheduler.fleet.windows import Window
from scheduler.jobs.spec import Priority
from scheduler.jobs.waits import WaitReason, sentence
from scheduler.planning.plan import Move, Plan, Release, ScaleDown, ScaleUp, TakeBack
from scheduler.planning.planner import plan
from scheduler.planning.snapshot import Lease, Snapshot, WaitingTask
from scheduler.policy import Policy
from tests.build import (
    NOW,
    a_demand,
    a_lease,
    a_pending_replica,
    a_replica,
    a_service,
    a_task,
    a_window,
    hours,
    minutes,
)

SIZES = {"chat": 4, "code": 2, "big": 8}  # GPUs of one replica; each divides the next
POLICY = Policy(node_tasks=2)
LAWFUL = settings(max_examples=60, deadline=None)


# Snapshots


@st.composite
def nodes_and_holds(draw: st.DrawFn) -> tuple[list[Node], list[Hold], list[Replica], list[Lease]]:
    nodes: list[Node] = []
    holds: list[Hold] = []
    replicas: list[Replica] = []
    pieces: list[tuple[str, int]] = []
    for number in range(draw(st.integers(1, 5))):
        name = f"node-{number}"
        unknown = "its agent does not answer" if draw(st.integers(0, 5)) == 0 else ""
        nodes.append(Node(name=name, gpus=8, unknown=unknown))
        left = 8
        for who in draw(st.lists(st.sampled_from(["chat", "code", "run", "run", "run", "other", "idle"]), max_size=5)):
            gpus = SIZES[who] if who in SIZES else draw(st.sampled_from([1, 2, 4]))
            if gpus > left:
                continue
            left -= gpus
            if who == "run":
                pieces.append((name, gpus))
            elif who == "other":
                holds.append(Hold(node=name, gpus=gpus, kind=HolderKind.OTHER, holder="someone"))
            elif who in SIZES:
                phase = draw(st.sampled_from([ReplicaPhase.READY, ReplicaPhase.READY, ReplicaPhase.LEAVING]))
                replica = a_replica(f"{who}-{len(replicas)}", service=who, gpus=gpus, node=name, phase=phase)
                replicas.append(replica)
                holds.append(Hold(node=name, gpus=gpus, kind=HolderKind.REPLICA, holder=replica.id))
    leases = draw(leases_of(pieces))
    for lease in leases:
        if (
            "node-gone" not in lease.placement and draw(st.integers(0, 9)) > 0
        ):  # the others were released a moment ago and are not seen yet
            holds += [
                Hold(node=node, gpus=gpus, kind=HolderKind.RUN, holder=lease.uid)
                for node, gpus in lease.placement.items()
                if gpus
            ]
    return nodes, holds, replicas, leases


@st.composite
def leases_of(draw: st.DrawFn, pieces: list[tuple[str, int]]) -> list[Lease]:
    leases: list[Lease] = []
    for node, gpus in pieces:
        gang = [lease for lease in leases if node not in lease.placement and draw(st.integers(0, 3)) == 0][:1]
        if gang:
            leases[leases.index(gang[0])] = replace(gang[0], placement={**gang[0].placement, node: gpus})
            continue
        leases.append(
            a_lease(
                f"u-{len(leases)}",
                {node: gpus},
                job=len(leases) // 2 + 50,
                held=minutes(draw(st.sampled_from([0.5, 5, 50, 500]))),
                stopping=draw(st.integers(0, 4)) == 0,
                can_save=draw(st.booleans()),
                every_s=draw(st.sampled_from([None, 600.0])),
                team=draw(st.sampled_from(["", "nlp"])),
            )
        )
    if draw(st.booleans()):
        leases.append(a_lease("u-vanished", {"node-gone": 4}))
    return leases


@st.composite
def waiting_tasks(draw: st.DrawFn) -> list[WaitingTask]:
    tasks = []
    for number in range(draw(st.integers(0, 8))):
        tasks.append(
            a_task(
                f"sft-{number}",
                job=number // 3 + 1,
                gpus=draw(st.sampled_from([0, 1, 1, 2, 4, 8, 16, (8, 4), (4, 2, 1)])),
                nodes=draw(st.sampled_from([1, 1, 1, 2])),
                can_save=draw(st.booleans()),
                estimate_s=draw(st.sampled_from([None, 1800.0, 20_000.0])),
                preempted=draw(st.booleans()),
                priority=draw(st.sampled_from(Priority)),
                team=draw(st.sampled_from(["", "nlp"])),
                parallel=draw(st.sampled_from([None, None, 2])),
                start_after=draw(st.sampled_from([None, None, None, NOW + hours(1)])),
                deadline=draw(st.sampled_from([None, NOW + hours(3)])),
                submitted_at=NOW - minutes(draw(st.integers(0, 100))),
            )
        )
        if draw(st.integers(0, 9)) == 0:
            tasks[-1] = replace(tasks[-1], uid=None)
        if tasks[-1].gpus == (0,):
            tasks[-1] = replace(tasks[-1], nodes=1)
    return tasks


def windows_of(draw: st.DrawFn, pool: Pool) -> list[Window]:
    windows = []
    for node, idle in pool.idle().items():
        lent = draw(st.integers(0, idle))
        first = draw(st.integers(0, lent))
        for gpus, lasts in ((first, hours(1)), (lent - first, hours(12))):
            if gpus:
                windows.append(a_window(node, gpus, lasts=lasts))
    return windows


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes, holds, replicas, leases = draw(nodes_and_holds())
    pending = [
        a_pending_replica(f"{service}-pending-{number}", service=service, gpus=SIZES[service])
        for service in SIZES
        for number in range(draw(st.sampled_from([0, 0, 1, 2])))
    ]
    pool = Pool(at=NOW, nodes=tuple(nodes), holds=tuple(holds), replicas=(*replicas, *pending))
    demands = []
    for service in SIZES:
        staying = [one.id for one in pool.replicas if one.service == service and one.phase is not ReplicaPhase.LEAVING]
        want = max(len(staying) + draw(st.integers(-2, 3)), 0)
        known = want < len(staying) or draw(st.booleans())
        demands.append(a_demand(service, have=len(staying), want=want, known=known, leave_first=tuple(staying)))
    return Snapshot(
        now=NOW,
        pool=pool,
        services=tuple(
            a_service(name, gpus=gpus, mode=draw(st.sampled_from(Mode)), max_replicas=20, moves=draw(st.booleans()))
            for name, gpus in SIZES.items()
        ),
        demands=tuple(demands),
        windows=tuple(windows_of(draw, pool)),
        soon=tuple(a_soon(draw(st.sampled_from(list(SIZES)))) for _ in range(draw(st.sampled_from([0, 0, 1, 2])))),
        waiting=tuple(draw(waiting_tasks())),
        leases=tuple(leases),
        team_gpus=draw(st.sampled_from([{}, {"nlp": 4}])),
        lending_open=draw(st.integers(0, 9)) > 0,
    )


def a_soon(service: str) -> Soon:
    return Soon(service=service, gpus=SIZES[service], chance=0.3, why=f"{service} grows")


# What becomes of the world when a plan is carried out


def of_kind(answer: Plan, kind: type) -> list:
    return [action for action in answer.actions if isinstance(action, kind)]


def carried_out(snapshot: Snapshot, answer: Plan) -> Snapshot:
    """The world a moment later: told to stop, told to leave, started; nothing has come free yet."""
    ending = {action.uid for action in of_kind(answer, TakeBack)}
    leaving = {name for action in of_kind(answer, ScaleDown) for name in action.leave_first}
    pool = snapshot.pool
    holds = [replace(hold, ending=hold.ending or hold.holder in ending | leaving) for hold in pool.holds]
    replicas = [
        replace(one, phase=ReplicaPhase.LEAVING) if one.id in leaving else one
        for one in pool.replicas
        if not (one.id in leaving and one.phase is ReplicaPhase.PENDING)
    ]
    for action in of_kind(answer, ScaleUp):
        for number, node in enumerate(action.nodes):
            gpus = SIZES[action.service]
            new = a_replica(f"{action.service}-new-{number}", service=action.service, gpus=gpus, node=node)
            replicas.append(replace(new, phase=ReplicaPhase.STARTING))
            holds.append(Hold(node=node, gpus=gpus, kind=HolderKind.REPLICA, holder=new.id))
    leases = [replace(lease, stopping=lease.stopping or lease.uid in ending) for lease in snapshot.leases]
    tasks = {task.uid: task for task in snapshot.waiting}
    lent: Counter[str] = Counter()
    for action in of_kind(answer, Release):
        task = tasks[action.uid]
        lent.update(action.placement)
        leases.append(
            a_lease(action.uid, action.placement, job=task.job, task=task.task, step=task.step, team=task.team)
        )
        holds += [
            Hold(node=node, gpus=gpus, kind=HolderKind.RUN, holder=action.uid)
            for node, gpus in action.placement.items()
            if gpus
        ]
    started = {action.uid for action in of_kind(answer, Release)}
    return replace(
        snapshot,
        pool=replace(pool, holds=tuple(holds), replicas=tuple(replicas)),
        leases=tuple(leases),
        waiting=tuple(task for task in snapshot.waiting if task.uid is None or task.uid not in started),
        windows=tuple(shortened(snapshot.windows, lent)),
    )


def shortened(windows: Iterable[Window], lent: Mapping[str, int]) -> Iterable[Window]:
    left = dict(lent)
    for window in sorted(windows, key=lambda window: window.until, reverse=True):
        taken = min(left.get(window.node, 0), window.gpus)
        left[window.node] = left.get(window.node, 0) - taken
        if window.gpus > taken:
            yield replace(window, gpus=window.gpus - taken)


def waiting_and_room(snapshot: Snapshot, gone: Iterable[str] = ()) -> tuple[list[int], Counter[str]]:
    """Sizes of the replicas that find no idle GPUs, and what comes free for them, also where these runs end."""
    seen = {hold.holder for hold in snapshot.pool.holds}
    unseen = [lease for lease in snapshot.leases if lease.uid not in seen]
    idle = Counter(snapshot.pool.idle())
    known = {node.name for node in snapshot.pool.nodes if not node.unknown}
    for lease in unseen:
        idle.subtract({node: gpus for node, gpus in lease.placement.items() if node in known})
    hosting = seats.hosts(snapshot.pool)
    lacking = seats.missing(snapshot.services, snapshot.demands, snapshot.pool)
    wanted = [one.gpus for one in lacking for _ in range(one.waiting)]
    rest = [gpus for gpus in wanted if seats.seat(idle, gpus, hosting) is None]
    stopping = {lease.uid for lease in snapshot.leases if lease.stopping} | set(gone)
    idle.update(seats.coming(snapshot.pool, stopping))
    for lease in unseen:
        if lease.uid in stopping:
            idle.update({node: gpus for node, gpus in lease.placement.items() if node in known})
    return rest, idle


def seated(sizes: Iterable[int], room: Counter[str]) -> list[int]:
    return [gpus for gpus in sizes if seats.seat(room, gpus, ()) is not None]


# Laws


@LAWFUL
@given(snapshots())
def test_no_gpu_is_ever_in_two_hands(snapshot):
    later = carried_out(snapshot, plan(snapshot, POLICY))

    # The pool itself refuses more holds than a node has GPUs; runs that are not seen yet hold theirs as well.
    seen = {hold.holder for hold in later.pool.holds}
    held = Counter(later.pool.held())
    for lease in later.leases:
        if lease.uid not in seen:
            held.update(lease.placement)
    assert all(held[node.name] <= node.gpus for node in later.pool.nodes)


@LAWFUL
@given(snapshots())
def test_tasks_get_only_gpus_that_may_be_lent(snapshot):
    lent: Counter[str] = Counter()
    for action in of_kind(plan(snapshot, POLICY), Release):
        lent.update(action.placement)

    lendable: Counter[str] = Counter()
    for window in snapshot.windows:
        lendable[window.node] += window.gpus
    assert lent <= lendable


@LAWFUL
@given(snapshots())
def test_nodes_of_which_too_little_is_known_are_never_touched(snapshot):
    unknown = {node.name for node in snapshot.pool.nodes if node.unknown} | {"node-gone"}
    where = {replica.id: replica.node for replica in snapshot.pool.replicas}

    answer = plan(snapshot, POLICY)

    touched = {node for action in of_kind(answer, Release) + of_kind(answer, TakeBack) for node in action.placement}
    touched |= {node for action in of_kind(answer, ScaleUp) for node in action.nodes}
    touched |= {where[name] for action in of_kind(answer, ScaleDown) for name in action.leave_first}
    assert not touched & unknown


@LAWFUL
@given(snapshots())
def test_none_of_those_who_give_gpus_back_could_have_been_spared(snapshot):
    snapshot = replace(snapshot, lending_open=True)
    answer = plan(snapshot, POLICY)
    victims = {action.uid for action in of_kind(answer, TakeBack) if action.urgent}
    event(f"{len(victims)} runs end")
    told = carried_out(snapshot, replace(answer, actions=tuple(of_kind(answer, ScaleDown))))

    served = seated(*waiting_and_room(told, victims))
    for spared in victims:
        # Fewer runs never free more, so trying each one alone tries every smaller set.
        _, room = waiting_and_room(told, victims - {spared})
        assert seated(served, room) != served


@LAWFUL
@given(snapshots())
def test_no_service_waits_for_gpus_that_runs_could_still_give_back(snapshot):
    later = carried_out(snapshot, plan(replace(snapshot, lending_open=True), POLICY))
    known = {node.name for node in later.pool.nodes if not node.unknown}
    movable = {lease.uid for lease in later.leases if set(lease.placement) <= known}

    for run in movable:
        assert seated(*waiting_and_room(later, {run})) == seated(*waiting_and_room(later))


@LAWFUL
@given(snapshots())
def test_nothing_starts_while_a_service_waits(snapshot):
    answer = plan(snapshot, POLICY)
    told = carried_out(snapshot, replace(answer, actions=tuple(of_kind(answer, ScaleDown))))
    still = replace(told, pool=never_ending(told.pool), leases=tuple(map(running, told.leases)))
    waiting, _ = waiting_and_room(still)
    event("a service waits" if waiting else "no service waits")

    if waiting:
        assert of_kind(answer, Release) == []
        assert all(sentence(one.wait) for one in answer.waits)


def never_ending(pool: Pool) -> Pool:
    gone = {replica.id for replica in pool.replicas if replica.phase is ReplicaPhase.LEAVING}
    return replace(
        pool,
        holds=tuple(replace(hold, ending=False) for hold in pool.holds),
        replicas=tuple(one for one in pool.replicas if one.id not in gone),
    )


def running(lease: Lease) -> Lease:
    return replace(lease, stopping=False)


@LAWFUL
@given(snapshots())
def test_every_waiting_task_is_released_or_told_why_exactly_once(snapshot):
    answer = plan(snapshot, POLICY)

    named = [(one.job, one.task) for one in (*of_kind(answer, Release), *answer.waits)]
    assert sorted(named) == sorted((task.job, task.task) for task in snapshot.waiting)


@LAWFUL
@given(snapshots())
def test_a_task_waits_for_gpus_only_if_no_node_has_them(snapshot):
    answer = plan(snapshot, POLICY)
    later = carried_out(snapshot, answer)
    tasks = {(task.job, task.task): task for task in snapshot.waiting}
    free: Counter[str] = Counter()
    for window in later.windows:
        free[window.node] += window.gpus
    seated = Counter(node for action in of_kind(answer, ScaleUp) for node in action.nodes)
    idle = later.pool.idle()
    seen = {hold.holder for hold in later.pool.holds}
    pending = any(one.phase is ReplicaPhase.PENDING for one in later.pool.replicas)

    for one in answer.waits:
        task = tasks[one.job, one.task]
        if one.wait.reason not in {WaitReason.GPUS, WaitReason.QUEUE} or task.gpus == (0,) or pending:
            continue
        unseen = {node for lease in later.leases if lease.uid not in seen for node in lease.placement}
        open_nodes = [node for node in free if node not in unseen and not seated[node]]
        fitting = [node for node in open_nodes if min(free[node], idle[node]) >= task.gpus[-1]]
        assert len(fitting) < task.nodes
        assert one.wait.reason is WaitReason.QUEUE or one.wait.short_by > 0


@LAWFUL
@given(snapshots(), st.randoms(use_true_random=False))
def test_the_same_snapshot_in_any_order_gives_the_same_plan(snapshot, chance):
    shuffled = replace(
        snapshot,
        pool=replace(
            snapshot.pool,
            nodes=in_some_order(chance, snapshot.pool.nodes),
            holds=in_some_order(chance, snapshot.pool.holds),
            replicas=in_some_order(chance, snapshot.pool.replicas),
        ),
        services=in_some_order(chance, snapshot.services),
        demands=in_some_order(chance, snapshot.demands),
        windows=in_some_order(chance, snapshot.windows),
        soon=in_some_order(chance, snapshot.soon),
        waiting=in_some_order(chance, snapshot.waiting),
        leases=in_some_order(chance, snapshot.leases),
    )

    assert plan(shuffled, POLICY) == plan(snapshot, POLICY)


@LAWFUL
@given(snapshots())
def test_a_replica_moves_only_to_gpus_that_nobody_gets_and_leaves_its_node_empty(snapshot):
    snapshot = replace(snapshot, pool=replace(snapshot.pool, replicas=tuple(map(settled, snapshot.pool.replicas))))
    answer = plan(snapshot, POLICY)
    for move in of_kind(answer, Move):
        later = carried_out(snapshot, answer)
        (replica,) = [one for one in later.pool.replicas if one.id == move.replica]
        idle = Counter(later.pool.idle())
        size = next(node.gpus for node in later.pool.nodes if node.name == replica.node)

        assert idle[move.node] >= replica.gpus
        assert idle[replica.node] + replica.gpus == size
        assert any(task.nodes * task.gpus[-1] >= size for task in snapshot.waiting)


def settled(replica: Replica) -> Replica:
    return replace(replica, since=NOW - hours(1))


def in_some_order(chance: Random, values: tuple) -> tuple:
    return tuple(chance.sample(values, len(values)))


@LAWFUL
@given(snapshots())
def test_a_plan_that_is_being_carried_out_asks_for_nothing_twice(snapshot):
    answer = plan(snapshot, POLICY)
    later = carried_out(snapshot, answer)
    pending = any(one.phase is ReplicaPhase.PENDING for one in later.pool.replicas)

    # Where a pending replica goes is not ours to say: once others have grown, another node may be better for it.
    if not (pending and of_kind(answer, ScaleUp)):
        assert [one for one in plan(later, POLICY).actions if not isinstance(one, Move)] == []


@LAWFUL
@given(snapshots())
def test_services_come_before_jobs_in_the_order_of_actions(snapshot):
    order = [TakeBack, ScaleDown, ScaleUp, Release, Move]
    places = [order.index(type(action)) for action in plan(snapshot, POLICY).actions]

    assert places == sorted(places)


@LAWFUL
@given(snapshots())
def test_gangs_get_all_their_nodes_and_no_task_more_than_it_chose(snapshot):
    tasks = {task.uid: task for task in snapshot.waiting}

    for action in of_kind(plan(snapshot, POLICY), Release):
        task = tasks[action.uid]
        assert len(action.placement) == task.nodes
        assert len(set(action.placement.values())) == 1
        assert set(action.placement.values()) <= set(task.gpus)


@LAWFUL
@given(snapshots())
def test_a_task_that_cannot_save_starts_only_where_it_can_end(snapshot):
    tasks = {task.uid: task for task in snapshot.waiting}

    for action in of_kind(plan(snapshot, POLICY), Release):
        task = tasks[action.uid]
        if not task.can_save and task.gpus != (0,):
            needed_s = POLICY.horizon_s if task.estimate_s is None else task.estimate_s
            assert (action.until - NOW).total_seconds() >= needed_s


@LAWFUL
@given(snapshots())
def test_limits_of_teams_and_steps_are_kept(snapshot):
    answer = plan(snapshot, POLICY)
    later = carried_out(snapshot, answer)

    gpus = sum(sum(lease.placement.values()) for lease in later.leases if lease.team == "nlp")
    before = sum(sum(lease.placement.values()) for lease in snapshot.leases if lease.team == "nlp")
    assert gpus <= max(snapshot.team_gpus.get("nlp", 1000), before)
    steps = Counter((lease.job, lease.step) for lease in later.leases)
    tasks = {task.uid: task for task in snapshot.waiting}
    for action in of_kind(answer, Release):
        task = tasks[action.uid]
        assert task.parallel is None or steps[task.job, task.step] <= task.parallel or mixed(task, snapshot)


def mixed(task: WaitingTask, snapshot: Snapshot) -> bool:
    """Whether tasks of its step disagree on the limit, which only a drawn snapshot does."""
    return len({one.parallel for one in snapshot.waiting if (one.job, one.step) == (task.job, task.step)}) > 1


@LAWFUL
@given(snapshots())
def test_a_snapshot_replays_from_json(snapshot):
    replayed = from_plain(json.loads(json.dumps(to_plain(snapshot))), Snapshot)
    answer = plan(snapshot, POLICY)

    assert replayed == snapshot
    assert plan(replayed, POLICY) == answer
    assert from_plain(json.loads(json.dumps(to_plain(answer))), Plan) == answer
