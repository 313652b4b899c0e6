"""A world on virtual time that plays Metrics, Cluster, Executor and LogReader; it keeps state, and it can fail.

Programs need so many seconds of work, save when they are asked to end, and go on from there. Services have clients;
their replicas' metrics follow from that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from scheduler.adapters.local.dag import End, Standing, standings
from scheduler.errors import Unavailable
from scheduler.fleet.pool import Hold, HolderKind, Node, Pool, Replica, ReplicaId, ReplicaPhase
from scheduler.fleet.readings import Counters, Sample, Series, Target
from scheduler.fleet.services import Service
from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.jobs.order import JobOrder
from scheduler.jobs.outcomes import FINAL
from scheduler.jobs.progress import Progress
from scheduler.jobs.reports import Phase, Report

START = datetime(2026, 12, 1, 20, 0, tzinfo=UTC)


class Killed(BaseException):
    """The process ended here, as by SIGKILL: nothing after this line happened."""


@dataclass(kw_only=True)
class Attempt:
    uid: Uid
    job: JobId
    task: TaskName
    placement: Mapping[str, int] = field(default_factory=dict)
    released_at: datetime | None = None
    stop_asked_at: datetime | None = None
    kill_at: datetime | None = None  # the earlier of two ends stands
    ended_at: datetime | None = None
    code: int | None = None
    message: str = ""
    withdrawn: bool = False
    from_step: int = 0


@dataclass(kw_only=True)
class Copy:
    """A replica."""

    id: ReplicaId
    service: str
    node: str
    since: datetime
    leaving_at: datetime | None = None


class World:
    def __init__(self, nodes: Mapping[str, int], services: Sequence[Service] = (), *, save_s: float = 5.0) -> None:
        self.now = START
        self.skew = timedelta()  # how far the scheduler's clock is ahead of the world's
        self.nodes = dict(nodes)
        self.services = {service.name: service for service in services}
        self.clients: dict[str, int] = {service.name: 0 for service in services}
        self.copies: list[Copy] = []
        self.orders: dict[JobId, JobOrder] = {}
        self.attempts: dict[tuple[JobId, TaskName], list[Attempt]] = {}
        self.work_s: dict[str, float] = {}  # of a task, by name; 60 unless told
        self.exit_codes: dict[str, list[int]] = {}  # of a task: what its attempts end with, then 0
        self.done_s: dict[tuple[JobId, TaskName], float] = {}
        self.cancelled: set[JobId] = set()
        self.save_s = save_s
        self.load_s = 10.0  # a replica answers after so long
        self.unreachable: set[str] = set()  # names of ports that do not answer
        self.stuck: set[str] = set()  # nodes on which nothing can be started
        self.silent: set[ReplicaId] = set()  # replicas whose metrics do not answer
        self.killed_after: int | None = None  # calls until the process dies
        self.dies_after_submit = False  # once: the job is there, and its scheduler does not know
        self.calls: list[str] = []
        self.alerts: tuple[str, ...] = ()

    def advance(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += timedelta(seconds=1)
            for attempts in self.attempts.values():
                if attempts:
                    self._work(attempts[-1])
            self.copies = [copy for copy in self.copies if not self._gone(copy)]

    def _gone(self, copy: Copy) -> bool:
        return copy.leaving_at is not None and self.now - copy.leaving_at >= timedelta(seconds=3)

    def _work(self, attempt: Attempt) -> None:
        if attempt.released_at is None or attempt.ended_at is not None:
            return
        key = (attempt.job, attempt.task)
        if attempt.stop_asked_at is not None:
            if self.now - attempt.stop_asked_at >= timedelta(seconds=self.save_s):
                attempt.ended_at, attempt.code = self.now, 143
            elif attempt.kill_at is not None and self.now >= attempt.kill_at:
                attempt.ended_at, attempt.code = self.now, 137
            return
        self.done_s[key] = self.done_s.get(key, 0.0) + 1.0
        if self.done_s[key] >= self.work_s.get(attempt.task, 60.0):
            codes = self.exit_codes.get(attempt.task, [])
            attempt.ended_at, attempt.code = self.now, codes.pop(0) if codes else 0
            if attempt.code:
                self.done_s[key] = 0.0

    def submit(self, order: JobOrder, ended: Mapping[TaskName, bool] = {}) -> None:
        self._call("executor", "submit")
        self.orders.setdefault(order.job, order)
        self._open(order.job)
        if self.dies_after_submit:
            self.dies_after_submit = False
            raise Killed

    def release(self, uid: Uid, placement: Mapping[str, int]) -> None:
        self._call("executor", "release")
        if placement.keys() & self.stuck:
            raise Unavailable(f"{uid} cannot be started there")
        attempt = self._find(uid)
        if attempt is None or attempt.released_at is not None or attempt.ended_at is not None:
            return
        idle = self.pool(self.now).idle()
        assert all(gpus <= idle[node] for node, gpus in placement.items()), "a GPU in two hands"
        attempt.placement, attempt.released_at = dict(placement), self.now
        attempt.from_step = int(self.done_s.get((attempt.job, attempt.task), 0.0))

    def take_back(self, uid: Uid, grace_s: float) -> None:
        self._call("executor", "take_back")
        attempt = self._find(uid)
        if attempt is None or attempt.ended_at is not None:
            return
        if attempt.released_at is None:
            attempt.ended_at, attempt.withdrawn = self.now, True
            self._open(attempt.job)
        else:
            attempt.stop_asked_at = attempt.stop_asked_at or self.now
            end = self.now + timedelta(seconds=grace_s)
            attempt.kill_at = min(attempt.kill_at or end, end)

    def give_up(self, uid: Uid, why: str) -> None:
        self._call("executor", "give_up")
        attempt = self._find(uid)
        if attempt is not None and attempt.released_at is None and attempt.ended_at is None:
            attempt.ended_at, attempt.code, attempt.message = self.now, 1, f"{FINAL} {why}"
            self._open(attempt.job)

    def skip(self, uid: Uid, why: str) -> None:
        self._call("executor", "skip")
        attempt = self._find(uid)
        if attempt is not None and attempt.released_at is None and attempt.ended_at is None:
            attempt.ended_at, attempt.code, attempt.message = self.now, 0, why
            self._open(attempt.job)

    def cancel(self, job: JobId, grace_s: float) -> None:
        self._call("executor", "cancel")
        self.cancelled.add(job)
        for (owner, _), attempts in self.attempts.items():
            if owner == job and attempts and attempts[-1].ended_at is None:
                if attempts[-1].released_at is None:
                    attempts[-1].ended_at, attempts[-1].withdrawn = self.now, True
                elif attempts[-1].stop_asked_at is None:
                    attempts[-1].stop_asked_at = self.now

    def reports(self, jobs: Mapping[JobId, Collection[Uid]], now: datetime) -> tuple[Report, ...]:
        self._call("executor", "reports")
        for job in jobs:
            self._open(job)
        return tuple(
            self._report(attempt)
            for (job, _), attempts in self.attempts.items()
            if job in jobs
            for attempt in attempts
            if not attempt.withdrawn
        )

    def tail(self, uid: Uid, lines: int) -> str:
        return f"output of {uid}"

    def _report(self, attempt: Attempt) -> Report:
        progress = None
        if attempt.released_at is not None:
            done = self.done_s.get((attempt.job, attempt.task), 0.0)
            progress = Progress(
                fraction=min(1.0, done / self.work_s.get(attempt.task, 60.0)),
                values={"step": str(int(done)), "saved_step": str(int(done)), "from_step": str(attempt.from_step)},
                first_at=attempt.released_at,
                saved_at=attempt.ended_at or self.now,
            )
        return Report(
            uid=attempt.uid,
            job=attempt.job,
            task=attempt.task,
            phase=_phase(attempt),
            placement=attempt.placement,
            started_at=attempt.released_at,
            stop_asked_at=attempt.stop_asked_at,
            ended_at=attempt.ended_at,
            exit_code=attempt.code,
            progress=progress,
            tail="last words" if attempt.code else "",
        )

    def _open(self, job: JobId) -> None:
        """New gated attempts, as Argo makes them."""
        order = self.orders.get(job)
        if order is None:
            return
        ends = {task.name: [_end(each) for each in self.attempts.get((job, task.name), [])] for task in order.tasks}
        for name, standing in standings(order, ends, cancelled=job in self.cancelled).items():
            tried = self.attempts.setdefault((job, name), [])
            if standing is Standing.OPEN and (not tried or tried[-1].ended_at is not None):
                tried.append(Attempt(uid=Uid(f"{job}.{name}.{len(tried) + 1}"), job=job, task=name))

    def _find(self, uid: Uid) -> Attempt | None:
        return next((each for attempts in self.attempts.values() for each in attempts if each.uid == uid), None)

    def pool(self, now: datetime) -> Pool:
        self._call("cluster", "pool")
        holds = [
            Hold(node=node, gpus=gpus, kind=HolderKind.RUN, holder=each.uid, ending=each.stop_asked_at is not None)
            for attempts in self.attempts.values()
            for each in attempts
            if each.released_at is not None and each.ended_at is None
            for node, gpus in each.placement.items()
            if gpus
        ]
        for copy in self.copies:
            gpus = self.services[copy.service].gpus_per_replica
            ending = copy.leaving_at is not None
            holds.append(Hold(node=copy.node, gpus=gpus, kind=HolderKind.REPLICA, holder=copy.id, ending=ending))
        return Pool(
            at=self.now,
            nodes=tuple(Node(name=name, gpus=gpus) for name, gpus in self.nodes.items()),
            holds=tuple(holds),
            replicas=tuple(self._replica(copy) for copy in self.copies),
            alerts=self.alerts,
        )

    def _replica(self, copy: Copy) -> Replica:
        ready = self.now - copy.since >= timedelta(seconds=self.load_s)
        phase = ReplicaPhase.READY if ready else ReplicaPhase.STARTING
        return Replica(
            id=copy.id,
            service=copy.service,
            phase=ReplicaPhase.LEAVING if copy.leaving_at else phase,
            gpus=self.services[copy.service].gpus_per_replica,
            since=copy.leaving_at or copy.since,
            asked_at=copy.since,
            node=copy.node,
            url="http://replica/metrics",
        )

    def scale(self, service: str, replicas: int, leave_first: Sequence[str], nodes: Sequence[str]) -> None:
        self._call("cluster", "scale")
        staying = [copy for copy in self.copies if copy.service == service and copy.leaving_at is None]
        gpus = self.services[service].gpus_per_replica
        for node in nodes[: max(0, replicas - len(staying))]:
            assert self.pool(self.now).idle()[node] >= gpus, "a replica was placed on GPUs that somebody holds"
            name = ReplicaId(f"{service}-{len(self.calls)}")
            self.copies.append(Copy(id=name, service=service, node=node, since=self.now))
        order = [copy for name in leave_first for copy in staying if copy.id == name]
        for copy in order[: max(0, len(staying) - replicas)]:
            copy.leaving_at = self.now

    def series(self, replicas: Sequence[Replica], now: datetime) -> tuple[Series, ...]:
        self._call("metrics", "series")
        return tuple(self._series(replica) for replica in replicas)

    def _series(self, replica: Replica) -> Series:
        copy = next(copy for copy in self.copies if copy.id == replica.id)
        sharing = [other for other in self.copies if other.service == copy.service and other.leaving_at is None]
        service = self.services[copy.service]
        load = self.clients[copy.service] / max(1, len(sharing))
        first = max(copy.since + timedelta(seconds=self.load_s), self.now - timedelta(seconds=900))
        count = int((self.now - first).total_seconds() // 10) + 1
        samples = []
        for number in reversed(range(count)):
            at = self.now - timedelta(seconds=10 * number)
            if copy.id in self.silent:
                samples.append(Sample(at=at, target=Target.DOWN, error="refused"))
                continue
            samples.append(_sample(at, at - copy.since, load, service.max_num_seqs))
        return Series(replica=replica.id, samples=tuple(samples), interval_s=10.0)

    def _call(self, port: str, name: str) -> None:
        if self.killed_after is not None:
            if self.killed_after <= 0:
                raise Killed
            self.killed_after -= 1
        self.calls.append(f"{port}.{name}")
        if port in self.unreachable:
            raise Unavailable(f"{port} does not answer")


def _phase(attempt: Attempt) -> Phase:
    if attempt.ended_at is not None:
        return Phase.ENDED
    if attempt.released_at is None:
        return Phase.GATED
    return Phase.STOPPING if attempt.stop_asked_at is not None else Phase.RUNNING


def _end(attempt: Attempt) -> End | None:
    if attempt.ended_at is None:
        return None
    return End(code=attempt.code, message=attempt.message, withdrawn=attempt.withdrawn)


def _sample(at: datetime, age: timedelta, load: float, seats: int) -> Sample:
    """All samples look as now: a change of load is seen over the whole window at once, which keeps stories short."""
    moved = 1000.0 + age.total_seconds() * 100 * min(load, seats) / seats
    return Sample(
        at=at,
        target=Target.UP,
        vllm_series=80,
        engines=1,
        running=min(load, seats),
        waiting=max(0.0, load - seats),
        deferred=0.0,
        kv_use=min(0.9, load / seats / 2),
        awake=True,
        process_start=START.timestamp(),
        ttft_sum_s=moved / 1000,
        counters=Counters(steps=moved, prompt_tokens=moved, generation_tokens=moved, arrivals=moved / 100),
    )
