"""Stories of services and who scales them, told with the port Cluster under the rights of our own Role."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from scheduler.adapters.kube.cluster import ClusterTerms, KubeCluster
from scheduler.adapters.kube.services import KubeService
from scheduler.adapters.kube.watching import Watching
from scheduler.errors import Unavailable
from scheduler.fleet.pool import Pool, ReplicaPhase
from scheduler.fleet.services import Mode
from tests.build import NOW
from tests.cluster.stage import Stage
from tests.cluster.waiting import until


@contextmanager
def _seeing(stage: Stage, mode: Mode) -> Iterator[KubeCluster]:
    plane = stage.plane
    chat = KubeService(name="chat", namespace=plane.serving, workload="chat", gpus_per_replica=4, mode=mode)
    watching = Watching(plane.api(), plane.namespace, (plane.serving,))
    watching.start(20)
    try:
        yield KubeCluster(plane.api(), watching, (chat,), ClusterTerms(namespace=plane.namespace), lambda: NOW)
    finally:
        watching.stop()


def _pool(cluster: KubeCluster, look: Callable[[Pool], object]) -> Pool:
    def seen() -> Pool | None:
        pool = cluster.pool(NOW)
        return pool if look(pool) else None

    found = until(seen, 30.0, lambda: cluster.pool(NOW))
    assert found is not None
    return found


def _ready(pool: Pool) -> list[str]:
    return sorted(replica.id for replica in pool.replicas if replica.phase is ReplicaPhase.READY)


def we_scale_a_service_up_and_choose_who_leaves(stage: Stage) -> None:
    stage.serve("chat", 1, 4)
    with _seeing(stage, Mode.MANAGE) as cluster:
        _pool(cluster, lambda pool: len(_ready(pool)) == 1)
        cluster.scale("chat", 3, (), ())
        three = _pool(cluster, lambda pool: len(_ready(pool)) == 3)
        oldest = min(three.replicas, key=lambda replica: (replica.asked_at, replica.since))  # which usually stays
        cluster.scale("chat", 2, (oldest.id,), ())
        two = _pool(cluster, lambda pool: len(pool.replicas) == 2 and len(pool.holds) == 2)

    assert sum(three.idle().values()) == 4
    assert _ready(two) == [name for name in _ready(three) if name != oldest.id]
    assert sum(two.idle().values()) == 8


def what_an_autoscaler_wants_is_seen_before_its_pods_are_there(stage: Stage) -> None:
    stage.serve("chat", 1, 4)
    with _seeing(stage, Mode.OBSERVE) as cluster:
        _pool(cluster, lambda pool: len(_ready(pool)) == 1)
        with _autoscaler(stage, desired=3):
            pool = _pool(cluster, lambda pool: len(pool.replicas) == 3)
            assert _is_refused(cluster, 2, "chat is no service that gpujob scales")

    waiting = [replica for replica in pool.replicas if replica.phase is ReplicaPhase.PENDING]
    assert [replica.id for replica in waiting] == ["chat/wanted-1", "chat/wanted-2"]
    assert stage.ready_replicas("chat") == 1


def a_managed_service_with_an_autoscaler_is_left_to_it(stage: Stage) -> None:
    stage.serve("chat", 1, 4)
    with _seeing(stage, Mode.MANAGE) as cluster:
        with _autoscaler(stage, desired=1):
            why = "is scaled by HorizontalPodAutoscaler chat too"
            until(lambda: _is_refused(cluster, 1, why), 30.0)
            assert _is_refused(cluster, 3, why)
        pool = _pool(cluster, lambda pool: len(_ready(pool)) == 1)

    assert len(pool.replicas) == 1


@contextmanager
def _autoscaler(stage: Stage, desired: int) -> Iterator[None]:
    folder = f"/apis/autoscaling/v2/namespaces/{stage.plane.serving}/horizontalpodautoscalers"
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    busy = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
    }
    spec = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 8, "metrics": [busy]}
    stage.admin.create(folder, {"metadata": {"name": "chat"}, "spec": spec})
    status = {"desiredReplicas": desired, "currentReplicas": 1}
    stage.admin.patch(f"{folder}/chat/status", {"status": status})
    try:
        yield
    finally:
        stage.admin.delete(f"{folder}/chat")


def _is_refused(cluster: KubeCluster, replicas: int, why: str) -> bool:
    try:
        cluster.scale("chat", replicas, (), ())
    except Unavailable as error:
        return why in str(error)
    return False


STORIES = {
    story.__name__: story
    for story in (
        we_scale_a_service_up_and_choose_who_leaves,
        what_an_autoscaler_wants_is_seen_before_its_pods_are_there,
        a_managed_service_with_an_autoscaler_is_left_to_it,
    )
}
