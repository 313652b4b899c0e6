"""What was seen of each pod of ours, by uid, also of those that are gone: Argo's word of an ending is a race."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Lock

from scheduler.adapters.kube.mirror import Event
from scheduler.adapters.kube.names import GATE, JOB, RANK, RUN, TASK
from scheduler.adapters.kube.objects import Ended, Pod
from scheduler.jobs.job import JobId, TaskName, Uid, job_id
from scheduler.ports import Clock

log = logging.getLogger(__name__)

_KEPT = timedelta(minutes=10)  # what is gone, of a job that nobody asks for
_ENDINGS_KEPT = 100  # of one task; one that is preempted every few minutes would fill the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """All that was ever seen of one pod."""

    pod: Pod  # as it was last
    ended: Ended | None = None  # the best word of its main container's end; a kubelet may forget it later
    started_at: datetime | None = None
    stop_at: datetime | None = None  # when it was asked to end, by whomever
    disrupted: str = ""  # who did that, as Kubernetes calls it
    unplaced_since: datetime | None = None  # released, and kube-scheduler finds no room on its node
    over_at: datetime | None = None  # when it was first seen ended, or gone
    gone: bool = False

    @property
    def gated(self) -> bool:
        """Our gate holds it."""
        return GATE in self.pod.gates

    @property
    def over(self) -> bool:
        """It holds nothing any more."""
        return self.over_at is not None

    @property
    def task(self) -> TaskName:
        """Of its job."""
        return TaskName(self.pod.labels.get(TASK, ""))

    @property
    def rank(self) -> int:
        """Its place in a gang."""
        digits = self.pod.labels.get(RANK, "")
        return int(digits) if digits.isascii() and digits.isdecimal() else 0

    @property
    def run(self) -> Uid | None:
        """The attempt that it was released for."""
        named = self.pod.annotations.get(RUN)
        return Uid(named) if named else None

    def seen(self, pod: Pod, now: datetime) -> Sighting:
        """The same with what is seen now."""
        stuck = pod.held_back == "Unschedulable" and not pod.node
        return replace(
            self,
            pod=pod,
            ended=_best(self.ended, pod.ended),
            started_at=self.started_at or pod.started_at,
            stop_at=self.stop_at or _asked_to_end(pod, now),
            disrupted=self.disrupted or pod.disrupted,
            unplaced_since=(self.unplaced_since or now) if stuck else None,
            over_at=self.over_at or (now if pod.terminal else None),
        )


class Memory:
    """Sightings of the pods of one namespace that carry a job's label. Safe for many threads."""

    def __init__(self, namespace: str, clock: Clock) -> None:
        self._namespace = namespace
        self._clock = clock
        self._lock = Lock()
        self._jobs: dict[JobId, dict[str, Sighting]] = {}
        self._job_of: dict[str, JobId] = {}
        self._asked_for: dict[JobId, datetime] = {}
        self._strange: set[str] = set()  # uids of pods that were told of

    def heard(self, event: Event[Pod]) -> None:
        """A change that the mirror tells of."""
        if event.new is not None:
            self.saw(event.new)
        elif event.old is not None:
            self.vanished(event.old)

    def saw(self, pod: Pod) -> None:
        """A pod as the API server just showed it; what is older than what is known is no news."""
        job = job_id(pod.labels.get(JOB, ""))
        if job is None or pod.namespace != self._namespace or self._is_strange(pod):
            return
        now = self._clock()
        with self._lock:
            job = self._job_of.get(pod.uid, job)  # a person may change the label of a pod; it stays what it was
            known = self._jobs.setdefault(job, {})
            before = known.get(pod.uid)
            if before is not None and (before.gone or _older(pod.version, before.pod.version)):
                return
            known[pod.uid] = (before or Sighting(pod=pod)).seen(pod, now)
            self._job_of[pod.uid] = job

    def _is_strange(self, pod: Pod) -> bool:
        """Somebody else's, with a label of ours."""
        if pod.labels.get(TASK):
            return False
        if pod.uid not in self._strange:
            self._strange.add(pod.uid)
            log.warning("pod=%s has the label %s but not %s: it is no attempt of ours", pod.name, JOB, TASK)
        return True

    def vanished(self, pod: Pod) -> None:
        """The pod is not there any more; this is how it was last."""
        now = self._clock()
        self.saw(pod)
        self._strange.discard(pod.uid)
        with self._lock:
            if (before := self._find(pod.uid)) is not None and not before.gone:
                seen = replace(before, gone=True, over_at=before.over_at or now)
                self._jobs[self._job_of[pod.uid]][pod.uid] = seen

    def asked(self, uid: str, at: datetime) -> None:
        """The pod was asked to end, and the API server took that in."""
        with self._lock:
            if (before := self._find(uid)) is not None and before.stop_at is None and not before.over:
                self._jobs[self._job_of[uid]][uid] = replace(before, stop_at=at)

    def find(self, uid: str) -> Sighting | None:
        """One pod, by its own uid."""
        with self._lock:
            return self._find(uid)

    def job_of(self, uid: str) -> JobId | None:
        """Whose pod it is."""
        with self._lock:
            return self._job_of.get(uid)

    def of(self, job: JobId) -> tuple[Sighting, ...]:
        """All pods of a job, oldest first."""
        with self._lock:
            found = tuple(self._jobs.get(job, {}).values())
        return tuple(sorted(found, key=lambda seen: (seen.pod.created_at, _number(seen.pod.version), seen.pod.uid)))

    def made_again(self, job: JobId, name: str, uid: str) -> bool:
        """Whether a later pod has the name of this one."""
        with self._lock:
            pods = dict(self._jobs.get(job, {}))
        own = pods.get(uid)
        others = (seen.pod for other, seen in pods.items() if other != uid and seen.pod.name == name)
        return any(own is None or _number(pod.version) > _number(own.pod.version) for pod in others)

    def uids(self) -> frozenset[str]:
        """Of all pods that are remembered."""
        with self._lock:
            return frozenset(self._job_of)

    def forget(self, asked_for: Collection[JobId]) -> None:
        """Drop pods that are gone, of jobs that nobody has asked for in a while."""
        now = self._clock()
        with self._lock:
            self._asked_for |= dict.fromkeys(asked_for, now)
            for job in list(self._jobs):
                if now - self._asked_for.setdefault(job, now) > _KEPT:
                    self._keep(job, {uid: seen for uid, seen in self._jobs[job].items() if not seen.gone})
                elif len(self._jobs[job]) > _ENDINGS_KEPT:
                    self._keep(job, _thinned(self._jobs[job]))
            self._asked_for = {job: at for job, at in self._asked_for.items() if job in self._jobs or now - at <= _KEPT}

    def _keep(self, job: JobId, kept: dict[str, Sighting]) -> None:
        for uid in self._jobs[job].keys() - kept.keys():
            del self._job_of[uid]
        self._jobs[job] = kept
        if not kept:
            del self._jobs[job], self._asked_for[job]

    def _find(self, uid: str) -> Sighting | None:
        job = self._job_of.get(uid)
        return None if job is None else self._jobs[job][uid]


