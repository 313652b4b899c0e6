"""A history from files: answers of Prometheus' query_range as they came, or a table of load and wanted replicas."""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from scheduler.adapters.vllm.history import COUNTERS, GAUGES, UP, Piece
from scheduler.adapters.vllm.names import PREFIXES
from scheduler.adapters.vllm.prometheus_api import Line
from scheduler.errors import BadInput, NoAnswer
from scheduler.sim.whatif_demand import TICK_S, Demand, Replicas, Wanting, autoscaled, between
from scheduler.sim.whatif_observed import Row
from scheduler.sim.whatif_services import KnownService

LARGEST_FILE = 100_000_000  # bytes; it is read whole
_DAY_S = 86_400.0
_LOAD, _WANTED = ":load", ":wanted"
_HOW = (
    "Write the answer of /api/v1/query_range for one metric by its own name, such as vllm:num_requests_running, "
    "to each file"
)


@dataclass(frozen=True, slots=True)
class Strand:
    """One series of a file."""

    labels: Mapping[str, str]
    values: Row  # (points, 2): unix time, value


def is_table(path: Path) -> bool:
    """Whether the file is a table (CSV) rather than an answer of Prometheus (JSON)."""
    return path.name.removesuffix(".gz").endswith(".csv")


def answers(paths: Sequence[Path]) -> Mapping[str, list[Strand]]:
    """What all files hold, by the name of the metric without prefix; counters as rates; other metrics are left out.

    Raises:
        BadInput: a file cannot be read, or is no answer of query_range.
        NoAnswer: there is no series of vLLM in them.
    """
    strands: dict[str, list[Strand]] = defaultdict(list)
    met: set[str] = set()
    for path in paths:
        for result in _results(path):
            name = str(result["metric"].get("__name__", ""))
            met.add(name)
            bare = name if name == UP else next((name.removeprefix(p) for p in PREFIXES if name.startswith(p)), "")
            if bare in (UP, *GAUGES, *COUNTERS):
                values = _values(result, path)
                if bare in COUNTERS:
                    values = _rates(values)
                elif bare == UP:
                    values[:, 1] = 1.0  # a scrape that failed is a sample too: the replica was there
                strands[bare].append(Strand(result["metric"], values))
    if not any(len(strand.values) for strand in strands[GAUGES[0]]):
        named = ", ".join(sorted(met - {""})[:5]) or "series without a name"
        raise NoAnswer(f"No series of vllm:{GAUGES[0]} in {paths[0]}: it has {named}. {_HOW}.")
    return strands


def span(strands: Mapping[str, Sequence[Strand]]) -> tuple[float, float, float]:
    """First and last time, in unix time, and the step of what was read."""
    times = [strand.values[:, 0] for strand in strands[GAUGES[0]] if len(strand.values)]
    gaps = [float(np.diff(at).min()) for at in times if len(at) > 1]
    return min(float(at[0]) for at in times), max(float(at[-1]) for at in times), min(gaps, default=60.0)


def pieces(strands: Mapping[str, Sequence[Strand]], start: float, end: float, step: float) -> Iterator[Piece]:
    """All of it, a day at a time."""
    points = max(1, int(_DAY_S / step))
    for first in np.arange(start, end + step / 2, points * step).tolist():
        last = min(first + (points - 1) * step, end)
        yield Piece(
            start=first,
            end=last,
            lines={name: list(_between(of, first - step / 2, last + step / 2)) for name, of in strands.items()},
        )


