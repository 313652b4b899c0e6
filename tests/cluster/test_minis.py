"""The small scheduler, controllers and Argo do what was measured of the large ones, beyond what the stories tell."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scheduler.adapters.argo import retry
from scheduler.adapters.kube import names
from scheduler.adapters.kube.api import STRATEGIC, Refused
from scheduler.jobs.outcomes import exit_again
from tests.cluster.argo_texts import another_attempt, depends_true, fnv32a, item_names, item_text
from tests.cluster.fake_api import FakeApi
from tests.cluster.mini_controllers import MiniControllers
from tests.cluster.mini_scheduler import MiniScheduler
from tests.cluster.plane import FakePlane
from tests.cluster.stage import Stage, polite, task
from tests.cluster.waiting import until

NODES = {"gpu-0": 8, "gpu-1": 8}
OFF = {"metadata": {"$deleteFromPrimitiveList/finalizers": [names.STATUS_FINALIZER]}}


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    fake = FakeApi()
    loops = MiniScheduler(fake), MiniControllers(fake)
    for one in loops:
        one.start()
    yield fake
    for one in loops:
        one.kill()
        assert one.errors == []


def node(fake: FakeApi, name: str, gpus: int = 8, **spec: Any) -> None:
    body = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": spec}
    status = {
        "allocatable": {"nvidia.com/gpu": str(gpus), "cpu": "8", "memory": "8Gi", "pods": "20"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    with fake.lock:
        fake.create("nodes", body)
        fake.edit("nodes", "", name, lambda new: new.update(status=status))


def pod(fake: FakeApi, name: str, gpus: int = 1, **spec: Any) -> None:
    limits = {"nvidia.com/gpu": str(gpus)}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    fake.create("pods", {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}, "serving")


def where(fake: FakeApi, name: str) -> str:
    return str(fake.get("pods", "serving", name)["spec"].get("nodeName", ""))


def bound(fake: FakeApi, name: str) -> bool:
    return where(fake, name) != ""


def why(fake: FakeApi, name: str) -> str:
    conditions = fake.get("pods", "serving", name)["status"].get("conditions") or [{}]
    return str(conditions[0].get("message", ""))


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"unschedulable": True}, "unschedulable"),
        ({"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}, "untolerated taint {a: b}"),
    ],
)
def test_a_node_that_is_closed_takes_no_pod_and_says_so(fake: FakeApi, spec: dict[str, Any], told: str) -> None:
    node(fake, "gpu-0", **spec)
    pod(fake, "a")
    until(lambda: told in why(fake, "a"))
    node(fake, "gpu-1")
    until(lambda: where(fake, "a") == "gpu-1")


def test_a_tolerated_taint_keeps_nobody_away(fake: FakeApi) -> None:
    node(fake, "gpu-0", taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}])
    pod(fake, "a", tolerations=[{"key": "a", "operator": "Equal", "value": "b"}])
    until(lambda: where(fake, "a") == "gpu-0")


def test_the_fewest_of_the_least_important_make_room_and_the_preemptor_waits_for_their_end(fake: FakeApi) -> None:
    node(fake, "gpu-0", gpus=4)
    for name, priority in (("low", -1000), ("mid", -10)):
        fake.create("priorityclasses", {"metadata": {"name": name}, "value": priority})
    for name, count, cls in (("a", 2, "low"), ("b", 2, "mid")):
        pod(fake, name, count, priorityClassName=cls)
        until(partial(bound, fake, name))
    pod(fake, "c", 2)
    until(lambda: fake.get("pods", "serving", "c")["status"].get("nominatedNodeName") == "gpu-0")
    until(lambda: "deletionTimestamp" in fake.get("pods", "serving", "a")["metadata"])
    assert "deletionTimestamp" not in fake.get("pods", "serving", "b")["metadata"]
    assert where(fake, "c") == ""
    fake.edit("pods", "serving", "a", lambda new: new["status"].update(phase="Failed"))
    until(lambda: where(fake, "c") == "gpu-0")


def test_who_must_not_preempt_waits(fake: FakeApi) -> None:
    node(fake, "gpu-0", gpus=2)
    fake.create("priorityclasses", {"metadata": {"name": "low"}, "value": -1})
    pod(fake, "a", 2, priorityClassName="low")
    until(lambda: where(fake, "a") == "gpu-0")
    pod(fake, "b", 2, preemptionPolicy="Never")
    until(lambda: "Insufficient" in why(fake, "b"))
    assert "deletionTimestamp" not in fake.get("pods", "serving", "a")["metadata"]


def deployment(fake: FakeApi, replicas: int) -> None:
    template = {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "main"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "d"}}, "template": template}
    fake.create("deployments", {"metadata": {"name": "d"}, "spec": spec}, "serving")


def test_the_cheapest_pod_leaves_first_and_all_go_with_their_deployment(fake: FakeApi) -> None:
    node(fake, "gpu-0")
    deployment(fake, 3)
    until(lambda: [where(fake, one["metadata"]["name"]) for one in fake.items("pods")] == ["gpu-0"] * 3)
    first, second, third = (one["metadata"]["name"] for one in fake.items("pods"))
    cost = {"controller.kubernetes.io/pod-deletion-cost": "-100"}
    fake.edit("pods", "serving", second, lambda new: new["metadata"].update(annotations=cost))
    fake.edit("deployments", "serving", "d", lambda new: new["spec"].update(replicas=2))

    def leaving() -> list[str]:
        return [one["metadata"]["name"] for one in fake.items("pods") if "deletionTimestamp" in one["metadata"]]

    until(lambda: leaving() == [second])
    fake.delete("deployments", "serving", "d")
    until(lambda: sorted(leaving()) == sorted([first, second, third]))
    until(lambda: fake.items("replicasets") == [])


def test_under_the_finalizer_a_gated_pod_is_free_only_once_it_is_taken_off(tmp_path: Path) -> None:
    with FakePlane(tmp_path, finalizer=True) as plane, Stage(plane, NODES, tmp_path) as stage:
        job = stage.submit(1, task("free"), task("spent"))
        free, spent = stage.gated(job, "free"), stage.gated(job, "spent")
        stage.delete(free)
        stage.api.patch(free.key, OFF, STRATEGIC)
        stage.delete(spent)
        again = stage.gated(job, "free", but=(free.uid,))
        later = stage.gated(job, "spent", but=(spent.uid,))
        assert again.name == free.name
        assert later.name != spent.name, "its attempt was spent"
        told = {one.get("message", "") for one in stage.workflow(job)["status"]["nodes"].values()}
        assert f"can't find failed message for pod {spent.name} namespace gpujobs" in told
    assert plane.bugs == []


def test_a_suspended_workflow_makes_no_new_pods_and_is_not_shut_down(tmp_path: Path) -> None:
    with FakePlane(tmp_path) as plane, Stage(plane, NODES, tmp_path) as stage:
        job = stage.submit(1, task("a"))
        gated = stage.gated(job, "a")
        path = f"/apis/argoproj.io/v1alpha1/namespaces/gpujobs/workflows/{job}"
        stage.api.patch(path, {"spec": {"suspend": True}})
        stage.api.patch(path, {"spec": {"shutdown": "Terminate"}})
        stage.seen(gated.uid, lambda _: gated.uid in stage.record.gone)
        assert stage.phase(job) == "Running"
        stage.api.patch(path, {"spec": {"suspend": False}})
        stage.ends(job, "Failed")


def test_argo_knows_an_end_at_random_with_its_own_timing_and_always_under_the_finalizer(tmp_path: Path) -> None:
    for blind, finalizer, message in ((1.0, False, "pod deleted"), (1.0, True, "main: Error (exit code 143)")):
        folder = tmp_path / str(finalizer)
        with FakePlane(folder, blind=blind, finalizer=finalizer) as plane, Stage(plane, NODES, folder) as stage:
            job = stage.submit(1, task("train", *polite()))
            first = stage.gated(job, "train")
            stage.release(first, "gpu-0")
            stage.evict(stage.running(job, "train"))
            stage.gated(job, "train", but=(first.uid,))
            told = {one.get("message", "") for one in stage.workflow(job)["status"]["nodes"].values()}
            assert message in told


def test_our_own_role_is_all_that_our_user_has(tmp_path: Path) -> None:
    with FakePlane(tmp_path) as plane:
        with pytest.raises(Refused, match="cannot create resource"):
            plane.api().create("/api/v1/namespaces/gpujobs/pods", {"metadata": {"name": "a"}})
        plane.fake.revoke("gpujob", "list", "nodes")
        with pytest.raises(Refused, match="cannot list resource"):
            plane.api().get("/api/v1/nodes")


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ("Failed", "143", "main: Error (exit code 143)"),
        ("Failed", "75", "main: Error (exit code 75)"),
        ("Failed", "137", "main: Error (exit code 137)"),
        ("Failed", "137", "main: OOMKilled (exit code 137)"),
        ("Failed", "1", "main: Error (exit code 1)"),
        ("Error", "-1", "pod deleted"),
        ("Failed", "-1", "gpujob-final: no"),
        ("Failed", "143", "Pod was active on the node longer than the specified deadline"),
    ],
)
def test_the_expression_means_what_the_outcomes_say(retries: int, status: str, code: str, message: str) -> None:
    seen = None if code == "-1" else int(code)
    told = {"exitCode": code, "message": message, "status": status}
    assert another_attempt(retry.expression(retries), told) == exit_again(seen, message, 0, retries)


def test_an_expression_that_nobody_has_proven_is_refused() -> None:
    with pytest.raises(AssertionError, match="nobody has proven"):
        another_attempt("lastRetry.exitCode == '143'", {"exitCode": "143", "message": "", "status": "Failed"})


def test_the_texts_of_argo_are_read_as_argo_reads_them() -> None:
    states = {("A", "Succeeded"), ("B-1", "Failed"), ("C", "AnySucceeded")}

    def is_so(name: str, state: str) -> bool:
        return (name, state) in states

    assert depends_true("A && (B-1.Failed || B-1.Errored)", is_so)
    assert depends_true("C.AnySucceeded", is_so)
    assert not depends_true("A && !B-1.Failed", is_so)
    assert item_text(2, {"task": "fit-2", "lr": "0.1"}) == "(2:lr:0.1,task:fit-2)"
    assert item_names({"task": "x"})["item.task"] == "x"
    assert fnv32a("hello") == 1335831723
