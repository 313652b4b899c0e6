"""How many replicas each service needs, from what its replicas do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from scheduler.fleet import estimators
from scheduler.fleet.pool import ReplicaPhase
from scheduler.fleet.replica_state import ReplicaState, ReplicaView
from scheduler.fleet.services import Mode, Service
from scheduler.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDemand:
    """Replicas that one service needs now."""

    service: str
    have: int  # replicas that hold GPUs and are not leaving; those last seen while they cannot be seen
    want: int  # after the hold: never above max_replicas, never below min_replicas
    known: bool  # False: an input is missing; then want >= have, and nothing of it is lent
    why: str
    estimates: Mapping[str, float | None]  # "e1", "e2", "e3": replicas by each estimator
    replicas: tuple[ReplicaView, ...] = ()
    leave_first: tuple[str, ...] = ()  # replica ids, in the order in which they should leave
    alerts: tuple[str, ...] = ()  # sentences for the operator
    above_since: datetime | None = None  # first sample of the unbroken time in which more was asked for than there is
    load: float | None = None  # in replicas at the target, not rounded: what the forecast looks at; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandMemory:
    """What must be remembered between turns to lower slowly: per service, the wants seen lately, newest last."""

    wants: Mapping[str, tuple[tuple[datetime, int], ...]] = field(default_factory=dict)
    capacity: Mapping[str, float] = field(default_factory=dict)  # E2: learned token rate of one full replica
    have: Mapping[str, int] = field(default_factory=dict)  # last seen
    above_since: Mapping[str, datetime] = field(default_factory=dict)


def demand(
    service: Service,
    replicas: Sequence[ReplicaView],
    memory: DemandMemory,
    policy: Policy,
    now: datetime,
    *,
    unknown: str = "",
) -> tuple[ServiceDemand, DemandMemory]:
    """Replicas that `service` needs, from all views of its replicas; and the memory for the next turn.

    Raised at once, lowered only after the need stayed lower for `lower_after_s`. `unknown`: why its replicas cannot be
    seen at all, "" if they can. Source of the estimators: docs/decisions/0003.
    """
    staying = [view for view in replicas if view.replica.phase is not ReplicaPhase.LEAVING]
    if unknown:
        return _unseen(service, unknown, memory)
    capacity = estimators.learned_capacity(memory.capacity.get(service.name), staying, policy)
    estimates = {
        "e1": estimators.by_concurrency(service, staying, policy),
        "e2": estimators.by_tokens(staying, capacity, policy),
        "e3": estimators.by_consolidation(service, staying, policy),
    }
    need = _Need(service, staying, estimates, policy)
    wants = _remembered(memory.wants.get(service.name, ()), need.raw, policy, now)
    want, why = need.held(wants, now)
    have = sum(view.replica.phase is not ReplicaPhase.PENDING for view in staying)
    above = _above_since(service, staying, have, policy, memory.above_since.get(service.name)) if want > have else None
    told = ServiceDemand(
        service=service.name,
        have=have,
        want=want,
        known=not need.doubts,
        why=why,
        estimates=estimates,
        replicas=tuple(replicas),
        alerts=tuple(_alerts(service, staying)),
        above_since=(above or now) if want > have else None,
        load=None if need.doubts else estimators.load(service, staying, policy),
    )
    since = {name: at for name, at in memory.above_since.items() if name != service.name}
    return told, DemandMemory(
        wants={**memory.wants, service.name: wants},
        capacity=memory.capacity if capacity is None else {**memory.capacity, service.name: capacity},
        have={**memory.have, service.name: have},
        above_since=since if told.above_since is None else {**since, service.name: told.above_since},
    )


class _Need:
    """What the estimators say together, before and after the hold."""

    def __init__(
        self,
        service: Service,
        staying: Sequence[ReplicaView],
        estimates: Mapping[str, float | None],
        policy: Policy,
    ) -> None:
        self._service = service
        self._policy = policy
        self._standing = len(staying)
        self._ready = sum(view.replica.phase is ReplicaPhase.READY for view in staying)
        self.doubts = tuple(_doubts(staying, estimates))
        # Replicas that serve nothing, or nobody knows what, are needed beside those that carry the load we see.
        self._beside = sum(view.state in estimators.NOT_SERVING for view in staying)
        self._load = max(_whole(estimates["e1"]), _whole(estimates["e2"])) + self._beside
        self._packed = _whole(estimates["e3"]) + self._beside
        self.raw = self._bounded(self._before_the_hold())

    def held(self, wants: Sequence[tuple[datetime, int]], now: datetime) -> tuple[int, str]:
        """The want after the hold, and why: `wants` are those of the last `lower_after_s`, the newest is `raw`."""
        if self.doubts:
            return max(self.raw, self._bounded(self._standing)), f"{self.doubts[0]} Nothing is taken away meanwhile."
        if self.raw >= self._standing:
            return self.raw, self._why_raw()
        patience = timedelta(seconds=self._policy.lower_after_s)
        highest = max(want for _, want in wants)
        proven = wants[0][0] <= now - patience and highest < self._standing
        if not proven:
            since = max((at for at, want in wants if want >= self._standing), default=wants[0][0])
            why = f"{self._why_raw()} Keeps {self._standing} until {since + patience:%H:%M:%S} UTC."
            return self._bounded(self._standing), why
        return highest, f"{self._why_raw()} It needed no more than {highest} for {self._policy.lower_after_s:.0f} s."

    def _before_the_hold(self) -> int:
        if self._service.mode is Mode.OBSERVE:
            # Another autoscaler decides; we only see it coming when more will be asked for.
            return max(self._standing, self._load)
        if self.doubts or self._load >= self._standing:
            return max(self._load, self._standing if self.doubts else 0)
        return max(self._load, min(self._packed, self._standing))

    def _bounded(self, want: int) -> int:
        # Only replicas that serve count for a step: those on their way must not be asked for again.
        grown = max(self._standing, self._ready + self._policy.max_step)
        return max(self._service.min_replicas, min(want, self._service.max_replicas, grown))

    def _why_raw(self) -> str:
        needs = f"Its load needs {self._load}"
        if self._packed > self._load and self.raw < self._standing:
            needs += f", its cache and queue fit on no fewer than {self._packed}"
        bounds = f"bounds {self._service.min_replicas} to {self._service.max_replicas}"
        return f"{needs}; it has {self._standing} ({bounds})."


def _unseen(service: Service, unknown: str, memory: DemandMemory) -> tuple[ServiceDemand, DemandMemory]:
    have = memory.have.get(service.name, 0)
    last = memory.wants.get(service.name, ())
    want = max(have, last[-1][1] if last else 0, service.min_replicas)
    told = ServiceDemand(
        service=service.name,
        have=have,
        want=want,
        known=False,
        why=f"Its replicas cannot be seen: {unknown}. Nothing is taken away meanwhile.",
        estimates={"e1": None, "e2": None, "e3": None},
        alerts=(f"{service.name}: its replicas cannot be seen: {unknown}.",),
    )
    return told, replace(memory, wants={name: wants for name, wants in memory.wants.items() if name != service.name})


# -- The hold, and what is said of it


def _remembered(
    wants: tuple[tuple[datetime, int], ...], want: int, policy: Policy, now: datetime
) -> tuple[tuple[datetime, int], ...]:
    """The wants with the newest; of equal ones in a row the first and the last are kept."""
    # Turns that did not happen prove nothing: the time of waiting starts anew.
    # So does it when the clock went back.
    if wants and not 0 <= (now - wants[-1][0]).total_seconds() <= max(policy.busy_window_s, policy.stale_after_s):
        wants = ()
    if len(wants) >= 2 and wants[-1][1] == wants[-2][1] == want:
        wants = wants[:-1]
    start = now - timedelta(seconds=policy.lower_after_s)
    older = [pair for pair in wants if pair[0] <= start][-1:]
    recent = [pair for pair in wants if pair[0] > start]
    return (*((start, value) for _, value in older), *recent, (now, want))


def _above_since(
    service: Service, views: Sequence[ReplicaView], have: int, policy: Policy, before: datetime | None
) -> datetime | None:
    """First sample of the newest unbroken time in which requests needed more than `have`; `before` if it goes on."""
    seats = estimators.seats(service, views) * policy.fill_ratio
    readings = sorted((at, i, load) for i, view in enumerate(estimators.serving(views)) for at, load in view.inflight)
    loads: dict[int, float] = {}
    since: datetime | None = None
    whole = True  # above from the first sample on
    for at, i, load in readings:
        loads[i] = load
        if estimators.rounded_up(sum(loads.values()) / seats) <= have:
            since, whole = None, False
        elif since is None:
            since = at
    if before is not None and (whole or since is None):
        return before
    return since


def _doubts(views: Sequence[ReplicaView], estimates: Mapping[str, float | None]) -> Iterable[str]:
    ready = [view for view in views if view.replica.phase is ReplicaPhase.READY]
    unread = [view for view in ready if view.state in estimators.BLIND]
    if unread:
        yield f"{len(ready) - len(unread)} of {len(ready)} replicas report; {unread[0].replica.id}: {unread[0].why}"
    for view in ready:
        if view.state is ReplicaState.UNSURE:
            yield f"{view.replica.id}: {view.why}"
    serving = estimators.serving(views)
    if serving and (estimates["e1"] is None or any(estimators.requests(view) is None for view in serving)):
        yield "Its requests cannot be counted: a replica has no gauges."
    if serving and estimates["e3"] is None:
        yield "Its KV cache cannot be seen: a replica has no such gauge."


def _alerts(service: Service, views: Sequence[ReplicaView]) -> Iterable[str]:
    loud = {ReplicaState.STALLED, ReplicaState.STALE_GAUGE, ReplicaState.NO_VLLM_SERIES}
    for view in views:
        if view.state in loud:
            yield f"{service.name}: {view.replica.id} is {view.state}. {view.why}"
    if len(views) > service.max_replicas:
        yield f"{service.name} has {len(views)} replicas, max_replicas is {service.max_replicas}; raise it."


def _whole(estimate: float | None) -> int:
    return int(estimate or 0)
