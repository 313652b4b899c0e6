"""Replicas of services, from pods, workloads and autoscalers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.adapters.kube.objects import Owner, Pod, Scaler, Workload
from scheduler.adapters.kube.services import KubeService, Serving, serving
from scheduler.fleet.demand import DemandMemory
from scheduler.fleet.pool import Pool, ReplicaPhase
from scheduler.fleet.readings import Series
from scheduler.fleet.scaling import demands
from scheduler.fleet.services import Mode
from scheduler.policy import Policy
from tests.adapters.kube_objects import SERVING, a_pod, a_scaler, a_server, a_workload
from tests.build import NOW, a_service, minutes

CHAT = KubeService(name="chat", namespace=SERVING, workload="chat", gpus_per_replica=4)
MANAGED = KubeService(name="chat", namespace=SERVING, workload="chat", gpus_per_replica=4, mode=Mode.MANAGE)


def seen(
    *pods: Pod,
    workloads: Iterable[Workload] = (),
    scalers: Iterable[Scaler] = (),
    service: KubeService = CHAT,
    since: Mapping[str, datetime] = {},
    now: datetime = NOW,
) -> Serving:
    return serving([service], pods, tuple(workloads) or [a_workload(want=0)], scalers, since, now)


def phases(told: Serving) -> list[tuple[str, str]]:
    return [(replica.id, replica.phase) for replica in told.replicas]


@pytest.mark.parametrize(
    ("pod", "phase", "since"),
    [
        (a_server(), ReplicaPhase.PENDING, NOW - minutes(60)),
        (a_server(node="node-1", ready=False), ReplicaPhase.STARTING, NOW - minutes(55)),
        (a_server(node="node-1", ready=False, started_at=None), ReplicaPhase.STARTING, NOW - minutes(60)),
        (a_server(node="node-1"), ReplicaPhase.READY, NOW - minutes(50)),
        (
            a_server(node="node-1", leaving_at=NOW + minutes(1), grace_s=90.0),
            ReplicaPhase.LEAVING,
            NOW - minutes(0.5),
        ),
    ],
)
def test_a_replica_is_where_its_pod_is(pod: Pod, phase: ReplicaPhase, since: datetime):
    (replica,) = seen(pod).replicas

    assert (replica.id, replica.phase, replica.since) == ("serving/chat-5f-a", phase, since)
    assert (replica.service, replica.gpus, replica.asked_at) == ("chat", 4, NOW - minutes(60))


def test_a_replica_that_waits_has_no_node_and_no_page():
    (replica,) = seen(a_server(nominated="node-1")).replicas

    assert (replica.node, replica.url) == ("", "")


def test_the_page_of_a_replica_is_made_of_its_address_and_its_port():
    bound = a_server(node="node-1")
    other_port = a_server(node="node-1", annotations={"prometheus.io/port": "9000"}, ip="fd00::1")
    named = KubeService(
        name="chat", namespace=SERVING, workload="chat", gpus_per_replica=4, url="http://{pod}.chat:{port}/stats"
    )

    assert seen(bound).replicas[0].url == "http://10.0.0.1:8000/metrics"
    assert seen(other_port).replicas[0].url == "http://[fd00::1]:9000/metrics"
    assert seen(bound, service=named).replicas[0].url == "http://chat-5f-a.chat:8000/stats"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_vllm_r31_pods_that_have_ended_are_no_replicas(phase: str):
    told = seen(a_server(node="node-1", phase=phase, reason="UnexpectedAdmissionError"))

    assert (told.replicas, told.by_pod) == ((), {})


@pytest.mark.parametrize(
    "stranger",
    [
        a_server("chat-two-5f-a", of="chat-two-5f", node="node-1"),
        a_server("chat-5f-a", of="chat-5f", node="node-1", namespace="elsewhere"),
        a_server("chat-5f-a", of="chat", node="node-1"),
        a_pod("chat-5f-a", 4, "node-1", namespace=SERVING),
        a_pod("chat-0", 4, "node-1", namespace=SERVING, owner=Owner(kind="StatefulSet", name="chat", uid="u")),
        a_pod("chat-x", 4, "node-1", namespace=SERVING, owner=Owner(kind="Job", name="chat", uid="u")),
    ],
    ids=["other deployment", "other namespace", "replica set of its own", "no owner", "stateful set", "job"],
)
def test_vllm_r03_pods_of_others_are_no_replicas_whatever_they_are_called(stranger: Pod):
    told = seen(a_server("chat-77-b", of="chat-77", node="node-2"), stranger)

    assert [replica.id for replica in told.replicas] == ["serving/chat-77-b"]
    assert list(told.by_pod) == ["uid-of-chat-77-b"]


def test_a_stateful_set_has_a_replica_for_each_pod():
    owner = Owner(kind="StatefulSet", name="chat", uid="u")
    pods = [a_server(f"chat-{n}", node="node-1", owner=owner) for n in range(2)]

    assert [replica.id for replica in seen(*pods, workloads=[a_workload(kind="StatefulSet", want=2)]).replicas] == [
        "serving/chat-0",
        "serving/chat-1",
    ]


def a_group(number: int, size: int, **of_the_last: Any) -> list[Pod]:
    """Pods of one replica of a LeaderWorkerSet: the leader on node-1, then its workers on node-2."""
    labels = {"leaderworkerset.sigs.k8s.io/name": "chat", "leaderworkerset.sigs.k8s.io/group-index": str(number)}
    leader, of_workers = (Owner(kind="StatefulSet", name=name, uid="u") for name in ("chat", f"chat-{number}"))
    pods = [a_server(f"chat-{number}", node="node-1", labels=labels, owner=leader)]
    for worker in range(1, size):
        fields = {"node": "node-2"} | (of_the_last if worker == size - 1 else {})
        pods.append(a_server(f"chat-{number}-{worker}", labels=labels, owner=of_workers, **fields))
    return pods


def test_a_group_of_a_leader_worker_set_is_one_replica_named_after_its_leader():
    groups = [*a_group(0, 2), *a_group(1, 2)]

    told = seen(*reversed(groups), workloads=[a_workload(kind="LeaderWorkerSet", want=2, pods_per_replica=2)])

    assert phases(told) == [("serving/chat-0", "ready"), ("serving/chat-1", "ready")]
    assert {told.by_pod[pod.uid] for pod in groups[:2]} == {"serving/chat-0"}
    assert [replica.node for replica in told.replicas] == ["node-1", "node-1"]


@pytest.mark.parametrize(
    ("last", "phase"),
    [
        ({}, "ready"),
        ({"ready": False}, "starting"),
        ({"node": ""}, "pending"),
        ({"leaving_at": NOW + minutes(1)}, "leaving"),
    ],
)
def test_a_group_is_as_far_as_its_last_pod(last: dict[str, Any], phase: str):
    told = seen(*a_group(0, 3, **last), workloads=[a_workload(kind="LeaderWorkerSet", want=1, pods_per_replica=3)])

    assert phases(told)[0] == ("serving/chat-0", phase)


def test_a_pod_that_only_says_that_it_belongs_to_a_group_does_not():
    (leader,) = a_group(0, 1)
    liar = replace(leader, uid="u-2", name="web-0", owner=Owner(kind="StatefulSet", name="web", uid="u"))

    told = seen(leader, liar, workloads=[a_workload(kind="LeaderWorkerSet")])

    assert list(told.by_pod) == [leader.uid]


def test_what_is_asked_for_waits_for_gpus_before_it_has_a_pod():
    told = seen(a_server(node="node-1"), workloads=[a_workload(want=3)])

    assert phases(told) == [
        ("serving/chat-5f-a", "ready"),
        ("chat/wanted-1", "pending"),
        ("chat/wanted-2", "pending"),
    ]
    assert told.wanted_since == {"chat/wanted-1": NOW, "chat/wanted-2": NOW}


def test_what_is_asked_for_was_asked_for_when_it_was_first_seen():
    first = seen(workloads=[a_workload(want=1)])
    later = seen(workloads=[a_workload(want=1)], since=first.wanted_since, now=NOW + minutes(1))

    assert [replica.asked_at for replica in later.replicas] == [NOW]


def test_a_replica_that_leaves_is_replaced_by_one_that_waits():
    told = seen(a_server(node="node-1", leaving_at=NOW), workloads=[a_workload(want=1)])

    assert [phase for _, phase in phases(told)] == ["leaving", "pending"]


def test_pods_beyond_what_is_asked_for_are_replicas_too():
    told = seen(*(a_server(f"chat-5f-{n}", node="node-1") for n in "ab"), workloads=[a_workload(want=1)])

    assert [phase for _, phase in phases(told)] == ["ready", "ready"]


@pytest.mark.parametrize(
    ("service", "scaler", "waiting"),
    [
        (CHAT, a_scaler(want=3), 2),
        (CHAT, a_scaler(want=3, kind="ScaledObject"), 2),
        (CHAT, a_scaler(want=0), 0),
        (CHAT, a_scaler(want=None), 0),
        (CHAT, a_scaler("code", want=3), 0),
        (MANAGED, a_scaler(want=3), 0),
    ],
)
def test_an_autoscaler_is_heard_before_it_has_written(service: KubeService, scaler: Scaler, waiting: int):
    told = seen(a_server(node="node-1"), workloads=[a_workload(want=1)], scalers=[scaler], service=service)

    assert len(told.wanted_since) == waiting


def test_a_slip_of_the_hand_in_the_replicas_does_not_fill_the_memory():
    assert len(seen(workloads=[a_workload(want=100_000)]).replicas) == 1000


def test_gpus_are_not_kept_for_ever_for_pods_that_nobody_makes():
    since = {"chat/wanted-1": NOW - minutes(3)}

    told = seen(workloads=[a_workload(want=2)], since=since)

    assert phases(told) == [("chat/wanted-2", "pending")]
    assert told.alerts == (
        "chat: 2 replicas are asked for, 1 have no pods since 21:57:00 UTC. No GPUs are kept for these any more; "
        "kubectl -n serving describe deployment chat says why (a ResourceQuota, an admission policy).",
    )
    again = seen(workloads=[a_workload(want=2)], since=told.wanted_since, now=NOW + minutes(1))
    assert phases(again) == [("chat/wanted-2", "pending")]


@pytest.mark.parametrize(
    ("workloads", "why"),
    [
        (
            [a_workload("other")],
            "there is no Deployment, StatefulSet or LeaderWorkerSet chat in namespace serving",
        ),
        (
            [a_workload(), a_workload(kind="StatefulSet")],
            "there are several workloads chat in namespace serving: Deployment, StatefulSet; rename one",
        ),
    ],
)
def test_vllm_r36_a_service_whose_workload_cannot_be_told_is_unknown(workloads: list[Workload], why: str):
    told = seen(a_server(node="node-1"), workloads=workloads)

    assert (told.unknown, told.replicas) == ({"chat": why}, ())


def test_vllm_r36_more_asked_for_than_there_are_pods_is_a_hold():
    replicas = seen(a_server(node="node-1"), workloads=[a_workload(want=3)]).replicas
    pool = Pool(at=NOW, nodes=(), replicas=replicas)
    series = [Series(replica=replica.id, samples=(), interval_s=10.0) for replica in replicas]

    (told,), _ = demands([a_service()], pool, series, DemandMemory(), Policy(), NOW)

    assert (told.have, told.want, told.known) == (1, 3, False)


@given(
    st.lists(
        st.builds(
            lambda number, node, ready, leaving, ended: a_server(
                f"chat-5f-{number}",
                node=node,
                ready=ready,
                leaving_at=NOW if leaving else None,
                phase="Failed" if ended else "Running",
            ),
            st.integers(0, 9),
            st.sampled_from(["", "node-1", "node-2"]),
            st.booleans(),
            st.booleans(),
            st.booleans(),
        ),
        unique_by=lambda pod: pod.uid,
    ),
    st.integers(0, 12),
    st.randoms(use_true_random=False),
)
def test_there_are_never_fewer_replicas_than_asked_for_and_each_live_pod_is_in_one(
    pods: list[Pod], want: int, chance: random.Random
):
    told = seen(*pods, workloads=[a_workload(want=want)])

    staying = [replica for replica in told.replicas if replica.phase is not ReplicaPhase.LEAVING]
    assert len(staying) >= want
    assert set(told.by_pod) == {pod.uid for pod in pods if not pod.terminal}
    assert all(bool(replica.node) for replica in told.replicas if replica.phase in ("ready", "starting"))
    shuffled = list(pods)
    chance.shuffle(shuffled)
    assert seen(*shuffled, workloads=[a_workload(want=want)]) == told
