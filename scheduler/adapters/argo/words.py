"""What Argo says of attempts and tasks that we did not see end ourselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from threading import Lock
from typing import Any

from scheduler.adapters.argo.endings import End, end_of
from scheduler.adapters.argo.hands import Hands
from scheduler.adapters.argo.memory import Memory, Sighting
from scheduler.adapters.argo.nodes import Node, WorkflowSeen
from scheduler.adapters.argo.workflow_requests import Reading, WorkflowRequests
from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.jobs.outcomes import FINAL, NEVER_STARTED
from scheduler.jobs.reports import Phase, Report

_PATIENCE = timedelta(seconds=15)  # until Argo has taken in that a pod is gone
_SETTLED = timedelta(seconds=30)  # until a task without an attempt has none for good
_ASKED_LATELY = timedelta(seconds=30)
_AGE = timedelta(seconds=5)  # of a reading, before a newer one is asked for

Parts = Mapping[str, tuple[TaskName, ...]]  # tasks of a job's Workflows, by name
Ends = Callable[[Sighting], End | None]


class Words:
    """Reads Workflows only when something is missing: a pod taken for live, or an attempt of a task that waits."""

    def __init__(self, memory: Memory, workflows: WorkflowRequests, hands: Hands) -> None:
        self._memory = memory
        self._workflows = workflows
        self._hands = hands
        self._lock = Lock()
        self._missed: dict[Uid, datetime] = {}  # first asked for, and nowhere to be seen
        self._waits: dict[JobId, tuple[Parts, datetime, datetime]] = {}  # asked since, and last
        self._cancelled: set[JobId] = set()

    def waits(self, job: JobId, parts: Parts, now: datetime) -> None:
        """A task of the job waits, and the caller sees no attempt of it."""
        with self._lock:
            before = self._waits.get(job)
            lately = before is not None and now - before[2] <= _ASKED_LATELY
            self._waits[job] = (parts, before[1] if before is not None and lately else now, now)

    def cancelled(self, job: JobId) -> None:
        """The caller wants nothing of the job to run any more."""
        with self._lock:
            self._cancelled.add(job)

    def is_cancelled(self, job: JobId) -> bool:
        """Whether that was said."""
        return job in self._cancelled

    def forget(self, but: frozenset[JobId]) -> None:
        """Drop what is known of all other jobs."""
        with self._lock:
            self._waits = {job: waits for job, waits in self._waits.items() if job in but}
            self._cancelled &= but

    def ends(self, job: JobId, now: datetime) -> Ends:
        """How pods of a job ended that are over; None while it may still be learnt."""
        return partial(self._end, job, now)

    def _end(self, job: JobId, now: datetime, seen: Sighting) -> End | None:
        if (end := end_of(seen)) is not None:
            return end
        assert seen.over_at is not None, "asked for the end of a pod that goes on"
        if seen.gated or not seen.pod.node:
            why = f"{NEVER_STARTED}: its pod was deleted before it was on a node"
            return End(code=None, message=why, at=seen.over_at)
        return self._argos(job, seen.pod.attempt, seen.over_at, now)

    def missing(self, job: JobId, uid: Uid, now: datetime) -> Report:
        """An attempt that the caller takes for live, and of which no pod was ever seen."""
        since = self._missed.setdefault(uid, now)
        end = self._argos(job, uid, since, now)
        task = self._task(job, uid)
        if end is None:
            return Report(uid=uid, job=job, task=task, phase=Phase.STOPPING)
        return Report(
            uid=uid, job=job, task=task, phase=Phase.ENDED, ended_at=end.at, exit_code=end.code, message=end.message
        )

    def _task(self, job: JobId, uid: Uid) -> TaskName:
        node = _attempt(self._workflows.last(job), uid)
        return node.task if node else TaskName("")

    def _argos(self, job: JobId, uid: Uid, since: datetime, now: datetime) -> End | None:
        """Argo's word of an attempt that went at `since`; None while it may still come."""
        name, _, own = uid.rpartition("/")
        if self._memory.made_again(job, name, own):
            return End(code=None, message="pod deleted", at=since)  # Argo's node of that name is another's by now
        there = self.newer(job, since, now)
        node = _attempt(there, uid)
        if node is not None and node.end is not None:
            return End(code=node.end.code, message=node.end.message, at=node.end.at or since)
        if (there is not None and not there.workflows) or now - since >= _PATIENCE:
            seen = there.workflows.values() if there is not None else ()
            untold = next((one.untold for one in seen if one.untold), "")
            return End(code=None, message=untold or "pod deleted", at=since)
        return None

    def newer(self, job: JobId, than: datetime, now: datetime) -> Reading | None:
        """A reading that is newer than a time; None if there is none yet, and then one is under way."""
        last = self._workflows.last(job)
        if last is None or last.at <= than or now - last.at >= _AGE:
            self._hands.do(("read", job), self._read, job)
        return last if last is not None and last.at > than else None

    def whole_tasks(self, job: JobId, alive: Collection[TaskName], now: datetime) -> Iterator[Report]:
        """Tasks that Argo has ended, and of which the caller waits for an attempt that will not come."""
        waits = self._waits.get(job)
        if waits is None or now - waits[2] > _ASKED_LATELY or now - waits[1] < _SETTLED:
            return
        there = self.newer(job, now - _SETTLED, now)
        for name, tasks in waits[0].items() if there is not None else ():
            workflow = there.workflows.get(name) if there is not None else None
            if workflow is not None and not workflow.cancelled:
                yield from (
                    Report(uid=Uid(f"{name}/{task}"), job=job, task=task, phase=Phase.ENDED, whole_task=True, **told)
                    for task in tasks
                    if task not in alive and (told := _of_task(workflow, task, now)) is not None
                )

    def _read(self, job: JobId) -> None:
        self._workflows.read(job)


def _of_task(workflow: WorkflowSeen, task: TaskName, now: datetime) -> Mapping[str, Any] | None:
    """How a task ended as a whole; None while Argo may still try it."""
    nodes = workflow.tasks().get(task, ())
    if nodes and all(node.fulfilled for node in nodes):
        ended_at = max((node.ended_at for node in nodes if node.ended_at), default=None)
        if ended_at is not None and now - ended_at < _SETTLED:
            return None
        bad = next((node for node in nodes if node.phase != "Succeeded"), None)
        if bad is None:
            return {"exit_code": 0, "ended_at": ended_at}
        last = workflow.last_word(bad)
        return {"exit_code": last.exit_code or None, "ended_at": ended_at, "message": _given_up(last.message)}
    if workflow.ended:
        why = workflow.message or "it does not say why"
        return {"message": f"{FINAL} its Workflow {workflow.name} ended in {workflow.phase}: {why}"}
    return None


def _given_up(message: str) -> str:
    return (
        message if message.startswith(FINAL) else f"{FINAL} Argo does not try it again: {message or 'no reason given'}"
    )


def _attempt(there: Reading | None, uid: Uid) -> Node | None:
    name = uid.rpartition("/")[0]
    if there is None or not name:
        return None
    found = (seen.attempt(name) for seen in there.workflows.values())
    return next((node for node in found if node is not None), None)
