"""Where the time and the GPU-hours of runs went: kept, lost, restarts, endings. They add up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

from scheduler.jobs.job import TERMINAL_RUN, Job, JobId, Run, RunState
from scheduler.jobs.reports import SAVED
from scheduler.jobs.spec import Checkpoint

_ZERO = timedelta()
_HOUR = timedelta(hours=1)


class Split(NamedTuple):
    """The wall seconds of a run, whole microseconds; the four add up to the time it held its GPUs."""

    kept_s: float
    lost_s: float
    restart_s: float
    ending_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHours:
    """GPU-hours of runs, by what became of them."""

    kept: float = 0.0
    lost: float = 0.0
    restart: float = 0.0
    ending: float = 0.0

    @property
    def used(self) -> float:
        """All of them."""
        return self.kept + self.lost + self.restart + self.ending

    def __add__(self, other: GpuHours) -> GpuHours:
        return GpuHours(
            kept=self.kept + other.kept,
            lost=self.lost + other.lost,
            restart=self.restart + other.restart,
            ending=self.ending + other.ending,
        )

    def share(self, ratio: float) -> GpuHours:
        """A part of them, the same of each kind."""
        return GpuHours(
            kept=self.kept * ratio, lost=self.lost * ratio, restart=self.restart * ratio, ending=self.ending * ratio
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """One month of lending; the keys are those of `gpujob report`."""

    month: str  # "2026-12"; "total" for all months together
    jobs: int  # that had a run in it
    gpu_hours: float
    kept_gpu_hours: float
    lost_gpu_hours: float
    restart_gpu_hours: float
    ending_gpu_hours: float
    gpus_12h: float  # as many GPUs, 12 hours on each day of the month so far, would have been as much
    gpus_24h: float
    money: float  # the price of its GPU-hours
    currency: str
    trend: float | None = None  # of gpu_hours against the month before: 0.7 is 70 % more; None: nothing to compare with


def split(run: Run, checkpoint: Checkpoint | None, restart_s: float) -> Split:
    """How the time of a run that ended was spent; `run` has its last state, `ended_at`, `exit_code` and `progress`.

    Ending: from when we asked it to end (saving, cleanup). Restart: until its first word of progress, for every
    attempt but the first; `restart_s` if it says nothing. Lost: work since its newest checkpoint, unless it
    finished, or was preempted and saved at the end. Kept: the rest.

    Raises:
        ValueError: the run has not ended.
    """
    if run.ended_at is None or run.state not in TERMINAL_RUN:
        raise ValueError(f"run {run.uid} of job-{run.job} is {run.state}: only a run that ended can be split")
    ended = max(run.since, run.ended_at)
    asked = ended if run.intent_at is None else _clamped(run.intent_at, run.since, ended)
    begun = _begun(run, restart_s, asked)
    lost = asked - _saved_until(run, checkpoint, begun, asked)
    return Split(
        kept_s=(asked - begun - lost).total_seconds(),
        lost_s=lost.total_seconds(),
        restart_s=(begun - run.since).total_seconds(),
        ending_s=(ended - asked).total_seconds(),
    )


def of_runs(runs: Iterable[Run], now: datetime | None = None) -> GpuHours:
    """GPU-hours of runs. One that has not ended counts as kept until `now`; without `now` it is left out."""
    return sum((_of_run(run, now) for run in runs), GpuHours())


def queue_s(job: Job, runs: Iterable[Run], now: datetime) -> float:
    """Seconds between its submission and its end, or `now`, in which none of its runs held GPUs or a node."""
    end = job.ended_at or now
    spans = sorted((run.since, run.ended_at or end) for run in runs if run.job == job.id)
    queued, reached = _ZERO, job.submitted_at
    for since, until in spans:
        queued += max(_ZERO, min(since, end) - reached)
        reached = max(reached, until)
    return (queued + max(_ZERO, end - reached)).total_seconds()


def running_gpus(runs: Iterable[Run], teams: Mapping[JobId, str]) -> Mapping[str, int]:
    """GPUs held now, by team; "" is the team of jobs without one."""
    held: defaultdict[str, int] = defaultdict(int)
    for run in runs:
        if run.state not in TERMINAL_RUN:
            held[teams.get(run.job, "")] += run.gpus
    return dict(held)


def team_hours(runs: Iterable[Run], teams: Mapping[JobId, str], since: datetime, now: datetime) -> Mapping[str, float]:
    """GPU-hours used from `since` until `now`, by team; jobs without a team are left out."""
    used: defaultdict[str, float] = defaultdict(float)
    for run in runs:
        if team := teams.get(run.job, ""):
            used[team] += _between(run, since, now, now).used
    return dict(used)


def month_start(at: datetime, timezone: tzinfo) -> datetime:
    """The instant, in UTC, at which the month of `at` began there."""
    local = at.astimezone(timezone)
    return datetime(local.year, local.month, 1, tzinfo=timezone).astimezone(UTC)


def months(
    runs: Sequence[Run], *, now: datetime, timezone: tzinfo, price_per_gpu_hour: float, currency: str
) -> tuple[Month, ...]:
    """Every month from the first run until now, oldest first.

    A run that crosses the end of a month is cut there, all kinds of its time in proportion.
    """
    if not runs:
        return ()
    found: list[Month] = []
    for start, end in _borders(min(run.since for run in runs), now, timezone):
        name = start.astimezone(timezone).strftime("%Y-%m")
        month = _month(name, runs, start, end, now=now, price=price_per_gpu_hour, currency=currency)
        before = found[-1].gpu_hours if found else 0.0
        trend = (month.gpu_hours - before) / before if before else None
        found.append(replace(month, trend=trend))
    return tuple(found)


def total(runs: Sequence[Run], *, now: datetime, timezone: tzinfo, price_per_gpu_hour: float, currency: str) -> Month:
    """All months together, under the name "total"; a job that ran in two months counts once."""
    start = month_start(min((run.since for run in runs), default=now), timezone)
    return _month("total", runs, start, now, now=now, price=price_per_gpu_hour, currency=currency)


def _begun(run: Run, restart_s: float, asked: datetime) -> datetime:
    """When its work began."""
    if run.attempt <= 1:
        return run.since
    if run.progress is not None and run.progress.first_at is not None:
        return _clamped(run.progress.first_at, run.since, asked)
    return _clamped(run.since + timedelta(seconds=restart_s), run.since, asked)


def _saved_until(run: Run, checkpoint: Checkpoint | None, begun: datetime, asked: datetime) -> datetime:
    """The instant until which its work is safe."""
    if run.state is RunState.DONE:
        return asked
    # The contract: who ends with 143 or 75 has saved. Its last line may come too late to be read, so it is not asked.
    if run.state is RunState.PREEMPTED and run.exit_code in SAVED and checkpoint is not None and checkpoint.on_sigterm:
        return asked
    if run.progress is not None and run.progress.saved_at is not None:
        return _clamped(run.progress.saved_at, begun, asked)
    if checkpoint is None or checkpoint.every_s <= 0:
        return begun
    every = timedelta(seconds=checkpoint.every_s)
    return begun + (asked - begun) // every * every if every else asked


def _clamped(at: datetime, earliest: datetime, latest: datetime) -> datetime:
    return max(earliest, min(at, latest))


def _of_run(run: Run, now: datetime | None) -> GpuHours:
    if run.ended_at is None:
        held = max(_ZERO, now - run.since) if now is not None else _ZERO
        return GpuHours(kept=run.gpus * (held / _HOUR))
    hours = GpuHours(kept=run.kept_s, lost=run.lost_s, restart=run.restart_s, ending=run.ending_s)
    return hours.share(run.gpus / _HOUR.total_seconds())


def _between(run: Run, start: datetime, end: datetime, now: datetime) -> GpuHours:
    """The part of a run that lies between two instants."""
    until = run.ended_at or now
    inside = min(until, end) - max(run.since, start)
    if inside <= _ZERO:
        return GpuHours()
    return _of_run(run, now).share(inside / (until - run.since))


def _borders(first: datetime, now: datetime, timezone: tzinfo) -> Iterator[tuple[datetime, datetime]]:
    """Start and end of each month, in UTC: two days of one zone would hide a change of its clocks."""
    start = month_start(first, timezone)
    while start <= now:
        end = month_start(start + timedelta(days=32), timezone)
        yield start, end
        start = end


def _month(
    name: str, runs: Sequence[Run], start: datetime, end: datetime, *, now: datetime, price: float, currency: str
) -> Month:
    jobs: set[JobId] = set()
    hours = GpuHours()
    for run in runs:
        if run.since < end and (run.ended_at or now) > start:
            jobs.add(run.job)
            hours += _between(run, start, end, now)
    elapsed = max(_ZERO, min(now, end) - start) / _HOUR
    equivalent = hours.used / elapsed if elapsed else 0.0
    return Month(
        month=name,
        jobs=len(jobs),
        gpu_hours=hours.used,
        kept_gpu_hours=hours.kept,
        lost_gpu_hours=hours.lost,
        restart_gpu_hours=hours.restart,
        ending_gpu_hours=hours.ending,
        gpus_12h=2 * equivalent,
        gpus_24h=equivalent,
        money=hours.used * price,
        currency=currency,
    )
