"""Memory of both processes, with 200 jobs and a service: `python -m tests.bench.memory` prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from bot.playground import people
from bot.playground.server import Playground
from scheduler.jobs.mail import Person, Submit
from scheduler.store.mailbox import Mailbox
from scheduler.store.migrations import migrate
from scheduler.wiring import clock
from tests.chaos import PROGRAMS, ROOT, SETTINGS

JOBS = 200
SETTLE_S = 12.0
JOB = 'gpujob: 1\nname: job-{number}\ngpus: 1\ncommand: [sleep, "600"]\n'


async def measured() -> Sequence[Mapping[str, object]]:
    """Resident memory after both have done work for a while."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with Playground(port=0, speed=100.0) as slack:
            config = folder / "gpujob.toml"
            (folder / "load.txt").write_text("2")
            config.write_text(
                SETTINGS.format(
                    channel=people.C_GPU,
                    base_url=slack.base_url,
                    replica=ROOT / "demo" / "replica.py",
                    folder=folder,
                    approver=people.U_BO,
                )
            )
            url = f"sqlite:///{folder / 'gpujob.sqlite3'}"
            migrate(url)
            processes = [await _start(program, config, folder) for program in ("gpujob", "gpujob-bot")]
            door = Mailbox(url)
            for number in range(JOBS):
                body = Submit(text=JOB.format(number=number), channel=people.C_GPU)
                door.send(f"key-{number}", Person(id=people.U_ANA), clock(), body)
            await asyncio.sleep(SETTLE_S)
            found = [_row(process, limit) for process, limit in zip(processes, (200, 150), strict=True)]
            jobs = len(door.jobs(limit=1000))
            door.close()
            for process in processes:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.terminate()
                await process.wait()
            for process in psutil.process_iter(["cmdline"]):
                if any(name in word for word in process.info["cmdline"] or ()):
                    process.kill()
    return [{**row, "on": f"{jobs} jobs taken in, {SETTLE_S:g} s"} for row in found]


async def _start(program: str, config: Path, folder: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        str(PROGRAMS / program), "serve", "--config", str(config), stderr=asyncio.subprocess.DEVNULL, cwd=folder
    )


def _row(process: asyncio.subprocess.Process, limit: int) -> Mapping[str, object]:
    resident = psutil.Process(process.pid).memory_info().rss / 2**20
    name = "scheduler" if limit == 200 else "bot"
    return {"name": f"memory: {name}", "mib": round(resident, 1), "limit_mib": limit}


def rows() -> Sequence[Mapping[str, object]]:
    """Both processes."""
    return asyncio.run(measured())


if __name__ == "__main__":
    print(json.dumps(rows(), indent=2), file=sys.stdout)
