"""How long a planning turn takes: `python -m tests.bench.plan` prints JSON."""

from __future__ import annotations

import json
import random
import statistics
from datetime import timedelta
from time import perf_counter

from scheduler.fleet.pool import Hold, HolderKind, Node, Pool, Replica, ReplicaId, ReplicaPhase
from scheduler.planning.planner import plan
from scheduler.planning.snapshot import Lease, Snapshot
from scheduler.policy import Policy
from tests.build import NOW, a_demand, a_lease, a_replica, a_service, a_task, a_window, hours


def a_fleet(nodes: int, tasks: int, *, wants_more: int = 0, seed: int = 7) -> Snapshot:
    """Half of the GPUs are held, by replicas and by runs; the queue is a mix of sizes, owners and habits."""
    chance = random.Random(seed)
    holds: list[Hold] = []
    replicas: list[Replica] = []
    leases: list[Lease] = []
    for number in range(nodes):
        node = f"node-{number:04}"
        if number % 2:
            replica = a_replica(f"chat-{number}", node=node)
            replicas.append(replica)
            holds.append(Hold(node=node, gpus=4, kind=HolderKind.REPLICA, holder=replica.id))
        for part in range(number % 4):
            lease = a_lease(f"run-{number}-{part}", {node: 1}, job=number + 1, held=hours(chance.uniform(0.1, 20)))
            leases.append(lease)
            holds.append(Hold(node=node, gpus=1, kind=HolderKind.RUN, holder=lease.uid))
        if number % 4 == 2:
            lease = a_lease(f"run-{number}", {node: 4}, job=number + 1, can_save=False, every_s=1800.0)
            leases.append(lease)
            holds.append(Hold(node=node, gpus=4, kind=HolderKind.RUN, holder=lease.uid))
    pending = tuple(
        Replica(id=ReplicaId(f"code-{n}"), service="code", phase=ReplicaPhase.PENDING, gpus=8, since=NOW)
        for n in range(wants_more)
    )
    pool = Pool(
        at=NOW,
        nodes=tuple(Node(name=f"node-{number:04}", gpus=8) for number in range(nodes)),
        holds=tuple(holds),
        replicas=(*replicas, *pending),
    )
    windows = [
        a_window(node, gpus, lasts=hours(chance.choice([1, 4, 10]))) for node, gpus in pool.idle().items() if gpus
    ]
    waiting = [
        a_task(
            f"sft-{number % 20}",
            job=10_000 + number // 20,
            gpus=chance.choice([1, 1, 1, 2, 4, 8, (8, 4)]),
            nodes=chance.choice([1, 1, 1, 1, 2]),
            can_save=chance.random() < 0.8,
            estimate_s=chance.uniform(600, 40_000),
            submitted_at=NOW - timedelta(seconds=chance.uniform(0, 100_000)),
            team=chance.choice(["nlp", "vision", ""]),
            parallel=chance.choice([None, 3]),
        )
        for number in range(tasks)
    ]
    return Snapshot(
        now=NOW,
        pool=pool,
        services=(a_service(max_replicas=nodes), a_service("code", gpus=8, max_replicas=nodes)),
        demands=(a_demand(have=len(replicas), want=len(replicas)), a_demand("code", have=0, want=wants_more)),
        windows=tuple(windows),
        waiting=tuple(waiting),
        leases=tuple(leases),
        team_gpus={"nlp": nodes},
    )


def rows() -> list[dict[str, object]]:
    """One row a fleet: nodes, queued tasks, replicas waiting, median milliseconds of a turn, turns per second."""
    found: list[dict[str, object]] = []
    for nodes, tasks, wants_more, repeats in (
        (100, 1_000, 0, 20),
        (100, 1_000, 20, 10),
        (1_000, 10_000, 0, 5),
        (1_000, 10_000, 40, 5),
    ):
        snapshot = a_fleet(nodes, tasks, wants_more=wants_more)
        seconds = []
        for _ in range(repeats):
            start = perf_counter()
            answer = plan(snapshot, Policy())
            seconds.append(perf_counter() - start)
        median = statistics.median(seconds)
        found.append(
            {
                "nodes": nodes,
                "tasks": tasks,
                "replicas_waiting": wants_more,
                "actions": len(answer.actions),
                "turn_ms": round(median * 1000, 2),
                "worst_ms": round(max(seconds) * 1000, 2),
                "turns_per_s": round(1 / median, 1),
            }
        )
    return found


def placements() -> dict[str, object]:
    """All is free: tasks placed a second, on 1,000 nodes of 8."""
    pool = Pool(at=NOW, nodes=tuple(Node(name=f"node-{number:04}", gpus=8) for number in range(1_000)))
    snapshot = Snapshot(
        now=NOW,
        pool=pool,
        services=(),
        demands=(),
        windows=tuple(a_window(node.name, 8) for node in pool.nodes),
        waiting=tuple(a_task(f"sft-{number}", job=number + 1, gpus=1) for number in range(8_000)),
    )
    seconds = []
    for _ in range(5):
        start = perf_counter()
        answer = plan(snapshot, Policy())
        seconds.append(perf_counter() - start)
    return {"placed": len(answer.actions), "placements_per_s": round(len(answer.actions) / statistics.median(seconds))}


if __name__ == "__main__":
    print(json.dumps(rows(), indent=2))
