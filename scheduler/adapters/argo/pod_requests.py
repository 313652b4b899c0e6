"""What we ask of pods, each request guarded so that it only meets the pod and the state that were meant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock
from typing import Any

from scheduler.adapters.argo.memory import Memory, Sighting
from scheduler.adapters.kube.api import STRATEGIC, Api, Refused
from scheduler.adapters.kube.names import GATE, HOSTNAME, STATUS_FINALIZER
from scheduler.adapters.kube.objects import Pod
from scheduler.adapters.kube.objects import pod as trimmed
from scheduler.errors import Unavailable
from scheduler.ports import Clock

_TRIES = 8  # of a patch that meets a newer version each time
_BUDGET = timedelta(seconds=5)  # for which a PodDisruptionBudget may hold up an eviction
_SOONER = timedelta(seconds=2)  # an end that comes sooner by less is not worth a request
_TOLD = timedelta(seconds=30)  # until the watch must have told of what was carried out
_NOT_FOUND, _CONFLICT, _INVALID = 404, 409, 422


@dataclass(frozen=True, slots=True)
class _Asked:
    """That a pod shall end."""

    at: datetime
    end: datetime  # SIGKILL at the latest


class PodRequests:
    """Requests about pods of ours. What the API server answers is remembered at once, before the watch tells of it."""

    def __init__(self, api: Api, memory: Memory, clock: Clock) -> None:
        self._api = api
        self._memory = memory
        self._clock = clock
        self._refused_at: dict[str, datetime] = {}  # evictions that a PodDisruptionBudget holds up, by uid
        self._ending: dict[str, _Asked] = {}  # pods asked to end, or being asked, by uid
        self._lock = Lock()

    def release(self, seen: Sighting, node: str | None, annotations: Mapping[str, str]) -> None:
        """Take our gate away and pin it to a node (None: anywhere). Other gates stay.

        Raises:
            Refused, Unavailable: not carried out, or nobody knows.
        """
        spec: dict[str, Any] = {"schedulingGates": [{"$patch": "delete", "name": GATE}]}
        if node is not None:
            spec["nodeSelector"] = {HOSTNAME: node}
        self._while_gated(seen.pod, "", {"metadata": {"annotations": dict(annotations)}, "spec": spec})

    def end_gated(self, seen: Sighting, phase: str, message: str) -> None:
        """Write the end of a gated pod, which no kubelet will ever write: Argo takes it for the end of the attempt.

        Raises:
            Refused, Unavailable: not carried out, or nobody knows.
        """
        self._while_gated(seen.pod, "/status", {"metadata": {}, "status": {"phase": phase, "message": message}})

    def end(self, seen: Sighting, grace_s: float) -> None:
        """End a pod: one that is on no node vanishes, any other gets SIGTERM and its grace.

        Asked already: nothing, unless it shall now end sooner.

        Raises:
            Refused, Unavailable: not carried out, or nobody knows.
        """
        pod = seen.pod
        if seen.over or not self._sooner(pod, grace_s):
            return
        try:
            self._end(pod, grace_s)
        except (Refused, Unavailable):
            with self._lock:
                self._ending.pop(pod.uid, None)
            raise

    def _sooner(self, pod: Pod, grace_s: float) -> bool:
        """Whether this would end it sooner than what was asked before, also before the watch has told of that."""
        now = self._clock()
        end = now + timedelta(seconds=math.ceil(grace_s))
        with self._lock:
            self._ending = {uid: asked for uid, asked in self._ending.items() if now - asked.at < _TOLD}
            asked = self._ending.get(pod.uid)
            ends = [one for one in (pod.leaving_at, asked.end if asked else None) if one is not None]
            if ends and end > min(ends) - _SOONER:
                return False
            self._ending[pod.uid] = _Asked(at=now, end=end)
            return True

    def _end(self, pod: Pod, grace_s: float) -> None:
        options = _options(pod, grace_s)
        if pod.leaving_at is not None:
            self._delete(pod, options)  # the API server takes a shorter grace, and never a longer one
        elif not pod.node:
            self.let_go(pod)
            self._delete(pod, options)
        elif not self._evict(pod, options):
            self._delete(pod, options)

    def remove(self, seen: Sighting) -> None:
        """Delete a pod that has ended.

        Raises:
            Refused, Unavailable: not carried out, or nobody knows.
        """
        self.let_go(seen.pod)
        self._delete(seen.pod, {"preconditions": {"uid": seen.pod.uid}})

    def let_go(self, pod: Pod) -> None:
        """Take Argo's finalizer off: with it, a pod that ends on no node would end its whole attempt as failed.

        Raises:
            Refused, Unavailable: not carried out, or nobody knows.
        """
        if STATUS_FINALIZER not in pod.finalizers:
            return
        meta = {"uid": pod.uid, "$deleteFromPrimitiveList/finalizers": [STATUS_FINALIZER]}
        with _nobody_there():
            self._memory.saw(trimmed(self._api.patch(pod.key, {"metadata": meta}, STRATEGIC)))

    def _while_gated(self, pod: Pod, sub: str, change: Mapping[str, Any]) -> None:
        """Patch a pod as long as our gate holds it, on whatever version that is the newest."""
        newest: Pod | None = pod
        for _ in range(_TRIES):
            if newest is None or not _free_to_patch(newest):
                return
            guard = {"uid": newest.uid, "resourceVersion": newest.version}
            body = {**change, "metadata": {**change["metadata"], **guard}}
            try:
                self._memory.saw(trimmed(self._api.patch(newest.key + sub, body, STRATEGIC)))
                return
            except Refused as refused:
                if refused.status == _CONFLICT:
                    newest = self._newest(newest)
                elif _nobody(refused):
                    return
                else:
                    raise
        raise Unavailable(f"pod {pod.namespace}/{pod.name} changed {_TRIES} times while it was being patched")

    def _newest(self, pod: Pod) -> Pod | None:
        """Through a list: reading a single pod is a right that we can do without."""
        folder = pod.key.rpartition("/")[0]
        found = self._api.get(folder, fieldSelector=f"metadata.name={pod.name}")["items"]
        newest = next((trimmed(one) for one in found if one["metadata"]["uid"] == pod.uid), None)
        if newest is not None:
            self._memory.saw(newest)
        return newest

    def _evict(self, pod: Pod, options: Mapping[str, Any]) -> bool:
        """False: a PodDisruptionBudget has held it up for too long; ours is the word that counts for our own pods."""
        now = self._clock()
        if now - self._refused_at.get(pod.uid, now) >= _BUDGET:
            return False
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": options,
        }
        try:
            with _nobody_there():
                self._api.create(f"{pod.key}/eviction", eviction)
        except (Refused, Unavailable):  # 429 of a PodDisruptionBudget, 500 of two of them
            self._refused_at.setdefault(pod.uid, now)
            raise
        self._carried_out(pod)
        return True

    def _delete(self, pod: Pod, options: Mapping[str, Any]) -> None:
        with _nobody_there():
            self._api.delete(pod.key, options)
        self._carried_out(pod)

    def _carried_out(self, pod: Pod) -> None:
        self._refused_at.pop(pod.uid, None)
        self._memory.asked(pod.uid, self._clock())


def _options(pod: Pod, grace_s: float) -> Mapping[str, Any]:
    # Grace 0 would free the GPUs on paper while the program still holds them (kubernetes #130145).
    return {"gracePeriodSeconds": max(1, math.ceil(grace_s)), "preconditions": {"uid": pod.uid}}


def _free_to_patch(pod: Pod) -> bool:
    """Held by us, and going on to be: what is Terminating is occupancy and never a candidate (kueue #15148)."""
    return GATE in pod.gates and pod.leaving_at is None and not pod.terminal


@contextmanager
def _nobody_there() -> Iterator[None]:
    """A pod that is gone needs no request; names are used again, and the next one of that name was not meant."""
    try:
        yield
    except Refused as refused:
        if not _nobody(refused) and refused.status != _CONFLICT:
            raise


def _nobody(refused: Refused) -> bool:
    """No such pod: the name is free, or taken by another (the uid of an object cannot be patched)."""
    return refused.status == _NOT_FOUND or (refused.status == _INVALID and "metadata.uid" in refused.message)
