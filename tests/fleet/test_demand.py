"""How many replicas a service needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.fleet.demand import DemandMemory, ServiceDemand, demand
from scheduler.fleet.pool import ReplicaId, ReplicaPhase
from scheduler.fleet.replica_state import ReplicaState, ReplicaView, judge
from scheduler.fleet.services import Mode, Service
from scheduler.policy import Policy
from tests.build import NOW, a_replica, a_service, minutes
from tests.vllm_data import a_series, after, recorded, repeated, sample

S = ReplicaState
POLICY = Policy(max_step=20)
CHAT = a_service("chat", max_num_seqs=8, max_replicas=10)
NOTHING_YET = DemandMemory()
OBSERVED = replace(CHAT, mode=Mode.OBSERVE)

QUIET = {
    "running_peak": 0.0,
    "waiting_peak": 0.0,
    "kv_peak": 0.0,
    "inflight_peak": 0.0,
    "tokens_per_s": 0.0,
    "prompt_tokens_per_s": 0.0,
    "arrivals_per_s": 0.0,
    "ttft_mean_s": None,
    "full_ratio": 0.0,
    "max_inflight": 8.0,
}
BLIND = dict.fromkeys(QUIET) | {"max_inflight": 8.0}


def a_view(
    state: ReplicaState = S.IDLE,
    name: str = "chat-1",
    *,
    phase: ReplicaPhase = ReplicaPhase.READY,
    inflight: Sequence[tuple[datetime, float]] = (),
    why: str = "It is so.",
    **signals: float | None,
) -> ReplicaView:
    given = QUIET if state not in {S.DOWN, S.TARGET_MISSING, S.NO_VLLM_SERIES, S.LOADING} else BLIND
    return ReplicaView(
        replica=a_replica(name, phase=phase),
        state=state,
        why=why,
        signals={**given, **signals},
        inflight=tuple(inflight),
    )


def a_busy(requests: float, name: str = "chat-1", **signals: float | None) -> ReplicaView:
    given: dict[str, float | None] = {
        "running_peak": min(requests, 8.0),
        "waiting_peak": max(requests - 8.0, 0.0),
        "inflight_peak": requests,
        "kv_peak": 0.1,
        "tokens_per_s": 100.0,
        "arrivals_per_s": 1.0,
        "ttft_mean_s": 0.05,
    }
    return a_view(S.SATURATED if requests > 8 else S.BUSY, name, **{**given, **signals})


def some(count: int, state: ReplicaState = S.IDLE, **fields: Any) -> list[ReplicaView]:
    return [a_view(state, f"chat-{i}", **fields) for i in range(1, count + 1)]


def told(
    views: Sequence[ReplicaView],
    *,
    service: Service = CHAT,
    memory: DemandMemory = NOTHING_YET,
    policy: Policy = POLICY,
    now: datetime = NOW,
    **fields: Any,
) -> ServiceDemand:
    return demand(service, views, memory, policy, now, **fields)[0]


class Turns:
    """Turns one after the other, with the memory carried along."""

    def __init__(self, service: Service = CHAT, policy: Policy = POLICY) -> None:
        self.service, self.policy = service, policy
        self.now = NOW
        self.memory = DemandMemory()

    def turn(self, views: Sequence[ReplicaView], *, seconds: float = 10.0, **fields: Any) -> ServiceDemand:
        self.now += timedelta(seconds=seconds)
        answer, self.memory = demand(self.service, views, self.memory, self.policy, self.now, **fields)
        return answer

    def turns(self, views: Sequence[ReplicaView], until: timedelta) -> ServiceDemand:
        end = self.now + until
        while self.now < end:
            answer = self.turn(views)
        return answer


# -- E1, E2, E3


@pytest.mark.parametrize(
    ("requests", "replicas"), [(0, 0), (1, 1), (6, 1), (6.4, 1), (6.5, 2), (30, 5), (32, 5), (33, 6)]
)
def test_e1_counts_requests_at_once_against_what_a_replica_should_carry(requests: float, replicas: int):
    assert told([a_busy(requests)]).estimates["e1"] == replicas


def test_e1_adds_up_what_all_replicas_have():
    views = [a_busy(8, "chat-1"), a_busy(8, "chat-2"), a_busy(8, "chat-3")]

    assert told(views).estimates["e1"] == 4


def test_the_load_is_told_in_replicas_and_not_rounded():
    assert told([a_busy(8), a_busy(0, "chat-2")]).load == pytest.approx(8 / (8 * POLICY.fill_ratio))
    assert told([a_busy(8), a_view(S.DOWN, "chat-2")]).load is None


def test_vllm_r06_e1_counts_the_engines_of_a_replica():
    assert told([a_busy(30, max_inflight=16.0)]).estimates["e1"] == 3


def test_e2_says_nothing_before_a_full_replica_was_seen():
    assert told([a_busy(6)]).estimates["e2"] is None


def test_e2_learns_the_rate_of_a_replica_only_while_it_is_full_all_the_time():
    turns = Turns()
    turns.turn([a_busy(30, tokens_per_s=700.0, full_ratio=0.8)])
    assert turns.memory.capacity == {}

    turns.turn([a_busy(30, tokens_per_s=700.0, full_ratio=1.0)])
    assert turns.memory.capacity == {"chat": 700.0}


def test_e2_counts_prompts_at_their_share_of_the_cost():
    turns = Turns(policy=replace(POLICY, prefill_cost_ratio=0.5))

    turns.turn([a_busy(30, tokens_per_s=700.0, prompt_tokens_per_s=200.0, full_ratio=1.0)])

    assert turns.memory.capacity == {"chat": 800.0}


def test_e2_learns_more_quickly_than_it_forgets():
    turns = Turns()
    for rate in (700.0, 900.0, 700.0):
        turns.turn([a_busy(30, tokens_per_s=rate, full_ratio=1.0)])

    assert turns.memory.capacity["chat"] == pytest.approx(795.0)


def test_e2_counts_the_backlog_beside_the_rate():
    memory = DemandMemory(capacity={"chat": 700.0})
    busy = a_busy(8, tokens_per_s=700.0, arrivals_per_s=4.0)

    assert told([busy], memory=memory).estimates["e2"] == 2
    queue = a_busy(800, tokens_per_s=700.0, arrivals_per_s=4.0)
    assert told([queue], memory=memory).estimates["e2"] == 6  # (700 + 792 * 175 / 60) / 560


def test_e2_says_nothing_of_a_queue_of_which_no_size_is_known():
    memory = DemandMemory(capacity={"chat": 700.0})

    assert told([a_busy(30, arrivals_per_s=0.0)], memory=memory).estimates["e2"] is None


@pytest.mark.parametrize(
    ("signals", "replicas"),
    [
        ({}, 1),
        ({"kv_peak": 0.70}, 3),
        ({"waiting_peak": 2.0}, 3),
        ({"running_peak": 6.4}, 3),
        ({"kv_peak": 0.35}, 2),
        ({"ttft_mean_s": 2.1}, 3),
    ],
)
def test_e3_tells_on_how_few_the_load_would_fit(signals: dict[str, float], replicas: int):
    views = [a_busy(1, f"chat-{i}", **signals) for i in range(3)]

    assert told(views).estimates["e3"] == replicas


def test_e3_is_a_veto_against_fewer_and_asks_for_no_more():
    views = [a_busy(1, f"chat-{i}", kv_peak=0.79) for i in range(3)]

    answer = Turns().turns(views, minutes(20))

    assert (answer.estimates["e1"], answer.estimates["e3"], answer.want) == (1, 4, 3)


def test_thirty_clients_of_the_real_series_need_five_replicas_and_six_need_one():
    samples = [scrape.sample for scrape in recorded("load-up-down-5min")]
    wants = {}
    for second, clients in ((104, 6), (169, 30)):
        seen = [one for one in samples if one.at <= after(second)]
        policy = replace(POLICY, busy_window_s=30.0)
        view = judge(a_replica(), a_series(seen, 5.0), CHAT, policy, seen[-1].at)
        wants[clients] = told([view], now=seen[-1].at).want

    assert wants == {6: 1, 30: 5}


# -- Raise at once, lower slowly


def test_it_is_raised_at_once():
    answer = told([a_busy(30)])

    assert (answer.have, answer.want, answer.known) == (1, 5, True)


def test_it_is_lowered_only_after_the_need_stayed_lower():
    turns = Turns()
    quiet = some(4)

    assert turns.turns(quiet, minutes(15)).want == 4
    assert turns.turn(quiet).want == 1


def test_the_sentence_says_until_when_replicas_are_kept():
    answer = Turns().turn(some(4))

    assert answer.why == "Its load needs 0; it has 4 (bounds 1 to 10). Keeps 4 until 22:15:10 UTC."


def test_a_clock_that_goes_back_starts_the_time_of_waiting_anew():
    turns = Turns(replace(CHAT, mode=Mode.MANAGE))
    turns.turns(some(3), minutes(14))
    turns.now -= timedelta(hours=1)

    first = turns.turn(some(3))
    later = turns.turns(some(3), minutes(16))

    assert (first.want, later.want) == (3, 1)


def test_it_is_lowered_no_further_than_the_highest_need_of_the_time():
    turns = Turns()
    turns.turns(some(4), minutes(7))
    turns.turn([*some(3), a_busy(12, "chat-4")])
    turns.turns(some(4), minutes(9))

    assert turns.turn(some(4)).want == 2


def test_a_peak_starts_the_time_anew():
    turns = Turns()
    turns.turns(some(2), minutes(14))
    turns.turn([*some(1), a_busy(12, "chat-2")])

    assert turns.turns(some(2), minutes(14)).want == 2
    assert turns.turns(some(2), minutes(2)).want == 1


def test_vllm_r04_turns_that_did_not_happen_prove_nothing():
    turns = Turns()
    turns.turns(some(4), minutes(10))

    assert turns.turn(some(4), seconds=600).want == 4
    assert turns.turns(some(4), minutes(14)).want == 4
    assert turns.turns(some(4), minutes(2)).want == 1


def test_vllm_r04_a_time_in_which_a_replica_was_unknown_proves_nothing():
    turns = Turns()
    turns.turns(some(2), minutes(10))
    turns.turn([a_view(S.UNSURE, "chat-1"), a_view(S.IDLE, "chat-2")])

    assert turns.turns(some(2), minutes(14)).want == 2
    assert turns.turns(some(2), minutes(2)).want == 1


def test_the_memory_stays_small_over_a_day():
    turns = Turns()
    turns.turns(some(4), timedelta(hours=24))

    assert len(turns.memory.wants["chat"]) <= 3


# -- Unknown is neither idle nor busy


@pytest.mark.parametrize("state", [S.TARGET_MISSING, S.DOWN, S.NO_VLLM_SERIES])
def test_vllm_r01_a_replica_of_which_nothing_is_known_is_needed_beside_the_others(state: ReplicaState):
    views = [a_busy(12, "chat-1"), a_view(state, "chat-2", why="Refused.")]

    answer = told(views)

    assert (answer.want, answer.known) == (3, False)
    assert answer.why == "1 of 2 replicas report; chat-2: Refused. Nothing is taken away meanwhile."


def test_vllm_r01_when_nothing_is_known_nothing_changes():
    answer = Turns().turns([a_view(S.DOWN, f"chat-{i}") for i in range(4)], minutes(60))

    assert (answer.have, answer.want, answer.known) == (4, 4, False)


def test_an_unsure_replica_keeps_all_and_asks_for_none():
    answer = Turns().turns([a_busy(3, "chat-1"), a_view(S.UNSURE, "chat-2")], minutes(60))

    assert (answer.want, answer.known) == (2, False)


def test_vllm_r36_fewer_reports_than_replicas_is_a_hold():
    turns = Turns()
    turns.turns(some(4), minutes(30))

    answer = turns.turn([*some(3), a_view(S.TARGET_MISSING, "chat-4")])

    assert (answer.want, answer.known) == (4, False)
    assert answer.why.startswith("3 of 4 replicas report")


def test_replicas_that_cannot_be_seen_are_as_many_as_before():
    turns = Turns()
    turns.turn(some(4))

    answer = turns.turn([], unknown="the API server does not answer")

    assert (answer.have, answer.want, answer.known) == (4, 4, False)
    assert "the API server does not answer" in answer.why
    assert answer.alerts


def test_requests_that_cannot_be_counted_are_a_hold():
    answer = told([a_view(S.BUSY, "chat-1", inflight_peak=None), a_busy(3, "chat-2")])

    assert (answer.want, answer.known) == (2, False)


def test_vllm_r07_a_cache_that_cannot_be_seen_is_a_hold():
    answer = told([a_busy(3, "chat-1", kv_peak=None), a_view(S.IDLE, "chat-2")])

    assert (answer.want, answer.known, answer.estimates["e3"]) == (2, False, None)


def test_vllm_r23_a_fresh_replica_without_gauges_is_known_to_have_no_requests():
    answer = told([a_view(S.FRESH_IDLE, inflight_peak=None, kv_peak=None, running_peak=None, waiting_peak=None)])

    assert (answer.want, answer.known, answer.estimates["e1"]) == (1, True, 0)


# -- States that are counted in their own way


def test_vllm_r05_replicas_on_their_way_are_not_asked_for_again():
    loading = [
        a_view(S.LOADING, f"new-{i}", phase=phase)
        for i, phase in enumerate([ReplicaPhase.STARTING] * 2 + [ReplicaPhase.PENDING] * 2)
    ]

    answer = told([a_busy(30), *loading])

    assert (answer.have, answer.want, answer.known) == (3, 5, True)


def test_vllm_r05_a_growing_queue_does_not_add_a_step_each_turn():
    turns = Turns(policy=replace(POLICY, max_step=3))
    first = turns.turn([a_busy(60)])
    coming = [a_view(S.LOADING, f"new-{i}", phase=ReplicaPhase.PENDING) for i in range(3)]
    second = turns.turn([a_busy(200), *coming])

    assert (first.want, second.want) == (4, 4)


def test_vllm_r14_a_stalled_replica_is_needed_and_told_of():
    answer = told(
        [a_view(S.STALLED, "chat-1", why="12 requests, but no step.", inflight_peak=12.0), a_busy(3, "chat-2")]
    )

    assert (answer.want, answer.known) == (2, True)
    assert answer.alerts == ("chat: chat-1 is stalled. 12 requests, but no step.",)


def test_vllm_r29_a_sleeping_replica_is_no_capacity():
    views = [a_view(S.SLEEPING, "chat-1"), a_busy(12, "chat-2")]

    assert told(views).want == 3


def test_a_replica_that_leaves_is_neither_had_nor_asked():
    views = [a_busy(3, "chat-1"), a_view(S.BUSY, "chat-2", phase=ReplicaPhase.LEAVING, inflight_peak=30.0)]

    answer = told(views)

    assert (answer.have, answer.want) == (1, 1)
    assert len(answer.replicas) == 2


# -- Bounds


def test_it_grows_by_no_more_than_a_step():
    assert told([a_busy(60)], policy=Policy(max_step=2)).want == 3


@pytest.mark.parametrize(("least", "most", "want"), [(1, 3, 3), (6, 10, 6), (1, 10, 5)])
def test_it_stays_within_the_bounds_of_the_service(least: int, most: int, want: int):
    assert told([a_busy(30)], service=replace(CHAT, min_replicas=least, max_replicas=most)).want == want


def test_more_replicas_than_the_settings_allow_are_told_of():
    answer = told(some(4), service=replace(OBSERVED, max_replicas=3))

    assert answer.alerts == ("chat has 4 replicas, max_replicas is 3; raise it.",)


def test_an_observed_service_is_never_lowered_and_its_next_step_is_foreseen():
    assert Turns(OBSERVED).turns(some(4), minutes(60)).want == 4
    assert told([a_busy(30)], service=OBSERVED).want == 5


def test_an_observed_service_wants_what_its_autoscaler_asked_for():
    views = [a_busy(3), a_view(S.LOADING, "new-1", phase=ReplicaPhase.PENDING)]

    answer = told(views, service=OBSERVED)

    assert (answer.have, answer.want) == (1, 2)


def test_vllm_r30_the_number_of_requests_that_arrive_is_no_load_by_itself():
    assert told([a_busy(6, arrivals_per_s=1.0)]).want == told([a_busy(6, arrivals_per_s=50.0)]).want


def test_services_do_not_share_what_is_remembered():
    turns = Turns()
    turns.turn([a_busy(30, tokens_per_s=700.0, full_ratio=1.0)])
    other = a_service("code", max_num_seqs=8)
    _, memory = demand(other, [a_busy(6)], turns.memory, POLICY, NOW)

    assert memory.capacity == {"chat": 700.0}
    assert set(memory.wants) == {"chat", "code"}


# -- Since when more is asked for


def _at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_the_need_is_dated_by_the_first_sample_above():
    loads = [(_at(-30), 3.0), (_at(-20), 12.0), (_at(-10), 30.0), (_at(0), 30.0)]

    assert told([replace(a_busy(30), inflight=tuple(loads))]).above_since == _at(-20)


def test_a_dip_begins_a_new_need():
    loads = [(_at(-30), 12.0), (_at(-20), 3.0), (_at(-10), 30.0), (_at(0), 30.0)]

    assert told([replace(a_busy(30), inflight=tuple(loads))]).above_since == _at(-10)


def test_the_samples_of_all_replicas_are_added_up():
    one = replace(a_busy(8, "chat-1"), inflight=((_at(-20), 6.0), (_at(-10), 6.0), (_at(0), 8.0)))
    other = replace(a_busy(8, "chat-2"), inflight=((_at(-21), 6.0), (_at(-11), 7.0), (_at(-1), 8.0)))

    assert told([one, other]).above_since == _at(-11)


def test_a_need_that_is_older_than_the_window_keeps_its_date():
    turns = Turns()
    first = turns.turn([replace(a_busy(30), inflight=((_at(5), 3.0), (_at(10), 30.0)))])
    for second in range(20, 200, 10):
        loads = tuple((_at(second - back), 30.0) for back in (10, 5, 0))
        later = turns.turn([replace(a_busy(30), inflight=loads)])

    assert (first.above_since, later.above_since) == (_at(10), _at(10))


def test_without_a_need_there_is_no_date():
    turns = Turns()
    turns.turn([replace(a_busy(30), inflight=((_at(10), 30.0),))])

    answer = turns.turn(some(5))

    assert answer.above_since is None
    assert turns.memory.above_since == {}


# -- Laws

STATES = st.sampled_from([S.IDLE, S.FRESH_IDLE, S.UNSURE, S.DOWN, S.STALLED, S.SLEEPING, S.NO_VLLM_SERIES])
PHASES = st.sampled_from([ReplicaPhase.READY] * 4 + list(ReplicaPhase))


@st.composite
def views_of_a_service(draw: st.DrawFn) -> list[ReplicaView]:
    made = []
    for i in range(draw(st.integers(0, 8))):
        phase = draw(PHASES)
        if phase in {ReplicaPhase.PENDING, ReplicaPhase.STARTING}:
            made.append(a_view(S.LOADING, f"chat-{i}", phase=phase))
        elif draw(st.booleans()):
            made.append(a_busy(draw(st.integers(0, 60)), f"chat-{i}", kv_peak=draw(st.floats(0, 1))))
            made[-1] = replace(made[-1], replica=replace(made[-1].replica, phase=phase))
        else:
            made.append(a_view(draw(STATES), f"chat-{i}", phase=phase))
    return made


@given(views_of_a_service(), st.integers(0, 3), st.integers(3, 12), st.integers(1, 4), st.sampled_from(Mode))
def test_the_want_stays_within_bounds_and_takes_nothing_when_unsure(
    views: list[ReplicaView], least: int, most: int, step: int, mode: Mode
):
    service = replace(CHAT, min_replicas=least, max_replicas=most, mode=mode)
    turns = Turns(service, replace(POLICY, max_step=step, lower_after_s=0.0))
    turns.turn(views)
    answer = turns.turn(views)

    assert least <= answer.want <= most
    if not answer.known or mode is Mode.OBSERVE:
        assert answer.want >= min(answer.have, most)


@given(views_of_a_service(), st.integers(0, 60))
def test_more_requests_never_need_fewer_replicas(views: list[ReplicaView], requests: int):
    before = told([*views, a_busy(requests, "more")])
    after_it = told([*views, a_busy(requests + 10, "more")])

    assert after_it.want >= before.want


@given(views_of_a_service())
def test_the_order_of_replicas_does_not_matter(views: list[ReplicaView]):
    assert told(views).want == told(views[::-1]).want


@given(views_of_a_service())
def test_blindness_never_lowers_the_want(views: list[ReplicaView]):
    blinded = [
        a_view(S.DOWN, view.replica.id, phase=view.replica.phase)
        if view.replica.phase is ReplicaPhase.READY and view.state in {S.IDLE, S.FRESH_IDLE}
        else view
        for view in views
    ]

    assert told(blinded).want >= told(views).want


def test_a_recorded_quiet_server_lends_only_after_both_windows():
    one = sample("v0.32.0-after-load")
    turns = Turns()
    wants = []
    for minute in range(1, 31):
        now = NOW + minutes(minute)
        views = []
        for name in ("chat-1", "chat-2"):
            series = a_series(repeated(one, now, min(minute * 60, 700)), replica=name)
            views.append(judge(replace(a_replica(name), id=ReplicaId(name)), series, CHAT, POLICY, now))
        wants.append(turns.turn(views, seconds=60).want)

    assert wants.index(1) == 24  # ten minutes to be idle, fifteen of a lower need
    assert set(wants[:24]) == {2}
