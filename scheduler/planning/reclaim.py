"""Which runs give GPUs back: as few as will do, with the least work lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations

from scheduler.fleet import seats
from scheduler.planning.snapshot import Lease
from scheduler.policy import Policy

_FEW = 8  # up to so many candidates, every set of them is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A replica that waits for GPUs, on one node."""

    service: str
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A run that may be asked to end; all its GPUs come free together."""

    lease: Lease
    gains: Mapping[str, int]  # GPUs by node
    young: bool  # it has hardly begun
    cost: float  # GPU-seconds that ending it wastes
    lost_s: float  # of these, work per GPU that is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A run that must end, and the service that needs its GPUs."""

    candidate: Candidate
    service: str


_Price = tuple[int, float, int, tuple[str, ...]]  # young ones, GPU-seconds, runs, their uids


def candidate(
    lease: Lease, gains: Mapping[str, int], policy: Policy, now: datetime, *, urgent: bool = True
) -> Candidate:
    """What ending this run gives and costs; if it is not urgent, it gets more time to save."""
    lost_s = _lost_s(lease, policy, now, policy.grace_s if urgent else max(policy.grace_s, policy.early_grace_s))
    wasted_s = lost_s + (lease.save_s if lease.can_save else 0.0) + policy.restart_s
    return Candidate(
        lease=lease,
        gains=gains,
        young=_held_s(lease, now) < policy.min_run_s,
        cost=wasted_s * sum(gains.values()),
        lost_s=lost_s,
    )


def victims(
    waiting: Sequence[Seat],
    room: Mapping[str, int],
    candidates: Iterable[Candidate],
    hosting: Collection[str],
    policy: Policy,
) -> tuple[Victim, ...]:
    """Runs that must end so that as many waiting replicas as possible find a node; none of them could be spared.

    `room` is what is idle or comes free by itself; the largest replicas stand first in `waiting`. Replicas for which
    no set of runs would do cost nobody anything.
    """
    if nodes(waiting, room, (), hosting) is not None:
        return ()
    search = _Search(room, sorted(candidates, key=lambda candidate: candidate.lease.uid), hosting, policy)
    seated = [seat for seat in waiting if search.seat(seat)]
    chosen = search.chosen
    if len(search.useful) <= _FEW:
        chosen = _best_of_all(seated, room, search, chosen)
    chosen = _spared(seated, room, chosen, hosting)
    return _with_services(seated, room, chosen, hosting)


def fewest(candidates: Sequence[Candidate], node: str, gpus: int) -> Sequence[Candidate] | None:
    """The cheapest runs that free so many GPUs of a node; None if there are none."""
    found = _cheapest(candidates, node, gpus, 0.0)
    return None if found is None else found[1]


class _Search:
    """One replica after the other takes the cheapest node, given what the ones before it freed."""

    def __init__(
        self, room: Mapping[str, int], candidates: Sequence[Candidate], hosting: Collection[str], policy: Policy
    ) -> None:
        self._room = dict(room)
        self.hosting = hosting
        self.open_price = policy.open_node_gpu_s
        self.useful = candidates
        self.chosen: list[Candidate] = []
        self._by_node: defaultdict[str, list[Candidate]] = defaultdict(list)
        for one in candidates:
            for node in one.gains:
                self._by_node[node].append(one)
        self._prices: dict[tuple[str, int], tuple[_Price, tuple[Candidate, ...]] | None] = {}

    def seat(self, seat: Seat) -> bool:
        """Finds a node for one replica; False if no set of runs would free one."""
        if seats.seat(self._room, seat.gpus, self.hosting) is not None:
            return True
        offers = [(self._offer(node, seat.gpus), node) for node in self._by_node]
        best = min(((offer[0], node, offer[1]) for offer, node in offers if offer is not None), default=None)
        if best is None:
            return False
        _, node, victims = best
        for victim in victims:
            self._end(victim)
        self._change(node, -seat.gpus)
        return True

    def _offer(self, node: str, gpus: int) -> tuple[_Price, tuple[Candidate, ...]] | None:
        if (node, gpus) not in self._prices:
            opening = 0.0 if node in self.hosting else self.open_price
            deficit = gpus - self._room.get(node, 0)
            self._prices[node, gpus] = _cheapest(self._by_node[node], node, deficit, opening)
        return self._prices[node, gpus]

    def _end(self, victim: Candidate) -> None:
        self.chosen.append(victim)
        for node, gpus in victim.gains.items():
            self._by_node[node].remove(victim)
            self._change(node, gpus)

    def _change(self, node: str, gpus: int) -> None:
        self._room[node] = self._room.get(node, 0) + gpus
        for key in [key for key in self._prices if key[0] == node]:
            del self._prices[key]


