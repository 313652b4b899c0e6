"""Which runs go elsewhere so that GPUs that lie scattered serve a task that needs them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from scheduler.planning import reclaim
from scheduler.planning.reclaim import Candidate
from scheduler.planning.snapshot import WaitingTask
from scheduler.policy import Policy

_LOOKED_AT = 4  # waiting tasks of different size, in the order of the queue


def gather(
    candidates: Iterable[Candidate],
    waiting: Iterable[WaitingTask],
    left: Mapping[str, int],
    policy: Policy,
    now: datetime,
) -> tuple[Sequence[Candidate], WaitingTask] | None:
    """Runs of one node that fit on what is left of others, and the task that then finds its last node.

    `waiting` are tasks that found no GPUs, in the order of the queue; `left` are GPUs that nobody gets in this turn.
    The GPUs gained must soon make up for what the runs lose and for their new start.
    """
    settled = now - timedelta(seconds=policy.move_after_s)
    by_node: dict[str, list[Candidate]] = {}
    for one in candidates:
        if len(one.gains) == 1 and one.lease.since <= settled:
            by_node.setdefault(next(iter(one.gains)), []).append(one)
    asked: set[tuple[int, int]] = set()
    for task in waiting:
        gpus = task.gpus[-1]
        if (gpus, task.nodes) in asked or len(asked) >= _LOOKED_AT:
            continue
        asked.add((gpus, task.nodes))
        if sum(free >= gpus for free in left.values()) != task.nodes - 1:
            continue
        found = _cheapest(by_node, gpus, left, policy)
        if found is not None:
            return found, task
    return None


def _cheapest(
    by_node: Mapping[str, Sequence[Candidate]], gpus: int, left: Mapping[str, int], policy: Policy
) -> Sequence[Candidate] | None:
    best: tuple[float, str, Sequence[Candidate]] | None = None
    scattered = sum(free for free in left.values() if free < gpus)
    for node, runs in sorted(by_node.items()):
        free = left.get(node, 0)
        if free >= gpus or scattered < gpus:
            continue
        chosen = reclaim.fewest(runs, node, gpus - free)
        if chosen is None or not _fit_elsewhere(chosen, node, gpus, left):
            continue
        cost = sum(one.cost for one in chosen)
        if cost <= gpus * policy.gather_s and (best is None or (cost, node) < best[:2]):
            best = (cost, node, chosen)
    return None if best is None else best[2]


def _fit_elsewhere(runs: Sequence[Candidate], node: str, gpus: int, left: Mapping[str, int]) -> bool:
    """On nodes that the task does not take: the largest first, each in the tightest gap."""
    rest = {name: free for name, free in left.items() if name != node and free < gpus}
    for need in sorted((sum(one.gains.values()) for one in runs), reverse=True):
        gap = min(((free, name) for name, free in rest.items() if free >= need), default=None)
        if gap is None:
            return False
        rest[gap[1]] -= need
    return True
