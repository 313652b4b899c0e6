"""The demand of all services at once, who should leave first, what `gpujob scale` shows, and what cannot work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from scheduler.fleet.demand import DemandMemory, ServiceDemand, demand
from scheduler.fleet.pool import Pool, ReplicaPhase
from scheduler.fleet.readings import Series
from scheduler.fleet.replica_state import ReplicaState, ReplicaView, judge
from scheduler.fleet.services import Mode, Service
from scheduler.policy import Policy

# Replicas in other states are counted as needed, and never leave.
_LEAVES = (
    ReplicaState.LOADING,
    ReplicaState.IDLE,
    ReplicaState.FRESH_IDLE,
    ReplicaState.BUSY,
    ReplicaState.SATURATED,
)


def demands(
    services: Iterable[Service],
    pool: Pool,
    series: Iterable[Series],
    memory: DemandMemory,
    policy: Policy,
    now: datetime,
) -> tuple[tuple[ServiceDemand, ...], DemandMemory]:
    """What each service needs, with the order in which its replicas should leave; and the memory for the next turn."""
    by_replica = {one.replica: one for one in series}
    told: list[ServiceDemand] = []
    for service in services:
        replicas = [replica for replica in pool.replicas if replica.service == service.name]
        views = [judge(replica, by_replica[replica.id], service, policy, now) for replica in replicas]
        unknown = pool.unknown_services.get(service.name, "")
        wanted, memory = demand(service, views, memory, policy, now, unknown=unknown)
        told.append(replace(wanted, leave_first=leave_first(views, pool)))
    return tuple(told), memory


def leave_first(views: Sequence[ReplicaView], pool: Pool) -> tuple[str, ...]:
    """Ids of replicas of one service in the order in which they should leave.

    Those that do not serve yet, then idle ones, fresh ones, busy ones; among equals the one that empties its node, then
    the one beside most idle GPUs, so that nodes come free whole.
    """
    held = dict(pool.held())
    idle = dict(pool.idle())
    left = [v for v in views if v.state in _LEAVES and v.replica.phase is not ReplicaPhase.LEAVING]
    order: list[str] = []
    while left:

        def rank(view: ReplicaView) -> tuple[int, bool, int, str, str]:
            node, gpus = view.replica.node, view.replica.gpus
            empties = held.get(node, 0) <= gpus
            return _LEAVES.index(view.state), not empties, -(idle.get(node, 0) + gpus), node, view.replica.id

        first = min(left, key=rank)
        left.remove(first)
        order.append(first.replica.id)
        if first.replica.node:
            held[first.replica.node] = held.get(first.replica.node, 0) - first.replica.gpus
            idle[first.replica.node] = idle.get(first.replica.node, 0) + first.replica.gpus
    return tuple(order)


def explain(every: Iterable[ServiceDemand], at: datetime) -> Mapping[str, object]:
    """What `gpujob scale --json` prints."""
    return {
        "at": at.isoformat(),
        "services": [
            {
                "name": wanted.service,
                "have": wanted.have,
                "want": wanted.want,
                "known": wanted.known,
                "why": wanted.why,
                "estimates": dict(wanted.estimates),
                "alerts": list(wanted.alerts),
                "replicas": [
                    {
                        "name": view.replica.id,
                        "state": view.state.value,
                        "why": view.why,
                        "signals": dict(view.signals),
                    }
                    for view in wanted.replicas
                ],
            }
            for wanted in every
        ],
    }


def sentences(wanted: ServiceDemand) -> tuple[str, ...]:
    """The same for a person, one line each: the service, then its replicas, then what needs attention."""
    said = ", ".join(f"{name} {_number(value)}" for name, value in wanted.estimates.items())
    return (
        f"{wanted.service} has {wanted.have} and wants {wanted.want}. {wanted.why} Estimates: {said}.",
        *(f"  {view.replica.id} is {view.state.value}. {view.why}" for view in wanted.replicas),
        *(f"  Attention: {alert}" for alert in wanted.alerts),
    )


def check_service(service: Service, policy: Policy) -> tuple[str, ...]:
    """What cannot work in a service's settings and the policy, one sentence a fault; () if nothing."""
    limit, ratio = service.max_num_seqs, policy.running_saturated_ratio
    faults = (
        (
            ratio * limit > limit,
            f"policy.running_saturated_ratio = {ratio:g} asks for {ratio * limit:g} running requests, but vLLM runs at "
            f"most max_num_seqs = {limit}; write 1 or less",
        ),
        (ratio <= 0, f"policy.running_saturated_ratio = {ratio:g} would call every replica full; write more than 0"),
        (limit < 1, f"max_num_seqs = {limit} is no number of requests; write vLLM's own --max-num-seqs"),
        (
            not 0 < policy.fill_ratio <= 1,
            f"policy.fill_ratio = {policy.fill_ratio:g} is no share of max_num_seqs; write more than 0, 1 at most",
        ),
        (
            not 0 < policy.kv_saturated <= 1,
            f"policy.kv_saturated = {policy.kv_saturated:g} is no share of the KV cache; write more than 0, 1 at most",
        ),
        (
            policy.spare_kv_ratio >= policy.kv_saturated,
            f"policy.spare_kv_ratio = {policy.spare_kv_ratio:g} leaves nothing of kv_saturated = "
            f"{policy.kv_saturated:g}; write less",
        ),
        (
            policy.spare_waiting >= policy.waiting_saturated,
            f"policy.spare_waiting = {policy.spare_waiting:g} leaves nothing of waiting_saturated = "
            f"{policy.waiting_saturated:g}; write less",
        ),
        (
            service.min_replicas > service.max_replicas,
            f"min_replicas = {service.min_replicas} is above max_replicas = {service.max_replicas}",
        ),
        (
            service.mode is Mode.MANAGE and service.min_replicas < 1,
            "min_replicas = 0 would leave a managed service without a replica, and without metrics that could call it "
            "back; write 1 or more",
        ),
    )
    return tuple(f"Service {service.name}: {sentence}." for wrong, sentence in faults if wrong)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
