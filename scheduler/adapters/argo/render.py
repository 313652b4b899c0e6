"""A job as people read it: the Workflows that would be posted, as YAML."""

from __future__ import annotations

from scheduler.adapters.argo.workflow import Shape, workflows
from scheduler.jobs import jobfile
from scheduler.jobs.order import JobOrder


def rendered(order: JobOrder, shape: Shape) -> str:
    """All parts, one YAML document each.

    Raises:
        BadInput: Argo cannot run this job.
    """
    return "".join(f"---\n{jobfile.yaml(part.body)}" for part in workflows(order, shape))
