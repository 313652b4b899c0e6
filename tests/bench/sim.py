"""A week of the benchmark: seconds and memory, in a process of its own; `python -m tests.bench.sim` prints JSON."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from scheduler.sim.run import run
from scheduler.sim.scenario import read

SCENARIO = Path(__file__).parents[2] / "examples" / "harvest" / "base-itp.toml"


def row() -> dict[str, object]:
    """One week in this process."""
    began = perf_counter()
    figures = run(read(SCENARIO))
    return {
        "scenario": SCENARIO.stem,
        "turns": figures["turns"],
        "plans": figures["plans"],
        "seconds": round(perf_counter() - began, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def rows() -> list[dict[str, object]]:
    """The week, measured apart: memory is that of a whole process."""
    done = subprocess.run([sys.executable, "-m", "tests.bench.sim"], capture_output=True, text=True, check=True)
    return [dict(json.loads(done.stdout))]


if __name__ == "__main__":
    print(json.dumps(row()))