def table(path: Path, start: float, known: Sequence[KnownService], default_gpus: int) -> Demand:
    """A table of the benchmark's form: `t_s`, NAME:load and NAME:wanted; without the latter an autoscaler is played.

    Raises:
        BadInput: the file cannot be read, or is no such table.
    """
    head, values = _numbers(path)
    times = values[:, 0]
    step = float(np.median(np.diff(times)))
    if step < TICK_S or step % TICK_S or not np.allclose(np.diff(times), step):
        raise BadInput(f"{path}: t_s must grow evenly, by a multiple of {TICK_S} s; its usual step is {step:g} s")
    each = int(step // TICK_S)
    by_name = {one.name: one for one in known}
    names = [name.removesuffix(_LOAD) for name in head if name.endswith(_LOAD)]
    services = []
    for name in names:
        service = by_name.get(name, KnownService(name=name))
        load = values[:, head.index(name + _LOAD)]
        wants = values[:, head.index(name + _WANTED)] if name + _WANTED in head else None
        services.append(_of_table(service, load, wants, each, default_gpus))
    return Demand(
        start=start + float(times[0]),
        services=tuple(services),
        blind=np.zeros(len(times) * each, dtype=bool),
        source=str(path),
        step_s=step,
    )


def _of_table(service: KnownService, load: Row, wants: Row | None, each: int, default_gpus: int) -> Wanting:
    ticks = np.repeat(load, each) if wants is not None else between(load, each)
    most = service.max_replicas or max(math.ceil(load.max()), 1)
    least = 1 if service.min_replicas is None else service.min_replicas
    wanted = autoscaled(ticks, least, most) if wants is None else np.repeat(wants, each).astype(np.int64)
    return Wanting(
        name=service.name,
        gpus_per_replica=service.gpus_per_replica or default_gpus,
        min_replicas=min(least, int(wanted.min())),
        max_replicas=max(service.max_replicas or 1, int(wanted.max())),
        max_num_seqs=service.max_num_seqs or 0,
        replicas=Replicas.NEEDED if wants is None else Replicas.THERE,
        load=ticks,
        wanted=wanted,
        missing=np.zeros(len(wanted), dtype=bool),
        there_mean=float(wanted.mean()),
    )


def _numbers(path: Path) -> tuple[list[str], Row]:
    try:
        with _opened(path) as file:
            head = next(csv.reader(file), [])
            values = np.loadtxt(file, delimiter=",", ndmin=2)
    except (OSError, EOFError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise BadInput(f"{path} is no table of numbers: {error}") from error
    if head[:1] != ["t_s"] or not any(name.endswith(_LOAD) for name in head):
        raise BadInput(
            f"{path}: its first line must be t_s, NAME:load, .. and NAME:wanted, ..; it is {','.join(head)[:80]}"
        )
    if len(values) < 2 or values.shape[1] != len(head) or not np.isfinite(values).all():
        raise BadInput(f"{path}: each line must have {len(head)} numbers, and there must be two lines or more")
    return head, values


def _opened(path: Path) -> IO[str]:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _results(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise BadInput(f"{path} has more than {LARGEST_FILE:,} bytes; write a file for each day and metric")
        with _opened(path) as file:
            body = json.loads(file.read())
    except (OSError, EOFError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise BadInput(f"{path} is no JSON: {error}. {_HOW}.") from error
    try:
        body = body.get("body", body)  # an answer that was kept with its question
        results = body["data"]["result"]
        for result in results:
            result["metric"].get("__name__")
            result["values"][:1]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is no answer of query_range. {_HOW}.") from error
    yield from results


def _values(result: Mapping[str, Any], path: Path) -> Row:
    try:
        return np.array([(float(at), float(value)) for at, value in result["values"]]).reshape(-1, 2)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path}: the values of {result['metric']} are no pairs of a time and a number") from error


def _rates(values: Row) -> Row:
    """Growth a second since the value before. A counter that fell began anew at 0."""
    grown = np.diff(values[:, 1])
    grown = np.where(grown < 0, values[1:, 1], grown)
    return np.column_stack((values[1:, 0], grown / np.diff(values[:, 0])))


def _between(strands: Iterable[Strand], start: float, end: float) -> Iterator[Line]:
    for strand in strands:
        first, last = np.searchsorted(strand.values[:, 0], (start, end))
        if last > first:
            yield Line(labels=strand.labels, values=tuple(map(tuple, strand.values[first:last].tolist())))
