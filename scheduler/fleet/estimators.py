"""How many replicas a service needs, by three estimators that see different things; None where one cannot say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from scheduler.fleet.pool import ReplicaPhase
from scheduler.fleet.replica_state import UNKNOWN, ReplicaState, ReplicaView
from scheduler.fleet.services import Service
from scheduler.policy import Policy

BLIND = UNKNOWN - {ReplicaState.UNSURE}  # nothing is known of their load
NOT_SERVING = BLIND | {ReplicaState.SLEEPING, ReplicaState.STALLED}

# Share of the difference that is learned in a turn: together they lead to a high quantile of the rates seen.
_LEARN_UP = 0.5
_LEARN_DOWN = 0.05


def load(service: Service, views: Sequence[ReplicaView], policy: Policy) -> float | None:
    """Replicas that its requests would fill to the target, not rounded."""
    loads = [requests(view) for view in serving(views)]
    known = [load for load in loads if load is not None]
    return sum(known) / (seats(service, views) * policy.fill_ratio) if known or not loads else None


def by_concurrency(service: Service, views: Sequence[ReplicaView], policy: Policy) -> float | None:
    """E1: requests at once against what one replica should carry (Little's law)."""
    replicas = load(service, views, policy)
    return None if replicas is None else rounded_up(replicas)


def by_tokens(views: Sequence[ReplicaView], capacity: float | None, policy: Policy) -> float | None:
    """E2: token rate and backlog against the rate of a full replica, which had to be seen once."""
    if not capacity:
        return None
    rate, waiting, arrivals = 0.0, 0.0, 0.0
    for view in serving(views):
        rate += _work_per_s(view, policy) or 0.0
        waiting += view.signals.get("waiting_peak") or 0.0
        arrivals += view.signals.get("arrivals_per_s") or 0.0
    if waiting and not arrivals:
        return None
    backlog = waiting * rate / arrivals if arrivals else 0.0
    return rounded_up((rate + backlog / policy.drain_backlog_s) / (capacity * policy.fill_ratio))


def by_consolidation(service: Service, staying: Sequence[ReplicaView], policy: Policy) -> float | None:
    """E3: on how few of the replicas that serve today's load would fit; a slow first token forbids any fewer."""
    views = serving(staying)
    if any(view.signals.get("kv_peak") is None and view.state is not ReplicaState.FRESH_IDLE for view in views):
        return None
    if any((view.signals.get("ttft_mean_s") or 0.0) > policy.ttft_slo_s for view in views):
        return float(len(views))
    shares = (
        ("kv_peak", policy.kv_saturated - policy.spare_kv_ratio),
        ("waiting_peak", policy.waiting_saturated - policy.spare_waiting),
        ("running_peak", policy.fill_ratio * seats(service, staying)),
    )
    totals = ((sum(view.signals.get(key) or 0.0 for view in views), most) for key, most in shares)
    # A room of nothing comes from settings that `check_service` refuses.
    return max(rounded_up(total / most) if most > 0 else float(len(views)) for total, most in totals)


def learned_capacity(known: float | None, views: Sequence[ReplicaView], policy: Policy) -> float | None:
    """The token rate of one full replica. Only replicas that were full all the time show it: else it is just load."""
    full = [view for view in serving(views) if view.signals.get("full_ratio") == 1.0]
    for rate in (_work_per_s(view, policy) for view in full):
        if rate:
            known = rate if known is None else known + (_LEARN_UP if rate > known else _LEARN_DOWN) * (rate - known)
    return known


def serving(views: Iterable[ReplicaView]) -> list[ReplicaView]:
    """Those that take requests, and whose load can be seen."""
    return [v for v in views if v.replica.phase is ReplicaPhase.READY and v.state not in NOT_SERVING]


def requests(view: ReplicaView) -> float | None:
    """Most requests it had at once; a fresh server without gauges had none."""
    peak = view.signals.get("inflight_peak")
    return 0.0 if peak is None and view.state is ReplicaState.FRESH_IDLE else peak


def seats(service: Service, views: Iterable[ReplicaView]) -> float:
    """Requests that one replica can run at once; replicas of one service have as many engines each."""
    return max((v.signals.get("max_inflight") or 0.0 for v in views), default=0.0) or float(service.max_num_seqs)


def rounded_up(replicas: float) -> float:
    """The next whole number; the error of floating point does not cost a replica."""
    return float(math.ceil(replicas - 1e-9))


def _work_per_s(view: ReplicaView, policy: Policy) -> float | None:
    generated, prompt = view.signals.get("tokens_per_s"), view.signals.get("prompt_tokens_per_s")
    return None if generated is None else generated + policy.prefill_cost_ratio * (prompt or 0.0)
