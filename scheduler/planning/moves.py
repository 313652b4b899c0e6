"""Which replica moves so that a whole node comes free for a task that needs one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from scheduler.fleet.pool import Pool, Replica, ReplicaPhase
from scheduler.fleet.services import Service
from scheduler.planning.plan import Move
from scheduler.planning.snapshot import WaitingTask
from scheduler.policy import Policy


def moves(
    pool: Pool,
    services: Iterable[Service],
    waiting: Iterable[WaitingTask],
    left: Mapping[str, int],
    policy: Policy,
) -> tuple[Move, ...]:
    """At most one move: a replica that stands alone on its node goes to GPUs that are left beside others.

    `waiting` are tasks that found no GPUs; `left` are GPUs that nobody gets in this turn, by node.
    """
    sizes = {node.name: node.gpus for node in pool.nodes if not node.unknown}
    movable = {service.name for service in services if service.moves}
    whole = Counter(sizes[node] for node, gpus in left.items() if gpus == sizes.get(node))
    wanted = [
        task for task in waiting if task.nodes == 1 + sum(n for size, n in whole.items() if size >= task.gpus[-1])
    ]
    if not movable or not wanted:
        return ()
    needs = min(task.gpus[-1] for task in wanted)
    offers = [
        (gpus, node, replica)
        for replica in _alone(pool, sizes, left, pool.at - timedelta(seconds=policy.move_after_s))
        if replica.service in movable and sizes[replica.node] >= needs > left.get(replica.node, 0)
        for node, gpus in left.items()
        if node != replica.node and replica.gpus <= gpus < sizes.get(node, 0)
    ]
    if not offers:
        return ()
    _, node, replica = min(offers, key=lambda offer: (offer[0], offer[1], offer[2].id))
    why = f"{replica.node} comes free whole for a task that waits for one"
    return (Move(service=replica.service, replica=replica.id, node=node, why=why),)


def _alone(pool: Pool, sizes: Mapping[str, int], left: Mapping[str, int], settled: datetime) -> Iterator[Replica]:
    """Replicas that have stood for a while on a node of which they alone hold GPUs."""
    for replica in pool.replicas:
        known = replica.node in sizes and replica.phase is ReplicaPhase.READY and replica.since <= settled
        if known and left.get(replica.node, 0) + replica.gpus == sizes[replica.node]:
            yield replica
