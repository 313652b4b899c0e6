"""Who holds which GPUs: nodes and pods of the API server, as nodes and holds of the pool."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scheduler.adapters.kube.names import HOSTNAME, JOB, RUN
from scheduler.adapters.kube.objects import KubeNode, Pod, Taint
from scheduler.fleet.pool import Hold, HolderKind, Node, ReplicaId

_STUCK = timedelta(seconds=30)  # beyond its grace; kubelets need some seconds to clean up
_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
_SHARING = "nvidia.com/gpu.sharing-strategy"
_SLICES = "nvidia.com/gpu.replicas"
_PRODUCT = "nvidia.com/gpu.product"
_SHARED = ".shared"  # the suffix of the resource when the device plugin renames shared GPUs
_SIGNS_OF_GPUS = ("nvidia.com/gpu.present", "nvidia.com/gpu.product", "nvidia.com/gpu.count")
_NAMED = 3  # of many


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What counts as a GPU, and which pods are jobs."""

    namespace: str  # of the jobs
    gpu_resource: str = "nvidia.com/gpu"
    tolerations: tuple[Taint, ...] = ()  # of jobs; no effect = every effect, no value = every value


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """All nodes with GPUs, and who holds them."""

    nodes: tuple[Node, ...]  # by name
    holds: tuple[Hold, ...]  # by node and holder
    alerts: tuple[str, ...] = ()
    promised: Mapping[str, str] = field(default_factory=dict)  # uid of a pod that is not bound -> node with room for it


@dataclass(slots=True)
class _Book:
    """GPUs that pods take, by node."""

    terms: Terms
    replicas: Mapping[str, ReplicaId]
    held: Counter[str] = field(default_factory=Counter)
    holds: list[Hold] = field(default_factory=list)

    def take(self, pod: Pod, node: str, gpus: int, *, ending: bool) -> None:
        kind, holder = self._holder(pod)
        self.held[node] += gpus
        self.holds.append(Hold(node=node, gpus=gpus, kind=kind, holder=holder, ending=ending))

    def _holder(self, pod: Pod) -> tuple[HolderKind, str]:
        replica = self.replicas.get(pod.uid)
        if replica is not None:
            return HolderKind.REPLICA, replica
        if is_ours(pod, self.terms.namespace):
            return HolderKind.RUN, pod.annotations.get(RUN) or pod.attempt
        return HolderKind.OTHER, f"{pod.namespace}/{pod.name}"


def count(
    nodes: Iterable[KubeNode],
    pods: Iterable[Pod],
    replicas: Mapping[str, ReplicaId],
    terms: Terms,
    now: datetime,
) -> Accounts:
    """Nodes, holds, and what an operator should look at; `replicas` are ids by uid of pod.

    A node of which something is wrong is unknown, and as large as what is held of it. Terminating pods hold their GPUs
    until they have ended, and releases that are not bound yet hold those that they were given.
    """
    fleet = sorted(nodes, key=lambda node: node.name)
    resource = terms.gpu_resource
    pods = [pod for pod in pods if (pod.gpus or pod.claims) and not pod.terminal]
    taking = [pod for pod in pods if pod.gpus.get(resource)]
    book = _Book(terms, replicas)
    for pod in taking:
        if pod.node:
            book.take(pod, pod.node, pod.gpus[resource], ending=pod.leaving_at is not None)
    sizes = {node.name: _size(node, book.held[node.name], resource) for node in fleet}
    promised = _take_unbound(book, taking, sizes, by_host(fleet))
    faults = {node.name: _fault(node, book.held[node.name], terms) for node in fleet}
    for name in book.held.keys() - sizes.keys():
        sizes[name], faults[name] = book.held[name], "there is no Node of this name any more"
    return Accounts(
        nodes=tuple(
            Node(name=name, gpus=gpus, unknown=faults[name]) for name, gpus in sorted(sizes.items()) if gpus > 0
        ),
        holds=tuple(sorted(book.holds, key=lambda hold: (hold.node, hold.holder, hold.gpus, hold.ending))),
        alerts=(*_stuck(taking, faults, resource, now), *_refused(fleet, pods, terms)),
        promised=promised,
    )


def is_ours(pod: Pod, namespace: str) -> bool:
    """Whether it is an attempt of a job; `namespace` is that of the jobs."""
    return pod.namespace == namespace and JOB in pod.labels


def by_host(nodes: Iterable[KubeNode]) -> Mapping[str, str]:
    """Names of nodes by the label that pods are pinned by."""
    return {node.labels[HOSTNAME]: node.name for node in nodes if node.labels.get(HOSTNAME)}


def _take_unbound(
    book: _Book, taking: Iterable[Pod], sizes: Mapping[str, int], hosts: Mapping[str, str]
) -> Mapping[str, str]:
    """Promised GPUs: never more than are free, as the rest is in other hands yet. Returns nodes with room, by uid."""
    resource = book.terms.gpu_resource
    unbound = [pod for pod in taking if not pod.node and pod.leaving_at is None and not pod.gates]
    kept: dict[str, str] = {}
    for pod in sorted(unbound, key=lambda pod: (bool(pod.nominated), pod.created_at, pod.uid)):
        pinned = hosts.get(pod.pinned, "") if is_ours(pod, book.terms.namespace) else ""
        node = pod.nominated or pinned
        gpus = min(pod.gpus[resource], sizes.get(node, 0) - book.held[node])
        if gpus > 0:
            # What is kept for a replica that still waits is nobody's to lend. To the planner it comes free: for it.
            book.take(pod, node, gpus, ending=pod.uid in book.replicas)
        if gpus == pod.gpus[resource]:
            kept[pod.uid] = node
    return kept


