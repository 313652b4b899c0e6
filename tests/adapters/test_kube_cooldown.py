"""Nodes that refused a pod are left alone for a while."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from scheduler.adapters.kube.cooldown import Cooldown
from scheduler.adapters.kube.objects import Pod
from tests.adapters.kube_objects import an_attempt
from tests.build import NOW, minutes

STUCK = an_attempt(pinned="node-1", held_back="Unschedulable")
PROMISED = {STUCK.uid: "node-1"}


def left_alone(cooldown: Cooldown, minute: float, *pods: Pod, promised: Mapping[str, str] = PROMISED) -> list[str]:
    cooldown.look(pods, promised, NOW + minutes(minute))
    return list(cooldown.why())


@pytest.mark.parametrize(
    "fields",
    [
        {"reason": "UnexpectedAdmissionError"},
        {"reason": "OutOfnvidia.com/gpu"},
        {"message": "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable"},
    ],
)
def test_argo_r31_a_node_that_refused_a_pod_is_left_alone_for_a_while(fields: dict[str, str]):
    cooldown = Cooldown(300)
    refused = an_attempt(node="node-1", phase="Failed", **fields)

    assert left_alone(cooldown, 0, refused) == ["node-1"]
    assert cooldown.why() == {"node-1": "it refused a pod, and is left alone until 22:05 UTC"}
    assert left_alone(cooldown, 4.9, refused) == ["node-1"]
    assert left_alone(cooldown, 5, refused) == []


def test_argo_r31_the_next_refusal_counts_anew():
    cooldown = Cooldown(300)
    first, second = (an_attempt(name, node="node-1", phase="Failed", reason="OutOfcpu") for name in ("a", "b"))

    left_alone(cooldown, 0, first)

    assert left_alone(cooldown, 4, first, second) == ["node-1"]
    assert left_alone(cooldown, 8, first, second) == ["node-1"]


@pytest.mark.parametrize("fields", [{"reason": "Evicted"}, {"message": "main: Error (exit code 1)"}])
def test_a_program_that_failed_says_nothing_of_its_node(fields: dict[str, str]):
    assert left_alone(Cooldown(300), 0, an_attempt(node="node-1", phase="Failed", **fields)) == []


def test_argo_r27_a_node_that_did_not_take_a_released_pod_is_left_alone():
    cooldown = Cooldown(300)

    assert left_alone(cooldown, 0, STUCK) == []
    assert left_alone(cooldown, 0.3, STUCK) == []
    assert left_alone(cooldown, 0.4, STUCK) == ["node-1"]


def test_argo_r27_a_pod_that_was_taken_back_for_want_of_room_tells_of_its_node_too():
    cooldown = Cooldown(300)

    left_alone(cooldown, 0, STUCK)
    left_alone(cooldown, 0.3, STUCK)

    assert left_alone(cooldown, 0.35) == ["node-1"]


def test_a_pod_that_vanished_soon_says_nothing_of_its_node():
    cooldown = Cooldown(300)

    left_alone(cooldown, 0, STUCK)

    assert left_alone(cooldown, 0.15) == []


def test_a_pod_that_its_node_took_in_the_end_says_nothing_of_it():
    cooldown = Cooldown(300)

    left_alone(cooldown, 0, STUCK)

    assert left_alone(cooldown, 0.3, an_attempt(node="node-1")) == []


def test_a_pod_that_kube_scheduler_has_not_looked_at_yet_says_nothing():
    cooldown = Cooldown(300)
    fresh = an_attempt(pinned="node-1")

    left_alone(cooldown, 0, fresh)

    assert left_alone(cooldown, 2, fresh) == []


def test_a_node_whose_room_a_replica_took_is_not_left_alone():
    cooldown = Cooldown(300)

    left_alone(cooldown, 0, STUCK, promised={})

    assert left_alone(cooldown, 2, STUCK, promised={}) == []
