"""Which waiting tasks start now, in the order of the queue, and why the others do not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import takewhile

from scheduler.jobs.job import Uid
from scheduler.jobs.spec import Priority
from scheduler.jobs.waits import Wait, WaitReason
from scheduler.planning import reasons
from scheduler.planning.placement import Placement, Room
from scheduler.planning.plan import Release, TaskWait
from scheduler.planning.snapshot import Snapshot, WaitingTask
from scheduler.policy import Policy

_PRIORITY = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
_NEVER = datetime.max.replace(tzinfo=UTC)


def starts(
    snapshot: Snapshot, room: Room, kept: int, service_waits: Sequence[str], policy: Policy
) -> tuple[tuple[Release, ...], tuple[TaskWait, ...]]:
    """Every waiting task once, as a release or as a wait, both in the order of the queue.

    A task behind one that does not fit may start if it fits itself. `kept` are idle GPUs that are not lent;
    `service_waits` names the services that wait for GPUs: meanwhile nothing starts.
    """
    queue = sorted(snapshot.waiting, key=_Order(snapshot, policy))
    turn = _Turn(snapshot, queue, room, service_waits, policy)
    outcomes = [turn.start(task, beside=task.saves) for task in queue]
    for number, task in enumerate(queue):
        if outcomes[number] is None and not task.saves:
            outcomes[number] = turn.start(task)  # nobody who saves wanted these GPUs
    releases = [outcome for outcome in outcomes if isinstance(outcome, Release)]
    without = _WithoutGpus(snapshot, room, kept, releases, policy)
    return tuple(releases), tuple(
        TaskWait(job=task.job, task=task.task, wait=outcome or without.wait(task))
        for task, outcome in zip(queue, outcomes, strict=True)
        if not isinstance(outcome, Release)
    )


class _Order:
    """The place of a task in the queue; the same from turn to turn, but for gangs that have waited long.

    Shortest first with ageing: `estimate - ageing x waited` orders two tasks as `estimate + ageing x submitted` does,
    whatever the time is.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._whole = max((node.gpus for node in snapshot.pool.nodes), default=0)
        self._patient_since = snapshot.now - timedelta(seconds=policy.gang_patience_s)

    def __call__(self, task: WaitingTask) -> tuple[int, datetime, int, float, datetime, int, str, int, str]:
        gpus = task.gpus[0] * task.nodes
        starves = gpus >= self._whole > 0 and task.since <= self._patient_since
        return (
            _PRIORITY[task.priority],
            task.deadline or _NEVER,
            -gpus if starves else 0,
            self._length(task),
            task.submitted_at,
            task.job,
            task.step,
            _number(task.task),
            task.task,
        )

    def _length(self, task: WaitingTask) -> float:
        policy = self._policy
        estimate = policy.unknown_estimate_s if task.estimate_s is None else task.estimate_s
        share = self._snapshot.team_shares.get(task.team, 0.0)
        forgiven = policy.resume_s if task.preempted else 0.0
        return estimate - forgiven + share * policy.fair_share_s + task.submitted_at.timestamp() * policy.ageing


@lru_cache(maxsize=16_384)
def _number(task: str) -> int:
    """The number at its end: "sft-10" comes after "sft-9"."""
    return int("".join(takewhile(str.isdecimal, reversed(task)))[::-1] or 0)


