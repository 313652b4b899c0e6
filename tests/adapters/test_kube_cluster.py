"""The port Cluster on Kubernetes: pools and writes, on the fake API server of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from scheduler.adapters.kube import names
from scheduler.adapters.kube.api import MERGE, Api
from scheduler.adapters.kube.cluster import ClusterTerms, KubeCluster
from scheduler.adapters.kube.objects import Pod
from scheduler.adapters.kube.scale import COST
from scheduler.adapters.kube.services import KubeService
from scheduler.adapters.kube.watching import Watching
from scheduler.errors import Unavailable
from scheduler.fleet.pool import Hold, HolderKind, Pool, ReplicaPhase
from scheduler.fleet.services import Mode
from tests.adapters.kube_objects import GPU, StillWatching
from tests.build import NOW, minutes
from tests.cluster.fake_api import FakeApi
from tests.cluster.waiting import until

CHAT = KubeService(name="chat", namespace="serving", workload="chat", gpus_per_replica=4, mode=Mode.MANAGE)
CODE = KubeService(name="code", namespace="serving", workload="code", gpus_per_replica=2)
SCALE = "/apis/apps/v1/namespaces/serving/deployments/chat/scale"


class Bench:
    """A cluster as objects of the fake API server; nothing moves there unless a test moves it."""

    def __init__(self, fake: FakeApi, watching: Watching) -> None:
        self.fake = fake
        self.watching = watching
        self.cluster = self.restarted()

    def restarted(self) -> KubeCluster:
        terms = ClusterTerms(namespace="gpujobs", cooldown_s=300)
        return KubeCluster(self.fake.api("admin"), self.watching, (CHAT, CODE), terms, lambda: NOW)

    def node(self, name: str, gpus: int = 8) -> None:
        counts = {GPU: str(gpus)}
        body = {"metadata": {"name": name, "labels": {names.HOSTNAME: name}}}
        self.fake.create("nodes", body)
        told = {"capacity": counts, "allocatable": counts, "conditions": [{"type": "Ready", "status": "True"}]}
        self.fake.edit("nodes", "", name, lambda new: new.update(status=told))

    def deployment(self, name: str, replicas: int) -> None:
        spec = {"replicas": replicas, "template": {"spec": {"containers": []}}}
        self.fake.create("deployments", {"metadata": {"name": name}, "spec": spec}, "serving")

    def pod(
        self, name: str, gpus: int, namespace: str = "serving", of: str = "", meta: Mapping[str, Any] = {}, **spec: Any
    ) -> None:
        main = {"name": "main", "image": "x", "resources": {"limits": {GPU: str(gpus)}}}
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": of, "uid": "u", "controller": True}
        owners = {"ownerReferences": [owner]} if of else {}
        body = {"metadata": {"name": name, **owners, **meta}, "spec": {"containers": [main], **spec}}
        self.fake.create("pods", body, namespace)

    def status(self, name: str, namespace: str = "serving", **status: Any) -> None:
        self.fake.edit("pods", namespace, name, lambda new: new["status"].update(status))

    def bind(self, name: str, node: str, namespace: str = "serving") -> None:
        self.fake.edit("pods", namespace, name, lambda new: new["spec"].update(nodeName=node))

    def chat(self, *pods: str, replicas: int | None = None) -> None:
        """A Deployment whose pods run on node-1, or on others in turn."""
        self.deployment("chat", len(pods) if replicas is None else replicas)
        for number, name in enumerate(pods):
            self.pod(name, 4, of="chat-5f")
            self.bind(name, f"node-{number // 2 + 1}")

    def pool(self, seen: Callable[[Pool], object] = lambda _: True, minute: float = 0) -> Pool:
        """The pool, once it is as `seen` wants it: watches need some milliseconds."""

        def look() -> Pool | None:
            pool = self.cluster.pool(NOW + minutes(minute))
            return pool if seen(pool) else None

        found = until(look, what=lambda: self.cluster.pool(NOW))
        assert found is not None
        return found

    def pods(self, name: str) -> list[Pod]:
        return [pod for pod in self.watching.pods.items().values() if pod.name == name]

    def workload_seen(self, pods: int = 1) -> None:
        """Once the watches have told of chat."""
        until(lambda: any(one.name == "chat" for one in self.watching.workloads()))
        until(lambda: len(self.watching.pods.items()) >= pods)

    def replicas(self) -> int:
        return int(self.fake.get("deployments", "serving", "chat")["spec"]["replicas"])

    def marks(self) -> dict[str, str]:
        found = {}
        for pod in self.fake.items("pods", "serving"):
            cost = (pod["metadata"].get("annotations") or {}).get(COST)
            if cost is not None:
                found[pod["metadata"]["name"]] = cost
        return found

    def writes(self) -> list[str]:
        return [f"{method} {path}" for _, method, path in self.fake.requests if method != "GET"]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with FakeApi() as fake:
        watching = Watching(fake.api("admin"), "gpujobs", ("serving",))
        watching.start(10)
        yield Bench(fake, watching)
        watching.stop()
    assert not fake.errors


def test_a_pool_is_made_of_nodes_pods_and_workloads(bench: Bench):
    bench.node("node-1")
    bench.node("node-2")
    bench.chat("chat-5f-a")
    bench.pod("notebook", 1, "default")
    bench.bind("notebook", "node-2", "default")

    pool = bench.pool(lambda pool: len(pool.holds) == 2 and len(pool.nodes) == 2 and pool.replicas)

    assert dict(pool.idle()) == {"node-1": 4, "node-2": 7}
    assert pool.holds == (
        Hold(node="node-1", gpus=4, kind=HolderKind.REPLICA, holder="serving/chat-5f-a"),
        Hold(node="node-2", gpus=1, kind=HolderKind.OTHER, holder="default/notebook"),
    )
    assert [(one.id, one.phase, one.node) for one in pool.replicas] == [
        ("serving/chat-5f-a", ReplicaPhase.STARTING, "node-1")
    ]
    assert list(pool.unknown_services) == ["code"]


def test_a_pool_is_not_made_of_old_news(bench: Bench):
    bench.node("node-1")
    watching: Any = StillWatching(trouble="the news of pods is 40 s old")
    cluster = KubeCluster(bench.fake.api("admin"), watching, (CHAT,), ClusterTerms(namespace="gpujobs"), lambda: NOW)

    with pytest.raises(Unavailable, match="the news of pods is 40 s old"):
        cluster.pool(NOW)
    with pytest.raises(Unavailable, match="the news of pods is 40 s old"):
        cluster.scale("chat", 2, (), ())


def test_a_replica_is_seen_from_the_wish_to_the_ready_pod(bench: Bench):
    bench.node("node-1")
    bench.deployment("chat", 1)
    wish = bench.pool(lambda pool: pool.replicas)
    bench.pod("chat-5f-a", 4, of="chat-5f")
    waiting = bench.pool(lambda pool: pool.replicas[0].id == "serving/chat-5f-a")
    bench.bind("chat-5f-a", "node-1")
    starting = bench.pool(lambda pool: pool.replicas[0].node)
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-12-01T22:00:00Z"}]
    bench.status("chat-5f-a", phase="Running", podIP="10.0.0.7", conditions=conditions)
    ready = bench.pool(lambda pool: pool.replicas[0].url)

    phases = [pool.replicas[0].phase for pool in (wish, waiting, starting, ready)]
    assert phases == [ReplicaPhase.PENDING, ReplicaPhase.PENDING, ReplicaPhase.STARTING, ReplicaPhase.READY]
    assert [pool.idle()["node-1"] for pool in (wish, waiting, starting, ready)] == [8, 8, 4, 4]
    assert (ready.replicas[0].url, ready.replicas[0].since) == ("http://10.0.0.7:8000/metrics", NOW)


def test_a_wish_keeps_the_time_at_which_it_was_first_seen(bench: Bench):
    bench.deployment("chat", 1)
    bench.pool(lambda pool: pool.replicas)

    assert bench.pool(minute=1).replicas[0].asked_at == NOW


def test_argo_r31_a_refused_attempt_frees_its_gpus_and_closes_its_node(bench: Bench):
    bench.node("node-1")
    bench.pod("job-1-sft-0", 2, "gpujobs", meta={"labels": {names.JOB: "job-1"}})
    bench.bind("job-1-sft-0", "node-1", "gpujobs")
    bench.pool(lambda pool: pool.holds)
    bench.status("job-1-sft-0", "gpujobs", phase="Failed", reason="UnexpectedAdmissionError")

    refused = bench.pool(lambda pool: pool.nodes and pool.nodes[0].unknown)
    later = bench.pool(minute=6)

    assert refused.holds == ()
    assert refused.nodes[0].unknown == "it refused a pod, and is left alone until 22:05 UTC"
    assert later.idle() == {"node-1": 8}


def test_a_replica_that_waits_is_settling_until_kube_scheduler_had_its_say(bench: Bench):
    bench.node("node-1")
    bench.deployment("code", 1)
    bench.pod("code-a", 2, of="code-5f")
    hinted = threading.Event()
    bench.watching.listen(hinted.set)

    first = bench.pool(lambda pool: [one.id for one in pool.replicas] == ["serving/code-a"])
    hinted.clear()
    bench.pool()
    later = bench.pool(minute=0.3 / 60)

    assert [one.settling for one in first.replicas] == [True]
    assert hinted.wait(5), "a turn follows"
    assert [one.settling for one in later.replicas] == [False]


def test_preemptions_by_kube_scheduler_are_counted_once_each(bench: Bench):
    for name, reason in (
        ("a", "PreemptionByScheduler"),
        ("b", "EvictionByEvictionAPI"),
        ("c", "PreemptionByScheduler"),
    ):
        bench.pod(name, 1, "gpujobs", meta={"labels": {names.JOB: "job-1"}})
        bench.status(name, "gpujobs", conditions=[{"type": "DisruptionTarget", "status": "True", "reason": reason}])

    until(lambda: bench.cluster.preempted_by_scheduler == 2)
    bench.status("a", "gpujobs", phase="Failed")
    bench.fake.delete("pods", "gpujobs", "c", {})
    bench.pool(lambda _: "c" not in {pod.name for pod in bench.watching.pods.items().values()})

    assert bench.cluster.preempted_by_scheduler == 2, "no turn has looked at them in between"
    assert bench.pool().alerts == ()


# -- Scaling


def test_more_replicas_are_asked_for_through_the_scale_subresource(bench: Bench):
    bench.chat("chat-5f-a")
    bench.workload_seen()

    bench.cluster.scale("chat", 3, (), ("node-1", "node-2"))

    assert bench.replicas() == 3
    assert bench.writes() == [f"PATCH {SCALE}"]


def test_said_twice_it_is_written_once(bench: Bench):
    bench.chat("chat-5f-a")
    bench.workload_seen()

    for _ in range(3):
        bench.cluster.scale("chat", 2, (), ())

    assert bench.writes() == [f"PATCH {SCALE}"]


def test_one_call_adds_no_more_than_a_step(bench: Bench):
    bench.chat("chat-5f-a")
    bench.workload_seen()

    bench.cluster.scale("chat", 100, (), ())

    assert bench.replicas() == 5


def test_replicas_that_should_leave_cost_least_and_go_before_the_number_falls(bench: Bench):
    bench.chat("chat-5f-a", "chat-5f-b", "chat-5f-c", "chat-5f-d")
    bench.workload_seen(pods=4)

    bench.cluster.scale("chat", 2, ("serving/chat-5f-c", "serving/chat-5f-a", "serving/chat-5f-b"), ())

    assert bench.replicas() == 2
    marks = bench.marks()
    assert sorted(marks, key=lambda name: int(marks[name])) == ["chat-5f-c", "chat-5f-a"]
    assert bench.writes()[-1] == f"PATCH {SCALE}"


def test_marks_come_off_replicas_that_may_stay_and_other_costs_stay(bench: Bench):
    bench.chat("chat-5f-a", "chat-5f-b", "chat-5f-c")
    bench.fake.patch("pods", "serving", "chat-5f-b", {"metadata": {"annotations": {COST: "-7"}}})
    bench.workload_seen(pods=3)
    bench.cluster.scale("chat", 2, ("serving/chat-5f-a",), ())
    until(lambda: any(COST in pod.annotations for pod in bench.pods("chat-5f-a")))

    bench.cluster.scale("chat", 3, (), ())

    assert bench.marks() == {"chat-5f-b": "-7"}


def test_a_replica_that_is_gone_already_is_no_reason_to_stop(bench: Bench):
    bench.chat("chat-5f-a", "chat-5f-b")
    bench.workload_seen(pods=2)
    bench.fake.refuse("PATCH", "/pods/chat-5f-b", 404)

    bench.cluster.scale("chat", 1, ("serving/chat-5f-b", "chat/wanted-1"), ())

    assert bench.replicas() == 1


def test_a_service_with_an_autoscaler_is_not_scaled(bench: Bench):
    bench.chat("chat-5f-a")
    target = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}, "maxReplicas": 3}
    bench.fake.create("horizontalpodautoscalers", {"metadata": {"name": "chat-hpa"}, "spec": target}, "serving")
    bench.workload_seen()
    until(lambda: list(bench.watching.scalers()))

    with pytest.raises(
        Unavailable, match=r"chat is scaled by HorizontalPodAutoscaler chat-hpa too; delete that, or set"
    ):
        bench.cluster.scale("chat", 2, (), ())

    assert bench.writes() == []


def test_what_somebody_else_wrote_is_met_once_and_then_taken_for_granted(bench: Bench):
    bench.chat("chat-5f-a")
    bench.workload_seen()
    bench.cluster.scale("chat", 2, (), ())
    bench.fake.edit("deployments", "serving", "chat", lambda new: new["spec"].update(replicas=5))

    with pytest.raises(Unavailable, match="somebody else scaled chat from 2 to 5 replicas"):
        bench.cluster.scale("chat", 3, (), ())
    assert bench.replicas() == 5
    bench.cluster.scale("chat", 3, (), ())
    assert bench.replicas() == 3


class Overtaken(Api):
    """Somebody else always writes just before."""

    def __init__(self, fake: FakeApi) -> None:
        super().__init__(fake.configuration("admin"))
        self.fake = fake

    def patch(self, path: str, body: Mapping[str, Any], content: str = MERGE, **query: str | int) -> Any:
        self.fake.edit("deployments", "serving", "chat", lambda new: new["spec"].update(replicas=7))
        return super().patch(path, body, content, **query)


def test_what_somebody_else_writes_at_the_same_moment_is_not_overwritten(bench: Bench):
    bench.chat("chat-5f-a")
    bench.workload_seen()
    terms = ClusterTerms(namespace="gpujobs")
    cluster = KubeCluster(Overtaken(bench.fake), bench.watching, (CHAT,), terms, lambda: NOW)

    with pytest.raises(Unavailable, match="somebody else scaled chat from 1 to 7 replicas"):
        cluster.scale("chat", 2, (), ())

    assert bench.replicas() == 7


def test_a_workload_that_changes_meanwhile_is_read_again(bench: Bench):
    bench.chat("chat-5f-a")
    bench.workload_seen()
    bench.fake.refuse("PATCH", "/scale", 409, times=2)

    bench.cluster.scale("chat", 2, (), ())

    assert bench.replicas() == 2


def test_a_workload_that_never_stops_changing_is_left_for_the_next_turn(bench: Bench):
    bench.chat("chat-5f-a")
    bench.workload_seen()
    bench.fake.refuse("PATCH", "/scale", 409, times=99)

    with pytest.raises(Unavailable, match="chat changed 4 times while it was being scaled"):
        bench.cluster.scale("chat", 2, (), ())


def test_a_write_of_which_nobody_knows_is_said_again_without_blame(bench: Bench):
    bench.chat("chat-5f-a")
    bench.workload_seen()
    bench.cluster.scale("chat", 2, (), ())
    bench.fake.refuse("PATCH", "/scale", 500)
    with pytest.raises(Unavailable):
        bench.cluster.scale("chat", 3, (), ())
    bench.fake.edit("deployments", "serving", "chat", lambda new: new["spec"].update(replicas=3))

    bench.cluster.scale("chat", 3, (), ())

    assert bench.replicas() == 3


def test_a_right_that_is_missing_is_told_in_words(bench: Bench):
    bench.chat("chat-5f-a")
    bench.workload_seen()
    bench.fake.refuse("PATCH", "/scale", 403)

    with pytest.raises(Unavailable, match=r"chat could not be scaled to 2: the API server refused \(403"):
        bench.cluster.scale("chat", 2, (), ())


@pytest.mark.parametrize("service", ["code", "nobody"])
def test_an_observed_service_is_never_written(bench: Bench, service: str):
    bench.deployment("code", 1)

    with pytest.raises(Unavailable, match=f"{service} is no service that gpujob scales"):
        bench.cluster.scale(service, 2, (), ())

    assert bench.writes() == []


def test_a_service_without_a_workload_cannot_be_scaled(bench: Bench):
    with pytest.raises(Unavailable, match="chat: 0 workloads are called chat in serving"):
        bench.cluster.scale("chat", 2, (), ())


def test_vllm_r32_whatever_happens_no_pod_is_deleted_here(bench: Bench):
    bench.node("node-1")
    bench.chat("chat-5f-a", "chat-5f-b")
    bench.pod("job-1-sft-0", 1, "gpujobs", meta={"labels": {names.JOB: "job-1"}})
    bench.bind("job-1-sft-0", "node-1", "gpujobs")
    bench.fake.delete("pods", "gpujobs", "job-1-sft-0", {"gracePeriodSeconds": 1})
    bench.workload_seen(pods=2)

    bench.pool(lambda pool: any("should have ended by" in alert for alert in pool.alerts), minute=600)
    bench.cluster.scale("chat", 0, ("serving/chat-5f-a", "serving/chat-5f-b"), ())

    assert all("DELETE" not in write and "eviction" not in write for write in bench.writes())
    assert {pod["metadata"]["name"] for pod in bench.fake.items("pods")} == {"chat-5f-a", "chat-5f-b", "job-1-sft-0"}
