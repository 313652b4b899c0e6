"""Forty commands at once while every call of the mailbox takes half a second: seconds until each ack."""

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

COMMANDS = 40
CALL_S = 0.5  # of the mailbox
KINDS = {
    "changes": lambda n: f"submit image=train:1 gpus=2 name=sft-{n} -- python t.py",
    "questions": lambda n: f"status {n}",
}


def rows(commands: int = COMMANDS, call_s: float = CALL_S) -> list[dict[str, float | str]]:
    """What is written down first and what only asks, each alone and all together."""
    both = [make(n) for n in range(commands // 2) for make in KINDS.values()]
    typed = {name: [make(n) for n in range(commands)] for name, make in KINDS.items()} | {"both": both}
    found: list[dict[str, float | str]] = []
    for name, texts in typed.items():
        with tempfile.TemporaryDirectory() as folder:
            acked = asyncio.run(measure(texts, call_s, Path(folder)))
        found.append(
            {
                "name": name,
                "commands": len(texts),
                "acked": len(acked),
                "mailbox_call_s": call_s,
                "p50_s": _share(acked, 0.50),
                "p99_s": _share(acked, 0.99),
                "max_s": round(acked[-1], 4),
            }
        )
    return found


async def measure(texts: Sequence[str], call_s: float, folder: Path) -> list[float]:
    """Seconds until each ack that came, ascending."""
    url = f"sqlite:///{folder / 'gpujob.sqlite3'}"
    migrate(url)
    mailbox = Mailbox(url, on_call=lambda name: time.sleep(call_s))
    async with Playground(port=0) as slack, running(settings(slack, url), mailbox, now):
        results = await asyncio.gather(*(slack.command("U0ANA", "C0GPU", text) for text in texts))
    mailbox.close()
    return sorted(result.acked_s for result in results if result.acked_s is not None)


def _share(ordered: Sequence[float], share: float) -> float:
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=COMMANDS)
    parser.add_argument("--call-s", type=float, default=CALL_S)
    arguments = parser.parse_args()
    sys.stdout.write(json.dumps(rows(arguments.commands, arguments.call_s), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
