from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from slack_bolt.async_app import AsyncApp
from slack_sdk.web.async_client import AsyncWebClient

from bot.playground import C_GPU, U_ANA, U_BO, Playground
from tests.playground.block_samples import actions, button, input_block, modal
from tests.playground.conftest import Connect

NOTICE = {"event_type": "gpujob_notice", "event_payload": {"id": 3, "job": "job-41", "kind": "preempted"}}


@pytest.fixture
async def http(slack: Playground) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(slack.url) as session:
        yield session


async def post(http: aiohttp.ClientSession, call: str, **body: Any) -> Any:
    async with http.post(f"/playground/{call}", json=body) as reply:
        answer = await reply.json()
        return answer["result"] if answer["ok"] else answer["error"]


async def state(http: aiohttp.ClientSession, user: str) -> Any:
    async with http.get("/playground/state", params={"user": user}) as reply:
        return await reply.json()


async def test_another_process_can_act_for_people(
    slack: Playground, app: AsyncApp, connect: Connect, http: aiohttp.ClientSession
):
    @app.command("/gpujob")
    async def command(ack, body, client):
        await ack("one moment")
        await client.views_open(trigger_id=body["trigger_id"], view=modal(input_block(), callback_id="form"))

    @app.view("form")
    async def submitted(ack, view, client):
        await ack()
        name = view["state"]["values"]["name"]["value"]["value"]
        await client.chat_postMessage(channel=C_GPU, text=name, blocks=[actions(button())])

    @app.action("ok")
    async def clicked(ack, respond):
        await ack()
        await respond("approved", replace_original=True)

    await connect(app)
    asked = await post(http, "command", user="ana", channel="#gpu-jobs", text="/gpujob submit")
    await slack.until(lambda: slack.open_view(U_ANA))
    sent = await post(http, "view_submit", user="ana", values={"name": {"value": "sweep"}})
    await slack.until(lambda: slack.messages(C_GPU))
    ts = slack.messages(C_GPU)[0]["ts"]
    await post(http, "click", user="bo", channel=C_GPU, ts=ts, action_id="ok")
    await slack.until(lambda: slack.messages(C_GPU)[0]["text"] == "approved")

    assert asked["payload"] == {"text": "one moment"}
    assert sent["closed"]


async def test_each_person_sees_their_own_screen(client: AsyncWebClient, http: aiohttp.ClientSession):
    await client.chat_postEphemeral(channel=C_GPU, user=U_ANA, text="psst")
    await client.chat_postMessage(channel=U_BO, text="approve?")

    of_ana, of_bo = await state(http, "ana"), await state(http, "bo")

    def texts(screen: Any) -> list[str]:
        return [message["text"] for room in screen["channels"] for message in room["messages"]]

    assert (texts(of_ana), texts(of_bo)) == (["psst"], ["approve?"])
    assert (of_ana["me"], of_bo["me"]) == (U_ANA, U_BO)


@pytest.mark.parametrize(
    ("call", "body", "words"),
    [
        ("command", {"user": "dan", "channel": C_GPU, "text": "x"}, "there is no user 'dan'"),
        ("command", {"user": "ana", "channel": "C404", "text": "x"}, "there is no channel 'C404'"),
        ("command", {"user": "ana"}, "The body must have 'channel'."),
        ("click", {"user": "ana", "channel": C_GPU, "ts": "1.0", "action_id": "x"}, "ana sees no message 1.0"),
        ("view_submit", {"user": "ana"}, "ana has no open view"),
        ("faults", {"method": "x", "kind": "earthquake"}, "'earthquake' is not a valid FaultKind"),
    ],
)
async def test_a_wrong_call_is_told_why(http: aiohttp.ClientSession, call: str, body: dict[str, Any], words: str):
    assert words in await post(http, call, **body)


async def test_faults_can_be_set_from_outside(slack: Playground, http: aiohttp.ClientSession):
    shown = await post(http, "faults", method="chat.postMessage", kind="rate_limited", retry_after=30)

    assert shown["rules"][0]["retry_after"] == 30
    assert (await post(http, "faults", clear=True))["rules"] == slack.faults.rules == []


async def test_the_transcript_holds_every_notice_in_order(client: AsyncWebClient, http: aiohttp.ClientSession):
    saved = {
        "event_type": "gpujob_notice",
        "event_payload": {"id": 4, "job": "job-41", "kind": "resumed", "from_step": 1200},
    }
    card = await client.chat_postMessage(channel=C_GPU, text="not a notice")
    await client.chat_postMessage(channel=C_GPU, text="preempted", metadata=NOTICE, thread_ts=card["ts"])
    await client.chat_postMessage(channel=U_ANA, text="resumed", metadata=saved)

    async with http.get("/playground/transcript") as reply:
        first, second = (await reply.json())["events"]

    assert (first["job"], first["kind"], first["thread_ts"]) == ("job-41", "preempted", card["ts"])
    assert "from_step" not in first
    assert (second["channel"], second["thread_ts"], second["from_step"]) == ("D0ANA", None, 1200)
    assert 0 <= first["t"] <= second["t"]


async def test_the_transcript_is_kept_in_its_file(tmp_path: Path):
    file = tmp_path / "deep" / "transcript.json"
    async with Playground(transcript=file) as slack:
        client = AsyncWebClient(token=slack.bot_token, base_url=slack.base_url)
        await client.chat_postMessage(channel=C_GPU, text="preempted", metadata=NOTICE)

    kept = json.loads(file.read_text(encoding="utf-8"))
    assert [event["kind"] for event in kept["events"]] == ["preempted"]


async def test_the_stream_tells_of_a_change(client: AsyncWebClient, http: aiohttp.ClientSession):
    async with http.get("/playground/stream") as stream:
        before = await stream.content.readuntil(b"\n\n")
        await client.chat_postMessage(channel=C_GPU, text="x")
        after = await stream.content.readuntil(b"\n\n")

    assert int(after.removeprefix(b"data: ")) > int(before.removeprefix(b"data: "))


async def test_a_file_for_the_app_is_read_with_its_token_alone(slack: Playground, http: aiohttp.ClientSession):
    file = await post(http, "file", user="ana", name="job.yaml", content="gpujob: 1")

    async with http.get(file["url_private"]) as refused:
        assert refused.status == 403
    async with http.get(file["url_private"], headers={"Authorization": f"Bearer {slack.bot_token}"}) as given:
        assert await given.text() == "gpujob: 1"


async def test_the_page_asks_nobody_else(http: aiohttp.ClientSession):
    page = Path(__file__).parents[2] / "bot" / "playground" / "page"
    for file in page.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text.replace("'http://'", ""), file
        assert "https://" not in text, file
    async with http.get("/") as reply:
        assert "<title>GPU playground</title>" in await reply.text()
