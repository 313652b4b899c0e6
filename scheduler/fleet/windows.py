"""Which GPUs of which node are idle, from when, until when, how sure, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """GPUs of one node that are idle from `since` until `until`. The windows of a node are disjoint sets of GPUs."""

    node: str
    gpus: int
    since: datetime
    until: datetime
    confidence: float  # 0 to 1: how sure it lasts until then
    why: str
