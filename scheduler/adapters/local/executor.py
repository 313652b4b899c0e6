"""Runs jobs on GPU slots of this computer; owns the DAG and the gates, as Argo does on Kubernetes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path

from scheduler.adapters.local import attempts, dag, environment, files, ports
from scheduler.adapters.local.attempts import JobFiles
from scheduler.adapters.local.lease import Lease, Seat, Tenant
from scheduler.adapters.local.state import LocalState, parse_uid, uid_of
from scheduler.errors import Unavailable
from scheduler.fleet.pool import HolderKind
from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.jobs.order import JobOrder, TaskOrder
from scheduler.jobs.outcomes import FINAL
from scheduler.jobs.reports import Report
from scheduler.ports import Clock


class LocalExecutor:
    """The port `Executor`. Acts only while `state` is locked; without the lock it can still report."""

    def __init__(
        self, state: LocalState, nodes: Mapping[str, int], clock: Clock, path_first: Path | None = None
    ) -> None:
        self._state = state
        self._nodes = nodes
        self._clock = clock
        self._path_first = path_first
        self._jobs: dict[JobId, JobFiles] = {}
        self._term = 0

    def submit(self, order: JobOrder, ended: Mapping[TaskName, bool] = {}) -> None:  # noqa: ARG002 - all is taken at once
        """Keep the whole job; its first tasks are gated from now on."""
        with self._state.turn:
            self._take_office()
            attempts.write_order(self._state.job(order.job), order)

    def release(self, uid: Uid, placement: Mapping[str, int]) -> None:
        """Start one program on each named node, on slots that nobody holds."""
        with self._state.turn:
            self._take_office()
            named = parse_uid(uid)
            job = self._job(named[0]) if named else None
            if named is None or job is None or job.gated(named[1]) != named[2]:
                return
            task = job.task(named[1])
            assert task is not None
            try:
                lease = self._grant(job, task, named[2], placement)
            except Unavailable:
                del self._jobs[job.order.job]  # its files may say more than we know now
                raise
            job.attempts[task.name].append(lease)
            job.derive()

    def take_back(self, uid: Uid, grace_s: float) -> None:
        """SIGTERM, after the grace SIGKILL; a gated attempt makes room for a new gated one."""
        with self._state.turn:
            self._take_office()
            named = parse_uid(uid)
            job = self._job(named[0]) if named else None
            if named is None or job is None or named[1] not in job.attempts:
                return
            _, task, number = named
            if job.gated(task) == number:
                attempts.withdraw(job, task, number, self._clock())
            elif 1 <= number <= len(job.attempts[task]):
                attempt = job.attempts[task][number - 1]
                if isinstance(attempt, Lease):
                    self._stop(job, (attempt,), grace_s)

    def give_up(self, uid: Uid, why: str) -> None:
        """A gated attempt ends as a failure that nobody tries again."""
        with self._state.turn:
            self._take_office()
            named = parse_uid(uid)
            job = self._job(named[0]) if named else None
            if named is not None and job is not None and job.gated(named[1]) == named[2]:
                attempts.withdraw(job, named[1], named[2], self._clock(), f"{FINAL} {why}")

    def skip(self, uid: Uid, why: str) -> None:
        """A gated attempt ends as done."""
        with self._state.turn:
            self._take_office()
            named = parse_uid(uid)
            job = self._job(named[0]) if named else None
            if named is not None and job is not None and job.gated(named[1]) == named[2]:
                attempts.withdraw(job, named[1], named[2], self._clock(), done=why)

    def cancel(self, job: JobId, grace_s: float) -> None:
        """No new attempts; those that run are stopped."""
        with self._state.turn:
            self._take_office()
            found = self._job(job)
            if found is None:
                return
            now = self._clock()
            files.write_once(found.folder / "cancel.json", {"at": now.timestamp(), "grace_s": grace_s})
            found.cancel_grace_s = grace_s if found.cancel_grace_s is None else found.cancel_grace_s
            self._stop(found, found.live(), grace_s)

    def reports(self, jobs: Mapping[JobId, Collection[Uid]], now: datetime) -> tuple[Report, ...]:
        """All attempts of these jobs, as their files stand."""
        with self._state.turn:
            self._follow(now)
            found = [job for job in map(self._job, jobs) if job is not None]
            told = tuple(report for job in found for report in self._refresh(job))
            self._let_go(jobs)
            return told

    def _follow(self, now: datetime) -> None:
        if not self._state.locked:
            self._state.ledger.forget()
            self._jobs.clear()
            return
        self._take_office()
        self._state.ledger.attend(now)

    def _refresh(self, job: JobFiles) -> tuple[Report, ...]:
        if not job.settled:
            job.derive()
            if job.closed and self._state.locked:
                attempts.close(job)
        return job.told

    def _take_office(self) -> None:
        self._state.must_act()
        if self._term != self._state.terms:
            self._term = self._state.terms
            self._jobs.clear()
            self._finish_cancels(self._clock())

    def _finish_cancels(self, now: datetime) -> None:
        """A scheduler that died between `cancel.json` and the last `stop.json` left programs running."""
        for folder in files.folders(self._state.folder / "jobs"):
            if (folder / "closed.json").exists() or not (folder / "cancel.json").exists():
                continue
            job = attempts.read_job(folder, self._state.ledger)
            if job is not None and job.cancel_grace_s is not None:
                for lease in job.live():
                    lease.ask_to_stop(now, job.cancel_grace_s)

    def _job(self, job: JobId) -> JobFiles | None:
        if job not in self._jobs:
            found = attempts.read_job(self._state.job(job), self._state.ledger)
            if found is None:
                return None
            self._jobs[job] = found
        return self._jobs[job]

    def _let_go(self, asked: Collection[JobId]) -> None:
        kept = frozenset(asked)
        self._jobs = {number: job for number, job in self._jobs.items() if number in kept or not job.closed}

    def _stop(self, job: JobFiles, leases: tuple[Lease, ...], grace_s: float) -> None:
        now = self._clock()
        for lease in leases:
            lease.ask_to_stop(now, grace_s)
        self._state.ledger.attend(now, leases)
        job.derive()
        if job.closed:
            attempts.close(job)

    def _grant(self, job: JobFiles, task: TaskOrder, number: int, placement: Mapping[str, int]) -> Lease:
        folder = self._state.attempt(job.order.job, task.name, number)
        environment.make_parents((*task.outputs.values(), task.env.get("GPUJOB_CHECKPOINT", "")))
        own = environment.make_folder(folder / "work")
        uid = uid_of(job.order.job, task.name, number)
        env = {**environment.base(self._path_first), **task.env, **_after(job, task), "GPUJOB_RUN": uid}
        port = ports.free_port(self._state.ledger.ports()) if len(placement) > 1 else 0
        tenant = Tenant(
            kind=HolderKind.RUN,
            holder=uid,
            seats=_seats(env, placement, port),
            command=task.command,
            cwd=Path(job.order.workdir) if job.order.workdir else own,
            inherit=tuple(job.order.secrets),
            port=port,
        )
        return self._state.ledger.grant(folder, tenant, self._nodes, self._clock())


def _seats(env: Mapping[str, str], placement: Mapping[str, int], port: int) -> tuple[Seat, ...]:
    if not port:
        return tuple(Seat(node=node, gpus=gpus, env=env) for node, gpus in placement.items())
    gang = {**env, "GPUJOB_NODES": str(len(placement)), "GPUJOB_MASTER": f"127.0.0.1:{port}"}
    return tuple(
        Seat(node=node, gpus=gpus, env={**gang, "GPUJOB_NODE_RANK": str(rank)})
        for rank, (node, gpus) in enumerate(sorted(placement.items()))
    )


def _after(job: JobFiles, task: TaskOrder) -> Mapping[str, str]:
    """Which tasks before an `any` task succeeded."""
    if not task.any:
        return {}
    return {
        f"GPUJOB_STEPS_{step.upper().replace('-', '_')}_SUCCEEDED": ",".join(
            dag.succeeded(job.order, step, job.standings)
        )
        for step in task.needs
    }
