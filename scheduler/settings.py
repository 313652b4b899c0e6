"""What the operator sets for the scheduler; half a configuration is refused at the start."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from scheduler.configfile import (
    Approval,
    CalendarHours,
    Loaded,
    Money,
    Section,
    Storage,
    database_url,
    nearest,
    section,
    sections,
)
from scheduler.errors import BadInput
from scheduler.knobs import policy
from scheduler.policy import Policy

_DNS_LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


class TolerationSection(Section):
    """A taint that pods of jobs do not mind: `{key = "nvidia.com/gpu"}`, with value and effect if these matter."""

    key: str = Field(min_length=1)
    value: str = ""  # "" = any
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class ClusterSection(Section):
    """Section `[cluster]`."""

    kind: Literal["local", "kubernetes"] = "local"
    tick_s: float = Field(default=5.0, ge=0.1, le=300)
    grace_s: float | None = Field(default=None, ge=0, le=3600)  # the same as policy.grace_s
    state: str = ".gpujob"  # local: the folder of its runs and replicas
    # Kubernetes:
    namespace: str = Field(default="gpujobs", pattern=_DNS_LABEL)  # of the jobs
    kubeconfig: str = ""  # a file; "" = the pod that this runs in, else the file that kubectl would take
    context: str = ""
    gpu_resource: str = Field(default="nvidia.com/gpu", pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")
    tolerations: tuple[TolerationSection, ...] = (TolerationSection(key="nvidia.com/gpu"),)  # of jobs
    service_account: str = Field(default="gpujob-runner", pattern=_DNS_LABEL)  # of the pods of jobs
    cooldown_s: float = Field(default=300.0, ge=0, le=86_400)  # a node that refused a pod is left alone for so long
    stale_s: float = Field(default=30.0, ge=1, le=90)  # nothing is lent on news of the cluster older than this
    cpu_per_gpu: int = Field(default=0, ge=0, le=256)  # cores requested with each GPU; 0 = no request
    memory_gib_per_gpu: int = Field(default=0, ge=0, le=4096)
    pull_secrets: tuple[str, ...] = ()  # Secrets in the namespace of the jobs, with credentials of registries
    run_as_non_root: bool = False  # what Pod Security "restricted" asks for; many images run as root
    keep_hours: float = Field(default=168.0, ge=1)  # a Workflow that has ended stays so long


class NodeSection(Section):
    """A local `[[node]]`; none at all = this computer with the GPUs that nvidia-smi shows."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")
    gpus: int = Field(ge=0, le=64)


class MetricsSection(Section):
    """Section `[metrics]`."""

    kind: Literal["scrape", "prometheus"] = "scrape"
    url: str = ""  # of Prometheus
    prefix: str = "vllm:"
    interval_s: float = Field(default=10.0, ge=0.1, le=300)

    @model_validator(mode="after")
    def _prometheus_has_a_url(self) -> MetricsSection:
        if self.kind == "prometheus" and not self.url:
            raise ValueError('kind = "prometheus" needs url, such as "http://prometheus.monitoring:9090"')
        return self


class FixedReplica(Section):
    """A replica that somebody else runs on a local node; its GPUs are held always."""

    url: str  # of its /metrics
    node: str


class ServiceSection(Section):
    """A `[[service]]`."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")
    namespace: str = ""  # Kubernetes
    deployment: str = ""  # Kubernetes: the name of its Deployment, StatefulSet or LeaderWorkerSet
    url: str = "http://{ip}:{port}/metrics"  # Kubernetes: of a replica; {port} is its prometheus.io/port, or 8000
    gpus_per_replica: int = Field(default=1, ge=1, le=64)
    max_num_seqs: int = Field(default=256, ge=1)
    min_replicas: int = Field(default=1, ge=0)
    max_replicas: int = Field(default=1, ge=1)
    mode: Literal["observe", "manage"] = "observe"
    command: tuple[str, ...] = ()  # local, manage: how one replica starts; {port} {name} {service} are filled
    replica: tuple[FixedReplica, ...] = ()  # local, observe: the replicas that run
    drain_s: float = Field(default=30.0, ge=0)

    @model_validator(mode="after")
    def _bounds_make_sense(self) -> ServiceSection:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas = {self.min_replicas} is above max_replicas = {self.max_replicas}")
        return self


class ImagesSection(Section):
    """Section `[images]`: how registries are asked which digest a tag stands for (Kubernetes)."""

    plain_http: tuple[str, ...] = ()  # registries (HOST or HOST:PORT) that speak no TLS
    logins: str = ""  # a file as `docker login` writes it; without one, only public images can be looked up


class TeamSection(Section):
    """A `[[team]]`: what it may use."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")
    running_gpus: int | None = Field(default=None, ge=0)
    month_gpu_hours: float | None = Field(default=None, ge=0)


