"""What we ask of Workflows: which there are, that one be made, that one end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock
from typing import Any

from scheduler.adapters.argo.nodes import WorkflowSeen, workflow
from scheduler.adapters.kube.api import Api, Refused
from scheduler.adapters.kube.names import CANCELLED, JOB
from scheduler.errors import Unavailable
from scheduler.jobs.job import JobId
from scheduler.ports import Clock

_NOT_FOUND, _CONFLICT = 404, 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All Workflows of a job at one time."""

    at: datetime
    workflows: Mapping[str, WorkflowSeen]  # by name


class WorkflowRequests:
    """Workflows of one namespace. They are read when they must be, not followed: with their status they are large."""

    def __init__(self, api: Api, namespace: str, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._path = f"/apis/argoproj.io/v1alpha1/namespaces/{namespace}/workflows"
        self._lock = Lock()
        self._last: dict[JobId, Reading] = {}

    def read(self, job: JobId) -> Reading:
        """All Workflows of a job as they are now.

        Raises:
            Refused, Unavailable: they cannot be read.
        """
        at = self._clock()
        listed = self._api.get(self._path, labelSelector=f"{JOB}=job-{job}")["items"]
        found = Reading(at=at, workflows={seen.name: seen for seen in map(workflow, listed)})
        with self._lock:
            self._last[job] = found
        return found

    def not_older(self, job: JobId, age: timedelta) -> Reading:
        """What was read lately, or a new reading.

        Raises:
            Refused, Unavailable: they cannot be read.
        """
        known = self.last(job)
        return known if known is not None and self._clock() - known.at <= age else self.read(job)

    def last(self, job: JobId) -> Reading | None:
        """The newest reading; None if there was none."""
        with self._lock:
            return self._last.get(job)

    def forget(self, but: frozenset[JobId]) -> None:
        """Drop readings of all other jobs."""
        with self._lock:
            self._last = {job: seen for job, seen in self._last.items() if job in but}

    def create(self, job: JobId, name: str, body: Mapping[str, Any]) -> bool:
        """False: there is one of that name.

        Raises:
            Unavailable: it could not be made; the sentence says why.
        """
        try:
            self._api.create(self._path, body, fieldValidation="Strict")
        except Refused as refused:
            if refused.status == _CONFLICT:
                return False
            raise Unavailable(f"Workflow {name} was not made: {refused}") from refused
        self._outdated(job)
        return True

    def by_name(self, name: str) -> WorkflowSeen | None:
        """One Workflow, whosever it is.

        Raises:
            Refused, Unavailable: it cannot be read.
        """
        listed = self._api.get(self._path, fieldSelector=f"metadata.name={name}")["items"]
        return workflow(listed[0]) if listed else None

    def end(self, job: JobId, name: str) -> None:
        """No more attempts. A suspended Workflow would take no notice of `shutdown` alone (argo #17041).

        Raises:
            Refused, Unavailable: not carried out, or nobody knows.
        """
        change = {
            "metadata": {"annotations": {CANCELLED: "true"}},
            "spec": {"shutdown": "Terminate", "suspend": False},
        }
        try:
            self._api.patch(f"{self._path}/{name}", change)
        except Refused as refused:
            if refused.status != _NOT_FOUND:
                raise
        self._outdated(job)

    def _outdated(self, job: JobId) -> None:
        with self._lock:
            self._last.pop(job, None)