def _thinned(pods: dict[str, Sighting]) -> dict[str, Sighting]:
    """All that is there, and of each task the newest of those that are gone."""
    kept: dict[str, Sighting] = {}
    counts: dict[TaskName, int] = {}
    for uid, seen in sorted(pods.items(), key=lambda item: item[1].pod.created_at, reverse=True):
        if seen.gone:
            counts[seen.task] = counts.get(seen.task, 0) + 1
        if not seen.gone or counts[seen.task] <= _ENDINGS_KEPT:
            kept[uid] = seen
    return kept


def _best(before: Ended | None, now: Ended | None) -> Ended | None:
    """An end with a time was seen; one without was made up later, by a kubelet that had lost the container."""
    if before is not None and (now is None or now.at is None):
        return before if before.at is not None else now or before
    return now


def _asked_to_end(pod: Pod, now: datetime) -> datetime | None:
    """When somebody asked a pod to end that had not ended."""
    if pod.leaving_at is None:
        # Kubelets that end a pod by themselves, and those whose request we missed, only leave their name.
        return _end_of(pod) or now if pod.terminal and pod.disrupted else None
    asked = pod.leaving_at - timedelta(seconds=pod.grace_s or 0)
    if not pod.terminal or pod.disrupted:
        return asked
    # What deletes a pod that has ended has not ended it.
    ended = _end_of(pod)
    return asked if ended is not None and asked < ended else None


def _end_of(pod: Pod) -> datetime | None:
    return pod.ended.at if pod.ended else None


def _older(version: str, known: str) -> bool:
    return 0 < _number(version) < _number(known)


def _number(version: str) -> int:
    return int(version) if version.isascii() and version.isdecimal() else 0
