"""What every Workflow of an installation has in common: all that the operator says, nothing of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.adapters.kube.names import PRIORITY_CLASS
from scheduler.adapters.kube.objects import Taint


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The operator's choices, from the settings."""

    namespace: str
    service_account: str = "gpujob-runner"
    priority_class: str = PRIORITY_CLASS
    grace_s: float = 60.0  # of the pods; also what a serving pod waits for when kube-scheduler preempts one
    gpu_resource: str = "nvidia.com/gpu"
    gpu_node_label: str = "nvidia.com/gpu.present"  # steps without GPUs prefer nodes that lack it
    tolerations: tuple[Taint, ...] = ()  # of GPU pods; no effect = every effect, no value = every value
    cpu_per_gpu: int = 0  # cores requested with each GPU; 0 = no request
    memory_gib_per_gpu: int = 0
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()  # Secrets with credentials of registries
    run_as_non_root: bool = False  # Pod Security "restricted" asks for it; many images run as root
    env: Mapping[str, str] = field(default_factory=lambda: {"PYTHONUNBUFFERED": "1"})  # of every program
    secrets: Mapping[str, str] = field(default_factory=dict)  # of every program: environment name -> "secret/key"
    pods_kept_s: int = 3600  # how long ended pods can still be seen once their Workflow has ended
    ttl_s: int = 86_400  # how long a Workflow that has ended is kept
