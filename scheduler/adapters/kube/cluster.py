"""The port Cluster on Kubernetes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scheduler.adapters.kube import accounting
from scheduler.adapters.kube.api import Api
from scheduler.adapters.kube.cooldown import Cooldown
from scheduler.adapters.kube.mirror import Event
from scheduler.adapters.kube.objects import Pod, Taint
from scheduler.adapters.kube.scale import ReplicaWriter
from scheduler.adapters.kube.services import KubeService, serving
from scheduler.adapters.kube.watching import Watching
from scheduler.errors import Unavailable
from scheduler.fleet.pool import Pool, Replica, ReplicaId, ReplicaPhase
from scheduler.fleet.services import Mode
from scheduler.ports import Clock

# kube-scheduler takes milliseconds to nominate a node and to end who stands there. Choosing beside it ends others too.
_OWN_WAY = timedelta(seconds=0.25)
_NATIVE = "PreemptionByScheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTerms:
    """The operator's choices, from the settings."""

    namespace: str  # of the jobs
    gpu_resource: str = "nvidia.com/gpu"
    tolerations: tuple[Taint, ...] = ()  # of jobs; no effect = every effect, no value = every value
    cooldown_s: float = 300.0  # a node that refused a pod is left alone for so long
    scale_step: int = 4  # replicas that one call adds at most


class KubeCluster:
    """Nodes, holds and replicas out of what is watched; replicas of managed services through the scale subresource.

    `preempted_by_scheduler` counts attempts that kube-scheduler itself ended for serving pods, since the start.
    """

    def __init__(
        self, api: Api, watching: Watching, services: Sequence[KubeService], terms: ClusterTerms, clock: Clock
    ) -> None:
        self._watching = watching
        self._services = {service.name: service for service in services}
        self._terms = terms
        self._clock = clock
        self._cooldown = Cooldown(terms.cooldown_s)
        self._writer = ReplicaWriter(api, terms.scale_step)
        self._wanted_since: dict[str, datetime] = {}
        self._pending_since: dict[ReplicaId, datetime] = {}
        self._preempted: set[str] = set()  # uids that were counted, of pods that are still there
        self.preempted_by_scheduler = 0
        watching.pods.listen(self._count_preempted)

    def pool(self, now: datetime) -> Pool:
        """Nodes, who holds which GPUs, and the replicas of all services.

        Raises:
            Unavailable: what is watched is too old.
        """
        self._watching.fresh()
        nodes, pods = self._watching.nodes.items().values(), self._watching.pods.items().values()
        ours = [pod for pod in pods if pod.gpus and accounting.is_ours(pod, self._terms.namespace)]
        seen = serving(
            self._services.values(),
            pods,
            self._watching.workloads(),
            self._watching.scalers(),
            self._wanted_since,
            now,
        )
        self._wanted_since = dict(seen.wanted_since)
        terms = accounting.Terms(
            namespace=self._terms.namespace,
            gpu_resource=self._terms.gpu_resource,
            tolerations=self._terms.tolerations,
        )
        accounts = accounting.count(nodes, pods, seen.by_pod, terms, now)
        self._cooldown.look(ours, accounts.promised, now)
        cooling = self._cooldown.why()
        return Pool(
            at=now,
            nodes=tuple(replace(node, unknown=node.unknown or cooling.get(node.name, "")) for node in accounts.nodes),
            holds=accounts.holds,
            replicas=self._settling(seen.replicas, now),
            unknown_services=seen.unknown,
            alerts=(*accounts.alerts, *seen.alerts),
        )

    def _settling(self, replicas: Sequence[Replica], now: datetime) -> tuple[Replica, ...]:
        """Marks what kube-scheduler has not had its say about; a turn follows once it had."""
        pending = [replica.id for replica in replicas if replica.phase is ReplicaPhase.PENDING]
        self._pending_since = {replica: self._pending_since.get(replica, now) for replica in pending}
        young = {replica for replica, since in self._pending_since.items() if now - since < _OWN_WAY}
        if young:
            self._watching.remind(_OWN_WAY.total_seconds())
        return tuple(
            replace(replica, settling=True)
            if replica.id in young and self._services[replica.service].mode is Mode.OBSERVE
            else replica
            for replica in replicas
        )

    def scale(self, service: str, replicas: int, leave_first: Sequence[str], nodes: Sequence[str]) -> None:  # noqa: ARG002
        """Make a managed service have so many replicas; kube-scheduler chooses their nodes.

        Raises:
            Unavailable: not carried out; observed services never are.
        """
        known = self._services.get(service)
        if known is None or known.mode is not Mode.MANAGE:
            raise Unavailable(f'{service} is no service that gpujob scales; set mode = "manage" for it')
        self._watching.fresh()
        place = (known.namespace, known.workload)
        found = [one for one in self._watching.workloads() if (one.namespace, one.name) == place]
        if len(found) != 1:
            raise Unavailable(f"{service}: {len(found)} workloads are called {known.workload} in {known.namespace}")
        pods = self._watching.pods.items().values()
        self._writer.write(known, found[0], replicas, leave_first, pods, self._watching.scalers())

    def _count_preempted(self, event: Event[Pod]) -> None:
        """From events: a pod may be marked and gone between two turns."""
        pod = event.new or event.old
        if pod is None or not accounting.is_ours(pod, self._terms.namespace):
            return
        if event.new is not None and pod.disrupted == _NATIVE and pod.uid not in self._preempted:
            self._preempted.add(pod.uid)
            self.preempted_by_scheduler += 1
        elif event.new is None:
            self._preempted.discard(pod.uid)
