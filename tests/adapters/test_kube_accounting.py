"""GPUs of nodes and who holds them, from nodes and pods as the API server tells them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.adapters.kube.accounting import Accounts, Terms, count
from scheduler.adapters.kube.names import GATE
from scheduler.adapters.kube.objects import KubeNode, Pod, Taint
from scheduler.fleet.pool import Hold, HolderKind, Pool, ReplicaId
from tests.adapters.kube_objects import GPU, JOBS, a_node, a_pod, a_server, an_attempt
from tests.build import NOW, minutes

TERMS = Terms(namespace=JOBS, tolerations=(Taint(key=GPU),))


def counted(
    nodes: Iterable[KubeNode],
    pods: Iterable[Pod] = (),
    replicas: Mapping[str, str] = {},
    terms: Terms = TERMS,
) -> Accounts:
    known = {uid: ReplicaId(name) for uid, name in replicas.items()}
    return count(nodes, pods, known, terms, NOW)


def a_pool(accounts: Accounts) -> Pool:
    return Pool(at=NOW, nodes=accounts.nodes, holds=accounts.holds, alerts=accounts.alerts)


def idle(*pods: Pod) -> int:
    """GPUs of a node of 8 that nobody holds."""
    return a_pool(counted([a_node()], pods)).idle()["node-1"]


def test_gpus_are_told_by_who_holds_them():
    server = a_server("chat-5f-a", 4, "node-1")
    pods = [server, an_attempt("job-1-sft-0", 2, "node-1", run="u-7"), a_pod("notebook", 1, "node-1")]

    accounts = counted([a_node()], pods, {server.uid: "serving/chat-5f-a"})

    assert accounts.holds == (
        Hold(node="node-1", gpus=1, kind=HolderKind.OTHER, holder="other/notebook"),
        Hold(node="node-1", gpus=4, kind=HolderKind.REPLICA, holder="serving/chat-5f-a"),
        Hold(node="node-1", gpus=2, kind=HolderKind.RUN, holder="u-7"),
    )
    assert a_pool(accounts).idle() == {"node-1": 1}


def test_an_attempt_without_the_uid_of_its_run_is_held_by_itself():
    pod = an_attempt("job-1-sft-0", 2, "node-1")

    assert [hold.holder for hold in counted([a_node()], [pod]).holds] == [pod.attempt]


def test_pods_of_other_people_in_our_namespace_are_not_ours():
    pod = a_pod("notebook", 2, "node-1", namespace=JOBS)

    assert [(hold.kind, hold.holder) for hold in counted([a_node()], [pod]).holds] == [
        (HolderKind.OTHER, "gpujobs/notebook")
    ]


def test_pods_in_other_namespaces_are_not_ours_whatever_their_labels_say():
    pod = an_attempt("job-1-sft-0", 2, "node-1", namespace="other")

    assert [hold.kind for hold in counted([a_node()], [pod]).holds] == [HolderKind.OTHER]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_vllm_r31_pods_that_have_ended_or_were_refused_hold_nothing(phase: str):
    assert idle(a_pod(gpus=3, node="node-1", phase=phase, reason="UnexpectedAdmissionError")) == 8


def test_vllm_r31_pods_without_a_node_hold_nothing():
    assert idle(a_pod(gpus=3)) == 8


def test_vllm_r31_pods_that_are_told_to_go_hold_their_gpus_until_they_have_ended():
    accounts = counted([a_node()], [a_pod(gpus=3, node="node-1", leaving_at=NOW + minutes(1))])

    assert (a_pool(accounts).idle()["node-1"], accounts.holds[0].ending) == (5, True)


def test_argo_r26_a_terminating_attempt_is_occupancy():
    accounts = counted([a_node()], [an_attempt(gpus=8, node="node-1", run="u-1", leaving_at=NOW + minutes(1))])

    assert accounts.holds == (Hold(node="node-1", gpus=8, kind=HolderKind.RUN, holder="u-1", ending=True),)


def test_a_release_that_is_not_bound_yet_holds_what_it_was_given():
    assert idle(an_attempt(gpus=3, pinned="node-1")) == 5


def test_argo_r25_an_attempt_with_a_gate_of_anybody_holds_nothing():
    assert idle(an_attempt(gpus=3, pinned="node-1", gates=("kueue.x-k8s.io/admission",))) == 8


def test_pins_of_other_people_are_no_promise_of_ours():
    assert idle(a_pod(gpus=3, pinned="node-1")) == 8


def test_a_nominated_pod_holds_what_is_free_of_its_node():
    victim = an_attempt(gpus=6, node="node-1", leaving_at=NOW + minutes(1))

    assert idle(a_pod("big", 8, nominated="node-1")) == 0
    accounts = counted([a_node()], [victim, a_pod("big", 8, nominated="node-1")])
    assert [(hold.gpus, hold.holder) for hold in accounts.holds] == [(6, victim.attempt), (2, "other/big")]


def test_what_is_kept_for_a_nominated_replica_comes_free_for_it():
    server = a_server("chat-5f-a", 4, nominated="node-1")

    accounts = counted([a_node()], [server], {server.uid: "serving/chat-5f-a"})

    assert [(hold.gpus, hold.ending) for hold in accounts.holds] == [(4, True)]


def test_promises_never_make_more_of_a_node_than_it_is():
    pods = [
        a_pod("other", 6, "node-1"),
        an_attempt("job-1-a", 2, pinned="node-1"),
        an_attempt("job-1-b", 4, pinned="node-1"),
    ]

    accounts = counted([a_node()], pods)

    assert (sum(hold.gpus for hold in accounts.holds), accounts.nodes[0].unknown) == (8, "")


def test_of_two_promises_that_do_not_fit_the_older_counts_and_a_release_before_a_nomination():
    older = an_attempt("job-1-b", 5, pinned="node-1", created_at=NOW - minutes(9))
    newer = an_attempt("job-1-a", 5, pinned="node-1", created_at=NOW - minutes(8))
    nominated = a_pod("big", 5, nominated="node-1", created_at=NOW - minutes(99))

    for pods in ([older, newer, nominated], [nominated, newer, older]):
        accounts = counted([a_node()], pods)
        assert accounts.promised == {older.uid: "node-1"}
        assert {hold.holder: hold.gpus for hold in accounts.holds} == {older.attempt: 5, newer.attempt: 3}


UNKNOWN: tuple[tuple[dict[str, Any], str], ...] = (
    ({"cordoned": True}, "cordoned"),
    (
        {"ready": False, "ready_why": "Kubelet stopped posting node status."},
        "not ready: Kubelet stopped posting node status.",
    ),
    ({"deleting": True}, "it is being deleted"),
    (
        {"taints": (Taint(key="team", value="a", effect="NoSchedule"),)},
        "jobs do not tolerate its taint team=a:NoSchedule",
    ),
    ({"taints": (Taint(key="drain", effect="NoExecute"),)}, "jobs do not tolerate its taint drain:NoExecute"),
    ({"allocatable": {GPU: 0}}, "all of its 8 GPUs are unhealthy or its device plugin is down"),
    ({"allocatable": {}}, "all of its 8 GPUs are unhealthy or its device plugin is down"),
    (
        {"labels": {"nvidia.com/gpu.sharing-strategy": "time-slicing"}},
        "its GPUs are shared (nvidia.com/gpu.sharing-strategy=time-slicing)",
    ),
    ({"labels": {"nvidia.com/gpu.replicas": "10"}}, "its GPUs are shared (nvidia.com/gpu.replicas=10)"),
    (
        {"labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}},
        "its GPUs are shared (nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB-MIG-1g.5gb)",
    ),
    (
        {"labels": {"nvidia.com/gpu.product": "Tesla-T4-SHARED"}},
        "its GPUs are shared (nvidia.com/gpu.product=Tesla-T4-SHARED)",
    ),
    (
        {"labels": {"kubernetes.io/hostname": "ip-10"}},
        "its label kubernetes.io/hostname is 'ip-10', not its name, so no job finds it",
    ),
)


@pytest.mark.parametrize(("fields", "why"), UNKNOWN, ids=[why for _, why in UNKNOWN])
def test_a_node_of_which_something_is_wrong_is_unknown_and_lends_nothing(fields: dict[str, Any], why: str):
    accounts = counted([a_node(**fields)], [a_pod(gpus=2, node="node-1")])

    assert [(node.gpus, node.unknown) for node in accounts.nodes] == [(8, why)]
    assert a_pool(accounts).idle() == {"node-1": 0}


@pytest.mark.parametrize(
    "fields",
    [
        {"taints": (Taint(key=GPU, value="present", effect="NoSchedule"),)},
        {"taints": (Taint(key="team", effect="PreferNoSchedule"),)},
        {"labels": {"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.replicas": "1"}},
    ],
)
def test_a_node_that_jobs_may_use_is_known(fields: dict[str, Any]):
    assert a_pool(counted([a_node(**fields)])).idle() == {"node-1": 8}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Taint(key="team"), True),
        (Taint(key="team", value="a"), True),
        (Taint(key="team", value="a", effect="NoSchedule"), True),
        (Taint(key="team", value="b"), False),
        (Taint(key="team", effect="NoExecute"), False),
        (Taint(key="teams"), False),
    ],
)
def test_tolerations_are_matched_by_what_they_name(toleration: Taint, tolerated: bool):
    node = a_node(taints=(Taint(key="team", value="a", effect="NoSchedule"),))

    (told,) = counted([node], terms=replace(TERMS, tolerations=(toleration,))).nodes

    assert (told.unknown == "") is tolerated


def test_argo_r17_a_lost_node_is_excluded_at_once_and_its_run_stays_on_it():
    lost = a_node(ready=False, ready_why="NodeStatusUnknown")

    accounts = counted([lost, a_node("node-2")], [an_attempt(gpus=8, node="node-1", run="u-1")])

    assert a_pool(accounts).idle() == {"node-1": 0, "node-2": 8}
    assert [(hold.node, hold.holder) for hold in accounts.holds] == [("node-1", "u-1")]


def test_a_node_that_lost_devices_under_its_pods_is_unknown_and_large_enough():
    accounts = counted([a_node(allocatable={GPU: 6})], [a_pod(gpus=7, node="node-1")])

    assert [(node.gpus, node.unknown) for node in accounts.nodes] == [(8, "its pods hold 7 GPUs, only 6 are healthy")]


def test_devices_that_are_not_healthy_are_not_lent():
    assert a_pool(counted([a_node(allocatable={GPU: 7})], [a_pod(gpus=2, node="node-1")])).idle() == {"node-1": 5}


def test_gpus_held_on_a_node_that_is_gone_are_on_an_unknown_node():
    accounts = counted([], [an_attempt(gpus=4, node="node-9", run="u-1")])

    assert [(one.name, one.gpus, one.unknown) for one in a_pool(accounts).nodes] == [
        ("node-9", 4, "there is no Node of this name any more")
    ]


def test_nodes_without_gpus_are_not_in_the_pool():
    assert counted([a_node("web-1", 0), a_node("web-2", capacity={}, allocatable={})]) == Accounts(nodes=(), holds=())


def test_a_node_with_room_for_a_release_is_told_until_the_pod_is_there():
    small, large = an_attempt("job-1-a", 6, pinned="node-1"), an_attempt("job-1-b", 4, pinned="node-1")

    assert counted([a_node()], [small, large]).promised == {small.uid: "node-1"}
    assert counted([a_node()], [replace(small, node="node-1")]).promised == {}


LEFT_OUT: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"labels": {"nvidia.com/gpu.sharing-strategy": "mps"}},
        "Nodes share GPUs (nvidia.com/gpu.sharing-strategy=mps), which gpujob does not lend: node-1.",
    ),
    (
        {"capacity": {"nvidia.com/gpu.shared": 80}, "allocatable": {"nvidia.com/gpu.shared": 80}},
        "Nodes share GPUs (nvidia.com/gpu.shared), which gpujob does not lend: node-1.",
    ),
    (
        {"capacity": {"nvidia.com/mig-1g.5gb": 7}, "allocatable": {"nvidia.com/mig-1g.5gb": 7}},
        "Nodes have nvidia.com/mig-1g.5gb; gpujob lends nvidia.com/gpu and leaves these out: node-1.",
    ),
    (
        {"capacity": {"amd.com/gpu": 8}, "allocatable": {"amd.com/gpu": 8}},
        "Nodes have amd.com/gpu; gpujob lends nvidia.com/gpu and leaves these out: node-1.",
    ),
    (
        {"capacity": {}, "allocatable": {}, "labels": {"nvidia.com/gpu.product": "H100"}},
        "Nodes have GPUs that they do not offer as nvidia.com/gpu: no device plugin, or DRA, which gpujob cannot lend: "
        "node-1.",
    ),
)


@pytest.mark.parametrize(("fields", "alert"), LEFT_OUT)
def test_vllm_r33_what_is_no_whole_gpu_is_refused_with_a_sentence(fields: dict[str, Any], alert: str):
    accounts = counted([a_node(**fields)])

    assert accounts.alerts == (alert,)
    assert sum(a_pool(accounts).idle().values()) == 0


def test_vllm_r33_claims_of_pods_are_told_of():
    pods = [a_pod(f"p-{n}", 0, "node-1", claims=True) for n in range(5)]

    assert counted([a_node()], pods).alerts == (
        "Pods ask for devices by resourceClaims (DRA), which gpujob does not count: other/p-0, other/p-1, other/p-2 "
        "and 2 more.",
    )


def test_vllm_r33_mig_slices_are_a_type_of_their_own():
    slices = "nvidia.com/mig-1g.5gb"
    node = a_node(capacity={slices: 7, GPU: 2}, allocatable={slices: 7, GPU: 2})

    pods = [replace(a_pod("sliced", node="node-1"), gpus={slices: 3}), a_pod("whole", 2, "node-1")]

    assert a_pool(counted([node], pods)).idle() == {"node-1": 0}
    assert a_pool(counted([node], pods, terms=replace(TERMS, gpu_resource=slices))).idle() == {"node-1": 4}


def test_argo_r30_a_pod_that_is_stuck_terminating_is_told_of():
    late = a_pod("train", 4, "node-1", leaving_at=NOW - minutes(1))
    in_time = a_pod("other", 4, "node-1", leaving_at=NOW - minutes(0.4))

    accounts = counted([a_node()], [late, in_time])

    assert accounts.alerts == (
        "Pod other/train should have ended by 21:59:00 UTC and still holds 4 GPUs of node-1. gpujob never forces it: "
        "look at the kubelet there; if the computer is off for good, delete its Node.",
    )
    assert a_pool(accounts).idle() == {"node-1": 0}


def test_argo_r28_a_pod_that_is_stuck_stays_told_of_whatever_happens_to_its_node():
    late = a_pod("train", 4, "node-1", leaving_at=NOW - minutes(1))
    fates: list[list[KubeNode]] = [
        [a_node()],
        [a_node(cordoned=True)],
        [a_node(ready=False, ready_why="NodeStatusUnknown")],
        [],
    ]

    told = [counted(nodes, [late]).alerts for nodes in fates]

    assert [len(alerts) for alerts in told] == [1, 1, 1, 1]
    assert "of node-1 (not ready: NodeStatusUnknown)." in told[2][0]


# -- Laws

nodes_of_any_kind = st.builds(
    lambda number, capacity, healthy, ready, cordoned: a_node(
        f"node-{number}",
        capacity={GPU: capacity},
        allocatable={GPU: min(capacity, healthy)},
        ready=ready,
        cordoned=cordoned,
    ),
    st.integers(1, 3),
    st.integers(0, 8),
    st.integers(0, 8),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([False, False, False, True]),
)
places = st.sampled_from(["", "node-1", "node-2", "node-3", "node-4"])


@st.composite
def pods_of_any_kind(draw: st.DrawFn) -> list[Pod]:
    pods = []
    for number in range(draw(st.integers(0, 12))):
        make = draw(st.sampled_from([a_pod, an_attempt, a_server]))
        node = draw(places)
        pods.append(
            make(
                f"pod-{number}",
                draw(st.integers(0, 8)),
                node,
                phase=draw(st.sampled_from(["Pending", "Running", "Running", "Succeeded", "Failed"])),
                pinned=draw(places),
                nominated="" if node else draw(places),
                gates=() if node else draw(st.sampled_from([(), (), (GATE,)])),
                leaving_at=draw(st.sampled_from([None, None, NOW - minutes(5), NOW + minutes(1)])),
                created_at=NOW - minutes(draw(st.integers(1, 3))),
            )
        )
    return pods


@given(
    st.lists(nodes_of_any_kind, unique_by=lambda node: node.name), pods_of_any_kind(), st.randoms(use_true_random=False)
)
def test_a_pool_can_always_be_made_and_never_lends_what_is_held(
    nodes: list[KubeNode], pods: list[Pod], chance: random.Random
):
    accounts = counted(nodes, pods)
    pool = a_pool(accounts)  # which refuses more holds than GPUs
    by_name = {node.name: node for node in nodes}
    unknown = {node.name for node in pool.nodes if node.unknown}

    for name, free in pool.idle().items():
        held = pool.held().get(name, 0)
        assert free == (0 if name in unknown else by_name[name].allocatable[GPU] - held)
        assert free >= 0
    bound = sum(pod.gpus.get(GPU, 0) for pod in pods if pod.node and not pod.terminal)
    assert sum(hold.gpus for hold in accounts.holds) >= bound
    for node in nodes:
        if node.capacity[GPU] and (node.cordoned or not node.ready):
            assert node.name in unknown
    shuffled_nodes, shuffled_pods = list(nodes), list(pods)
    chance.shuffle(shuffled_nodes)
    chance.shuffle(shuffled_pods)
    assert counted(shuffled_nodes, shuffled_pods) == accounts