def _cheapest(
    candidates: Sequence[Candidate], node: str, deficit: int, opening: float
) -> tuple[_Price, tuple[Candidate, ...]] | None:
    """The cheapest runs that free `deficit` GPUs of a node: a knapsack over GPUs freed."""
    if sum(one.gains[node] for one in candidates) < deficit:
        return None
    best: dict[int, tuple[_Price, tuple[Candidate, ...]]] = {0: ((0, opening, 0, ()), ())}
    for one in candidates:
        for freed, ((young, cost, count, uids), runs) in sorted(best.items(), reverse=True):
            reached = min(freed + one.gains[node], deficit)
            price = (young + one.young, cost + one.cost, count + 1, (*uids, one.lease.uid))
            if reached not in best or price < best[reached][0]:
                best[reached] = (price, (*runs, one))
    return best.get(deficit)


def _best_of_all(
    seated: Sequence[Seat], room: Mapping[str, int], search: _Search, chosen: list[Candidate]
) -> list[Candidate]:
    best = (_priced(seated, room, chosen, search), chosen)
    for size in range(len(search.useful) + 1):
        for runs in combinations(search.useful, size):
            price = _priced(seated, room, runs, search)
            if price is not None and (best[0] is None or price < best[0]):
                best = (price, list(runs))
    return best[1]


def _priced(
    seated: Sequence[Seat], room: Mapping[str, int], runs: Sequence[Candidate], search: _Search
) -> _Price | None:
    seats_of = nodes(seated, room, runs, search.hosting)
    if seats_of is None:
        return None
    opened = {node for node in seats_of if node not in search.hosting}
    return _price(runs, search.open_price * len(opened))


def _spared(
    seated: Sequence[Seat], room: Mapping[str, int], chosen: Sequence[Candidate], hosting: Collection[str]
) -> list[Candidate]:
    """Without every run that turned out not to be needed, the dearest first."""
    kept = list(chosen)
    for one in sorted(chosen, key=lambda one: (one.young, one.cost, one.lease.uid), reverse=True):
        without = [other for other in kept if other is not one]
        if nodes(seated, room, without, hosting) is not None:
            kept = without
    return kept


def _with_services(
    seated: Sequence[Seat], room: Mapping[str, int], chosen: Sequence[Candidate], hosting: Collection[str]
) -> tuple[Victim, ...]:
    seats_of = nodes(seated, room, chosen, hosting) or []
    service_by_node = {node: seat.service for seat, node in reversed(list(zip(seated, seats_of, strict=False)))}
    found = []
    for one in sorted(chosen, key=lambda one: one.lease.uid):
        services = [service_by_node[node] for node in sorted(one.gains) if node in service_by_node]
        found.append(Victim(candidate=one, service=services[0] if services else seated[0].service))
    return tuple(found)


def nodes(
    seated: Sequence[Seat], room: Mapping[str, int], runs: Iterable[Candidate], hosting: Collection[str]
) -> list[str] | None:
    """Where each replica goes once these runs have ended; None if one finds no node.

    Taking the largest first misses no way as long as the sizes divide one another (1, 2, 4, 8).
    """
    free = Counter(room)
    for one in runs:
        free.update(one.gains)
    found = []
    for seat in seated:
        node = seats.seat(free, seat.gpus, hosting)
        if node is None:
            return None
        found.append(node)
    return found


def _price(runs: Sequence[Candidate], opening: float) -> _Price:
    return (
        sum(one.young for one in runs),
        sum(one.cost for one in runs) + opening,
        len(runs),
        tuple(sorted(one.lease.uid for one in runs)),
    )


def _lost_s(lease: Lease, policy: Policy, now: datetime, grace_s: float) -> float:
    """Seconds of work of each GPU that would be lost."""
    if lease.can_save and lease.save_s <= grace_s:
        return 0.0
    held_s = _held_s(lease, now)
    if lease.saved_at is not None:
        return min(max((now - lease.saved_at).total_seconds(), 0.0), held_s)
    if not lease.every_s:
        return held_s
    # Nobody knows how long it took to begin: a run just past a checkpoint may as well be just before it.
    starts_s = (policy.restart_s / 2, policy.restart_s, policy.restart_s * 2)
    return sum(max(held_s - start_s, 0.0) % lease.every_s for start_s in starts_s) / len(starts_s)


def _held_s(lease: Lease, now: datetime) -> float:
    return max((now - lease.since).total_seconds(), 0.0)
