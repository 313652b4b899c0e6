"""What nobody asks for and must be done all the same: broken gangs, pods without room, attempts that hang, output."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial

from scheduler.adapters.argo.attempts import Attempt, waiting_ranks
from scheduler.adapters.argo.hands import Hands
from scheduler.adapters.argo.logs import LogBook
from scheduler.adapters.argo.memory import Sighting
from scheduler.adapters.argo.nodes import WorkflowSeen
from scheduler.adapters.argo.pod_requests import PodRequests
from scheduler.adapters.argo.words import Words
from scheduler.adapters.kube.names import NODE_ID, WORKFLOW
from scheduler.jobs.job import JobId
from scheduler.jobs.outcomes import FINAL

_NO_ROOM = timedelta(seconds=20)  # on the node that a pod is pinned to
_HANGS = timedelta(seconds=30)  # without a next attempt
_LOGS_A_TURN = 16


class Tending:
    """Looks over one job after another, each turn."""

    def __init__(
        self, hands: Hands, readers: Hands, pods: PodRequests, words: Words, book: LogBook, grace_s: float
    ) -> None:
        self._hands = hands
        self._readers = readers
        self._pods = pods
        self._words = words
        self._book = book
        self._grace_s = grace_s
        self._settled: set[str] = set()  # uids of ended pods that Argo has gone on from
        self._read_at: datetime | None = None
        self._left = 0  # readings of output that this turn may still begin

    def tend(self, job: JobId, pods: Sequence[Sighting], known: Sequence[Attempt], now: datetime) -> None:
        """Begin what one job needs."""
        if self._read_at != now:
            self._read_at, self._left = now, _LOGS_A_TURN
        for attempt in known:
            for seen in attempt.live:
                # Ranks cannot go on without one another; without room on its node a pod waits for ever, as pins stay.
                if attempt.broken or (seen.unplaced_since is not None and now - seen.unplaced_since > _NO_ROOM):
                    self._hands.do(("end pod", seen.pod.uid), self._pods.end, seen, self._grace_s)
                self._read(seen, now)
        for seen in pods:
            if seen.over and not seen.gone and seen.over_at is not None and now - seen.over_at >= _HANGS:
                self._free(job, seen, now)
        self._end_parts_of_gangs(job, waiting_ranks(pods, known), now)

    def forget(self, but: Collection[str]) -> None:
        """Drop what is known of all other pods."""
        self._settled &= set(but)

    def _read(self, seen: Sighting, now: datetime) -> None:
        if seen.started_at is None or self._left <= 0 or not self._book.due(seen.pod, now):
            return
        if self._readers.do(("log", seen.pod.uid), partial(self._book.read, seen.pod)):
            self._left -= 1

    def _free(self, job: JobId, seen: Sighting, now: datetime) -> None:
        """When the helper of a pod dies hard, Argo waits for its word for ever; a pod that is gone has none to say."""
        pod = seen.pod
        if pod.uid in self._settled or seen.over_at is None:
            return
        there = self._words.newer(job, seen.over_at + _HANGS, now)
        if there is None:
            return
        workflow = there.workflows.get(pod.labels.get(WORKFLOW, ""))
        if workflow is None or workflow.untold or _gone_on(workflow, pod.annotations.get(NODE_ID, "")):
            self._settled.add(pod.uid)
        else:
            self._hands.do(("remove", pod.uid), self._pods.remove, seen)

    def _end_parts_of_gangs(self, job: JobId, waiting: Iterable[Sighting], now: datetime) -> None:
        """A rank whose mates have ended for good will never be released, and its Workflow would never end."""
        for seen in waiting:
            if now - seen.pod.created_at < _HANGS:
                continue
            there = self._words.newer(job, now - _HANGS, now)
            workflow = there.workflows.get(seen.pod.labels.get(WORKFLOW, "")) if there is not None else None
            if workflow is not None and any(node.fulfilled for node in workflow.tasks().get(seen.task, ())):
                why = f"{FINAL} other ranks of its gang have ended, and a gang cannot go on with some of its ranks"
                self._hands.do(("end", seen.pod.uid), self._pods.end_gated, seen, "Failed", why)


def _gone_on(workflow: WorkflowSeen, node: str) -> bool:
    """Whether Argo has taken in the end of an attempt: its task is over, or has a newer attempt."""
    if workflow.ended:
        return True
    retry = workflow.parent(node)
    return retry is None or retry.fulfilled or retry.children[-1] != node
