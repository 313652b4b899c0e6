"""Which replicas leave first, what is shown of the need, and settings that cannot work."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import codec
from scheduler.fleet import scaling
from scheduler.fleet.demand import DemandMemory, ServiceDemand
from scheduler.fleet.pool import Pool, Replica, ReplicaPhase
from scheduler.fleet.readings import Series
from scheduler.fleet.replica_state import ReplicaState, ReplicaView
from scheduler.fleet.services import Mode
from scheduler.policy import Policy
from tests.build import NOW, a_demand, a_pending_replica, a_pool, a_service
from tests.vllm_data import a_series, repeated, sample

S = ReplicaState


def seen(pool: Pool, *states: ReplicaState) -> list[ReplicaView]:
    return [
        ReplicaView(replica=replica, state=state, why="It is so.", signals={"running": 0.0})
        for replica, state in zip(pool.replicas, states, strict=True)
    ]


def order(pool: Pool, *states: ReplicaState) -> tuple[str, ...]:
    return scaling.leave_first(seen(pool, *states), pool)


# -- Who leaves first


def test_idle_leaves_before_fresh_before_busy_before_full():
    pool = a_pool("node-1: 2 chat, 2 chat, 2 chat, 2 chat")

    left = order(pool, S.BUSY, S.SATURATED, S.FRESH_IDLE, S.IDLE)

    assert left == ("chat-4", "chat-3", "chat-1", "chat-2")


def test_a_replica_that_does_not_serve_yet_leaves_first():
    pool = a_pool("node-1: 4 chat, 4 idle", replicas=[a_pending_replica("chat-new")])

    assert order(pool, S.IDLE, S.LOADING) == ("chat-new", "chat-1")


@pytest.mark.parametrize("state", [S.SLEEPING, S.STALLED, S.STALE_GAUGE, S.UNSURE, S.DOWN, S.TARGET_MISSING])
def test_a_replica_that_counts_as_needed_does_not_leave(state: ReplicaState):
    pool = a_pool("node-1: 4 chat, 4 chat")

    assert order(pool, state, S.BUSY) == ("chat-2",)


def test_a_replica_that_leaves_already_is_not_told_again():
    pool = a_pool("node-1: 4 ending chat, 4 chat")

    assert order(pool, S.IDLE, S.IDLE) == ("chat-2",)


def test_among_equals_the_one_that_empties_its_node_leaves_first():
    pool = a_pool("node-1: 4 chat, 4 other", "node-2: 4 chat, 4 idle")

    assert order(pool, S.IDLE, S.IDLE) == ("chat-2", "chat-1")


def test_among_equals_the_one_beside_most_idle_gpus_leaves_first():
    pool = a_pool("node-1: 2 chat, 5 other, 1 idle", "node-2: 2 chat, 2 other, 4 idle")

    assert order(pool, S.IDLE, S.IDLE) == ("chat-2", "chat-1")


def test_once_one_has_left_its_neighbour_empties_the_node():
    pool = a_pool("node-1: 4 chat, 4 chat", "node-2: 4 chat, 4 other", "node-3: 4 chat, 4 other")

    assert order(pool, S.IDLE, S.IDLE, S.IDLE, S.IDLE) == ("chat-1", "chat-2", "chat-3", "chat-4")


def test_how_it_is_used_counts_before_where_it_is():
    pool = a_pool("node-1: 4 chat, 4 other", "node-2: 4 chat, 4 idle")

    assert order(pool, S.IDLE, S.BUSY) == ("chat-1", "chat-2")


@given(st.permutations(range(4)), st.lists(st.sampled_from(list(S)), min_size=4, max_size=4))
def test_the_order_does_not_depend_on_the_order_of_the_views(shuffled: list[int], states: list[ReplicaState]):
    pool = a_pool("node-1: 4 chat, 4 chat", "node-2: 4 chat, 4 chat")
    views = seen(pool, *states)

    assert scaling.leave_first([views[i] for i in shuffled], pool) == scaling.leave_first(views, pool)


# -- All services at once


def series_of(pool: Pool, pages: dict[str, str]) -> list[Series]:
    return [
        a_series(repeated(sample(pages[replica.service]), NOW, 720), replica=replica.id) for replica in pool.replicas
    ]


def test_every_service_is_told_with_those_that_leave_first():
    pool = a_pool("node-1: 4 chat, 4 code", "node-2: 4 chat, 4 idle")
    services = [a_service("chat"), a_service("code"), a_service("none", min_replicas=0)]
    series = series_of(pool, {"chat": "v0.32.0-after-load", "code": "v0.32.0-engine-stalled"})

    told, memory = scaling.demands(services, pool, series, DemandMemory(), Policy(), NOW)

    assert [(one.service, one.have, one.leave_first) for one in told] == [
        ("chat", 2, ("chat-3", "chat-1")),
        ("code", 1, ()),
        ("none", 0, ()),
    ]
    assert set(memory.wants) == {"chat", "code", "none"}


def test_a_service_whose_replicas_cannot_be_seen_is_told_as_unknown():
    pool = a_pool("node-1: 8 idle", unknown_services={"chat": "forbidden"})

    (told,), _ = scaling.demands([a_service("chat")], pool, [], DemandMemory(), Policy(), NOW)

    assert (told.known, told.why) == (
        False,
        "Its replicas cannot be seen: forbidden. Nothing is taken away meanwhile.",
    )


def test_a_demand_survives_json():
    pool = a_pool("node-1: 4 chat, 4 idle")
    series = series_of(pool, {"chat": "v0.32.0-saturated-seqs"})
    (told,), _ = scaling.demands([a_service("chat")], pool, series, DemandMemory(), Policy(), NOW)

    assert codec.from_plain(json.loads(json.dumps(codec.to_plain(told))), ServiceDemand) == told
    assert told.replicas[0].inflight


# -- What is shown


def a_shown_demand() -> ServiceDemand:
    pool = a_pool("node-1: 4 chat, 4 idle")
    return replace(
        a_demand(have=1, want=2, why="Its load needs 2; it has 1 (bounds 1 to 8)."),
        estimates={"e1": 2.0, "e2": None, "e3": 1.0},
        replicas=tuple(seen(pool, S.BUSY)),
        alerts=("chat: look at it.",),
    )


def test_scale_shows_the_promised_keys():
    (service,) = shown_services(scaling.explain([a_shown_demand()], NOW))

    assert {key: service[key] for key in ("name", "have", "want", "estimates")} == {
        "name": "chat",
        "have": 1,
        "want": 2,
        "estimates": {"e1": 2.0, "e2": None, "e3": 1.0},
    }
    assert service["replicas"] == [{"name": "chat-1", "state": "busy", "why": "It is so.", "signals": {"running": 0.0}}]


def shown_services(shown: Any) -> Any:
    assert json.loads(json.dumps(shown))["at"] == NOW.isoformat()
    return shown["services"]


def test_scale_tells_the_same_in_sentences():
    assert scaling.sentences(a_shown_demand()) == (
        "chat has 1 and wants 2. Its load needs 2; it has 1 (bounds 1 to 8). Estimates: e1 2, e2 unknown, e3 1.",
        "  chat-1 is busy. It is so.",
        "  Attention: chat: look at it.",
    )


# -- Settings that cannot work


def test_the_defaults_work():
    assert scaling.check_service(a_service(), Policy()) == ()


def test_vllm_r21_a_threshold_that_vllm_never_reaches_is_refused():
    (fault,) = scaling.check_service(a_service("chat", max_num_seqs=8), Policy(running_saturated_ratio=1.25))

    assert fault == (
        "Service chat: policy.running_saturated_ratio = 1.25 asks for 10 running requests, but vLLM runs at most "
        "max_num_seqs = 8; write 1 or less."
    )


@pytest.mark.parametrize(
    ("service", "policy", "words"),
    [
        ({"max_num_seqs": 0}, {}, "max_num_seqs = 0"),
        ({"min_replicas": 0, "mode": Mode.MANAGE}, {}, "min_replicas = 0 would leave a managed service without"),
        ({"min_replicas": 9}, {}, "min_replicas = 9 is above max_replicas = 8"),
        ({}, {"running_saturated_ratio": 0.0}, "every replica full"),
        ({}, {"fill_ratio": 0.0}, "policy.fill_ratio = 0"),
        ({}, {"fill_ratio": 1.1}, "policy.fill_ratio = 1.1"),
        ({}, {"kv_saturated": 80.0}, "policy.kv_saturated = 80"),
        ({}, {"spare_kv_ratio": 0.8}, "policy.spare_kv_ratio = 0.8"),
        ({}, {"spare_waiting": 5.0}, "policy.spare_waiting = 5"),
    ],
)
def test_what_cannot_work_is_told_with_its_name_and_value(service: dict[str, Any], policy: dict[str, Any], words: str):
    (fault,) = scaling.check_service(a_service("chat", **service), Policy(**policy))

    assert words in fault


def test_a_pending_replica_has_a_place_in_the_order_without_a_node():
    pool = a_pool("node-1: 8 idle", replicas=[a_pending_replica("chat-2"), a_pending_replica("chat-1")])
    phases: list[Replica] = list(pool.replicas)

    assert {replica.phase for replica in phases} == {ReplicaPhase.PENDING}
    assert order(pool, S.LOADING, S.LOADING) == ("chat-1", "chat-2")
