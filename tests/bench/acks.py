"""Forty commands at once while every call of the mailbox takes half a second: seconds until each ack, as JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bot.app import running
from bot.playground.server import Playground
from scheduler.store.mailbox import Mailbox
from scheduler.store.migrations import migrate
from tests.bot.answering import now
from tests.bot.conftest import settings


async def measure(commands: int, call_s: float, folder: Path) -> dict[str, float]:
    """Seconds until the ack: median, 99th percentile, slowest; and how many were acknowledged at all."""
    url = f"sqlite:///{folder / 'gpujob.sqlite3'}"
    migrate(url)
    mailbox = Mailbox(url, on_call=lambda name: time.sleep(call_s))
    async with Playground(port=0) as slack, running(settings(slack, url), mailbox, now):
        results = await asyncio.gather(*(slack.command("U0ANA", "C0GPU", f"status {n}") for n in range(commands)))
    mailbox.close()
    acked = sorted(result.acked_s for result in results if result.acked_s is not None)
    return {
        "commands": commands,
        "mailbox_call_s": call_s,
        "acked": len(acked),
        "p50_s": _share(acked, 0.50),
        "p99_s": _share(acked, 0.99),
        "max_s": round(acked[-1], 4),
    }


def _share(ordered: Sequence[float], share: float) -> float:
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=40)
    parser.add_argument("--call-s", type=float, default=0.5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = asyncio.run(measure(arguments.commands, arguments.call_s, Path(folder)))
    sys.stdout.write(json.dumps(measured) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
