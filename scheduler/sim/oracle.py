"""What perfect foresight over divisible jobs could harvest: the measure of every policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RESTART_S = 150.0
SAVE_S = 52.0


def harvestable_slot_s(
    wanted: NDArray[np.int64] | Sequence[int],
    slots: int,
    step_s: float,
    *,
    lost_s: tuple[float, float] = (RESTART_S, SAVE_S),
) -> float:
    """Slot-seconds of idle stretches, each less the price of starting and of stopping in it.

    For each level k the stretches in which wanted <= slots - k count max(0, length - restart - save); no price to start
    if idle from the first second, none to save if idle to the last (harvest.md 2: equals the linear program).
    """
    restart_s, save_s = lost_s
    series = np.asarray(wanted)
    total = 0.0
    for level in range(1, slots + 1):
        idle = np.concatenate(([0], (series <= slots - level).astype(np.int8), [0]))
        edges = np.diff(idle)
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        lengths = (ends - starts) * step_s
        price = np.where(starts == 0, 0.0, restart_s) + np.where(ends == len(series), 0.0, save_s)
        total += float(np.maximum(lengths - price, 0.0).sum())
    return total
