"""The benchmark's files: what services load and want every ten seconds, and the jobs."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scheduler.sim.jobs import SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Per row one instant, per column one service."""

    names: tuple[str, ...]
    t_s: NDArray[np.float64]
    load: NDArray[np.float64]
    wanted: NDArray[np.int64]


def traffic(path: Path) -> Traffic:
    """A demand file."""
    with gzip.open(path, "rt") as file:
        head = file.readline().strip().split(",")
        table = np.loadtxt(file, delimiter=",")
    loads = [number for number, name in enumerate(head) if name.endswith(":load")]
    wants = [number for number, name in enumerate(head) if name.endswith(":wanted")]
    return Traffic(
        names=tuple(head[number].removesuffix(":wanted") for number in wants),
        t_s=table[:, 0],
        load=table[:, loads],
        wanted=table[:, wants].astype(np.int64),
    )


def jobs(path: Path) -> Sequence[SimJob]:
    """A job file."""
    with gzip.open(path, "rt", newline="") as file:
        return [
            SimJob(
                id=int(row["job"]),
                submit_s=float(row["submit_s"]),
                gpus=int(row["gpus"]),
                work_s=float(row["work_s"]),
                checkpoint_s=float(row["checkpoint_s"]) if row["checkpoint_s"] else None,
                restart_s=float(row["restart_s"]),
                save_s=float(row["save_s"]),
                saves_on_sigterm=row["saves_on_sigterm"] == "1",
                estimate_s=float(row["estimate_s"]) if row["estimate_s"] else None,
            )
            for row in csv.DictReader(file)
        ]
