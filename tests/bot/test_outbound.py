"""What became of a call: done, refused, unknown, or never sent; and the pace of each channel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from slack_sdk.web.async_client import AsyncWebClient

from bot.outbound import NotSent, Outbound, Refused, Sent, Unsure
from bot.playground.server import Playground


@pytest.fixture
async def slack() -> AsyncIterator[Playground]:
    async with Playground(port=0, rate_limits=False) as slack:
        yield slack


def an_outbound(slack: Playground, posts_per_second: float = 100.0) -> Outbound:
    client = AsyncWebClient(token=slack.bot_token, base_url=slack.base_url, retry_handlers=[])
    return Outbound(client, posts_per_second=posts_per_second)


def a_post(text: str = "hello", channel: str = "C0GPU") -> dict[str, str]:
    return {"channel": channel, "text": text}


async def test_a_post_that_slack_took_is_sent(slack: Playground):
    outcome = await an_outbound(slack).call("chat.postMessage", a_post(), channel="C0GPU")

    assert isinstance(outcome, Sent)
    assert outcome.data["ts"] == slack.messages("C0GPU")[0]["ts"]


@pytest.mark.parametrize("fault", ["drop_after", "server_error"])
async def test_a_post_of_unknown_outcome_is_never_sent_again(slack: Playground, fault: str):
    getattr(slack.faults, fault)("chat.postMessage")

    outcome = await an_outbound(slack).call("chat.postMessage", a_post(), channel="C0GPU")
    assert isinstance(outcome, Unsure)
    assert [method for method, _ in slack.calls].count("chat.postMessage") <= 1


async def test_an_update_is_tried_again_until_slack_is_back(slack: Playground):
    outbound = an_outbound(slack)
    posted = await outbound.call("chat.postMessage", a_post(), channel="C0GPU")
    assert isinstance(posted, Sent)
    slack.faults.server_error("chat.update", times=2)

    update = {**a_post("newer"), "ts": posted.data["ts"]}
    assert isinstance(await outbound.call("chat.update", update, channel="C0GPU"), Sent)
    assert slack.messages("C0GPU")[0]["text"] == "newer"


async def test_a_refusal_keeps_slacks_own_word(slack: Playground):
    outcome = await an_outbound(slack).call("chat.postMessage", a_post(channel="C0NONE"), channel="C0NONE")

    assert isinstance(outcome, Refused)
    assert outcome.error == "channel_not_found"


async def test_a_slack_that_is_not_there_has_got_nothing(unused_tcp_port: int):
    client = AsyncWebClient(token="t", base_url=f"http://127.0.0.1:{unused_tcp_port}/api/", retry_handlers=[])

    assert isinstance(await Outbound(client).call("chat.postMessage", a_post(), channel="C0GPU"), NotSent)


async def test_posts_of_one_channel_keep_their_order_and_their_pace(slack: Playground):
    outbound = an_outbound(slack, posts_per_second=20)
    begun = time.monotonic()

    await asyncio.gather(
        *(outbound.call("chat.postMessage", a_post(str(n)), channel="C0GPU") for n in range(8)),
        outbound.call("chat.postMessage", a_post(channel="C0NLP"), channel="C0NLP"),
    )
    assert [message["text"] for message in slack.messages("C0GPU")] == [str(n) for n in range(8)]
    # Three go at once; the other five wait a twentieth of a second each.
    assert time.monotonic() - begun >= 0.24


async def test_a_limit_is_waited_for_and_then_the_post_is_made(slack: Playground):
    slack.faults.rate_limit("chat.postMessage", channel="C0GPU", retry_after=1)
    begun = time.monotonic()

    outcome = await an_outbound(slack).call("chat.postMessage", a_post(), channel="C0GPU")
    assert isinstance(outcome, Sent)
    assert time.monotonic() - begun >= 1.0


async def test_slk_54_who_waits_for_a_limit_is_let_go_at_the_end(slack: Playground):
    slack.faults.rate_limit("chat.postMessage", channel="C0GPU", retry_after=30)
    outbound = an_outbound(slack)
    waiting = asyncio.create_task(outbound.call("chat.postMessage", a_post(), channel="C0GPU"))
    await asyncio.sleep(0.2)

    begun = time.monotonic()
    await outbound.stop(1.0)
    assert isinstance(await waiting, NotSent)
    assert time.monotonic() - begun < 1.0
    assert slack.messages("C0GPU") == []


async def test_arguments_are_made_when_the_call_leaves(slack: Playground):
    outbound = an_outbound(slack)
    slack.faults.rate_limit("chat.postMessage", channel="C0GPU", retry_after=1)
    state = {"text": "old"}

    async def newest() -> dict[str, str]:
        return a_post(state["text"])

    waiting = asyncio.create_task(outbound.call("chat.postMessage", newest, channel="C0GPU"))
    await asyncio.sleep(0.3)
    state["text"] = "new"
    await waiting
    assert [message["text"] for message in slack.messages("C0GPU")] == ["new"]
