"""The bot in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from bot.playground.server import Playground

ROOT = Path(__file__).parents[2]


class Process:
    """The bot as it is started in production."""

    def __init__(self, slack: Playground, url: str, folder: Path, *options: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GPUJOB")}
        given = {
            "GPUJOB__SLACK__BOT_TOKEN": slack.bot_token,
            "GPUJOB__SLACK__APP_TOKEN": slack.app_token,
            "GPUJOB__SLACK__BASE_URL": slack.base_url,
            "GPUJOB__SLACK__CHANNEL": "C0GPU",
            "GPUJOB__SLACK__POSTS_PER_SECOND": "50",
            "GPUJOB__DATABASE__URL": url,
            "PYTHONPATH": str(ROOT),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bot.app", "serve", *options],
            cwd=folder,
            env=inherited | given,
            stderr=subprocess.PIPE,
        )

    async def end(self, how: signal.Signals) -> tuple[int, str]:
        """The exit code, and the log."""
        self.process.send_signal(how)
        _, log = await asyncio.wait_for(asyncio.to_thread(self.process.communicate), 15)
        return self.process.returncode, log.decode()
