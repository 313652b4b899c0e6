"""One whole turn on SQLite with 1,000 live jobs, the local executor behind it: `python -m tests.bench.turn`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from scheduler.configfile import Loaded
from scheduler.jobs.job import JobId
from scheduler.jobs.mail import Person, Submit
from scheduler.settings import read
from scheduler.store.migrations import migrate
from scheduler.wiring import clock, house, mailbox

JOBS = 1_000
TURNS = 7
JOB = """
gpujob: 1
name: job-{number}
gpus: 1
command: [sleep, "600"]
"""


def rows() -> Sequence[Mapping[str, object]]:
    """Median and slowest of some turns, the first one (which hands everything over) apart."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        data = {
            "database": {"url": f"sqlite:///{folder}/gpujob.sqlite3"},
            "cluster": {"state": f"{folder}/state", "grace_s": 1},
            "node": [{"name": f"node-{n}", "gpus": 8} for n in (1, 2)],
        }
        settings = read(Loaded(Path(folder) / "gpujob.toml", data))
        migrate(settings.database_url)
        parts, door = house(settings), mailbox(settings)
        parts.ground.take()
        for number in range(JOBS):
            door.send(f"key-{number}", Person(id="U_ANA"), clock(), Submit(text=JOB.format(number=number)))
        began = perf_counter()
        while parts.cycle.take_in(clock()):
            continue
        taken = perf_counter() - began
        first = _turn(parts)
        times = [_turn(parts) for _ in range(TURNS)]
        for number in range(1, JOBS + 1):
            parts.outside.executor.cancel(JobId(number), 0.0)
        parts.store.close()
        door.close()
        parts.ground.leave()
    on = f"{JOBS} live jobs, SQLite, local executor, 16 GPUs"
    return [
        {"name": "turn: take in", "seconds": round(taken, 4), "on": f"{JOBS} requests at once"},
        {"name": "turn: first, hands over", "seconds": round(first, 4), "on": on},
        {"name": "turn: whole", "seconds": round(median(times), 4), "slowest": round(max(times), 4), "on": on},
    ]


def _turn(parts) -> float:  # type: ignore[no-untyped-def]
    began = perf_counter()
    parts.cycle.turn(parts.cycle.observe(clock()))
    return perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(rows(), indent=2))
