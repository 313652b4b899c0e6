"""The pods of a task as attempts: one pod each, or of a gang the pods of all its ranks together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from scheduler.adapters.argo.endings import End, end_of
from scheduler.adapters.argo.memory import Sighting
from scheduler.adapters.kube.names import GATE, NODES, RANK
from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.jobs.progress import Progress
from scheduler.jobs.reports import Phase, Report

_MOST_DIGITS = 4  # of the size of a gang; whoever writes more is not us


_NOT_YET = frozenset({"", "PodInitializing", "ContainerCreating"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a task."""

    uid: Uid  # of its first rank
    task: TaskName
    members: tuple[Sighting, ...]  # by rank
    size: int = 1  # pods that it shall have

    @property
    def phase(self) -> Phase | None:
        """None: somebody else holds it too, or a rank is not there yet, so that it cannot be released."""
        if not self.live:
            return Phase.ENDED
        if self.broken or any(seen.stop_at for seen in self.live):
            return Phase.STOPPING
        held = [seen for seen in self.live if seen.gated]
        if held:
            free = len(self.members) == self.size and all(seen.pod.gates == (GATE,) for seen in held)
            return Phase.GATED if free else None
        running = len(self.members) == self.size and all(_runs(seen) for seen in self.members)
        return Phase.RUNNING if running else Phase.STARTING

    @property
    def released(self) -> bool:
        """Its gate was opened once; else it never was more than a place in the queue."""
        return any(not seen.gated for seen in self.members)

    @property
    def live(self) -> tuple[Sighting, ...]:
        """Its pods that have not ended."""
        return tuple(seen for seen in self.members if not seen.over)

    @property
    def broken(self) -> bool:
        """A gang of which a rank failed or was lost, and others go on; a rank may well be done before the others."""
        return bool(self.live) and any(seen.over and not _done(seen) for seen in self.members)

    def report(
        self, job: JobId, ends: Callable[[Sighting], End | None], progress: Progress | None, tail: str
    ) -> Report | None:
        """What is seen of it. `ends` knows the end of a pod that is over, or not yet."""
        phase = self.phase
        if phase is None:
            return None
        found = [end for seen in self.members if seen.over and (end := ends(seen)) is not None]
        if phase is Phase.ENDED and len(found) < len(self.members):
            phase = Phase.STOPPING  # it is gone, and soon somebody will know how
        end = self._end(ends) if phase is Phase.ENDED else None
        starts = [seen.started_at for seen in self.members if seen.started_at]
        return Report(
            uid=self.uid,
            job=job,
            task=self.task,
            phase=phase,
            placement={} if phase is Phase.GATED else self._placement(),
            started_at=max(starts) if starts else None,
            stop_asked_at=self._stop_at(ends),
            ended_at=end.at if end else None,
            exit_code=end.code if end else None,
            message=end.message if end else self._trouble(),
            progress=progress,
            gpus=sum(self.members[0].pod.gpus.values()) if phase is Phase.GATED else None,
            tail=tail if end is not None and end.code != 0 else "",
        )

    def worst(self, ends: Callable[[Sighting], End | None]) -> Sighting:
        """The pod that tells most: the first that ended badly, else the first rank."""
        bad = [(seen, end) for seen in self.members if seen.over and (end := ends(seen)) and end.code != 0]
        return min(bad, key=lambda pair: _order(*pair))[0] if bad else self.members[0]

    def _end(self, ends: Callable[[Sighting], End | None]) -> End | None:
        """Of all its pods: the first bad end counts, what follows in a gang is its echo."""
        told = self.worst(ends)
        end = ends(told)
        if end is None:
            return None
        others = [(seen, one) for seen in self.members if (one := ends(seen)) is not None]
        message = end.message
        if self.size > 1 and end.code != 0:
            # The sentence of Kubernetes stays first: what it begins with says whose fault it was.
            message = f"{message} (rank {told.rank})" if message else f"rank {told.rank}"
        return End(code=end.code, message=message, at=max(_when(seen, one) for seen, one in others))

    def _stop_at(self, ends: Callable[[Sighting], End | None]) -> datetime | None:
        """When it was asked to end; that the ranks of a broken gang are asked is no wish of anybody."""
        worst = self.worst(ends)
        if worst.over and (end := ends(worst)) is not None and end.code != 0:
            return worst.stop_at
        return min((seen.stop_at for seen in self.members if seen.stop_at), default=None)

    def _placement(self) -> dict[str, int]:
        return {seen.pod.node: sum(seen.pod.gpus.values()) for seen in self.members if seen.pod.node}

    def _trouble(self) -> str:
        """Why it does not run yet."""
        for seen in self.members:
            pod = seen.pod
            if pod.waiting not in _NOT_YET:
                return f"{pod.waiting}: {pod.waiting_why}".rstrip(": ")
            if seen.unplaced_since is not None:
                return f"{pod.held_back}: {pod.held_back_why}"
        return ""


