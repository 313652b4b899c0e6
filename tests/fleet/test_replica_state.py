"""The state of one replica, on recorded pages and series of real vLLM servers and on series made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.fleet.pool import ReplicaPhase
from scheduler.fleet.readings import Counters, Sample, Target
from scheduler.fleet.replica_state import LENDABLE, UNKNOWN, ReplicaState, ReplicaView, judge
from scheduler.policy import Policy
from tests.build import a_replica, a_service
from tests.vllm_data import (
    PAGES,
    START,
    a_series,
    after,
    at_times,
    failed,
    quiet_sample,
    recorded,
    repeated,
    sample,
    times,
    working,
)

NOW = START
POLICY = Policy()
S = ReplicaState


def judged(
    samples: Sequence[Sample],
    *,
    now: datetime = NOW,
    interval_s: float = 10.0,
    policy: Policy = POLICY,
    max_num_seqs: int = 8,
    phase: ReplicaPhase = ReplicaPhase.READY,
) -> ReplicaView:
    service = a_service(max_num_seqs=max_num_seqs)
    return judge(a_replica(phase=phase), a_series(samples, interval_s), service, policy, now)


def quiet(seconds: float, **fields: Any) -> list[Sample]:
    return repeated(quiet_sample(**fields), NOW, seconds)


# -- Pages: what a server shows again and again for twelve minutes

STANDING_STILL = {
    "v0.32.0-idle-fresh": S.FRESH_IDLE,
    "v0.32.0-multiproc-fresh": S.FRESH_IDLE,
    "v0.32.0-after-load": S.IDLE,
    "v0.32.0-after-abort-all": S.IDLE,
    "v0.32.0-aliased-zero": S.IDLE,
    "v0.32.0-lora-after": S.IDLE,
    "v0.32.0-disable-log-stats": S.NO_VLLM_SERIES,
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_never_changes_is_idle_or_stalled(name: str):
    view = judged(repeated(sample(name), NOW, 720))

    assert view.state is STANDING_STILL.get(name, S.STALLED)


# page -> state while its counters go on, with the max_num_seqs of its server
GOING_ON = {
    "v0.32.0-light": (S.BUSY, 8),
    "v0.32.0-busy-no-queue": (S.BUSY, 8),
    "v0.32.0-aliased-zero": (S.BUSY, 8),
    "v0.32.0-saturated-seqs": (S.SATURATED, 8),
    "v0.32.0-saturated-kv": (S.SATURATED, 16),
    "v0.32.0-saturated-kv-dip": (S.SATURATED, 16),
    "v0.32.0-dp2-saturated": (S.SATURATED, 4),
    "v0.32.0-multiproc-saturated": (S.SATURATED, 4),
    "v0.32.0-lora-busy": (S.SATURATED, 4),
    "v0.32.0-after-restart": (S.BUSY, 8),
    "exposition-v0.8.5-V0": (S.SATURATED, 8),
    "exposition-v0.10.2-V1-dp2": (S.BUSY, 8),
    "exposition-v0.11.2-V1": (S.SATURATED, 8),
}


@pytest.mark.parametrize(("name", "state", "max_num_seqs"), [(n, s, m) for n, (s, m) in GOING_ON.items()])
def test_a_page_whose_counters_go_on_is_busy_or_saturated(name: str, state: ReplicaState, max_num_seqs: int):
    view = judged(working(sample(name), NOW, 720), max_num_seqs=max_num_seqs)

    assert view.state is state


# -- The recorded series, turn by turn, judged against the number of load clients

QUICK = replace(POLICY, idle_window_s=20.0, busy_window_s=15.0, stale_after_s=12.0, stall_s=30.0)


def _turns(name: str, interval_s: float, policy: Policy, max_num_seqs: int) -> list[tuple[int, ReplicaView]]:
    scrapes = recorded(name)
    samples = [scrape.sample for scrape in scrapes]
    return [
        (scrape.clients, judged(samples[: i + 1], now=scrape.sample.at, interval_s=interval_s, policy=policy,
                                max_num_seqs=max_num_seqs))
        for i, scrape in enumerate(scrapes)
    ]  # fmt: skip


def test_load_that_comes_and_goes_is_followed():
    turns = _turns("load-up-down-5min", 5.0, QUICK, max_num_seqs=8)

    states = [view.state for _, view in turns]
    assert states[:3] == [S.UNSURE] * 3
    assert states[3:7] == [S.IDLE] * 4
    assert set(states[7:22]) == {S.BUSY}
    assert set(states[24:37]) == {S.SATURATED}
    assert set(states[41:54]) == {S.BUSY}
    assert states[-4:] == [S.IDLE] * 4


def test_vllm_r19_a_zero_between_two_requests_is_never_idle():
    turns = _turns("load-up-down-5min", 5.0, QUICK, max_num_seqs=8)

    zeros = [view.state for clients, view in turns[8:] if clients > 0 and view.signals["running"] == 0]
    assert zeros == [S.BUSY]


@pytest.mark.parametrize("name", ["load-up-down-5min", "restart-mid-load"])
def test_nothing_is_lent_while_clients_are_at_work(name: str):
    turns = _turns(name, 5.0, QUICK, max_num_seqs=8)

    at_work = {view.state for (clients, _), (_, view) in pairwise(turns) if clients > 0}

    assert S.BUSY in at_work
    assert not LENDABLE & at_work


def test_vllm_r18_a_restart_under_load_is_never_idle_and_no_rate_is_negative():
    turns = _turns("restart-mid-load", 5.0, QUICK, max_num_seqs=8)

    states = [view.state for _, view in turns]
    assert states[15:24] == [S.DOWN] * 9
    assert set(states[24:37]) == {S.BUSY}
    rates = [value for _, view in turns for key, value in view.signals.items() if key.endswith("_per_s")]
    assert min(rate for rate in rates if rate is not None) == 0.0


def test_vllm_r22_one_sample_with_room_in_the_cache_does_not_end_saturation():
    turns = _turns("kv-bound-30s", 2.0, QUICK, max_num_seqs=16)

    dips = [view for _, view in turns[1:] if (view.signals["kv"] or 0) < QUICK.kv_saturated]
    assert len(dips) >= 2
    assert {view.state for view in dips} == {S.SATURATED}


# -- Rules one by one


def test_vllm_r01_nothing_read_yet_is_unknown():
    view = judged([])

    assert (view.state, view.state in UNKNOWN) == (S.TARGET_MISSING, True)


@pytest.mark.parametrize(
    ("newest", "state"),
    [
        (failed(NOW), S.DOWN),
        (Sample(at=NOW, target=Target.PARTIAL, error="a store did not answer"), S.DOWN),
        (Sample(at=NOW, target=Target.MISSING), S.TARGET_MISSING),
    ],
)
def test_vllm_r01_what_cannot_be_read_is_unknown_however_quiet_it_was(newest: Sample, state: ReplicaState):
    view = judged([*quiet(720)[:-1], newest])

    assert view.state is state
    assert newest.error in view.why


def test_vllm_r01_an_old_sample_says_nothing():
    view = judged(quiet(720), now=NOW + timedelta(seconds=31))

    assert (view.state, view.why) == (S.DOWN, "Its newest sample is 31 s old, the limit is 30 s.")


def test_a_sample_from_the_future_says_nothing():
    view = judged(quiet(720), now=NOW - timedelta(hours=1))

    assert view.state is S.DOWN
    assert view.why == "Its newest sample is 3600 s ahead of our clock; set the clocks right."


def test_vllm_r04_after_a_gap_a_whole_window_must_pass():
    history = repeated(quiet_sample(), NOW - timedelta(seconds=100), 720)
    history += [quiet_sample(NOW)]

    assert judged(history).state is S.UNSURE

    for later in range(10, 591, 10):
        history.append(quiet_sample(after(later)))
    assert judged(history[-70:], now=after(580)).state is S.UNSURE
    assert judged(history, now=after(590)).state is S.IDLE


def test_vllm_r04_a_reader_that_just_started_is_unsure_until_its_window_is_full():
    assert judged(quiet(570)).state is S.UNSURE
    assert judged(quiet(600)).state is S.IDLE


def test_vllm_r28_one_scrape_that_failed_does_not_start_the_window_anew():
    samples = quiet(720)
    samples[30] = failed(samples[30].at, "timeout")

    assert judged(samples).state is S.IDLE


def test_too_few_samples_prove_nothing():
    sparse = [one for i, one in enumerate(quiet(720)) if i % 3 != 1]

    view = judged(sparse)

    assert view.state is S.UNSURE
    assert "samples of the window" in view.why


@pytest.mark.parametrize("phase", [ReplicaPhase.PENDING, ReplicaPhase.STARTING])
@pytest.mark.parametrize("samples", [[], [failed(NOW)], quiet(720)])
def test_vllm_r05_a_replica_that_is_not_ready_loads_whatever_its_page_says(phase: ReplicaPhase, samples: list[Sample]):
    view = judged(samples, phase=phase)

    assert view.state is S.LOADING
    assert view.state not in LENDABLE | UNKNOWN


def test_vllm_r06_running_is_measured_against_all_engines():
    one = quiet_sample(engines=2, running=8.0, kv_use=0.1)

    assert judged(working(one, NOW, 720), max_num_seqs=8).state is S.BUSY
    assert judged(working(one, NOW, 720), max_num_seqs=4).state is S.SATURATED


def test_vllm_r07_without_a_cache_gauge_nothing_is_idle():
    view = judged(quiet(720, kv_use=None))

    assert (view.state, "KV cache" in view.why) == (S.UNSURE, True)


def test_without_counters_nothing_is_idle():
    assert judged(quiet(720, counters=Counters())).state is S.UNSURE


def test_vllm_r13_a_replica_without_series_is_a_fault_of_its_settings():
    view = judged(repeated(sample("v0.32.0-disable-log-stats"), NOW, 720))

    assert view.state is S.NO_VLLM_SERIES
    assert "--disable-log-stats" in view.why


@pytest.mark.parametrize("counters", [Counters(steps=50.0), Counters(generation_tokens=50.0, prompt_tokens=7.0)])
def test_vllm_r14_requests_without_a_step_are_a_stall(counters: Counters):
    samples = quiet(120, running=8.0, waiting=4.0, kv_use=0.25, counters=counters)

    view = judged(samples)

    assert view.state is S.STALLED
    assert view.why.startswith("12 requests, but the engine made no step for 120 s")


def test_vllm_r14_a_stall_takes_its_time_to_be_sure():
    assert judged(quiet(110, running=8.0, waiting=4.0)).state is S.SATURATED


def test_vllm_r14_a_step_in_between_is_no_stall():
    samples = quiet(300, running=4.0, kv_use=0.1)
    samples[-5:] = [replace(one, counters=replace(one.counters, steps=1001.0)) for one in samples[-5:]]

    assert judged(samples).state is S.BUSY


def test_vllm_r15_a_queue_makes_full_however_little_runs():
    one = quiet_sample(running=2.0, waiting=30.0, kv_use=0.05)

    assert judged(working(one, NOW, 720)).state is S.SATURATED


def test_vllm_r15_deferred_requests_are_shown_and_are_no_queue():
    one = quiet_sample(running=2.0, waiting=0.0, deferred=30.0, kv_use=0.05)

    view = judged(working(one, NOW, 720))

    assert (view.state, view.signals["deferred_peak"], view.signals["waiting_peak"]) == (S.BUSY, 30.0, 0.0)


def test_vllm_r16_a_cache_that_is_held_without_requests_or_steps_is_a_stale_gauge():
    view = judged(quiet(720, kv_use=0.4))

    assert view.state is S.STALE_GAUGE
    assert "40% of the KV cache" in view.why


def test_vllm_r17_arrivals_come_from_first_tokens():
    view = judged(working(quiet_sample(running=1.0), NOW, 720))

    assert view.signals["arrivals_per_s"] == pytest.approx(1.0)


def test_vllm_r18_a_restart_without_traffic_starts_the_window_anew():
    old = repeated(quiet_sample(process_start=1.0), NOW - timedelta(seconds=310), 400)
    new = repeated(quiet_sample(process_start=2.0, counters=Counters(steps=0.0, generation_tokens=0.0)), NOW, 300)

    view = judged(old + new)

    assert view.state is S.UNSURE
    assert view.signals["quiet_s"] == 300


def test_vllm_r20_a_queue_counts_while_the_cache_has_room():
    one = quiet_sample(running=3.0, waiting=5.0, kv_use=0.32)

    assert judged(working(one, NOW, 720)).state is S.SATURATED


def test_vllm_r23_gauges_that_come_later_are_taken():
    fresh = repeated(sample("v0.32.0-multiproc-fresh"), NOW, 720)
    now_busy = [*fresh, sample("v0.32.0-multiproc-saturated", after(10))]

    assert judged(fresh).state is S.FRESH_IDLE
    assert judged(now_busy, now=after(10), max_num_seqs=8).state is S.BUSY


def test_vllm_r23_a_used_server_without_gauges_is_unsure():
    assert judged(quiet(720, running=None, waiting=None)).state is S.UNSURE


def test_vllm_r24_the_first_request_is_noticed_at_once():
    fresh = repeated(sample("v0.32.0-idle-fresh"), NOW, 720)

    view = judged([*fresh, sample("v0.32.0-light", after(10))], now=after(10))

    assert view.state is S.BUSY


def test_vllm_r29_a_sleeping_replica_is_not_idle_again():
    view = judged(quiet(720, awake=False))

    assert view.state is S.SLEEPING
    assert view.state not in LENDABLE | UNKNOWN


def test_work_that_left_no_gauge_behind_is_still_work():
    samples = quiet(720)
    samples[20:] = [replace(one, counters=replace(one.counters, generation_tokens=9001.0)) for one in samples[20:]]

    view = judged(samples)

    assert (view.state, view.why) == (S.BUSY, "It last worked 520 s ago.")


def test_rates_and_means_are_those_of_the_real_server():
    scrapes = [scrape.sample for scrape in recorded("load-up-down-5min")]
    full = [one for one in scrapes if one.at <= after(171)]

    view = judged(full, now=full[-1].at, interval_s=5.0, policy=replace(POLICY, busy_window_s=45.0))

    assert view.signals["tokens_per_s"] == pytest.approx(708, rel=0.06)
    assert view.signals["steps_per_s"] == pytest.approx(89, rel=0.06)
    assert view.signals["arrivals_per_s"] == pytest.approx(4.4, rel=0.1)
    assert view.signals["ttft_mean_s"] == pytest.approx(4.85, rel=0.1)
    assert view.signals["itl_mean_s"] == pytest.approx(0.0111, rel=0.1)
    assert (view.signals["running_peak"], view.signals["waiting_peak"]) == (8, 22)
    assert view.signals["full_ratio"] == 1.0


def test_without_traffic_a_mean_is_no_number():
    view = judged(quiet(720))

    assert (view.signals["ttft_mean_s"], view.signals["itl_mean_s"], view.signals["tokens_per_s"]) == (None, None, 0.0)


# -- Laws

gauge = st.sampled_from([None, 0.0, 0.0, 1.0, 7.0, 30.0])
counter = st.one_of(st.none(), st.integers(min_value=0, max_value=3).map(float))


@st.composite
def samples_of_a_window(draw: st.DrawFn) -> list[Sample]:
    made: list[Sample] = []
    for at in times(NOW, 120):
        if draw(st.integers(0, 9)) == 0:
            made.append(failed(at))
            continue
        counters = Counters(steps=draw(counter), generation_tokens=draw(counter), arrivals=draw(counter))
        kv_use = draw(st.sampled_from([None, 0.0, 0.5, 1.0]))
        made.append(quiet_sample(at, running=draw(gauge), waiting=draw(gauge), kv_use=kv_use, counters=counters))
    return made


SHORT = replace(POLICY, idle_window_s=100.0, busy_window_s=40.0, stall_s=60.0)


@given(samples_of_a_window())
def test_what_is_lendable_did_nothing_and_held_nothing_in_the_whole_window(samples: list[Sample]):
    view = judged(samples, policy=SHORT)

    if view.state in LENDABLE:
        seen = [one for one in samples if one.target is Target.UP and one.at > NOW - timedelta(seconds=100)]
        assert all(not one.running and not one.waiting and not one.kv_use for one in seen)
        assert len({one.counters.generation_tokens for one in seen}) <= 1 or all(
            not one.counters.generation_tokens for one in seen
        )
        assert len(seen) >= 8


@given(samples_of_a_window())
def test_no_rate_is_ever_negative_and_every_state_has_a_sentence(samples: list[Sample]):
    view = judged(samples, policy=SHORT)

    assert all(value >= 0 for key, value in view.signals.items() if value is not None and key != "age_s")
    assert view.why.endswith(".")


@given(samples_of_a_window(), st.integers(1, 1000))
def test_the_state_does_not_depend_on_the_time_of_day(samples: list[Sample], shift: int):
    later = NOW + timedelta(minutes=shift)

    assert judged(at_times(samples, later, 10.0), now=later, policy=SHORT).state is judged(samples, policy=SHORT).state
