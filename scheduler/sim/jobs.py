"""Jobs of a job file, and what the world remembers of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """One line of a job file; times in seconds."""

    id: int
    submit_s: float
    gpus: int  # up to 8 on one node; 16, 24, 32: as many whole nodes
    work_s: float  # progress needed; no policy ever sees it
    checkpoint_s: float | None  # a checkpoint after every so many seconds of progress of a run; None: cannot
    restart_s: float  # after each start, without progress
    save_s: float  # to write a checkpoint when told to stop
    saves_on_sigterm: bool
    estimate_s: float | None


@dataclass(slots=True, kw_only=True)
class Run:
    """A job on its GPUs, from its start until it is told to stop or is done."""

    job: SimJob
    placement: Mapping[int, int]  # node -> GPUs
    since: float
    base_s: float  # progress at the start
    stopped: float | None = None  # told to stop; its GPUs come free later
    free_at: float | None = None

    def progress_s(self, at: float) -> float:
        """Progress of the job at a time of the run."""
        return self.base_s + max(at - self.since - self.job.restart_s, 0.0)

    def saved_s(self, at: float) -> float:
        """Progress of its newest checkpoint."""
        every = self.job.checkpoint_s
        if not every:
            return 0.0 if every is None else self.base_s
        made = self.progress_s(at) - self.base_s
        return self.base_s + made // every * every

    @property
    def done_at(self) -> float:
        """When it is done if nobody stops it."""
        return self.since + self.job.restart_s + self.job.work_s - self.base_s


@dataclass(slots=True, kw_only=True)
class Fate:
    """What became of a job so far."""

    kept_s: float = 0.0
    visible_since: float = 0.0
    first_start: float | None = None
    done_at: float | None = None
    runs: int = 0
    run: Run | None = field(default=None)
