"""A Kubernetes cluster with Argo Workflows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scheduler.adapters.argo.executor import ArgoExecutor
from scheduler.adapters.argo.render import rendered
from scheduler.adapters.argo.shape import Shape
from scheduler.adapters.argo.workflow import workflows
from scheduler.adapters.images import RegistryImages
from scheduler.adapters.kube import preflight
from scheduler.adapters.kube.api import Api, connect
from scheduler.adapters.kube.cluster import ClusterTerms, KubeCluster
from scheduler.adapters.kube.objects import Taint
from scheduler.adapters.kube.services import KubeService
from scheduler.adapters.kube.watching import Watching
from scheduler.errors import BadInput, Unavailable
from scheduler.fleet.services import Mode
from scheduler.jobs import templates
from scheduler.jobs.job import JobId
from scheduler.jobs.order import JobOrder
from scheduler.jobs.spec import JobSpec
from scheduler.ports import Clock, Executor, Images, LogReader
from scheduler.settings import Settings

# For the first lists; 10,000 pods take a few seconds. A person at a terminal waits less than a process that starts.
_LOOK_S, _TAKE_S = 15.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeGround:
    """The API server, what we follow of it, and what works on it."""

    settings: Settings
    api: Api
    watching: Watching
    cluster: KubeCluster
    executor: Executor
    logs: LogReader
    images: Images | None
    registries: RegistryImages
    close: Callable[[], None]

    def unfit(self, spec: JobSpec) -> tuple[str, ...]:
        """Why Argo could never run this job."""
        try:
            workflows(templates.fill(spec, JobId(1), self.settings.storage_root), shape(self.settings))
        except BadInput as error:
            return error.faults
        return ()

    def counts(self) -> Mapping[str, int]:
        """Runs that kube-scheduler itself ended for serving pods: those that we were too late for."""
        return {"gpujob_preempted_by_scheduler": self.cluster.preempted_by_scheduler}

    def look(self) -> None:
        """Everything is listed and followed.

        Raises:
            Unavailable: the API server does not answer.
        """
        self.watching.start(_LOOK_S)

    def take(self) -> None:
        """The lease in the database keeps a second scheduler passive; here is nothing to take.

        Raises:
            Unavailable: the API server does not answer.
        """
        self.watching.start(_TAKE_S)

    def listen(self, hint: Callable[[], None]) -> None:
        """Pods that wait, attempts that appear or end, nodes that change, digests that are found."""
        self.watching.listen(hint)
        self.registries.listen(hint)

    def leave(self) -> None:
        """Requests under way are finished."""
        self.close()
        self.registries.close()
        self.watching.stop()

    def faults(self) -> tuple[str, ...]:
        """Rights, Argo, and what our manifests bring."""
        services = self.settings.services
        managed = sorted({row.namespace for row in services if row.mode == "manage"})
        serving = sorted({row.namespace for row in services})
        return preflight.faults(self.api, self.settings.cluster.namespace, serving, managed)

    def unseen(self) -> tuple[str, ...]:
        """Settings of Argo's controller, if we may not read them."""
        try:
            return preflight.unseen(self.api, self.settings.cluster.namespace)
        except Unavailable:
            return ()  # that it does not answer is a fault already


def kubernetes(settings: Settings, clock: Clock) -> KubeGround:
    """The parts of `kind = "kubernetes"`.

    Raises:
        BadInput: there is no way to the API server.
    """
    cluster = settings.cluster
    namespaces = {row.namespace for row in settings.services}
    # One for each watch (2, and 5 a serving namespace), the rest for the executor's hands and this thread.
    kubeconfig = str(settings.loaded.folder / cluster.kubeconfig) if cluster.kubeconfig else ""
    api = connect(kubeconfig, cluster.context, connections=2 + 5 * len(namespaces) + 16)
    services = tuple(
        KubeService(
            name=row.name,
            namespace=row.namespace,
            workload=row.deployment,
            gpus_per_replica=row.gpus_per_replica,
            url=row.url,
            mode=Mode(row.mode),
        )
        for row in settings.services
    )
    watching = Watching(api, cluster.namespace, namespaces, stale_s=cluster.stale_s)
    executor = ArgoExecutor(api, watching.pods, shape(settings), clock)
    terms = ClusterTerms(
        namespace=cluster.namespace,
        gpu_resource=cluster.gpu_resource,
        tolerations=_tolerations(settings),
        cooldown_s=cluster.cooldown_s,
    )
    logins = settings.loaded.folder / settings.images.logins if settings.images.logins else None
    registries = RegistryImages(settings.images.plain_http, logins=logins)
    return KubeGround(
        settings=settings,
        api=api,
        watching=watching,
        cluster=KubeCluster(api, watching, services, terms, clock),
        executor=executor,
        logs=executor.logs,
        images=registries,
        registries=registries,
        close=executor.close,
    )


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
        tolerations=_tolerations(settings),
        cpu_per_gpu=cluster.cpu_per_gpu,
        memory_gib_per_gpu=cluster.memory_gib_per_gpu,
        pull_secrets=cluster.pull_secrets,
        run_as_non_root=cluster.run_as_non_root,
        env=env,
        secrets={key: f"{storage.secret}/{key}" for key in keys},
        ttl_s=round(cluster.keep_hours * 3600),
    )


def _tolerations(settings: Settings) -> tuple[Taint, ...]:
    return tuple(Taint(key=one.key, value=one.value, effect=one.effect) for one in settings.cluster.tolerations)
