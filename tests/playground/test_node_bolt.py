"""The official Node Bolt on the playground: a client that nobody here wrote."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.playground import C_GPU, U_ANA, U_BO, Playground

NODE = Path(__file__).parent / "node"
INSTALL_S = 300

pytestmark = [
    pytest.mark.node_bolt,
    pytest.mark.timeout(INSTALL_S + 60),
    pytest.mark.skipif(
        not (shutil.which("node") and shutil.which("npm")),
        reason="Node is missing: install Node 20 or newer with npm, then run make node-bolt.",
    ),
]


@pytest.fixture(scope="module")
def installed() -> Path:
    command = ["npm", "ci", "--no-audit", "--no-fund", "--silent"]
    if not (NODE / "node_modules" / "@slack" / "bolt").exists():
        subprocess.run(command, cwd=NODE, check=True, timeout=INSTALL_S)
    return NODE / "app.js"


@pytest.fixture
async def slack(installed: Path) -> AsyncIterator[Playground]:
    async with Playground() as slack:
        arguments = [str(installed), slack.base_url, slack.bot_token, slack.app_token]
        process = await asyncio.create_subprocess_exec("node", *arguments)
        try:
            await slack.until(lambda: slack.sockets.connected, timeout_s=30)
            yield slack
        finally:
            process.terminate()
            await process.wait()


async def test_a_command_is_acknowledged_and_answered_again(slack: Playground):
    result = await slack.command(U_ANA, C_GPU, "status")
    await slack.until(lambda: slack.messages(C_GPU))

    assert result.payload == {"text": "taken: status"}
    assert slack.messages(C_GPU)[0]["text"] == "done: status"


async def test_a_click_replaces_its_message(slack: Playground):
    await slack.command(U_ANA, C_GPU, "status")
    card = (await slack.until(lambda: slack.messages(C_GPU)))[0]

    result = await slack.click(U_BO, C_GPU, card["ts"], "approve")
    await slack.until(lambda: slack.messages(C_GPU)[0]["text"] == "approved: job-41")

    assert result.error is None
    assert "blocks" not in slack.messages(C_GPU)[0]


async def test_a_form_opens_shows_its_error_and_closes(slack: Playground):
    await slack.command(U_ANA, C_GPU, "submit")
    await slack.until(lambda: slack.open_view(U_ANA))

    refused = await slack.submit_view(U_ANA, {"name": {"value": "Bad Name"}})
    taken = await slack.submit_view(U_ANA, {"name": {"value": "sweep"}})
    await slack.until(lambda: slack.messages(C_GPU))

    assert (refused.errors, refused.closed) == ({"name": "Use a-z."}, False)
    assert taken.closed
    assert slack.messages(C_GPU)[0]["text"] == "submitted: sweep"


async def test_a_mention_is_answered_in_its_thread(slack: Playground):
    asked = await slack.mention(U_ANA, C_GPU, "status")
    await slack.until(lambda: len(slack.thread(C_GPU, asked["ts"])) == 2)

    assert slack.thread(C_GPU, asked["ts"])[1]["text"] == "heard"


async def test_it_comes_back_after_a_disconnect(slack: Playground):
    await slack.disconnect()
    await slack.until(lambda: slack.sockets.opened == 2, timeout_s=20)

    assert (await slack.command(U_ANA, C_GPU, "status")).error is None
