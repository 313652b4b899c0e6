"""All lists of the API server that the product follows, how old its news is, and what cannot wait for the next turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from scheduler.adapters.kube import objects
from scheduler.adapters.kube.api import Api
from scheduler.adapters.kube.mirror import Event, Mirror
from scheduler.adapters.kube.objects import KubeNode, Pod, Scaler, Workload
from scheduler.errors import Unavailable

_GATHER_S = 0.03  # what happens within so short a time is one hint
_WORKLOADS = (
    ("Deployment", "/apis/apps/v1/namespaces/{}/deployments", False),
    ("StatefulSet", "/apis/apps/v1/namespaces/{}/statefulsets", False),
    ("LeaderWorkerSet", "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets", True),
)
_SCALERS = (
    ("HorizontalPodAutoscaler", "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"),
    ("ScaledObject", "/apis/keda.sh/v1alpha1/namespaces/{}/scaledobjects"),
)


class Watching:
    """One watch of all pods (those of other people hold GPUs too), one of nodes, and those of the serving side.

    `stale_s`: nothing is lent on news that is older. `silence_s`: a watch that says nothing for so long is dead; the
    API server sends a bookmark about once a minute.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        serving: Collection[str],
        *,
        stale_s: float = 30.0,
        silence_s: float = 75.0,
        page: int = 500,
    ) -> None:
        # A watch that was opened again is as good a sign of life as a bookmark, which come once a minute at best.
        often = (0.5 * stale_s, 0.8 * stale_s)
        self._namespace = namespace
        self._serving = frozenset(serving)
        self._stale_s = stale_s
        self.nodes: Mirror[KubeNode] = Mirror(
            api, "/api/v1/nodes", objects.node, "nodes", silence_s=silence_s, watch_s=often
        )
        self.pods: Mirror[Pod] = Mirror(
            api, "/api/v1/pods", objects.pod, "pods", silence_s=silence_s, watch_s=often, page=page
        )
        self._workloads: list[Mirror[Workload]] = [
            Mirror(
                api,
                path.format(name),
                partial(objects.workload, kind=kind),
                f"{kind}s of {name}",
                silence_s=silence_s,
                watch_s=often,
                optional=optional,
            )
            for name in sorted(self._serving)
            for kind, path, optional in _WORKLOADS
        ]
        self._scalers: list[Mirror[Scaler]] = [
            Mirror(
                api,
                path.format(name),
                partial(objects.scaler, kind=kind),
                f"{kind}s of {name}",
                silence_s=silence_s,
                optional=True,
            )
            for name in sorted(self._serving)
            for kind, path in _SCALERS
        ]
        self._hints = _Hints()
        self.nodes.listen(self._heard_of_node)
        self.pods.listen(self._heard_of_pod)
        for workloads in self._workloads:
            workloads.listen(self._heard_of_want)
        for scalers in self._scalers:
            scalers.listen(self._heard_of_want)

    def start(self, wait_s: float) -> None:
        """Follows from now on; returns once everything was listed.

        Raises:
            Unavailable: that took longer than `wait_s`; the sentence names the list.
        """
        for mirror in self._all():
            mirror.start()
        self._hints.start()
        until = time.monotonic() + wait_s
        while missing := [mirror for mirror in self._all() if not mirror.synced]:
            if time.monotonic() > until:
                late = missing[0]
                why = late.trouble or "no answer yet"
                self.stop()
                raise Unavailable(f"{late.name} could not be listed within {wait_s:g} s: {why}")
            threading.Event().wait(0.02)

    def stop(self) -> None:
        """Follows no more."""
        self._hints.stop()
        for mirror in self._all():
            mirror.stop()

    def workloads(self) -> Iterator[Workload]:
        """Deployments, StatefulSets and LeaderWorkerSets of the serving namespaces."""
        for mirror in self._workloads:
            yield from mirror.items().values()

    def scalers(self) -> Iterator[Scaler]:
        """Autoscalers of the serving namespaces."""
        for mirror in self._scalers:
            yield from mirror.items().values()

    def fresh(self) -> None:
        """Sees to it that all news is young: a list that has been silent for too long is asked for anew.

        Raises:
            Unavailable: it cannot be had; the sentence names the list and the age of what is known.
        """
        followed: tuple[Mirror[Any], ...] = (self.pods, self.nodes, *self._workloads)
        for mirror in followed:
            age_s = mirror.age_s()
            if age_s <= self._stale_s or mirror.absent:
                continue
            try:
                mirror.refresh()
            except Unavailable as error:
                raise Unavailable(f"the news of {mirror.name} is {age_s:.0f} s old: {error}") from error

    def listen(self, hint: Callable[[], None]) -> None:
        """`hint` is called, on a thread of its own, when a turn should come at once."""
        self._hints.listen(hint)

    def remind(self, after_s: float) -> None:
        """A hint once so much time has passed, for what takes no event to change."""
        self._hints.give(after_s)

    def _all(self) -> tuple[Mirror[Any], ...]:
        return (self.nodes, self.pods, *self._workloads, *self._scalers)

    def _heard_of_pod(self, event: Event[Pod]) -> None:
        pod = event.new or event.old
        if pod is None:
            return
        if pod.namespace in self._serving or pod.namespace == self._namespace:
            if event.old is None or event.new is None or _moved(event.old, event.new):
                self._hints.give()
        elif pod.gpus and (event.old is None or event.new is None or event.old.node != event.new.node):
            self._hints.give()

    def _heard_of_node(self, event: Event[KubeNode]) -> None:
        if event.old is None or event.new is None or _told(event.old) != _told(event.new):
            self._hints.give()

    def _heard_of_want(self, event: Event[Workload] | Event[Scaler]) -> None:
        if event.old is None or event.new is None or event.old.want != event.new.want:
            self._hints.give()


class _Hints:
    """Passes hints on, each after a little while; a thousand of them within a moment are one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: float | None = None  # monotonic time of the next hint
        self._stopped = False
        self._hint: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name="hints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def listen(self, hint: Callable[[], None]) -> None:
        self._hint = hint

    def give(self, after_s: float = _GATHER_S) -> None:
        due = time.monotonic() + after_s
        with self._changed:
            if self._due is None or due < self._due:
                self._due = due
                self._changed.notify()

    def _run(self) -> None:
        while self._wait():
            if self._hint is not None:
                self._hint()

    def _wait(self) -> bool:
        """Until the next hint is due; False once it is over."""
        with self._changed:
            while not self._stopped:
                left = None if self._due is None else self._due - time.monotonic()
                if left is not None and left <= 0:
                    self._due = None
                    return True
                self._changed.wait(left)
            return False


def _moved(old: Pod, new: Pod) -> bool:
    """Whether something happened to a pod that a turn may act on."""
    return (old.phase, old.node, old.nominated, old.gates, old.held_back, old.ready, old.leaving_at is None) != (
        new.phase,
        new.node,
        new.nominated,
        new.gates,
        new.held_back,
        new.ready,
        new.leaving_at is None,
    )


def _told(node: KubeNode) -> tuple[object, ...]:
    return node.allocatable, node.taints, node.cordoned, node.ready, node.deleting
