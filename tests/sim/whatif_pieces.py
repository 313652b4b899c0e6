"""Pieces of a history, written down by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.adapters.vllm.history import Piece
from scheduler.adapters.vllm.prometheus_api import Line
from scheduler.policy import Policy
from scheduler.sim.whatif_observed import Observations, Observed
from scheduler.sim.whatif_services import Directory, KnownService

T0 = 1_772_409_600.0  # Monday 2026-03-02 00:00 UTC
STEP = 60.0
SEQS = 10  # with a fill ratio of 0.8, 8 requests are one replica of load
CHAT = KnownService(
    name="chat",
    namespace="llm",
    workload="chat",
    gpus_per_replica=4,
    max_num_seqs=SEQS,
    min_replicas=1,
    max_replicas=6,
    managed=False,
)


def pod(name: str = "chat-6d4f9c8b7d-x2k4p", **more: str) -> dict[str, str]:
    return {"namespace": "llm", "pod": name, "job": "llm/vllm", "instance": "10.0.0.1:8000", **more}


def line(labels: Mapping[str, str], values: Sequence[float | None], first: int = 0) -> Line:
    """A value a point from T0 on; None: no sample."""
    pairs = ((T0 + (first + i) * STEP, value) for i, value in enumerate(values))
    return Line(labels=labels, values=tuple((at, value) for at, value in pairs if value is not None))


def piece(lines: Mapping[str, Sequence[Line]], points: int, first: int = 0, expected: float = 1.0) -> Piece:
    end = T0 + (first + points - 1) * STEP
    return Piece(start=T0 + first * STEP, end=end, lines=lines, expected=expected)


def observed(*pieces: Piece, points: int, known: Sequence[KnownService] = (CHAT,)) -> Observed:
    observations = Observations(T0, STEP, points, Directory(known=known), Policy())
    for one in pieces:
        observations.take(one)
    return observations.observed()
