"""Writing the replicas of a service that we manage, as its only writer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduler.adapters.kube.api import Api, Refused
from scheduler.adapters.kube.objects import Pod, Scaler, Workload
from scheduler.adapters.kube.services import KubeService, live_pods, writers
from scheduler.errors import Unavailable
from scheduler.fleet.pool import ReplicaId

COST = "controller.kubernetes.io/pod-deletion-cost"
_FIRST_TO_LEAVE = -1_000_000  # nobody writes such costs by hand, so marks of ours are told from others
_MARKS = 10_000
_TRIES = 4  # of a write that meets a newer version each time: its status changes, too
_FOLDERS = {
    "Deployment": ("/apis/apps/v1", "deployments"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "LeaderWorkerSet": ("/apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
}


class ReplicaWriter:
    """Writes replicas, guarded: no second writer, bounded steps upward, and never over what somebody else wrote."""

    def __init__(self, api: Api, step: int) -> None:
        self._api = api
        self._step = step
        self._known: dict[str, int] = {}  # service -> replicas as last read or written

    def write(
        self,
        service: KubeService,
        workload: Workload,
        replicas: int,
        leave_first: Sequence[str],
        pods: Iterable[Pod],
        scalers: Iterable[Scaler],
    ) -> None:
        """Make the workload have so many replicas, or as many as one step allows; said twice, it is done once.

        Raises:
            Unavailable: somebody else writes them too, or the API server did not carry it out.
        """
        others = writers(workload, scalers)
        if others:
            raise Unavailable(
                f"{service.name} is scaled by {others[0].kind} {others[0].name} too; delete that, or set "
                f'mode = "observe" for {service.name}'
            )
        try:
            self._write(service, workload, max(replicas, 0), leave_first, tuple(pods))
        except Refused as refused:
            raise Unavailable(f"{service.name} could not be scaled to {replicas}: {refused}") from refused

    def _write(
        self, service: KubeService, workload: Workload, replicas: int, leave_first: Sequence[str], pods: Sequence[Pod]
    ) -> None:
        path = _path(workload)
        for _ in range(_TRIES):
            scale = self._api.get(path)
            have = int(scale["spec"].get("replicas", 0))
            self._meet(service, have)
            want = min(replicas, have + self._step)
            # Only a Deployment asks which pod costs least; the others always take the highest number.
            if workload.kind == "Deployment":
                self._mark(workload, leave_first if want < have else (), max(have - want, 0), pods)
            if want == have or self._replaced(service, path, scale["metadata"]["resourceVersion"], want):
                return
        raise Unavailable(f"{service.name} changed {_TRIES} times while it was being scaled")

    def _meet(self, service: KubeService, have: int) -> None:
        known = self._known.get(service.name, have)
        self._known[service.name] = have
        if known != have:
            raise Unavailable(
                f"somebody else scaled {service.name} from {known} to {have} replicas; that counts from now on"
            )

    def _replaced(self, service: KubeService, path: str, version: str, want: int) -> bool:
        """False: the object is newer by now."""
        try:
            self._api.patch(path, {"metadata": {"resourceVersion": version}, "spec": {"replicas": want}})
        except Refused as refused:
            if refused.status == 409:
                return False
            raise
        except Unavailable:
            self._known.pop(service.name, None)  # it may have been written
            raise
        self._known[service.name] = want
        return True

    def _mark(self, workload: Workload, leave_first: Sequence[str], leaving: int, pods: Sequence[Pod]) -> None:
        """Tell the ReplicaSet who leaves; marks of earlier times come off."""
        replicas = live_pods(workload, pods)
        named = [ReplicaId(one) for one in leave_first if ReplicaId(one) in replicas][: min(leaving, _MARKS)]
        marks = {replica: str(_FIRST_TO_LEAVE + place) for place, replica in enumerate(named)}
        for replica, group in replicas.items():
            for pod in group:
                mark = marks.get(replica)
                if pod.annotations.get(COST) != mark and (mark is not None or _ours(pod.annotations)):
                    self._annotate(pod, mark)

    def _annotate(self, pod: Pod, mark: str | None) -> None:
        body = {"metadata": {"uid": pod.uid, "annotations": {COST: mark}}}
        try:
            self._api.patch(pod.key, body)
        except Refused as refused:
            if refused.status not in (404, 409, 422):  # it is gone; its name may have a new pod
                raise


def _path(workload: Workload) -> str:
    root, plural = _FOLDERS[workload.kind]
    return f"{root}/namespaces/{workload.namespace}/{plural}/{workload.name}/scale"


def _ours(annotations: Mapping[str, str]) -> bool:
    cost = annotations.get(COST, "")
    return cost.removeprefix("-").isdigit() and 0 <= int(cost) - _FIRST_TO_LEAVE < _MARKS