class Hours(CalendarHours):
    """Section `[calendar]`, with a zone that exists."""

    @field_validator("timezone")
    @classmethod
    def _zone_exists(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError('is no time zone; write one such as "Asia/Seoul" or "UTC"') from error
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All sections that the scheduler reads."""

    loaded: Loaded
    database_url: str
    cluster: ClusterSection
    nodes: tuple[NodeSection, ...]
    metrics: MetricsSection
    services: tuple[ServiceSection, ...]
    calendar: Hours
    policy: Policy
    approval: Approval
    teams: tuple[TeamSection, ...]
    money: Money
    storage: Storage
    images: ImagesSection

    @property
    def state_folder(self) -> Path:
        """Of the local cluster."""
        return (self.loaded.folder / self.cluster.state).resolve()

    @property
    def storage_root(self) -> str:
        """Where outputs and checkpoints go, without a slash at the end."""
        return (self.storage.root or f"file://{self.state_folder}/storage").rstrip("/")

    def local_time(self, at: datetime) -> datetime:
        """A time in the operator's zone."""
        return at.astimezone(ZoneInfo(self.calendar.timezone))


def read(loaded: Loaded) -> Settings:
    """Every section, checked, and checked against one another.

    Raises:
        BadInput: all faults, a sentence each.
    """
    faults: list[str] = []

    def take(getter: Any, *arguments: Any) -> Any:
        try:
            return getter(*arguments)
        except BadInput as error:
            faults.extend(error.faults)
            return None

    parts = {
        "database_url": take(database_url, loaded),
        "cluster": take(section, loaded, "cluster", ClusterSection),
        "nodes": take(sections, loaded, "node", NodeSection),
        "metrics": take(section, loaded, "metrics", MetricsSection),
        "services": take(sections, loaded, "service", ServiceSection),
        "calendar": take(section, loaded, "calendar", Hours),
        "policy": take(_policy, loaded),
        "approval": take(section, loaded, "approval", Approval),
        "teams": take(sections, loaded, "team", TeamSection),
        "money": take(section, loaded, "money", Money),
        "storage": take(section, loaded, "storage", Storage),
        "images": take(section, loaded, "images", ImagesSection),
    }
    if faults:
        raise BadInput(*faults)
    settings = Settings(loaded=loaded, **parts)
    faults.extend(_together(settings))
    if faults:
        raise BadInput(*faults)
    return settings


def _policy(loaded: Loaded) -> Policy:
    given = dict(loaded.data.get("policy", {}))
    grace = loaded.data.get("cluster", {}).get("grace_s")
    if isinstance(grace, int | float):
        given.setdefault("grace_s", grace)
    return policy(given)


def _together(settings: Settings) -> list[str]:
    """Faults that no section has alone."""
    faults = []
    for kind, rows in (("node", settings.nodes), ("service", settings.services), ("team", settings.teams)):
        names = [row.name for row in rows]
        faults += [f"[[{kind}]] {name} stands there twice" for name in sorted(set(names)) if names.count(name) > 1]
    workloads = [(row.namespace, row.deployment) for row in settings.services if row.deployment]
    faults += [
        f"[[service]] deployment {name} of {namespace} stands there twice; a replica belongs to one service"
        for namespace, name in sorted(set(workloads))
        if workloads.count((namespace, name)) > 1
    ]
    largest = max((node.gpus for node in settings.nodes), default=None)
    for service in settings.services:
        faults += _service(service, settings, largest)
    root = settings.storage.root
    if settings.cluster.kind == "kubernetes":
        faults += _on_kubernetes(settings)
    if root and not root.startswith(("s3://", "file:///")):
        faults.append(f'[storage] root = "{root}": must start with s3:// or file:///')
    if settings.cluster.kind == "local" and root.startswith("s3://"):
        faults.append(
            '[storage] root: the local cluster keeps its data in files; write "file:///folder" or leave it out'
        )
    return faults


def _service(service: ServiceSection, settings: Settings, largest: int | None) -> list[str]:
    faults = []
    where = f"[[service]] {service.name}"
    if settings.cluster.kind == "local":
        if largest is not None and service.gpus_per_replica > largest:
            faults.append(
                f"{where} gpus_per_replica = {service.gpus_per_replica}: the largest node has {largest}; "
                "a replica must fit on one node"
            )
        if service.mode == "manage" and not service.command:
            faults.append(f'{where}: mode = "manage" needs command, the list of words that starts one replica')
        if service.mode == "observe" and service.command:
            faults.append(f'{where}: command is only used with mode = "manage"')
        known = {node.name for node in settings.nodes}
        faults += [
            f"{where}: replica on {replica.node}, which is no [[node]]{nearest(replica.node, known)}"
            for replica in service.replica
            if known and replica.node not in known
        ]
        return faults
    if not service.deployment:
        faults.append(f"{where} deployment is missing: the name of its Deployment, StatefulSet or LeaderWorkerSet")
    if not service.namespace:
        faults.append(f"{where} namespace is missing: the one that its {service.deployment or 'Deployment'} lives in")
    elif service.namespace == settings.cluster.namespace:
        faults.append(f'{where} namespace = "{service.namespace}" is the one of the jobs; services live in another')
    if service.command or service.replica:
        faults.append(f'{where}: command and replica are only used with kind = "local"')
    return faults


def _on_kubernetes(settings: Settings) -> list[str]:
    faults = []
    if settings.nodes:
        faults.append(
            '[[node]] is only used with kind = "local"; on Kubernetes the API server says which nodes there are'
        )
    storage = settings.storage
    if not storage.root:
        faults.append(
            "[storage] root is missing: outputs and checkpoints of pods go to object storage; "
            'write root = "s3://bucket/prefix"'
        )
    if storage.secret and not re.fullmatch(_DNS_LABEL, storage.secret):
        faults.append(f'[storage] secret = "{storage.secret}": write the name of a Secret in the namespace of the jobs')
    return faults
