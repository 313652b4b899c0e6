"""What a simulation is told: the world's constants, its files, its policy (a TOML file, SURFACE 5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from scheduler.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SimService:
    """A service of the demand file."""

    name: str
    gpus_per_replica: int = 4
    max_replicas: int = 8
    min_replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulation; times in seconds."""

    demand: Path
    jobs: Path
    services: tuple[SimService, ...]
    seed: int = 0
    nodes: int = 19
    gpus_per_node: int = 8
    start_s: float = 0.0
    measure_from_s: float = 86_400.0
    end_s: float = 604_800.0
    grace_s: float = 60.0
    drain_s: float = 30.0
    cleanup_s: float = 5.0
    move_s: float = 210.0
    arrivals: str = "saturated"
    visible_jobs: int = 60
    preset: str = "gpujob"
    policy: Policy = field(default_factory=Policy)