class _Turn:
    """What has been started so far in this turn, and what that leaves to others."""

    def __init__(
        self,
        snapshot: Snapshot,
        queue: Iterable[WaitingTask],
        room: Room,
        service_waits: Sequence[str],
        policy: Policy,
    ) -> None:
        self._snapshot = snapshot
        self._now = snapshot.now
        self._room = room
        self._policy = policy
        self._nodes = tuple(sorted(node.name for node in snapshot.pool.nodes if not node.unknown))
        self._known = sorted(node.gpus for node in snapshot.pool.nodes if not node.unknown)
        self._sizes = sorted(node.gpus for node in snapshot.pool.nodes)
        self._whole = max(self._known, default=0)
        self._fits_somewhere: set[tuple[int, int]] = set()
        self._unknown = reasons.unknown_nodes(snapshot)
        self._steps = Counter((lease.job, lease.step) for lease in snapshot.leases)
        self._without_gpus = sum(not any(lease.placement.values()) for lease in snapshot.leases)
        self._teams: Counter[str] = Counter()
        for lease in snapshot.leases:
            self._teams[lease.team] += sum(lease.placement.values())
        self._service_first = (
            Wait(reason=WaitReason.SERVICE_FIRST, detail=", ".join(service_waits)) if service_waits else None
        )
        self._closed = None if snapshot.lending_open else Wait(reason=WaitReason.CALENDAR, earliest=snapshot.opens_at)
        self._gangs = self._gangs_that_wait(queue)

    def start(self, task: WaitingTask, *, beside: bool = True) -> Release | Wait | None:
        """The release; why not; or None if only GPUs are missing. `beside`: also on nodes with replicas."""
        if task.uid is None:
            return reasons.PREPARING
        held_up = self._held_up(task)
        if held_up is not None:
            return held_up
        placed = self._place(task, beside=beside) if task.gpus[0] > 0 else self._place_without_gpus()
        if placed is None or isinstance(placed, Wait):
            return placed
        nodes = placed.nodes if isinstance(placed, Placement) else placed
        self._no_longer_waits(task)
        self._steps[task.job, task.step] += 1
        self._teams[task.team] += sum(nodes.values())
        return Release(
            uid=task.uid,
            job=task.job,
            task=task.task,
            placement=nodes,
            until=placed.until if isinstance(placed, Placement) else None,
            confidence=placed.confidence if isinstance(placed, Placement) else None,
            why=_why(task, nodes),
        )

    def _held_up(self, task: WaitingTask) -> Wait | None:
        """What keeps it from starting, whatever is idle."""
        if task.start_after is not None and task.start_after > self._now:
            return Wait(reason=WaitReason.START_AFTER, earliest=task.start_after)
        asked = (task.gpus[-1], task.nodes)
        if asked not in self._fits_somewhere:
            too_large = reasons.too_large(task, self._sizes, self._known, self._unknown)
            if too_large is not None:
                return too_large
            self._fits_somewhere.add(asked)
        running = self._steps[task.job, task.step] if task.parallel is not None else 0
        if task.parallel is not None and running >= task.parallel:
            return reasons.parallel(task, running)
        if self._closed is not None and task.gpus[-1] > 0:
            return self._closed
        return self._service_first

    def _affordable(self, task: WaitingTask) -> Sequence[int]:
        running, limit = self._teams[task.team], self._snapshot.team_gpus.get(task.team)
        return [gpus for gpus in task.gpus if limit is None or running + gpus * task.nodes <= limit]

    def _place(self, task: WaitingTask, *, beside: bool) -> Placement | Wait | None:
        affordable = self._affordable(task)
        if not affordable:
            return reasons.team_budget(task, self._teams[task.team], self._snapshot.team_gpus[task.team])
        outlast = None if task.can_save else self._now + timedelta(seconds=self._must_last_s(task))
        gang = self._gang_before(task)
        for gpus in affordable:
            placement = self._room.place(gpus, task.nodes, outlast, open_whole=gang is None, beside=beside)
            if placement is not None:
                return placement
        if not beside:
            return None
        if gang is not None and self._room.fits(affordable[-1], task.nodes):
            return reasons.gang_first(gang)
        if outlast is not None and self._room.fits(affordable[-1], task.nodes):
            return reasons.window_too_short(task, self._policy.horizon_s)
        return None

    def _gang_before(self, task: WaitingTask) -> WaitingTask | None:
        """A task of whole nodes that could take one now, or with one node more: no small task opens that node."""
        if task.nodes > 1 or task.gpus[-1] >= self._whole:
            return None
        most = self._room.whole + 1
        return next((next(iter(gangs.values())) for nodes, gangs in self._gangs.items() if nodes <= most), None)

    def _gangs_that_wait(self, queue: Iterable[WaitingTask]) -> dict[int, dict[Uid, WaitingTask]]:
        """By nodes, the fewest first, then by attempt, in the order of the queue: those that only lack GPUs."""
        found: defaultdict[int, dict[Uid, WaitingTask]] = defaultdict(dict)
        for task in queue:
            whole = task.gpus[-1] >= self._whole > 0
            if whole and task.uid is not None and self._held_up(task) is None and self._affordable(task):
                found[task.nodes][task.uid] = task
        return dict(sorted(found.items()))

    def _no_longer_waits(self, task: WaitingTask) -> None:
        gangs = self._gangs.get(task.nodes)
        if gangs is None or task.uid not in gangs:
            return
        del gangs[task.uid]
        if not gangs:
            del self._gangs[task.nodes]

    def _must_last_s(self, task: WaitingTask) -> float:
        # Without an estimate, only GPUs of which no end is in sight will do.
        return self._policy.horizon_s if task.estimate_s is None else task.estimate_s

    def _place_without_gpus(self) -> Mapping[str, int] | Wait:
        if self._without_gpus >= self._policy.node_tasks:
            return reasons.tasks_without_gpus(self._policy.node_tasks)
        self._without_gpus += 1
        return {self._nodes[0]: 0}


class _WithoutGpus:
    """Why the tasks that found no GPUs wait; tasks that ask the same get the same answer."""

    def __init__(self, snapshot: Snapshot, room: Room, kept: int, releases: Sequence[Release], policy: Policy) -> None:
        self._room = room
        self._ahead = reasons.Ahead(snapshot, room)
        self._held_by = reasons.held_by(snapshot, kept)
        self._started = list(dict.fromkeys(f"job-{one.job}" for one in releases if any(one.placement.values())))
        self._named = policy.queue_depth_reason
        self._answers: dict[tuple[int, int], Wait] = {}

    def wait(self, task: WaitingTask) -> Wait:
        asked = (task.gpus[-1], task.nodes)
        if asked not in self._answers:
            self._answers[asked] = self._wait(*asked)
        return self._answers[asked]

    def _wait(self, gpus: int, nodes: int) -> Wait:
        earliest = self._ahead.earliest(gpus, nodes)
        if self._room.fitted(gpus, nodes):
            return reasons.queue(self._started, self._named, earliest)
        return Wait(
            reason=WaitReason.GPUS,
            short_by=self._room.short_by(gpus, nodes),
            held_by=self._held_by,
            earliest=earliest,
        )


def _why(task: WaitingTask, nodes: Mapping[str, int]) -> str:
    gpus = sum(nodes.values())
    if gpus == 0:
        return "it needs no GPU"
    where = ", ".join(nodes)
    again = "goes on" if task.preempted else "fits"
    return f"{again} on {gpus} idle {'GPU' if gpus == 1 else 'GPUs'} of {where}"
