"""One batch of pods as an Argo template, and the DAG task that calls it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hera.workflows import Container, Env, Parameter, Resources, SecretEnv, Task
from hera.workflows import models as m
from hera.workflows.env import FieldEnv

from scheduler.adapters.argo import retry
from scheduler.adapters.argo.items import Batch
from scheduler.adapters.argo.shape import Shape
from scheduler.adapters.kube.names import ANY, GANG_SERVICE, GATE, NODES, RUN, SPEC, SUCCEEDED
from scheduler.errors import BadInput
from scheduler.jobs.order import JobOrder, TaskOrder

Variable = Env | SecretEnv | FieldEnv


def gpus_of(task: TaskOrder) -> int:
    """On each node: of an elastic step the smallest choice, which Argo must know before there is a node."""
    return min(task.gpus)


def template(batch: Batch, order: JobOrder, shape: Shape) -> Container:
    """What a pod of this batch is.

    Raises:
        BadInput: the step has no image.
    """
    task = batch.pods[0].task
    if not task.image:
        raise BadInput(f"step {task.step} has no image, and on Kubernetes every step runs in one; add `image`")
    gpus = gpus_of(task)
    return Container(
        name=batch.name,
        image=task.image,
        image_pull_policy=shape.pull_policy,
        command=list(batch.command),
        env=_variables(batch, order, shape),
        inputs=[Parameter(name=name) for name in batch.items[0]] if batch.items else None,
        resources=_resources(gpus, shape) if gpus else None,
        tolerations=_tolerations(shape) if gpus else None,
        labels=dict(batch.labels),
        annotations=_annotations(task, order),
        retry_strategy=retry.strategy(order.retries),
        pod_spec_patch=json.dumps(_patch(batch, gpus, shape)),
        pod_security_context=m.PodSecurityContext(
            run_as_non_root=True if shape.run_as_non_root else None,
            seccomp_profile=m.SeccompProfile(type="RuntimeDefault"),
        ),
        security_context=m.SecurityContext(allow_privilege_escalation=False, capabilities=m.Capabilities(drop=["ALL"])),
    )


def call(batch: Batch, depends: str) -> Task:
    """The DAG task of this batch."""
    return Task(
        name=batch.node,
        template=batch.name,
        depends=depends or None,
        arguments={name: f"{{{{item.{name}}}}}" for name in batch.items[0]} if batch.items else None,
        with_items=[dict(item) for item in batch.items] or None,
    )


def _variables(batch: Batch, order: JobOrder, shape: Shape) -> list[Variable]:
    """Later names win: a job may bring its own credentials, and nobody takes our names from us."""
    task = batch.pods[0].task
    found: dict[str, Variable] = {name: Env(name=name, value=value) for name, value in shape.env.items()}
    for name, secret in {**shape.secrets, **order.secrets}.items():
        held, _, key = secret.partition("/")
        found[name] = SecretEnv(name=name, secret_name=held, secret_key=key)
    if not gpus_of(task):
        # Images made for CUDA ask for every GPU there is.
        found["NVIDIA_VISIBLE_DEVICES"] = Env(name="NVIDIA_VISIBLE_DEVICES", value="void")
    found |= {name: Env(name=name, value=value) for name, value in batch.env.items()}
    found["GPUJOB_RUN"] = _annotation("GPUJOB_RUN", RUN)
    for need in task.needs if task.any else ():
        name = f"GPUJOB_STEPS_{need.upper().replace('-', '_')}_SUCCEEDED"
        found[name] = _annotation(name, f"{SUCCEEDED}.{need}")
    return list(found.values())


def _annotations(task: TaskOrder, order: JobOrder) -> dict[str, str]:
    gang = {NODES: str(task.nodes)} if task.nodes > 1 else {}
    return {SPEC: order.spec_hash, **gang, **({ANY: ",".join(task.needs)} if task.any else {})}


def _annotation(name: str, key: str) -> FieldEnv:
    """What only the release knows, read by the kubelet when the container starts."""
    return FieldEnv(name=name, field_path=f"metadata.annotations['{key}']")


def _resources(gpus: int, shape: Shape) -> Resources:
    return Resources(
        gpus=gpus,
        gpu_flag=shape.gpu_resource,
        cpu_request=shape.cpu_per_gpu * gpus or None,
        memory_request=f"{shape.memory_gib_per_gpu * gpus}Gi" if shape.memory_gib_per_gpu else None,
    )


def _tolerations(shape: Shape) -> list[m.Toleration] | None:
    return [
        m.Toleration(
            key=taint.key,
            operator="Equal" if taint.value else "Exists",
            value=taint.value or None,
            effect=taint.effect or None,
        )
        for taint in shape.tolerations
    ] or None


def _patch(batch: Batch, gpus: int, shape: Shape) -> Mapping[str, Any]:
    """What Argo's templates have no field for. A typo in here is dropped without a word, so keys are written once."""
    return {
        "schedulingGates": [{"name": GATE}],
        "priorityClassName": shape.priority_class,
        "terminationGracePeriodSeconds": round(shape.grace_s),
        **({"hostname": batch.hostname} if batch.hostname else {}),
        **({"subdomain": GANG_SERVICE} if batch.pods[0].task.nodes > 1 else {}),
        **({} if gpus else {"affinity": {"nodeAffinity": _off_gpu_nodes(shape)}}),
    }


def _off_gpu_nodes(shape: Shape) -> Mapping[str, Any]:
    """A wish and no rule: a cluster may have nodes with GPUs only."""
    lacks = {"key": shape.gpu_node_label, "operator": "DoesNotExist"}
    wish = {"weight": 100, "preference": {"matchExpressions": [lacks]}}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}
