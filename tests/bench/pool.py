"""How long it takes to make a pool of what is watched of a cluster: `python -m tests.bench.pool` prints JSON."""

from __future__ import annotations

import json
import random
import statistics
from time import perf_counter
from typing import Any

from kubernetes import client

from scheduler.adapters.kube.api import Api
from scheduler.adapters.kube.cluster import ClusterTerms, KubeCluster
from scheduler.adapters.kube.objects import KubeNode, Pod, Workload
from scheduler.adapters.kube.services import KubeService
from tests.adapters.kube_objects import (
    JOBS,
    SERVING,
    Shelf,
    StillWatching,
    a_node,
    a_pod,
    a_server,
    a_workload,
    an_attempt,
)
from tests.build import NOW


def a_cluster(nodes: int, pods: int, *, seed: int = 7) -> tuple[list[KubeNode], list[Pod], list[Workload]]:
    """A tenth of the pods belongs to other people, a fifth has no GPUs, half of the attempts is gated."""
    chance = random.Random(seed)
    free = {f"node-{number:04}": 8 for number in range(nodes)}
    made: list[Pod] = []
    for number in range(pods):
        node = chance.choice(list(free)) if free else ""
        gpus = chance.choice([1, 1, 1, 2])
        bound = node if node and free[node] >= gpus else ""
        kind = number % 10
        if kind < 2:
            made.append(a_pod(f"web-{number}", 0, f"node-{number % nodes:04}"))
            continue
        if bound:
            free[bound] -= gpus
            if not free[bound]:
                del free[bound]
        if kind == 2:
            made.append(a_pod(f"other-{number}", gpus, bound))
        elif kind < 5:
            made.append(a_server(f"chat-{number % 20}-5f-{number}", gpus, bound, of=f"chat-{number % 20}-5f"))
        else:
            gates = () if bound else ("gpujob.io/hold",)
            made.append(an_attempt(f"job-{number}-sft-0", gpus, bound, gates=gates))
    workloads = [a_workload(f"chat-{number}", pods // 60) for number in range(20)]
    return [a_node(f"node-{number:04}") for number in range(nodes)], made, workloads


def a_watched(nodes: int, pods: int) -> KubeCluster:
    """The port, on such a cluster."""
    there, running, workloads = a_cluster(nodes, pods)
    watching: Any = StillWatching(nodes=Shelf(*there), pods=Shelf(*running), serving=workloads)
    services = [
        KubeService(name=one.name, namespace=SERVING, workload=one.name, gpus_per_replica=1) for one in workloads
    ]
    return KubeCluster(Api(client.Configuration()), watching, services, ClusterTerms(namespace=JOBS), lambda: NOW)


def rows() -> list[dict[str, object]]:
    """One row a cluster: nodes, pods, holds of the pool, median and worst milliseconds of a pool."""
    found: list[dict[str, object]] = []
    for nodes, pods in ((100, 1_000), (1_000, 10_000)):
        cluster = a_watched(nodes, pods)
        taken = []
        for _ in range(10):
            start = perf_counter()
            pool = cluster.pool(NOW)
            taken.append((perf_counter() - start) * 1000)
        found.append(
            {
                "nodes": nodes,
                "pods": pods,
                "holds": len(pool.holds),
                "replicas": len(pool.replicas),
                "pool_ms": round(statistics.median(taken), 1),
                "worst_ms": round(max(taken), 1),
            }
        )
    return found


if __name__ == "__main__":
    print(json.dumps(rows(), indent=2))
