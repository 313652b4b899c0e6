"""The port `Executor` on Argo Workflows: jobs are Workflows, attempts are their pods, gates are scheduling gates."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from scheduler.adapters.argo.attempts import Attempt, attempts
from scheduler.adapters.argo.hands import Hands
from scheduler.adapters.argo.logs import ArgoLogs, LogBook
from scheduler.adapters.argo.memory import Memory, Sighting
from scheduler.adapters.argo.nodes import WorkflowSeen
from scheduler.adapters.argo.pod_requests import PodRequests
from scheduler.adapters.argo.succeeded import who_succeeded
from scheduler.adapters.argo.tending import Tending
from scheduler.adapters.argo.words import Words
from scheduler.adapters.argo.workflow import Part, Shape, part_without, workflows
from scheduler.adapters.argo.workflow_requests import Reading, WorkflowRequests
from scheduler.adapters.kube.api import Api, Refused
from scheduler.adapters.kube.mirror import Event, Mirror
from scheduler.adapters.kube.names import DONE, RUN, WORKFLOW
from scheduler.adapters.kube.objects import Pod
from scheduler.errors import BadInput, Unavailable
from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.jobs.order import JobOrder
from scheduler.jobs.outcomes import FINAL
from scheduler.jobs.reports import Phase, Report
from scheduler.ports import Clock

log = logging.getLogger(__name__)

_PATIENCE_S = 5.0  # of a turn, with requests that are under way
_READERS, _READING_S = 4, 0.5  # threads that read logs, and how long a turn waits for them
_FRESH = timedelta(seconds=2)  # of a Workflow that a release relies on


class ArgoExecutor:
    """Requests go on beside the turns; `reports` waits for those under way, so that callers see what they asked for."""

    def __init__(self, api: Api, pods: Mirror[Pod], shape: Shape, clock: Clock, hands: int = 8) -> None:
        self._pods = pods
        self._shape = shape
        self._clock = clock
        self._hands = Hands(hands)
        self._readers = Hands(_READERS)  # a kubelet that hangs must hold up nothing but logs
        self._memory = Memory(shape.namespace, clock)
        self._book = LogBook(api, clock)
        self._pod_requests = PodRequests(api, self._memory, clock)
        self._workflows = WorkflowRequests(api, shape.namespace, clock)
        self._words = Words(self._memory, self._workflows, self._hands)
        self._tending = Tending(self._hands, self._readers, self._pod_requests, self._words, self._book, shape.grace_s)
        self.logs = ArgoLogs(api, self._memory, self._book)
        pods.listen(self._heard)
        for pod in pods.items().values():
            self._memory.saw(pod)

    def close(self) -> None:
        """Requests under way are finished, no other is begun."""
        self._hands.close()
        self._readers.close()

    def submit(self, order: JobOrder, ended: Mapping[TaskName, bool] = {}) -> None:
        """Make Workflows whose outside needs are done, and those again, without what ended, that somebody deleted."""
        try:
            parts = workflows(order, self._shape)
            there = self._workflows.read(order.job).workflows
        except BadInput as error:
            raise Unavailable(f"job-{order.job} cannot run on Argo: {' '.join(error.faults)}") from error
        except Refused as refused:
            raise Unavailable(f"the Workflows of job-{order.job} cannot be read: {refused}") from refused
        self._words.waits(order.job, {part.name: part.tasks for part in parts}, self._clock())
        for part in parts:
            if part.name in there:
                self._must_be_ours(part, there[part.name])
            elif part.opens(ended):
                self._make(part, ended)

    def release(self, uid: Uid, placement: Mapping[str, int]) -> None:
        """Begin to open the gate of all pods of an attempt, each on a node of its own."""
        self._hands.do(("release", uid), self._release, uid, placement)

    def take_back(self, uid: Uid, grace_s: float) -> None:
        """Begin to end all pods of an attempt."""
        self._hands.do(("take back", uid), self._take_back, uid, grace_s)

    def give_up(self, uid: Uid, why: str) -> None:
        """Begin to end a gated attempt as failed for good."""
        self._hands.do(("end", uid), self._end_gated, uid, "Failed", f"{FINAL} {why}".strip())

    def skip(self, uid: Uid, why: str) -> None:
        """Begin to end a gated attempt as done."""
        self._hands.do(("end", uid), self._end_gated, uid, "Succeeded", why)

    def cancel(self, job: JobId, grace_s: float) -> None:
        """Begin to end all of a job. Argo is slow with many pods and powerless over deaf ones: we end them."""
        self._words.cancelled(job)
        self._hands.do(("cancel", job), self._cancel, job)
        for seen in self._memory.of(job):
            if not seen.over:
                self._hands.do(("end pod", seen.pod.uid), self._pod_requests.end, seen, grace_s)

    def reports(self, jobs: Mapping[JobId, Collection[Uid]], now: datetime) -> tuple[Report, ...]:
        """All attempts of these jobs that ran or may run, and those named, as far as anybody knows of them."""
        if not self._pods.synced:
            raise Unavailable(
                f"the pods have not been listed yet: {self._pods.trouble or 'the first list is under way'}"
            )
        self._hands.settle(_PATIENCE_S)
        self._readers.settle(_READING_S)
        self._forget(jobs)
        return tuple(report for job, live in jobs.items() for report in self._of_job(job, frozenset(live), now))

    def _of_job(self, job: JobId, live: frozenset[Uid], now: datetime) -> list[Report]:
        pods = self._memory.of(job)
        known = attempts(pods)
        told = []
        for attempt in known:
            report = self._report(job, attempt, live, now)
            if report is not None:
                told.append(report)
        missing = live - {attempt.uid for attempt in known}
        told += [self._words.missing(job, uid, now) for uid in sorted(missing)]
        if not self._words.is_cancelled(job):
            told += self._words.whole_tasks(job, {one.task for one in known if one.live}, now)
            self._tending.tend(job, pods, known, now)
        return told

    def _report(self, job: JobId, attempt: Attempt, live: Collection[Uid], now: datetime) -> Report | None:
        phase = attempt.phase
        if phase is Phase.GATED and self._words.is_cancelled(job):
            return None
        if attempt.uid not in live and phase in {Phase.ENDED, Phase.STOPPING} and not attempt.released:
            return None  # it never was more than a place in the queue
        ends = self._words.ends(job, now)
        first, worst = self._book.page(attempt.members[0].pod), self._book.page(attempt.worst(ends).pod)
        return attempt.report(job, ends, first.progress if first else None, worst.tail if worst else "")

    def _heard(self, event: Event[Pod]) -> None:
        self._memory.heard(event)
        pod, before = event.new, event.old
        if pod is None or (seen := self._memory.find(pod.uid)) is None:
            return
        leaves = pod.leaving_at is not None and (before is None or before.leaving_at is None)
        ends = pod.terminal and (before is None or not before.terminal)
        # An evicted pod is gone within a second, and its last lines with it.
        if (leaves or ends) and seen.started_at is not None:
            self._readers.do(("log", pod.uid, pod.terminal), self._book.read, pod)

    def _find(self, uid: Uid) -> tuple[JobId, Attempt] | None:
        job = self._memory.job_of(uid.rpartition("/")[2])
        if job is None:
            return None
        return next(((job, one) for one in attempts(self._memory.of(job)) if one.uid == uid), None)

    def _release(self, uid: Uid, placement: Mapping[str, int]) -> None:
        found = self._find(uid)
        if found is None or found[1].phase is not Phase.GATED:
            return
        job, attempt = found
        if len(placement) != attempt.size:
            raise Unavailable(f"{uid} has {attempt.size} pods and was given {len(placement)} nodes")
        seen = self._workflows.not_older(job, _FRESH)
        for member, node in zip(attempt.members, sorted(placement), strict=True):
            if member.gated and self._may_start(member, seen):
                notes = {RUN: uid, **who_succeeded(member.pod, seen.workflows.values(), self._memory.of(job))}
                self._pod_requests.release(member, node if member.pod.gpus else None, notes)

    def _may_start(self, member: Sighting, there: Reading) -> bool:
        """What Argo does not follow any more would run for nobody."""
        workflow = there.workflows.get(member.pod.labels.get(WORKFLOW, ""))
        if workflow is not None and workflow.takes_releases:
            return True
        log.warning("pod=%s not released: its Workflow has ended, is being ended, or is gone", member.pod.name)
        return False

    def _take_back(self, uid: Uid, grace_s: float) -> None:
        found = self._find(uid)
        for seen in found[1].live if found else ():
            self._pod_requests.end(seen, grace_s)

    def _end_gated(self, uid: Uid, phase: str, message: str) -> None:
        found = self._find(uid)
        for seen in found[1].members if found and found[1].phase is Phase.GATED else ():
            if seen.gated:
                self._pod_requests.end_gated(seen, phase, message)

    def _cancel(self, job: JobId) -> None:
        for name, seen in self._workflows.read(job).workflows.items():
            if not seen.ended and not (seen.cancelled and seen.stopping):
                self._workflows.end(job, name)

    def _must_be_ours(self, part: Part, seen: WorkflowSeen) -> None:
        if seen.job != f"job-{part.order.job}" or seen.spec_hash != part.order.spec_hash:
            raise Unavailable(
                f"Workflow {self._shape.namespace}/{part.name} is there and is not this job's; delete it, or give this "
                "installation a namespace of its own"
            )
        if seen.cancelled:  # this job is not, so it is of an older database that counted its jobs alike
            raise Unavailable(
                f"Workflow {self._shape.namespace}/{part.name} is there and was cancelled; once it is deleted, the job "
                "goes on"
            )

    def _make(self, part: Part, ended: Mapping[TaskName, bool]) -> None:
        body = part_without(part, ended)
        if body is None:
            return
        done = sorted(task for task, well in ended.items() if well)
        if done:
            body["metadata"].setdefault("annotations", {})[DONE] = ",".join(done)
        if self._workflows.create(part.order.job, part.name, body):
            return
        try:
            found = self._workflows.by_name(part.name)
        except Refused as refused:
            raise Unavailable(f"Workflow {part.name} cannot be read: {refused}") from refused
        if found is not None:  # made by us a moment ago, or not ours
            self._must_be_ours(part, found)

    def _forget(self, asked_for: Mapping[JobId, Collection[Uid]]) -> None:
        self._memory.forget(asked_for.keys())
        kept = frozenset(asked_for)
        self._workflows.forget(kept)
        self._words.forget(kept)
        self._tending.forget(self._memory.uids())
        self._book.forget(self._memory.uids())