def attempts(pods: Iterable[Sighting]) -> tuple[Attempt, ...]:
    """All attempts that these pods of a job were or are, oldest first within a task."""
    found: list[Attempt] = []
    gangs: dict[TaskName, list[Sighting]] = defaultdict(list)
    for seen in pods:
        if RANK in seen.pod.labels:
            gangs[seen.task].append(seen)
        else:
            found.append(Attempt(uid=seen.pod.attempt, task=seen.task, members=(seen,)))
    for task, members in gangs.items():
        found += _gangs(task, members)
    return tuple(found)


def waiting_ranks(pods: Iterable[Sighting], known: Sequence[Attempt]) -> tuple[Sighting, ...]:
    """Gated pods of gangs that lack a rank."""
    complete = {seen.pod.uid for one in known for seen in one.members if len(one.members) == one.size}
    return tuple(
        seen
        for seen in pods
        if RANK in seen.pod.labels and seen.gated and not seen.over and seen.pod.uid not in complete
    )


def _gangs(task: TaskName, pods: Sequence[Sighting]) -> list[Attempt]:
    """Released pods say whose they are; the others join the newest first rank that lacks them."""
    ranks: dict[Uid, dict[int, Sighting]] = {seen.pod.attempt: {0: seen} for seen in pods if seen.rank == 0}
    loose = []
    for seen in pods:
        if seen.rank and seen.run is not None:
            ranks.setdefault(seen.run, {})[seen.rank] = seen
        elif seen.rank and not seen.over:
            loose.append(seen)
    for seen in loose:
        for mates in reversed(ranks.values()):
            if 0 in mates and not mates[0].over and seen.rank not in mates:
                mates[seen.rank] = seen
                break
    return [
        Attempt(
            uid=uid,
            task=task,
            members=tuple(mates[rank] for rank in sorted(mates)),
            size=_size(next(iter(mates.values()))),
        )
        for uid, mates in ranks.items()
    ]


def _size(seen: Sighting) -> int:
    told = seen.pod.annotations.get(NODES, "")
    return int(told) if told.isascii() and told.isdecimal() and len(told) <= _MOST_DIGITS else 1


def _runs(seen: Sighting) -> bool:
    return seen.over or (seen.pod.phase == "Running" and seen.started_at is not None)


def _done(seen: Sighting) -> bool:
    end = end_of(seen)
    return end is not None and end.code == 0


def _order(seen: Sighting, end: End) -> tuple[datetime, bool, datetime]:
    """Times are whole seconds: among ends of the same one, that comes first which nobody asked for."""
    when = _when(seen, end)
    return when, seen.stop_at is not None, seen.over_at or when


def _when(seen: Sighting, end: End) -> datetime:
    when = end.at or seen.over_at
    assert when is not None, "a pod that is over was seen so at some time"
    return when