def _size(node: KubeNode, held: int, resource: str) -> int:
    healthy, all_of_it = node.allocatable.get(resource, 0), node.capacity.get(resource, 0)
    if healthy <= 0 or held > healthy:
        return max(all_of_it, held)
    return healthy


def _fault(node: KubeNode, held: int, terms: Terms) -> str:
    """Why too little is known of a node, or why nothing may start there; "" = nothing is wrong."""
    healthy, all_of_it = node.allocatable.get(terms.gpu_resource, 0), node.capacity.get(terms.gpu_resource, 0)
    if node.deleting:
        return "it is being deleted"
    if not node.ready:
        return f"not ready: {node.ready_why}" if node.ready_why else "not ready"
    if node.cordoned:
        return "cordoned"
    taint = next((one for one in node.taints if not _tolerated(one, terms.tolerations)), None)
    if taint is not None:
        return f"jobs do not tolerate its taint {_written(taint)}"
    shared = _sharing(node, terms.gpu_resource)
    if shared:
        return f"its GPUs are shared ({shared})"
    if healthy <= 0:
        return f"all of its {max(all_of_it, held)} GPUs are unhealthy or its device plugin is down"
    if held > healthy:
        return f"its pods hold {held} GPUs, only {healthy} are healthy"
    return _unpinnable(node)


def _unpinnable(node: KubeNode) -> str:
    host = node.labels.get(HOSTNAME, "")
    return "" if host == node.name else f"its label {HOSTNAME} is {host!r}, not its name, so no job finds it"


def _tolerated(taint: Taint, tolerations: Iterable[Taint]) -> bool:
    return taint.effect not in _EFFECTS or any(
        one.key == taint.key and one.value in ("", taint.value) and one.effect in ("", taint.effect)
        for one in tolerations
    )


def _written(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _sharing(node: KubeNode, resource: str) -> str:
    """How its GPUs are shared: then one of them is several "GPUs". "" = not at all."""
    strategy, slices = node.labels.get(_SHARING, ""), node.labels.get(_SLICES, "")
    if strategy not in ("", "none"):
        return f"{_SHARING}={strategy}"
    if slices.isdigit() and int(slices) > 1:
        return f"{_SLICES}={slices}"
    product = node.labels.get(_PRODUCT, "")
    if "-MIG-" in product or product.endswith("-SHARED"):
        return f"{_PRODUCT}={product}"  # MIG with the strategy "single" calls its slices nvidia.com/gpu
    return resource + _SHARED if node.capacity.get(resource + _SHARED) else ""


# -- What an operator should look at


def _stuck(taking: Iterable[Pod], faults: Mapping[str, str], resource: str, now: datetime) -> Iterator[str]:
    """Judged anew each time, from the pod and its node as they are: whatever happens to the node, it stays said."""
    for pod in sorted(taking, key=lambda pod: (pod.namespace, pod.name)):
        if pod.leaving_at is None or not pod.node or now - pod.leaving_at <= _STUCK:
            continue
        fault = faults.get(pod.node, "")
        yield (
            f"Pod {pod.namespace}/{pod.name} should have ended by {pod.leaving_at:%H:%M:%S} UTC and still holds "
            f"{_gpus(pod.gpus[resource])} of {pod.node}{f' ({fault})' if fault else ''}. gpujob never forces it: look "
            "at the kubelet there; if the computer is off for good, delete its Node."
        )


def _refused(fleet: Sequence[KubeNode], pods: Iterable[Pod], terms: Terms) -> Iterator[str]:
    """What GPUs are left out of the pool, and why."""
    resource = terms.gpu_resource
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for node in fleet:
        shared = _sharing(node, resource)
        others = sorted(name for name in node.capacity if name != resource and _is_gpu(name) and node.capacity[name])
        if shared:
            by_reason[f"share GPUs ({shared}), which gpujob does not lend"].append(node.name)
        elif others:
            by_reason[f"have {', '.join(others)}; gpujob lends {resource} and leaves these out"].append(node.name)
        elif resource not in node.capacity and any(sign in node.labels for sign in _SIGNS_OF_GPUS):
            reason = (
                f"have GPUs that they do not offer as {resource}: no device plugin, or DRA, which gpujob cannot lend"
            )
            by_reason[reason].append(node.name)
    for reason, names in sorted(by_reason.items()):
        yield f"Nodes {reason}: {_listed(names)}."
    with_gpus = {node.name for node in fleet if any(sign in node.labels for sign in _SIGNS_OF_GPUS) or node.capacity}
    claiming = sorted(f"{pod.namespace}/{pod.name}" for pod in pods if pod.claims and pod.node in with_gpus)
    if claiming:
        yield f"Pods ask for devices by resourceClaims (DRA), which gpujob does not count: {_listed(claiming)}."


def _is_gpu(resource: str) -> bool:
    name = resource.rpartition("/")[2]
    return "gpu" in name or name.startswith("mig-")


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
