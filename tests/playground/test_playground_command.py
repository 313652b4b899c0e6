from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

from slack_sdk.web.async_client import AsyncWebClient

from bot.playground import BOT_TOKEN, C_GPU

NOTICE = {"event_type": "gpujob_notice", "event_payload": {"id": 1, "job": "job-1", "kind": "completed"}}


async def run(*arguments: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "bot.playground.app", *arguments]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)


async def test_it_says_where_it_is_keeps_the_story_and_ends_when_told(tmp_path: Path):
    file = tmp_path / "transcript.json"
    process = await run("--port", "0", "--transcript", str(file))
    assert process.stdout is not None
    first = (await process.stdout.readline()).decode()
    url = re.search(r"http://127\.0\.0\.1:\d+", first)
    assert url, first
    await AsyncWebClient(token=BOT_TOKEN, base_url=f"{url.group()}/api/").chat_postMessage(
        channel=C_GPU, text="done", metadata=NOTICE
    )
    process.terminate()
    _, errors = await process.communicate()

    assert (process.returncode, errors) == (0, b"")
    assert [event["kind"] for event in json.loads(file.read_text())["events"]] == ["completed"]


async def test_a_taken_port_is_named_with_a_way_out():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    process = await run("--port", str(port))
    _, errors = await process.communicate()
    server.close()

    assert process.returncode == 3
    assert f"Port {port} cannot be used" in errors.decode()
    assert "--port 0" in errors.decode()
