"""The services whose GPUs are lent: what the operator says of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """Who scales the service."""

    OBSERVE = "observe"  # another autoscaler; we see what it asks for
    MANAGE = "manage"  # we do


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A vLLM deployment."""

    name: str
    gpus_per_replica: int
    max_num_seqs: int  # vLLM's own setting; it is in none of its metrics
    min_replicas: int = 1
    max_replicas: int = 1
    mode: Mode = Mode.OBSERVE
    moves: bool = False  # a replica may be moved: a new one starts on another node, then the old one leaves
