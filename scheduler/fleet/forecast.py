"""Seconds to minutes ahead: how probably services ask for more replicas before GPUs could be handed back for them."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.fleet.load_model import GRID_S, Floats, LoadModel, grid
from scheduler.fleet.services import Mode, Service
from scheduler.policy import Policy

_MOST = 4  # replicas that one service is thought to ask for at once
_SYNC = 3  # steps until an autoscaler looks again: 30 s
_EDGES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.7, 0.85)  # of chances alike
_FADES = 1 - 1 / 500  # of what became of them, each time
_BELIEF = 10.0  # times that a chance is believed before anything became of it
_GAP = 30  # grid steps without a turn; a longer one is not filled up


@dataclass(frozen=True, slots=True, kw_only=True)
class Soon:
    """One replica that is probably wanted within the lead time: GPUs on one node should be free for it by then."""

    service: str  # the one that most probably asks; the seat serves whoever comes first
    gpus: int
    chance: float  # that it is asked for within the lead time
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What is said of the lead time that begins now."""

    lead_s: float
    chances: tuple[float, ...]  # [k - 1]: at least k more replicas, over all services
    by_service: tuple[float, ...]  # at least one more, in the order of the services
    days: float  # of history


class Forecaster:
    """Learns turn by turn from what services load and want, and says which places to keep free.

    An autoscaler asks for a replica once a service's load is above `1 + tolerance` replicas' worth for each that it has
    (Kubernetes' HPA: 0.1), and for as many as the load would fill. So the chance of k more is that of the load being so
    high when the lead time is over; chances of services are put together as independent ones.

    A place is kept once its chance is above a threshold, and let go once it fell well below. The threshold follows what
    was seen: it is so low that of the replicas asked for in the last days all but `soon_misses` would have found one.
    """

    def __init__(self, services: Sequence[Service], policy: Policy) -> None:
        self._services = tuple(services)
        self._policy = policy
        self._steps = max(round(policy.lead_s / GRID_S), 1)
        self._model = LoadModel(len(self._services), self._steps)
        self._most = np.array([service.max_replicas for service in self._services])
        # We ask for a replica ourselves as soon as the load needs one; other autoscalers tolerate a little more.
        self._edges = np.array(
            [1.0 if one.mode is Mode.MANAGE else 1 + policy.autoscaler_tolerance for one in self._services]
        )
        self._step: int | None = None
        self._wanted: tuple[int, ...] = ()
        self._loads: Floats = np.zeros(len(self._services))
        self._by_service = np.zeros((len(self._services), _MOST))
        self._chances: Floats = np.zeros(sum(min(service.max_replicas, _MOST) for service in self._services))
        self._hold = max(round(policy.soon_hold_s / GRID_S), 1)
        self._kept: list[tuple[Soon, int]] = []  # with the last step at which its chance was above the threshold
        self._recent: deque[Floats] = deque(maxlen=self._steps + self._hold)
        self._scores: deque[tuple[int, float]] = deque(maxlen=1000)  # of replicas that were asked for, and when
        self._threshold = policy.soon_chance
        self._record = _Record(self._steps + _SYNC)

    def learn(self, at_s: float, loads: Sequence[float | None], wanted: Sequence[int]) -> None:
        """What services load (in replicas at their target; None: not known) and want now; times may be irregular."""
        step = int(at_s // GRID_S)
        if self._step is not None and step <= self._step:
            return
        missed = 0 if self._step is None else min(step - self._step - 1, _GAP)
        for _ in range(missed):
            self._model.learn(self._loads)
        self._step = step
        self._loads = grid(loads)
        self._model.learn(self._loads)
        rises = self._asked(wanted)
        self._wanted = tuple(wanted)
        self._look_ahead()
        if len(self._chances):
            self._record.said(step, float(self._chances[0]), rises)
        self._keep()

    def ahead(self) -> Ahead:
        """The chances of this moment, as often as such chances came true."""
        first = self._record.as_often(float(self._chances[0])) if len(self._chances) else 0.0
        return Ahead(
            lead_s=self._steps * GRID_S,
            chances=tuple(first if k == 0 else min(float(chance), first) for k, chance in enumerate(self._chances)),
            by_service=tuple(float(chance) for chance in self._by_service[:, 0]),
            days=self._model.days,
        )

    def soon(self) -> tuple[Soon, ...]:
        """The places to keep free; the same values as long as nothing changes."""
        return tuple(place for place, _ in self._kept)

    def _asked(self, wanted: Sequence[int]) -> int:
        """Replicas that were asked for since the last step: their places are used, and it is seen what was said."""
        assert self._step is not None
        rises = [max(now - before, 0) for now, before in zip(wanted, self._wanted, strict=False)]
        for number in range(sum(rises)):
            if self._recent:
                said = max(float(chances[min(number, len(chances) - 1)]) for chances in self._before())
                self._scores.append((self._step, said))
        for service, rise in zip(self._services, rises, strict=False):
            for _ in range(rise):
                used = next((kept for kept in self._kept if kept[0].service == service.name), None)
                if used is None and self._kept:
                    used = self._kept[0]
                if used is not None:
                    self._kept.remove(used)
        if any(rises):
            self._threshold = self._followed()
        return sum(rises)

    def _before(self) -> list[Floats]:
        """What was said early enough, and would still have been kept."""
        return list(self._recent)[: max(len(self._recent) - self._steps + 1, 1)]

    def _followed(self) -> float:
        assert self._step is not None
        policy = self._policy
        oldest = self._step - 3 * 86_400 / GRID_S
        while self._scores and self._scores[0][0] < oldest:
            self._scores.popleft()
        if len(self._scores) < 1 / policy.soon_misses:
            return policy.soon_chance
        scores = sorted(score for _, score in self._scores)
        found = scores[int(len(scores) * policy.soon_misses)]
        return min(max(found, policy.soon_chance / 20), policy.soon_chance * 4)

    def _look_ahead(self) -> None:
        wanted = np.array(self._wanted)[:, None]
        more = np.arange(1, _MOST + 1)[None, :]
        # One more is asked for above the tolerance; k more once the load fills more than k - 1 of them.
        thresholds = np.maximum(wanted * self._edges[:, None], wanted + more - 1)
        chances = self._model.chance_above(thresholds)
        chances[wanted + more > self._most[:, None]] = 0.0
        unknown = ~np.isfinite(self._model.guess)
        chances[unknown] = self._by_service[unknown]  # what was said last still stands
        self._by_service = chances
        self._chances = _together(chances, len(self._chances))
        self._recent.append(self._chances)

    def _keep(self) -> None:
        assert self._step is not None
        threshold, low = self._threshold, self._threshold * self._policy.soon_release
        kept: list[tuple[Soon, int]] = []
        for number, (place, last) in enumerate(self._kept):
            chance = self._chances[number] if number < len(self._chances) else 0.0
            if chance > threshold:
                kept.append((place, self._step))
            elif chance > low or self._step - last < self._hold:
                kept.append((place, last))
            else:
                break
        while len(kept) < len(self._chances) and self._chances[len(kept)] > threshold:
            kept.append((self._place(kept), self._step))
        self._kept = kept

    def _place(self, kept: Sequence[tuple[Soon, int]]) -> Soon:
        """For whoever most probably asks for one more than is kept for it already."""
        names = [place.service for place, _ in kept]
        held = [min(names.count(service.name), _MOST - 1) for service in self._services]
        chances = [float(self._by_service[row, count]) for row, count in enumerate(held)]
        row = max(range(len(chances)), key=lambda row: (chances[row], -row))
        service, wanted = self._services[row], self._wanted[row]
        edge = wanted * self._edges[row]
        chance = float(self._chances[len(kept)])
        why = (
            f"{service.name} carries {self._loads[row]:.2f} of {edge:.2f} replicas' load; {chance:.0%} that a service "
            f"asks for {'a replica' if not kept else f'{len(kept) + 1} replicas'} within {self._steps * GRID_S:.0f} s"
        )
        return Soon(service=service.name, gpus=service.gpus_per_replica, chance=chance, why=why)


class _Record:
    """How often chances came true: that a replica is asked for within the lead time and one look of the autoscaler."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._rises = 0  # in all
        self._open: deque[tuple[int, int, int]] = deque()  # step, bin, rises by then
        self._seen = [0.0] * len(_EDGES)
        self._true = [0.0] * len(_EDGES)

    def said(self, step: int, chance: float, rises: int) -> None:
        """What is said now, and the replicas asked for since the last time."""
        self._rises += rises
        while self._open and step - self._open[0][0] >= self._steps:
            _, number, before = self._open.popleft()
            self._seen[number] = self._seen[number] * _FADES + 1
            self._true[number] = self._true[number] * _FADES + (self._rises > before)
        self._open.append((step, bisect_right(_EDGES, chance) - 1, self._rises))

    def as_often(self, chance: float) -> float:
        """The chance, corrected by what became of those like it."""
        number = bisect_right(_EDGES, chance) - 1
        return (self._true[number] + _BELIEF * chance) / (self._seen[number] + _BELIEF)


def _together(chances: Floats, most: int) -> Floats:
    """[k - 1]: at least k over all services, from at least 1, 2, .. of each, as if they knew nothing of one another."""
    exact = np.zeros(most + 1)
    exact[0] = 1.0
    for row in chances:
        if row[0] <= 0.0:
            continue
        one = np.concatenate(([1 - row[0]], row - np.append(row[1:], 0.0)))
        both = np.convolve(exact, one)
        both[most] += both[most + 1 :].sum()
        exact = both[: most + 1]
    chances_of_k: Floats = np.maximum(1 - exact.cumsum()[:-1], 0.0)
    return chances_of_k
