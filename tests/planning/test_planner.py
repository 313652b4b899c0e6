"""Stories of one turn: hand back first, then scale, then start."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from scheduler.codec import from_plain
from scheduler.fleet.forecast import Soon
from scheduler.fleet.services import Mode
from scheduler.jobs.job import JobId
from scheduler.jobs.spec import Priority
from scheduler.jobs.waits import Wait, WaitReason, sentence
from scheduler.planning.plan import Move, Plan, Release, ScaleDown, ScaleUp, TakeBack
from scheduler.planning.planner import plan
from scheduler.planning.snapshot import Snapshot
from scheduler.policy import Policy
from tests.build import (
    NOW,
    a_demand,
    a_lease,
    a_pending_replica,
    a_pool,
    a_replica,
    a_service,
    a_snapshot,
    a_task,
    a_window,
    hours,
    minutes,
)

POLICY = Policy()


def decided(snapshot: Snapshot, policy: Policy = POLICY) -> Plan:
    return plan(snapshot, policy)


def starts(answer: Plan) -> list[tuple[str, dict[str, int]]]:
    return [(str(one.task), dict(one.placement)) for one in answer.actions if isinstance(one, Release)]


def taken_back(answer: Plan) -> list[str]:
    return sorted(one.uid for one in answer.actions if isinstance(one, TakeBack))


def grown(answer: Plan) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(one.service, one.replicas, one.nodes) for one in answer.actions if isinstance(one, ScaleUp)]


def shrunk(answer: Plan) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(one.service, one.replicas, one.leave_first) for one in answer.actions if isinstance(one, ScaleDown)]


def wait_of(answer: Plan, task: str = "main") -> Wait:
    (wait,) = [one.wait for one in answer.waits if one.task == task]
    return wait


# Starting


def test_a_task_starts_on_idle_gpus_and_knows_until_when():
    snapshot = a_snapshot(a_pool("node-1: 4 idle, 4 chat"), waiting=[a_task(gpus=2)])

    (release,) = decided(snapshot).actions

    assert isinstance(release, Release)
    assert (release.uid, dict(release.placement), release.until, release.confidence) == (
        "gated-1-main",
        {"node-1": 2},
        NOW + hours(10),
        0.8,
    )


def test_an_empty_world_gives_an_empty_plan():
    answer = decided(a_snapshot(a_pool("node-1: 8 idle")))

    assert (answer.at, answer.actions, answer.waits) == (NOW, (), ())


@pytest.mark.parametrize(
    ("nodes", "gpus", "expected"),
    [
        (("node-1: 8 idle", "node-2: 2 idle, 6 chat"), 2, {"node-2": 2}),
        (("node-1: 8 idle", "node-2: 3 idle, 5 chat", "node-3: 2 idle, 6 chat"), 2, {"node-3": 2}),
        (("node-1: 4 idle", "node-2: 4 idle, 4 chat"), 4, {"node-2": 4}),
        (("node-1: 8 idle", "node-2: 8 idle"), 8, {"node-2": 8}),
    ],
    ids=["partly used first", "the tightest", "an empty small node stays whole", "from the other end than replicas"],
)
def test_a_task_goes_where_it_fits_most_tightly(nodes, gpus, expected):
    answer = decided(a_snapshot(a_pool(*nodes), waiting=[a_task(gpus=gpus)]))

    assert starts(answer) == [("main", expected)]


@pytest.mark.parametrize(
    ("idle", "expected"),
    [(8, {"node-1": 8}), (7, {"node-1": 4}), (4, {"node-1": 4})],
)
def test_an_elastic_task_takes_the_largest_choice_that_fits(idle, expected):
    pool = a_pool(f"node-1: {idle} idle, {16 - idle} chat")

    assert starts(decided(a_snapshot(pool, waiting=[a_task(gpus=(8, 4))]))) == [("main", expected)]


def test_a_gang_starts_on_different_nodes_or_not_at_all():
    two = a_pool("node-1: 8 idle, 8 chat", "node-2: 16 idle")
    gang = a_task(gpus=8, nodes=2)
    larger = a_task(gpus=8, nodes=3)

    assert starts(decided(a_snapshot(two, waiting=[gang]))) == [("main", {"node-1": 8, "node-2": 8})]
    three = a_pool("node-1: 8 idle, 8 chat", "node-2: 16 idle", "node-3: 4 idle, 12 chat")
    assert wait_of(decided(a_snapshot(three, waiting=[larger]))).short_by == 4


def test_the_queue_goes_by_priority_then_deadline_then_who_ran_before_then_age():
    pool = a_pool("node-1: 8 idle")
    waiting = [
        a_task("young", job=6, gpus=1, submitted_at=NOW - minutes(1)),
        a_task("old", job=5, gpus=1, submitted_at=NOW - hours(5)),
        a_task("due", job=4, gpus=1, deadline=NOW + hours(9)),
        a_task("ran", job=3, gpus=1, preempted=True, submitted_at=NOW),
        a_task("low", job=2, gpus=1, priority=Priority.LOW, preempted=True),
        a_task("high", job=7, gpus=1, priority=Priority.HIGH, submitted_at=NOW),
    ]

    answer = decided(a_snapshot(pool, waiting=waiting))

    assert [task for task, _ in starts(answer)] == ["high", "due", "ran", "old", "young", "low"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (a_task("short", estimate_s=600, submitted_at=NOW), a_task("long", job=2, estimate_s=36_000)),
        (a_task("old", estimate_s=7200, submitted_at=NOW - hours(30)), a_task("short", job=2, estimate_s=600)),
        (a_task("ran", job=3, estimate_s=4000, preempted=True), a_task("short", job=2, estimate_s=600)),
        (a_task("poor", job=3, team="vision", estimate_s=600), a_task("rich", job=2, team="nlp", estimate_s=600)),
        (a_task("gang", job=3, gpus=8, estimate_s=90_000), a_task("short", job=2, estimate_s=600)),
    ],
    ids=[
        "shortest first",
        "age makes up for length",
        "who was preempted",
        "teams that had less",
        "a gang that waited long",
    ],
)
def test_the_queue_serves_the_short_the_old_and_those_who_had_least(before, after):
    answer = decided(a_snapshot(a_pool("node-1: 8 chat"), waiting=[after, before], team_shares={"nlp": 1.0}))

    assert [one.task for one in answer.waits] == [before.task, after.task]


def test_a_gang_does_not_go_first_as_long_as_it_has_hardly_waited():
    gang = a_task("gang", job=3, gpus=8, estimate_s=90_000, since=NOW - minutes(10))
    short = a_task("short", job=2, estimate_s=600)

    answer = decided(a_snapshot(a_pool("node-1: 8 chat"), waiting=[gang, short]))

    assert [one.task for one in answer.waits] == ["short", "gang"]


def test_tasks_of_a_sweep_start_in_the_order_of_their_numbers():
    waiting = [a_task(f"sft-{number}", gpus=1) for number in (10, 2, 9, 0)]

    answer = decided(a_snapshot(a_pool("node-1: 8 idle"), waiting=waiting))

    assert [task for task, _ in starts(answer)] == ["sft-0", "sft-2", "sft-9", "sft-10"]


def test_a_small_task_starts_behind_a_large_one_that_does_not_fit():
    pool = a_pool("node-1: 4 idle, 4 chat")
    waiting = [a_task("large", job=1, gpus=8), a_task("small", job=2, gpus=4)]

    answer = decided(a_snapshot(pool, waiting=waiting))

    assert starts(answer) == [("small", {"node-1": 4})]
    assert sentence(wait_of(answer, "large")) == "is 8 GPUs short; GPUs are held by chat (4)"


def test_a_task_whose_gpus_others_took_in_this_turn_waits_behind_them():
    waiting = [a_task("first", job=1, gpus=8), a_task("second", job=2, gpus=8)]

    answer = decided(a_snapshot(a_pool("node-1: 8 idle"), waiting=waiting))

    assert sentence(wait_of(answer, "second")) == "waits behind job-1"


def test_a_wait_says_how_many_gpus_are_missing_and_who_holds_them():
    pool = a_pool("node-1: 2 idle, 4 chat, 2 run:u-1", "node-2: 1 idle, 4 chat, 3 other")
    answer = decided(a_snapshot(pool, waiting=[a_task(gpus=6)], leases=[a_lease("u-1", "node-1: 2", job=7)]))

    assert sentence(wait_of(answer)) == "is 4 GPUs short; GPUs are held by chat (8), someone (3), job-7 (2)"


def test_idle_gpus_that_are_not_lent_are_named_as_the_reserve():
    pool = a_pool("node-1: 8 idle")

    answer = decided(a_snapshot(pool, windows=[a_window("node-1", 4)], waiting=[a_task(gpus=8)]))

    assert sentence(wait_of(answer)) == "is 4 GPUs short; GPUs are held by a reserve for services (4)"


def test_the_earliest_start_comes_from_runs_that_are_stopping():
    pool = a_pool("node-1: 4 idle, 4 run:u-1")
    stopping = a_lease("u-1", "node-1: 4", stopping=True, stop_by=NOW + minutes(1))

    answer = decided(a_snapshot(pool, leases=[stopping], waiting=[a_task(gpus=8)]))

    assert wait_of(answer).earliest == NOW + minutes(1)


def test_the_earliest_start_comes_from_windows_that_open_later():
    later = a_window("node-1", 8, since=NOW + hours(2), until=NOW + hours(9))

    answer = decided(a_snapshot(a_pool("node-1: 8 chat"), windows=[later], waiting=[a_task(gpus=8)]))

    assert starts(answer) == []
    assert wait_of(answer).earliest == NOW + hours(2)


def test_nothing_can_be_said_of_the_start_when_nothing_is_known_to_come_free():
    answer = decided(a_snapshot(a_pool("node-1: 8 chat"), waiting=[a_task(gpus=8)]))

    assert wait_of(answer).earliest is None


# What keeps a task from starting


@pytest.mark.parametrize(
    ("task", "more", "said"),
    [
        (a_task(uid=None), {}, "is being prepared"),
        (a_task(start_after=NOW + hours(1)), {}, "waits for its start_after time"),
        (a_task(gpus=16), {}, "fits on no node: main asks 16 GPUs on a node, the largest node has 8"),
        (a_task(gpus=8, nodes=2), {}, "fits on no node: main asks 8 GPUs on each of 2 nodes, 1 node has so many"),
        (
            a_task("sft-3", parallel=1),
            {"leases": [a_lease("u-1", "node-2: 1", job=1, step="sft")]},
            "waits its turn: 1 of sft runs, parallel is 1",
        ),
        (
            a_task(team="nlp", gpus=4),
            {"leases": [a_lease("u-1", "node-2: 2", team="nlp")], "team_gpus": {"nlp": 4}},
            "waits for its team's budget: nlp runs 2 of 4 GPUs, this asks 4",
        ),
        (
            a_task(),
            {"lending_open": False, "opens_at": NOW + hours(3)},
            "waits for the hours in which lending is allowed",
        ),
    ],
    ids=["no pod yet", "start_after", "too large", "too many nodes", "parallel", "team", "calendar"],
)
def test_a_task_that_may_not_start_says_why(task, more, said):
    answer = decided(a_snapshot(a_pool("node-1: 8 idle"), waiting=[task], **more))

    assert starts(answer) == []
    assert sentence(wait_of(answer, task.task)) == said


def test_a_wait_for_a_time_says_when():
    pool = a_pool("node-1: 8 idle")
    closed = a_snapshot(pool, waiting=[a_task()], lending_open=False, opens_at=NOW + hours(3))
    early = a_snapshot(pool, waiting=[a_task(start_after=NOW + hours(1))])

    assert wait_of(decided(closed)).earliest == NOW + hours(3)
    assert wait_of(decided(early)).earliest == NOW + hours(1)


def test_a_task_starts_at_its_start_after_time():
    snapshot = a_snapshot(a_pool("node-1: 8 idle"), waiting=[a_task(start_after=NOW)])

    assert starts(decided(snapshot)) == [("main", {"node-1": 1})]


def test_parallel_counts_what_starts_in_the_same_turn():
    waiting = [a_task(f"sft-{number}", parallel=2) for number in range(4)]

    answer = decided(a_snapshot(a_pool("node-1: 8 idle"), waiting=waiting))

    assert [task for task, _ in starts(answer)] == ["sft-0", "sft-1"]


def test_an_elastic_task_takes_the_choice_that_its_team_can_afford():
    waiting = [a_task(gpus=(8, 4), team="nlp")]

    answer = decided(a_snapshot(a_pool("node-1: 8 idle"), waiting=waiting, team_gpus={"nlp": 6}))

    assert starts(answer) == [("main", {"node-1": 4})]


def test_a_node_that_nobody_knows_enough_of_is_named_and_takes_nothing():
    pool = a_pool("node-1: 2 idle", "node-2: 8 unknown")

    answer = decided(a_snapshot(pool, windows=[a_window("node-1", 2), a_window("node-2", 8)], waiting=[a_task(gpus=8)]))

    assert starts(answer) == []
    assert sentence(wait_of(answer)) == ("waits because too little is known: node-2 (its agent does not answer)")


def test_a_task_without_gpus_runs_beside_others_up_to_a_number():
    waiting = [a_task(f"prep-{number}", gpus=0) for number in range(3)]
    leases = [a_lease("u-1", {"node-1": 0})]

    answer = decided(a_snapshot(a_pool("node-1: 8 chat"), waiting=waiting, leases=leases), Policy(node_tasks=3))

    assert starts(answer) == [("prep-0", {"node-1": 0}), ("prep-1", {"node-1": 0})]
    assert wait_of(answer, "prep-2").reason is WaitReason.QUEUE
    assert "3 tasks without GPUs" in wait_of(answer, "prep-2").detail


def test_a_task_without_gpus_needs_no_hours_of_lending():
    snapshot = a_snapshot(a_pool("node-1: 8 idle"), waiting=[a_task(gpus=0)], lending_open=False)

    assert starts(decided(snapshot)) == [("main", {"node-1": 0})]


@pytest.mark.parametrize(
    ("estimate_s", "lasts", "runs"),
    [
        (3600.0, hours(2), True),
        (3600.0, hours(1), True),
        (3601.0, hours(1), False),
        (None, hours(11.9), False),
        (None, hours(12), True),
    ],
)
def test_a_task_that_cannot_save_needs_a_window_that_outlasts_it(estimate_s, lasts, runs):
    snapshot = a_snapshot(
        a_pool("node-1: 8 idle"),
        windows=[a_window("node-1", 8, lasts=lasts)],
        waiting=[a_task(can_save=False, estimate_s=estimate_s)],
    )

    answer = decided(snapshot)

    assert bool(starts(answer)) is runs
    assert [one.wait.reason for one in answer.waits] == ([] if runs else [WaitReason.WINDOW_TOO_SHORT])


def test_a_task_that_cannot_save_passes_a_tighter_node_for_one_that_lasts():
    pool = a_pool("node-1: 2 idle, 6 chat", "node-2: 8 idle")
    windows = [a_window("node-1", 2, lasts=hours(1)), a_window("node-2", 8, lasts=hours(9))]

    answer = decided(a_snapshot(pool, windows=windows, waiting=[a_task(gpus=2, can_save=False, estimate_s=7200.0)]))

    assert starts(answer) == [("main", {"node-2": 2})]


def test_the_first_task_on_a_node_gets_the_gpus_that_stay_longest():
    windows = [a_window("node-1", 4, lasts=hours(1)), a_window("node-1", 4, lasts=hours(9))]
    waiting = [a_task("sft-0", gpus=4), a_task("sft-1", gpus=4)]

    answer = decided(a_snapshot(a_pool("node-1: 8 idle"), windows=windows, waiting=waiting))

    assert [one.until - NOW for one in answer.actions if isinstance(one, Release)] == [hours(9), hours(1)]


def test_a_run_that_is_not_seen_on_its_node_yet_keeps_its_gpus():
    just_released = a_lease("u-1", "node-1: 8", held=timedelta(seconds=1))

    answer = decided(a_snapshot(a_pool("node-1: 8 idle"), leases=[just_released], waiting=[a_task()]))

    assert starts(answer) == []


def test_a_lease_on_a_node_that_vanished_is_left_alone():
    snapshot = a_snapshot(
        a_pool("node-1: 8 chat"),
        leases=[a_lease("u-1", "node-gone: 8")],
        services=[a_service()],
        demands=[a_demand(have=1, want=2)],
    )

    assert decided(snapshot).actions == ()


# Services


def test_a_managed_service_grows_onto_idle_gpus_beside_its_replicas():
    snapshot = a_snapshot(
        a_pool("node-1: 8 idle", "node-2: 4 idle, 4 chat"),
        services=[a_service()],
        demands=[a_demand(have=1, want=3)],
    )

    assert grown(decided(snapshot)) == [("chat", 3, ("node-2", "node-1"))]


def test_a_replica_gets_its_idle_gpus_before_any_task():
    snapshot = a_snapshot(
        a_pool("node-1: 4 idle, 4 chat"),
        services=[a_service()],
        demands=[a_demand(have=1, want=2)],
        waiting=[a_task(gpus=1)],
    )

    answer = decided(snapshot)

    assert grown(answer) == [("chat", 2, ("node-1",))]
    assert starts(answer) == []


def test_a_service_that_was_asked_for_more_takes_gpus_back_and_only_then_grows():
    lease = a_lease("u-1", "node-1: 4")
    wanting = {"services": [a_service()], "demands": [a_demand(have=1, want=2)]}

    first = decided(a_snapshot(a_pool("node-1: 4 run:u-1, 4 chat"), leases=[lease], **wanting))
    second = decided(
        a_snapshot(a_pool("node-1: 4 ending run:u-1, 4 chat"), leases=[replace(lease, stopping=True)], **wanting)
    )
    third = decided(a_snapshot(a_pool("node-1: 4 idle, 4 chat"), **wanting))

    assert (taken_back(first), grown(first)) == (["u-1"], [])
    assert (taken_back(second), grown(second)) == ([], [])
    assert (taken_back(third), grown(third)) == ([], [("chat", 2, ("node-1",))])


def test_a_take_back_names_the_service_the_grace_and_the_loss():
    snapshot = a_snapshot(
        a_pool("node-1: 4 run:u-1, 4 chat"),
        leases=[a_lease("u-1", "node-1: 4", can_save=False, saved_at=NOW - minutes(12))],
        services=[a_service()],
        demands=[a_demand(have=1, want=2)],
    )

    (action,) = decided(snapshot, Policy(grace_s=45)).actions

    assert isinstance(action, TakeBack)
    assert (action.service, action.grace_s, dict(action.placement)) == ("chat", 45, {"node-1": 4})
    assert action.why == "chat needs 4 GPUs for a replica; ending this run loses 12 min of work"


def test_nothing_starts_while_a_service_waits():
    snapshot = a_snapshot(
        a_pool("node-1: 4 run:u-1, 4 chat", "node-2: 2 idle, 6 other"),
        leases=[a_lease("u-1", "node-1: 4")],
        services=[a_service()],
        demands=[a_demand(have=1, want=2)],
        waiting=[a_task(gpus=1)],
    )

    answer = decided(snapshot)

    assert starts(answer) == []
    assert sentence(wait_of(answer)) == "waits while chat gets its GPUs first"


def test_a_replica_that_is_leaving_saves_a_run_from_being_stopped():
    snapshot = a_snapshot(
        a_pool("node-1: 4 ending code, 4 run:u-1"),
        leases=[a_lease("u-1", "node-1: 4")],
        services=[a_service()],
        demands=[a_demand(have=0, want=1)],
    )

    assert decided(snapshot).actions == ()


def test_an_observed_service_gets_gpus_for_its_pending_replicas_and_is_never_scaled():
    observed = a_service(mode=Mode.OBSERVE)
    runs = "node-1: 4 run:u-1, 4 chat"
    wants = a_snapshot(a_pool(runs), leases=[a_lease("u-1")], services=[observed], demands=[a_demand(have=1, want=2)])
    asks = a_snapshot(
        a_pool(runs, replicas=[a_pending_replica()]),
        leases=[a_lease("u-1")],
        services=[observed],
        demands=[a_demand(have=1, want=2)],
    )

    assert decided(wants).actions == ()
    assert (taken_back(decided(asks)), grown(decided(asks))) == (["u-1"], [])


def test_nobody_ends_for_a_replica_that_others_may_be_making_room_for_and_nothing_is_lent_beside_it():
    settling = replace(a_pending_replica(), settling=True)
    snapshot = a_snapshot(
        a_pool("node-1: 4 run:u-1, 4 chat", "node-2: 2 idle, 6 chat", replicas=[settling]),
        leases=[a_lease("u-1")],
        services=[a_service(mode=Mode.OBSERVE)],
        demands=[a_demand(have=3, want=4)],
        waiting=[a_task(gpus=1)],
    )

    assert decided(snapshot).actions == ()


def test_gpus_that_a_pending_replica_is_about_to_take_are_not_given_away():
    snapshot = a_snapshot(
        a_pool("node-1: 4 idle, 4 chat", replicas=[a_pending_replica()]),
        services=[a_service()],
        demands=[a_demand(have=2, want=2)],
        waiting=[a_task(gpus=1)],
    )

    answer = decided(snapshot)

    assert (starts(answer), grown(answer)) == ([], [])
    assert wait_of(answer).reason is WaitReason.GPUS


def test_a_managed_service_shrinks_by_the_replicas_that_should_leave_first():
    snapshot = a_snapshot(
        a_pool("node-1: 4 chat, 4 chat", "node-2: 4 chat, 4 idle"),
        services=[a_service()],
        demands=[a_demand(have=3, want=1, leave_first=("chat-3", "chat-1", "chat-2"))],
    )

    assert shrunk(decided(snapshot)) == [("chat", 1, ("chat-3", "chat-1"))]


@pytest.mark.parametrize(
    ("service", "known", "unseen"),
    [
        (a_service(mode=Mode.OBSERVE), True, {}),
        (a_service(), False, {}),
        (a_service(), True, {"chat": "the API does not answer"}),
    ],
    ids=["not ours to scale", "demand unknown", "replicas unseen"],
)
def test_what_is_not_ours_or_not_known_does_not_shrink(service, known, unseen):
    snapshot = a_snapshot(
        a_pool("node-1: 4 chat, 4 chat", unknown_services=unseen),
        services=[service],
        demands=[a_demand(have=2, want=1, known=known, leave_first=("chat-1", "chat-2"))],
    )

    assert decided(snapshot).actions == ()


def test_a_replica_on_a_node_that_nobody_knows_enough_of_stays():
    pool = a_pool("node-1: 8 unknown", "node-2: 4 chat, 4 idle", replicas=[a_replica("chat-x", node="node-1")])
    snapshot = a_snapshot(
        pool,
        services=[a_service()],
        demands=[a_demand(have=2, want=1, leave_first=("chat-x", "chat-1"))],
    )

    assert shrunk(decided(snapshot)) == [("chat", 1, ("chat-1",))]


def test_when_the_hours_of_lending_are_over_all_runs_give_their_gpus_back():
    pool = a_pool("node-1: 4 run:u-1, 2 run:u-2, 2 idle")
    leases = [a_lease("u-1", "node-1: 4"), a_lease("u-2", "node-1: 2", stopping=True), a_lease("u-3", {"node-1": 0})]

    answer = decided(a_snapshot(pool, leases=leases, lending_open=False))

    assert taken_back(answer) == ["u-1"]


# Who is stopped


def reclaiming(
    pool_lines: tuple[str, ...], leases: list, *, want: int = 1, gpus: int = 4, **policy: float
) -> list[str]:
    snapshot = a_snapshot(
        a_pool(*pool_lines),
        leases=leases,
        services=[a_service(gpus=gpus)],
        demands=[a_demand(have=0, want=want)],
    )
    return taken_back(decided(snapshot, Policy(**policy)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"saved_at": NOW - minutes(2)}, {"saved_at": NOW - minutes(20)}),
        ({"every_s": 600.0, "held": minutes(61)}, {"every_s": 600.0, "held": minutes(69)}),
        ({"held": minutes(30)}, {"held": minutes(90)}),
        ({"can_save": True, "save_s": 30.0, "held": hours(90)}, {"held": minutes(10)}),
        ({"can_save": True, "save_s": 5.0}, {"can_save": True, "save_s": 50.0}),
        ({"held": minutes(9)}, {"can_save": True, "save_s": 600.0, "held": minutes(90)}),
        ({"held": hours(5)}, {"held": timedelta(seconds=30)}),
    ],
    ids=[
        "the newer checkpoint",
        "the nearer multiple of its checkpoints",
        "less work without checkpoints",
        "one that saves",
        "one that saves faster",
        "a save that does not fit into the grace is no save",
        "not one that has hardly begun",
    ],
)
def test_the_run_that_loses_least_gives_its_gpus_back(one, other):
    leases = [
        a_lease("u-other", "node-1: 4", **({"can_save": False} | other)),
        a_lease("u-one", "node-1: 4", **({"can_save": False} | one)),
    ]

    assert reclaiming(("node-1: 4 run:u-one, 4 run:u-other",), leases) == ["u-one"]


def test_two_small_runs_are_stopped_when_that_loses_less_than_a_large_one():
    leases = [
        a_lease("u-large", "node-1: 4", can_save=False, held=hours(9)),
        a_lease("u-a", "node-1: 2"),
        a_lease("u-b", "node-1: 2"),
    ]

    assert reclaiming(("node-1: 4 run:u-large, 2 run:u-a, 2 run:u-b",), leases) == ["u-a", "u-b"]


def test_a_gang_leaves_together_and_feeds_two_replicas():
    leases = [
        a_lease("u-gang", "node-1: 4, node-2: 4"),
        a_lease("u-a", "node-1: 4", can_save=False, held=hours(2)),
        a_lease("u-b", "node-2: 4", can_save=False, held=hours(2)),
    ]
    nodes = ("node-1: 4 run:u-gang, 4 run:u-a", "node-2: 4 run:u-gang, 4 run:u-b")

    assert reclaiming(nodes, leases, want=2) == ["u-gang"]


def test_idle_gpus_beside_a_run_make_a_smaller_run_enough():
    leases = [a_lease("u-large", "node-1: 4"), a_lease("u-small", "node-2: 2")]

    assert reclaiming(("node-1: 4 run:u-large", "node-2: 2 idle, 2 run:u-small"), leases) == ["u-small"]


def test_a_whole_node_of_jobs_is_broken_last():
    leases = [a_lease("u-1", "node-1: 4"), a_lease("u-2", "node-2: 4", save_s=20.0)]
    nodes = ("node-1: 4 run:u-1, 4 other", "node-2: 4 run:u-2, 4 code")

    assert reclaiming(nodes, leases) == ["u-2"]
    assert reclaiming(nodes, leases, open_node_gpu_s=0.0) == ["u-1"]


def test_runs_that_stop_already_or_stand_on_unknown_nodes_are_not_asked():
    leases = [a_lease("u-1", "node-1: 4", stopping=True), a_lease("u-2", "node-1: 4, node-2: 4")]
    nodes = ("node-1: 4 run:u-1, 4 run:u-2", "node-2: 8 unknown")

    assert reclaiming(nodes, leases, want=2) == []


def test_nobody_is_stopped_for_a_replica_that_fits_nowhere():
    assert reclaiming(("node-1: 4 run:u-1, 4 other",), [a_lease("u-1", "node-1: 4")], gpus=8) == []


def test_the_larger_replica_is_seated_first():
    snapshot = a_snapshot(
        a_pool("node-1: 8 run:u-1", "node-2: 4 run:u-2, 4 other"),
        leases=[a_lease("u-1", "node-1: 8"), a_lease("u-2", "node-2: 4")],
        services=[a_service("app", gpus=4), a_service("big", gpus=8)],
        demands=[a_demand("app", have=0, want=1), a_demand("big", have=0, want=1)],
    )

    answer = decided(snapshot)

    assert [(one.uid, one.service) for one in answer.actions if isinstance(one, TakeBack)] == [
        ("u-1", "big"),
        ("u-2", "app"),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"leases": [a_lease("u-1"), a_lease("u-1")]},
        {"waiting": [a_task(), a_task(uid="another")]},
        {"waiting": [a_task(uid="u-1")], "leases": [a_lease("u-1")]},
        {"demands": [a_demand(), a_demand()]},
        {"services": [a_service(), a_service()]},
    ],
    ids=["a lease twice", "a task twice", "an attempt that waits and runs", "two demands", "a service twice"],
)
def test_a_snapshot_that_cannot_be_is_refused(fields):
    with pytest.raises(ValueError, match="stands twice in the snapshot"):
        a_snapshot(a_pool("node-1: 8 idle"), **fields)


SOON = Soon(service="chat", gpus=4, chance=0.4, why="chat is at 3.2 of 3.3")


def early(answer: Plan) -> list[tuple[str, bool, float]]:
    return [(one.uid, one.urgent, one.grace_s) for one in answer.actions if isinstance(one, TakeBack)]


# Whole nodes for tasks that need them


def moved(answer: Plan) -> list[tuple[str, str]]:
    return [(one.replica, one.node) for one in answer.actions if isinstance(one, Move)]


def test_a_small_task_opens_no_node_that_a_task_of_whole_nodes_could_take_soon():
    pool = a_pool("node-1: 8 idle", "node-2: 4 chat, 4 run:u-1")
    gang = a_task("gang", job=5, gpus=8, nodes=2)

    answer = decided(a_snapshot(pool, leases=[a_lease("u-1", "node-2: 4")], waiting=[gang, a_task(gpus=4)]))

    assert starts(answer) == []
    assert sentence(wait_of(answer)) == "waits behind job-5, which needs whole nodes"


@pytest.mark.parametrize(
    "gang",
    [
        a_task("gang", job=5, gpus=8, nodes=3),
        a_task("gang", job=5, gpus=8, nodes=2, start_after=NOW + hours(1)),
        a_task("gang", job=5, gpus=8, nodes=2, team="nlp"),
    ],
    ids=["it needs two nodes more", "it may not start yet", "its team may not have so many"],
)
def test_a_small_task_opens_a_node_beside_a_gang_that_could_not_take_it(gang):
    pool = a_pool("node-1: 8 idle", "node-2: 8 other", "node-3: 8 other")

    answer = decided(a_snapshot(pool, waiting=[gang, a_task(gpus=4)], team_gpus={"nlp": 8}))

    assert starts(answer) == [("main", {"node-1": 4})]


def test_a_replica_that_stands_alone_moves_so_that_its_node_comes_free_whole():
    pool = a_pool("node-1: 4 chat, 4 idle", "node-2: 4 chat, 4 idle", "node-3: 8 other")
    snapshot = a_snapshot(pool, services=[a_service(moves=True)], waiting=[a_task(gpus=8)])

    assert moved(decided(snapshot)) == [("chat-2", "node-1")]
    assert moved(decided(replace(snapshot, waiting=(a_task(gpus=8, nodes=2),)))) == []
    assert moved(decided(replace(snapshot, services=(a_service(),)))) == []
    assert moved(decided(snapshot, replace(POLICY, move_after_s=hours(2).total_seconds()))) == []
    assert moved(decided(replace(snapshot, pool=replace(pool, replicas=(*pool.replicas, a_pending_replica()))))) == []


@pytest.mark.parametrize(
    ("policy", "expected"),
    [({}, ["u-1"]), ({"gather_s": 10.0}, []), ({"move_after_s": hours(2).total_seconds()}, [])],
    ids=["it pays", "it does not pay soon enough", "it came too lately"],
)
def test_a_run_goes_elsewhere_so_that_a_task_finds_its_gpus_on_one_node(policy, expected):
    pool = a_pool("node-1: 4 run:u-1, 4 idle", "node-2: 4 chat, 4 idle", "node-3: 8 run:u-3")
    leases = [a_lease("u-1", save_s=30), a_lease("u-3", "node-3: 8", save_s=30)]

    answer = decided(a_snapshot(pool, leases=leases, waiting=[a_task(gpus=8, job=5)]), replace(POLICY, **policy))

    assert [(uid, urgent) for uid, urgent, _ in early(answer)] == [(uid, False) for uid in expected]
    if expected:
        (action,) = answer.actions
        assert action.why == "it goes on elsewhere, so that job-5 finds 8 GPUs on one node"


@pytest.mark.parametrize(
    "fields",
    [
        {"soon": [Soon(service="chat", gpus=4, chance=0.4, why="chat grows")]},
        {"waiting": [a_task(gpus=8, nodes=3)]},
        {"waiting": [a_task(gpus=4), a_task("b", gpus=4), a_task("c", gpus=8)]},
    ],
    ids=["a place is kept", "one node is not enough", "small tasks take the gaps"],
)
def test_nobody_goes_elsewhere_for_nothing(fields):
    pool = a_pool("node-1: 4 run:u-1, 4 idle", "node-2: 4 chat, 4 idle")
    given = {"waiting": [a_task(gpus=8)], "services": [a_service()]} | fields

    assert early(decided(a_snapshot(pool, leases=[a_lease("u-1", save_s=30)], **given))) == []


def test_a_task_that_does_not_save_stands_where_gpus_are_wanted_back_last():
    pool = a_pool("node-1: 4 chat, 4 idle", "node-2: 4 run:u-2, 4 idle")
    deaf = a_task("deaf", job=1, gpus=4, saves=False)
    leases = [a_lease("u-2", "node-2: 4")]

    alone = decided(a_snapshot(pool, leases=leases, waiting=[deaf]))
    both = decided(a_snapshot(pool, leases=leases, waiting=[deaf, a_task("saves", job=2, gpus=4)]))
    one_gap = a_pool("node-1: 4 chat, 4 idle", "node-2: 8 run:u-2")
    first = decided(
        a_snapshot(
            one_gap,
            leases=[a_lease("u-2", "node-2: 8")],
            waiting=[deaf, a_task("saves", job=2, gpus=4)],
        )
    )

    assert starts(alone) == [("deaf", {"node-2": 4})]
    assert sorted(starts(both)) == [("deaf", {"node-2": 4}), ("saves", {"node-1": 4})]
    assert starts(first) == [("saves", {"node-1": 4})]


def test_a_run_that_has_time_to_save_is_priced_by_what_it_then_keeps():
    pool = a_pool("node-1: 4 chat, 4 run:slow", "node-2: 4 chat, 4 run:deaf")
    leases = [
        a_lease("slow", save_s=80, every_s=3600.0),
        a_lease("deaf", "node-2: 4", can_save=False, every_s=3600.0, saved_at=NOW - minutes(20)),
    ]

    assert early(decided(a_snapshot(pool, soon=[SOON], leases=leases))) == [("slow", False, 80)]


# Places for replicas that are wanted soon


def test_free_gpus_are_kept_for_a_replica_that_is_wanted_soon():
    pool = a_pool("node-1: 4 chat, 4 idle", "node-2: 2 other, 6 idle")
    snapshot = a_snapshot(pool, soon=[SOON], services=[a_service()], waiting=[a_task("a", gpus=4), a_task(gpus=4)])

    answer = decided(snapshot)

    assert starts(answer) == [("a", {"node-2": 4})]
    assert wait_of(answer).reason is WaitReason.QUEUE


def test_whoever_waits_for_gpus_that_are_kept_is_told_so():
    pool = a_pool("node-1: 4 chat, 4 idle")

    answer = decided(a_snapshot(pool, soon=[SOON], services=[a_service()], waiting=[a_task(gpus=4)]))

    assert wait_of(answer).held_by == "a reserve for services (4), chat (4)"


def test_a_run_ends_early_for_a_replica_that_is_wanted_soon_and_gets_the_time_to_save():
    pool = a_pool("node-1: 4 chat, 4 run:u-1")
    lease = a_lease("u-1", save_s=85)

    snapshot = a_snapshot(pool, soon=[SOON], leases=[lease], waiting=[a_task(gpus=4)])
    answer = decided(snapshot, replace(POLICY, early_grace_s=300))

    assert early(answer) == [("u-1", False, 85)]
    assert [one.why for one in answer.actions if isinstance(one, TakeBack)] == [
        f"{SOON.why}; ending this run loses 0 min of work"
    ]
    assert starts(answer) == []


@pytest.mark.parametrize(
    ("kill_in_s", "pending", "expected"),
    [(POLICY.grace_s + 30, True, ["u-1"]), (POLICY.grace_s, True, []), (POLICY.grace_s + 30, False, [])],
    ids=["a replica waits by now", "it ends within the grace anyway", "nobody waits yet"],
)
def test_a_run_that_ends_at_leisure_must_hurry_once_a_replica_waits(kill_in_s, pending, expected):
    pool = a_pool("node-1: 4 chat, 4 ending run:u-1", replicas=[a_pending_replica()] if pending else [])
    lease = a_lease("u-1", stopping=True, save_s=85, kill_at=NOW + timedelta(seconds=kill_in_s))
    demand = a_demand(have=1, want=2 if pending else 1)

    answer = decided(a_snapshot(pool, soon=[SOON], services=[a_service()], demands=[demand], leases=[lease]))

    assert early(answer) == [(uid, True, POLICY.grace_s) for uid in expected]


def test_the_time_to_save_has_an_end():
    pool = a_pool("node-1: 4 chat, 4 run:u-1")

    answer = decided(a_snapshot(pool, soon=[SOON], leases=[a_lease("u-1", save_s=9000)]))

    assert early(answer) == [("u-1", False, POLICY.early_grace_s)]


@pytest.mark.parametrize("pending", [False, True])
def test_a_run_that_has_hardly_begun_ends_only_for_a_replica_that_really_waits(pending):
    pool = a_pool("node-1: 4 chat, 4 run:u-1", replicas=[a_pending_replica()] if pending else [])
    lease = a_lease("u-1", held=timedelta(seconds=POLICY.min_run_s - 1))
    demand = a_demand(have=1, want=2 if pending else 1)

    answer = decided(a_snapshot(pool, soon=[SOON], services=[a_service()], demands=[demand], leases=[lease]))

    assert early(answer) == ([("u-1", True, POLICY.grace_s)] if pending else [])


def test_a_place_that_comes_free_is_enough_and_its_idle_gpus_are_not_lent_again():
    pool = a_pool("node-1: 4 chat, 2 idle, 2 ending run:u-1", "node-2: 4 chat, 4 run:u-2")
    leases = [a_lease("u-1", "node-1: 2", stopping=True), a_lease("u-2", "node-2: 4")]

    answer = decided(a_snapshot(pool, soon=[SOON], leases=leases, waiting=[a_task(gpus=1)]))

    assert answer.actions == ()


def test_a_free_place_is_kept_rather_than_one_that_only_comes_free():
    pool = a_pool("node-1: 4 chat, 4 ending run:u-1", "node-2: 4 other, 4 idle")
    snapshot = a_snapshot(pool, soon=[SOON], leases=[a_lease("u-1", stopping=True)], waiting=[a_task(gpus=4)])

    assert starts(decided(snapshot)) == []


def test_reserve_slots_keeps_places_free_at_all_times():
    pool = a_pool("node-1: 4 chat, 4 run:u-1", "node-2: 8 run:u-2")
    leases = [a_lease("u-1"), a_lease("u-2", "node-2: 8")]
    snapshot = a_snapshot(pool, services=[a_service()], leases=leases)

    assert early(decided(snapshot, replace(POLICY, reserve_slots=1))) == [("u-1", False, POLICY.grace_s)]
    assert early(decided(snapshot, replace(POLICY, reserve_slots=2))) == [("u-2", False, POLICY.grace_s)]


def test_nobody_ends_for_a_place_that_no_node_could_hold():
    pool = a_pool("node-1: 4 chat, 4 run:u-1")
    soon = Soon(service="big", gpus=16, chance=0.9, why="big grows")

    assert decided(a_snapshot(pool, soon=[soon], leases=[a_lease("u-1")])).actions == ()


# A whole morning, as docs/planning.md tells it


def test_the_morning_ramp_is_decided_as_the_guide_tells():
    plain = json.loads((Path(__file__).parent / "morning-ramp.json").read_text())
    answer = decided(from_plain(plain, Snapshot))

    said = {one.job: sentence(one.wait) for one in answer.waits}
    assert starts(answer) == [("main", {"node-012": 8}), ("main", {"node-002": 1})]
    assert taken_back(answer) == []
    assert said[JobId(170)] == "waits behind job-205, job-404"
    assert said[JobId(401)] == "waits behind job-170, which needs whole nodes"
    assert said[JobId(402)] == "waits for its start_after time"
    assert said[JobId(403)] == "waits for its team's budget: nlp runs 0 of 1 GPU, this asks 2"
    assert said[JobId(405)] == "fits on no node: main asks 16 GPUs on a node, the largest node has 8"
