"""Seconds to minutes ahead: how probably services ask for more replicas before GPUs could be handed back for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Soon:
    """One replica that is probably wanted within the lead time: GPUs on one node should be free for it by then."""

    service: str  # the one that most probably asks; the seat serves whoever comes first
    gpus: int
    chance: float  # that it is asked for within the lead time
    why: str
