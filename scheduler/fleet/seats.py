"""Replicas that lack GPUs, and the nodes on which they find them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace

from scheduler.fleet.demand import ServiceDemand
from scheduler.fleet.pool import HolderKind, Pool, ReplicaPhase
from scheduler.fleet.services import Mode, Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What one service lacks."""

    service: str
    gpus: int  # of one replica, on one node
    mode: Mode
    standing: int  # replicas that are not leaving, pending ones too
    pending: int  # of these: asked for, without GPUs
    unasked: int  # wanted beyond those standing
    settling: int  # of those pending: room may be made for them by somebody else this moment
    seen: bool  # False: its replicas cannot be seen, so nothing may be done about it

    @property
    def waiting(self) -> int:
        """Replicas that GPUs must be found for now; an observed service asks by itself."""
        if not self.seen:
            return 0
        return self.pending + (self.unasked if self.mode is Mode.MANAGE else 0)


def missing(services: Iterable[Service], demands: Iterable[ServiceDemand], pool: Pool) -> tuple[Missing, ...]:
    """One entry a service; the largest replicas first, as they find a place least easily, then by name."""
    demand_by_service = {demand.service: demand for demand in demands}
    staying = [replica for replica in pool.replicas if replica.phase is not ReplicaPhase.LEAVING]
    standing = Counter(replica.service for replica in staying)
    pending = Counter(replica.service for replica in staying if replica.phase is ReplicaPhase.PENDING)
    settling = Counter(replica.service for replica in staying if replica.settling)
    return tuple(
        replace(
            _missing(service, demand_by_service.get(service.name), pool, standing[service.name], pending[service.name]),
            settling=settling[service.name],
        )
        for service in sorted(services, key=lambda service: (-service.gpus_per_replica, service.name))
    )


def hosts(pool: Pool) -> frozenset[str]:
    """Nodes on which a replica holds GPUs."""
    return frozenset(hold.node for hold in pool.holds if hold.kind is HolderKind.REPLICA)


def coming(pool: Pool, stopping: Collection[str] = ()) -> Mapping[str, int]:
    """GPUs of known nodes that come free by themselves; `stopping` are holders told to go, beyond those seen ending."""
    known = {node.name for node in pool.nodes if not node.unknown}
    leaving = {replica.id for replica in pool.replicas if replica.phase is ReplicaPhase.LEAVING}
    free: Counter[str] = Counter()
    for hold in pool.holds:
        if hold.node in known and (hold.ending or hold.holder in leaving or hold.holder in stopping):
            free[hold.node] += hold.gpus
    return free


def seat(free: MutableMapping[str, int], gpus: int, hosting: Collection[str]) -> str | None:
    """The node for one replica, whose GPUs are taken from `free`; None if none has as many.

    Nodes that host replicas already come first, then the tightest fit: whole nodes stay whole.
    """
    fitting = ((node not in hosting, left, node) for node, left in free.items() if left >= gpus)
    best = min(fitting, default=None)
    if best is None:
        return None
    free[best[2]] -= gpus
    return best[2]


def fits_nowhere(gpus: int, pool: Pool) -> bool:
    """Whether no node could ever hold a replica of so many GPUs; False while too little is known of a node."""
    return all(node.gpus < gpus and not node.unknown for node in pool.nodes)


def _missing(service: Service, demand: ServiceDemand | None, pool: Pool, standing: int, pending: int) -> Missing:
    seen = service.name not in pool.unknown_services
    # Of a service that cannot be seen, what it last had counts: its replicas are still there, as far as we know.
    had = demand.have if demand and not seen else 0
    want = demand.want if demand else standing
    return Missing(
        service=service.name,
        gpus=service.gpus_per_replica,
        mode=service.mode,
        standing=standing,
        pending=pending,
        unasked=max(want - max(standing, had), 0),
        settling=0,
        seen=seen,
    )
