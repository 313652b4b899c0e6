"""Which images the tags of a job stand for: found out beside the turns, written down before the job is handed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from scheduler.cycle.work import Work
from scheduler.jobs.job import Job, JobState
from scheduler.jobs.spec import images, spec_hash
from scheduler.ports import Images, Unresolved

_BEFORE_IT_RUNS = frozenset({JobState.AWAITING_APPROVAL, JobState.WAITING})


def pin(work: Work, registries: Images, now: datetime) -> None:
    """Jobs that were not handed over get the digests that are known; what is approved is then what runs."""
    for job in list(work.jobs.values()):
        if job.handed_over or job.cancelled_by or job.state not in _BEFORE_IT_RUNS or is_pinned(job):
            continue
        found = registries.digests(images(job.spec) - job.digests.keys())
        # While a job has to wait anyway, a registry that does not answer is asked again.
        goes_on = job.state is JobState.WAITING and (job.spec.start_after or now) <= now
        pinned = _pinned(job, found, settle=goes_on)
        if pinned != job:
            work.job(pinned)


def is_pinned(job: Job) -> bool:
    """Each of its images has a digest, or a reason why there is none."""
    return images(job.spec) <= job.digests.keys() | job.unresolved.keys()


def _pinned(job: Job, found: Mapping[str, str | Unresolved], *, settle: bool) -> Job:
    digests = {**job.digests, **{name: image for name, image in found.items() if isinstance(image, str)}}
    failed = {name: image.why for name, image in found.items() if isinstance(image, Unresolved)}
    return replace(
        job,
        digests=digests,
        unresolved={**job.unresolved, **failed} if settle else {},
        spec_hash=spec_hash(job.spec, digests),
    )
