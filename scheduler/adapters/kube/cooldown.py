"""Nodes that lately refused pods of ours: whatever is wrong there, the next pod would meet it too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from scheduler.adapters.kube.objects import Pod

NO_ROOM = timedelta(seconds=20)  # a released pod that its node did not take for so long is taken back
_SURE = timedelta(seconds=10)  # taken back after that: for want of room
_REFUSALS = ("UnexpectedAdmissionError", "OutOf")  # of kubelets; OutOfnvidia.com/gpu, OutOfcpu, ..


class Cooldown:
    """Memory of refusals; what it has forgotten by a restart, it learns anew from the pods that are left."""

    def __init__(self, cooldown_s: float) -> None:
        self._length = timedelta(seconds=cooldown_s)
        self._refused: dict[str, datetime] = {}  # uid -> when its refusal was first seen
        self._stuck: dict[str, tuple[str, datetime]] = {}  # uid -> node without room for it, since when
        self._until: dict[str, datetime] = {}  # node -> end

    def look(self, ours: Iterable[Pod], promised: Mapping[str, str], now: datetime) -> None:
        """Take note of pods of ours as they are. `promised`: nodes with room for pods that are not bound, by uid."""
        refused: dict[str, datetime] = {}
        stuck: dict[str, tuple[str, datetime]] = {}
        taken: set[str] = set()
        for pod in ours:
            if pod.node:
                taken.add(pod.uid)
            if _refused(pod) and pod.node:
                refused[pod.uid] = self._refused.get(pod.uid, now)
                if pod.uid not in self._refused:
                    self._cool(pod.node, now)
            elif pod.held_back == "Unschedulable" and pod.uid in promised:
                stuck[pod.uid] = self._stuck.get(pod.uid, (promised[pod.uid], now))
        for uid, (node, since) in self._stuck.items():
            taken_back = uid not in stuck and uid not in taken
            if (uid in stuck and now - since > NO_ROOM) or (taken_back and now - since >= _SURE):
                self._cool(node, now)
        self._refused, self._stuck = refused, stuck
        self._until = {node: until for node, until in self._until.items() if until > now}

    def why(self) -> Mapping[str, str]:
        """Why nodes are left alone."""
        return {
            node: f"it refused a pod, and is left alone until {until:%H:%M} UTC" for node, until in self._until.items()
        }

    def _cool(self, node: str, now: datetime) -> None:
        self._until[node] = now + self._length


def _refused(pod: Pod) -> bool:
    # Some kubelets give the reason in the first words of the message.
    return pod.phase == "Failed" and (pod.reason.startswith(_REFUSALS) or pod.message.startswith(_REFUSALS))
