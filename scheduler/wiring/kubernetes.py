"""A Kubernetes cluster with Argo Workflows."""

from __future__ import annotations

from typing import NoReturn

from scheduler.adapters.argo.render import rendered
from scheduler.adapters.argo.shape import Shape
from scheduler.adapters.kube.objects import Taint
from scheduler.errors import BadInput
from scheduler.jobs.order import JobOrder
from scheduler.ports import Clock
from scheduler.settings import Settings


def kubernetes(settings: Settings, clock: Clock) -> NoReturn:
    """The parts of `kind = "kubernetes"`."""
    del settings, clock
    raise BadInput('[cluster] kind = "kubernetes" is not there yet in this version; use kind = "local"')


def render(order: JobOrder, settings: Settings) -> str:
    """The Workflows of a job, YAML.

    Raises:
        BadInput: Argo cannot run this job.
    """
    return rendered(order, shape(settings))


def shape(settings: Settings) -> Shape:
    """What all Workflows have in common."""
    cluster, storage = settings.cluster, settings.storage
    env = {"PYTHONUNBUFFERED": "1"}
    if storage.endpoint:
        env["AWS_ENDPOINT_URL"] = storage.endpoint
    if storage.region:
        env["AWS_REGION"] = storage.region
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if storage.secret else ()
    return Shape(
        namespace=cluster.namespace,
        service_account=cluster.service_account,
        grace_s=settings.policy.grace_s,
        gpu_resource=cluster.gpu_resource,
        tolerations=tuple(Taint(key=one.key, value=one.value, effect=one.effect) for one in cluster.tolerations),
        cpu_per_gpu=cluster.cpu_per_gpu,
        memory_gib_per_gpu=cluster.memory_gib_per_gpu,
        pull_secrets=cluster.pull_secrets,
        run_as_non_root=cluster.run_as_non_root,
        env=env,
        secrets={key: f"{storage.secret}/{key}" for key in keys},
        ttl_s=round(cluster.keep_hours * 3600),
    )
