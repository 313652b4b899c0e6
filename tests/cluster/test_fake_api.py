"""The fake API server keeps the rules that were measured on a real one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from scheduler.adapters.kube.api import STRATEGIC, Api, Gone, Refused
from scheduler.errors import Unavailable
from tests.cluster.fake_api import FakeApi

PODS = "/api/v1/namespaces/gpujobs/pods"
GATE = "gpujob.io/hold"


def gated(name: str, *more_gates: str) -> Any:
    gates = [{"name": one} for one in (GATE, *more_gates)]
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {"metadata": {"name": name}, "spec": {"schedulingGates": gates, "containers": [container]}}


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    with FakeApi() as fake:
        yield fake
    assert not fake.errors


@pytest.fixture
def api(fake: FakeApi) -> Api:
    return fake.api("gpujob")


def release(pod: Any, node: str = "gpu-0", **changed: str) -> Any:
    meta = {"uid": pod["metadata"]["uid"], "resourceVersion": pod["metadata"]["resourceVersion"]} | changed
    gate = {"$patch": "delete", "name": GATE}
    return {"metadata": meta, "spec": {"schedulingGates": [gate], "nodeSelector": {"kubernetes.io/hostname": node}}}


def status_of(call: object, *args: object) -> int:
    with pytest.raises(Refused) as refused:
        call(*args)  # type: ignore[operator]
    return refused.value.status


def test_a_gated_pod_is_born_with_the_condition_that_says_so(api: Api) -> None:
    pod = api.create(PODS, gated("a"))
    assert [one["reason"] for one in pod["status"]["conditions"]] == ["SchedulingGated"]
    assert status_of(api.create, PODS, gated("a")) == 409


def test_one_patch_removes_our_gate_and_pins_the_node_and_a_foreign_gate_stays(api: Api) -> None:
    pod = api.create(PODS, gated("a", "other.io/gate"))
    free = api.patch(f"{PODS}/a", release(pod), STRATEGIC)
    assert free["spec"]["schedulingGates"] == [{"name": "other.io/gate"}]
    assert free["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "gpu-0"}
    again = api.patch(f"{PODS}/a", release(free), STRATEGIC)
    assert again["metadata"]["resourceVersion"] == free["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("meta", "status"), [({"uid": "another"}, 422), ({"resourceVersion": "1"}, 409)], ids=["uid", "version"]
)
def test_a_release_of_what_was_not_seen_is_refused(api: Api, meta: Any, status: int) -> None:
    pod = api.create(PODS, gated("a"))
    assert status_of(api.patch, f"{PODS}/a", release(pod, **meta), STRATEGIC) == status


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"nodeSelector": {"more": "x"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        ({"nodeSelector": {"zone": None}}, False),
        ({"schedulingGates": [{"name": "late.io/gate"}]}, False),
        ({"tolerations": [{"key": "a", "operator": "Exists"}]}, True),
        ({"terminationGracePeriodSeconds": 5}, False),
        ({"priority": 7}, False),
        ({"containers": [{"name": "main", "image": "y"}]}, True),
        ({"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}, False),
        ({"containers": [{"name": "main", "env": [{"name": "A", "value": "b"}]}]}, False),
        ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}, True),
        ({"affinity": {"podAntiAffinity": {}}}, False),
        ({"activeDeadlineSeconds": 60}, True),
    ],
)
def test_what_may_change_of_a_gated_pod(api: Api, spec: Any, allowed: bool) -> None:
    body = gated("a")
    body["spec"]["nodeSelector"] = {"zone": "a"}
    api.create(PODS, body)
    if allowed:
        api.patch(f"{PODS}/a", {"spec": spec}, STRATEGIC)
    else:
        assert status_of(api.patch, f"{PODS}/a", {"spec": spec}, STRATEGIC) == 422


def test_an_ungated_pod_takes_no_new_node_selector(api: Api) -> None:
    pod = api.create(PODS, gated("a"))
    free = api.patch(f"{PODS}/a", release(pod), STRATEGIC)
    assert status_of(api.patch, f"{PODS}/a", release(free) | {"spec": {"nodeSelector": {"b": "c"}}}, STRATEGIC) == 422


def test_an_unbound_pod_goes_at_once_and_a_bound_one_gets_its_grace_which_can_only_shrink(
    fake: FakeApi, api: Api
) -> None:
    api.create(PODS, gated("a"))
    api.delete(f"{PODS}/a")
    assert fake.find("pods", "gpujobs", "a") is None
    free = gated("b")
    del free["spec"]["schedulingGates"]
    uid = api.create(PODS, free)["metadata"]["uid"]
    fake.bind("gpujobs", "b", "gpu-0")
    assert status_of(api.delete, f"{PODS}/b", {"preconditions": {"uid": "another"}}) == 409
    api.delete(f"{PODS}/b", {"gracePeriodSeconds": 20, "preconditions": {"uid": uid}})
    api.delete(f"{PODS}/b", {"gracePeriodSeconds": 90})
    assert fake.get("pods", "gpujobs", "b")["metadata"]["deletionGracePeriodSeconds"] == 20
    api.delete(f"{PODS}/b", {"gracePeriodSeconds": 5})
    assert fake.get("pods", "gpujobs", "b")["metadata"]["deletionGracePeriodSeconds"] == 5
    api.delete(f"{PODS}/b", {"gracePeriodSeconds": 0})
    assert fake.find("pods", "gpujobs", "b") is None


def test_a_finalizer_holds_a_deleted_pod_until_it_is_taken_off(fake: FakeApi, api: Api) -> None:
    body = gated("a")
    body["metadata"]["finalizers"] = ["workflows.argoproj.io/status"]
    uid = api.create(PODS, body)["metadata"]["uid"]
    api.delete(f"{PODS}/a")
    assert fake.get("pods", "gpujobs", "a")["metadata"]["deletionGracePeriodSeconds"] == 0
    off = {"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": ["workflows.argoproj.io/status"]}}
    api.patch(f"{PODS}/a", off, STRATEGIC)
    assert fake.find("pods", "gpujobs", "a") is None


def test_a_budget_that_is_used_up_stops_evictions_of_running_pods_only(fake: FakeApi, api: Api) -> None:
    budget = {
        "metadata": {"name": "b"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}},
        "status": {"disruptionsAllowed": 1},
    }
    fake.create("poddisruptionbudgets", budget, "gpujobs")
    fake.edit("poddisruptionbudgets", "gpujobs", "b", lambda new: new.update(status={"disruptionsAllowed": 1}))
    for name in ("a", "b", "c"):
        body = gated(name)
        body["metadata"]["labels"] = {"a": "b"}
        del body["spec"]["schedulingGates"]
        api.create(PODS, body)
        fake.bind("gpujobs", name, "gpu-0")
    for name in ("a", "b"):
        fake.edit("pods", "gpujobs", name, lambda new: new["status"].update(phase="Running"))
    evict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    api.create(f"{PODS}/a/eviction", evict)
    pod = fake.get("pods", "gpujobs", "a")
    assert pod["status"]["conditions"][-1]["reason"] == "EvictionByEvictionAPI"
    assert "deletionTimestamp" in pod["metadata"]
    with pytest.raises(Refused) as refused:
        api.create(f"{PODS}/b/eviction", evict)
    assert (refused.value.status, refused.value.causes) == (429, ("DisruptionBudget",))
    api.create(f"{PODS}/c/eviction", evict)


def test_lists_come_in_pages_and_a_compacted_page_is_gone(fake: FakeApi, api: Api) -> None:
    for n in range(5):
        api.create(PODS, gated(f"p{n}"))
    first = api.get(PODS, limit=2)
    second = api.get(PODS, limit=2, **{"continue": first["metadata"]["continue"]})
    names = [one["metadata"]["name"] for one in (*first["items"], *second["items"])]
    assert names == ["p0", "p1", "p2", "p3"]
    assert second["metadata"]["remainingItemCount"] == 1
    fake.compact()
    assert status_of(lambda: api.get(PODS, limit=2, **{"continue": second["metadata"]["continue"]})) == 410


def test_a_watch_tells_changes_by_selector_and_marks_its_place(fake: FakeApi, api: Api) -> None:
    fake.bookmark_s = 0.05
    version = api.get(PODS)["metadata"]["resourceVersion"]
    free = gated("a")
    del free["spec"]["schedulingGates"]
    api.create(PODS, free)
    fake.bind("gpujobs", "a", "gpu-0")
    fake.delete("pods", "gpujobs", "a", {"gracePeriodSeconds": 0})
    told = []
    with closing(api.watch(f"{PODS}", version, 5, 5.0)) as watch:
        for kind, seen in watch:
            told.append((kind, seen["metadata"].get("name", "")))
            if kind == "BOOKMARK":
                break
    assert told == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("BOOKMARK", "")]


def test_a_watch_from_before_a_compaction_is_gone(fake: FakeApi, api: Api) -> None:
    api.create(PODS, gated("a"))
    fake.compact()
    with pytest.raises(Gone):
        next(api.watch(PODS, "1", 5, 5.0))


def test_a_silent_server_says_nothing_until_it_speaks(fake: FakeApi, api: Api) -> None:
    version = api.get(PODS)["metadata"]["resourceVersion"]
    fake.go_silent()
    fake.create("pods", gated("a"), "gpujobs")
    with pytest.raises(Unavailable, match="broke"):
        next(api.watch(PODS, version, 5, 0.2))
    fake.speak()
    assert [one["metadata"]["name"] for one in api.get(PODS)["items"]] == ["a"]


def test_faults_are_played_as_often_as_told(fake: FakeApi, api: Api) -> None:
    fake.refuse("GET", "/pods", 503, 1)
    fake.refuse("GET", "/pods", 0, 1)
    for _ in range(2):
        with pytest.raises(Unavailable):
            api.get(PODS)
    assert api.get(PODS)["items"] == []


def test_a_user_may_what_it_was_granted_and_what_it_used_is_known(fake: FakeApi, api: Api) -> None:
    fake.grant("gpujob", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}], "gpujobs")
    api.get(PODS)
    assert status_of(api.create, PODS, gated("a")) == 403
    assert status_of(api.get, "/api/v1/namespaces/serving/pods") == 403
    assert ("gpujob", "list", "pods") in fake.used
    fake.api("admin").create(PODS, gated("a"))


def test_an_unknown_resource_is_not_found(api: Api) -> None:
    assert status_of(api.get, "/apis/keda.sh/v1alpha1/scaledobjects") == 404


def test_the_scale_subresource_heeds_versions(fake: FakeApi, api: Api) -> None:
    fake.create("deployments", {"metadata": {"name": "d"}, "spec": {"replicas": 2}}, "serving")
    path = "/apis/apps/v1/namespaces/serving/deployments/d/scale"
    scale = api.get(path)
    api.patch(path, {"spec": {"replicas": 5}, "metadata": {"resourceVersion": scale["metadata"]["resourceVersion"]}})
    assert fake.get("deployments", "serving", "d")["spec"]["replicas"] == 5
    stale = {"spec": {"replicas": 7}, "metadata": {"resourceVersion": scale["metadata"]["resourceVersion"]}}
    assert status_of(api.patch, path, stale) == 409


def test_a_status_patch_changes_the_status_alone(fake: FakeApi, api: Api) -> None:
    pod = api.create(PODS, gated("a"))
    fuse = {
        "metadata": {"uid": pod["metadata"]["uid"]},
        "spec": {"priority": 5},
        "status": {"phase": "Failed", "message": "gpujob-final: no"},
    }
    api.patch(f"{PODS}/a/status", fuse, STRATEGIC)
    now = fake.get("pods", "gpujobs", "a")
    assert (now["status"]["phase"], now["spec"]["priority"]) == ("Failed", 0)
    assert now["status"]["conditions"], "merged by type, not replaced"


def test_many_threads_never_get_the_same_name_twice(fake: FakeApi, api: Api) -> None:
    made: list[str] = []

    def make() -> None:
        for n in range(10):
            try:
                api.create(PODS, gated(f"p{n}"))
                made.append(f"p{n}")
            except Refused:
                continue

    threads = [threading.Thread(target=make) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(made) == sorted({f"p{n}" for n in range(10)})
