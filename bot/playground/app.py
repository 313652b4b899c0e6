"""gpujob-playground: a local Slack to run the bot on."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from bot.playground import people
from bot.playground.server import Playground

PORT = 8321


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(
        prog="gpujob-playground", description="A local Slack with a web page; the bot runs on it unchanged."
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"port on 127.0.0.1; 0 takes a free one ({PORT})")
    parser.add_argument(
        "--transcript", type=Path, metavar="FILE", help="keep every notice that arrives in FILE, as JSON"
    )
    parser.add_argument("--speed", type=float, default=1.0, help="how fast Slack's rate limits pass (1)")
    options = parser.parse_args()
    try:
        asyncio.run(serve(options.port, options.transcript, options.speed))
    except OSError as error:
        print(f"Port {options.port} cannot be used: {error.strerror}. Try --port 0.", file=sys.stderr)
        raise SystemExit(3) from error


async def serve(port: int, transcript: Path | None, speed: float) -> None:
    """Say where it is, and stay."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Playground(port, speed=speed, transcript=transcript) as slack:
        print(f"The local Slack is at {slack.url}", flush=True)
        print(f"Bot: base_url {slack.base_url} bot_token {people.BOT_TOKEN} app_token {people.APP_TOKEN}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    main()
