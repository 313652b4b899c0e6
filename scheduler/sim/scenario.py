"""What a simulation is told: the world's constants, its files, its policy (a TOML file)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from scheduler.configfile import checked, nearest
from scheduler.errors import BadInput
from scheduler.knobs import policy
from scheduler.policy import Policy

PRESETS = ("night", "fifo", "kueue", "lyra", "gpujob", "clairvoyant")


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


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Service(_Strict):
    name: str = Field(min_length=1)
    gpus_per_replica: int = Field(default=4, ge=1)
    max_replicas: int = Field(default=8, ge=1)
    min_replicas: int = Field(default=1, ge=0)


class _File(_Strict):
    demand: Path
    jobs: Path
    service: tuple[_Service, ...] = Field(min_length=1)
    seed: int = 0
    nodes: int = Field(default=19, ge=1, le=100_000)
    gpus_per_node: int = Field(default=8, ge=1, le=1024)
    start_s: float = Field(default=0.0, ge=0)
    measure_from_s: float = Field(default=86_400.0, ge=0)
    end_s: float = Field(default=604_800.0, gt=0)
    grace_s: float = Field(default=60.0, ge=0)
    drain_s: float = Field(default=30.0, ge=0)
    cleanup_s: float = Field(default=5.0, ge=0)
    move_s: float = Field(default=210.0, ge=0)
    arrivals: Literal["saturated", "open"] = "saturated"
    visible_jobs: int = Field(default=60, ge=1)
    policy: dict[str, Any] = Field(default_factory=dict)


def read(path: Path, turned: Sequence[str] = ()) -> Scenario:
    """The scenario of a TOML file; `turned` are knobs as `KEY=VALUE` that win over its `[policy]`.

    Raises:
        BadInput: it cannot be read, or one sentence for each fault.
    """
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is no TOML: {error}") from error
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    given = checked(plain, f"{path}:", _File)
    knobs: dict[str, Any] = {"grace_s": given.grace_s, **given.policy, **_turned(turned)}
    preset = knobs.pop("preset", "gpujob")
    faults = list(_faults(path, given))
    if preset not in PRESETS:
        faults.append(f"[policy] preset = {preset!r} is no preset{nearest(str(preset), set(PRESETS))}")
    try:
        chosen = policy(knobs)
    except BadInput as error:
        raise BadInput(*faults, *error.faults) from error
    if faults:
        raise BadInput(*faults)
    plain_fields = given.model_dump(exclude={"demand", "jobs", "service", "policy"})
    return Scenario(
        demand=path.parent / given.demand,
        jobs=path.parent / given.jobs,
        services=tuple(SimService(**one.model_dump()) for one in given.service),
        preset=preset,
        policy=chosen,
        **plain_fields,
    )


def _turned(words: Sequence[str]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise BadInput(f"--policy {word}: write KEY=VALUE, such as reserve_slots=1")
        try:
            found[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[key.strip()] = text.strip()
    return found


def _faults(path: Path, given: _File) -> Sequence[str]:
    names = [one.name for one in given.service]
    checks = (
        (len(set(names)) < len(names), "two [[service]] have the same name"),
        (given.end_s <= given.start_s, f"end_s = {given.end_s:g} must be after start_s = {given.start_s:g}"),
        (
            not given.start_s <= given.measure_from_s < given.end_s,
            f"measure_from_s = {given.measure_from_s:g} must lie between start_s = {given.start_s:g} and "
            f"end_s = {given.end_s:g}",
        ),
        (
            any(one.gpus_per_replica > given.gpus_per_node for one in given.service),
            f"a replica takes GPUs of one node: gpus_per_replica may be {given.gpus_per_node} (gpus_per_node) at most",
        ),
        (
            sum(one.gpus_per_replica * one.max_replicas for one in given.service) > given.nodes * given.gpus_per_node,
            f"all services together may want more GPUs than there are ({given.nodes} nodes of {given.gpus_per_node})",
        ),
    )
    return [f"{path}: {sentence}" for wrong, sentence in checks if wrong]
