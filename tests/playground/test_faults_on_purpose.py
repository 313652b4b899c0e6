from __future__ import annotations

import time

import aiohttp
import pytest
from slack_bolt.async_app import AsyncApp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from bot.playground import C_GPU, C_NLP, U_ANA, Playground
from tests.playground.conftest import Connect


async def test_a_limit_holds_for_its_channel_and_its_times(slack: Playground, client: AsyncWebClient):
    slack.faults.rate_limit("chat.postMessage", channel=C_GPU, retry_after=30)

    with pytest.raises(SlackApiError) as caught:
        await client.chat_postMessage(channel=C_GPU, text="x")

    assert (caught.value.response.status_code, caught.value.response.headers["Retry-After"]) == (429, "30")
    assert (await client.chat_postMessage(channel=C_GPU, text="again"))["ok"]


async def test_other_channels_flow_on(slack: Playground, client: AsyncWebClient):
    slack.faults.rate_limit("chat.postMessage", channel=C_GPU, times=-1)

    assert (await client.chat_postMessage(channel=C_NLP, text="x"))["ok"]


async def test_a_dropped_answer_leaves_the_message(slack: Playground, client: AsyncWebClient):
    slack.faults.drop_after("chat.postMessage")

    with pytest.raises(aiohttp.ClientError):
        await client.chat_postMessage(channel=C_GPU, text="x")

    assert [message["text"] for message in slack.messages(C_GPU)] == ["x"]


async def test_a_server_error_leaves_nothing(slack: Playground, client: AsyncWebClient):
    slack.faults.server_error("chat.postMessage")

    with pytest.raises(SlackApiError) as caught:
        await client.chat_postMessage(channel=C_GPU, text="x")

    assert caught.value.response.status_code == 500
    assert slack.messages(C_GPU) == []


async def test_any_refusal_can_be_asked_for(slack: Playground, client: AsyncWebClient):
    slack.faults.refuse("*", "account_inactive")

    with pytest.raises(SlackApiError) as caught:
        await client.auth_test()

    assert caught.value.response["error"] == "account_inactive"


async def test_a_slow_answer_comes(slack: Playground, client: AsyncWebClient):
    slack.faults.slow("chat.postMessage", 0.1)
    begun = time.monotonic()

    assert (await client.chat_postMessage(channel=C_GPU, text="x"))["ok"]
    assert time.monotonic() - begun >= 0.1


async def test_cleared_faults_strike_no_more(slack: Playground, client: AsyncWebClient):
    slack.faults.server_error("chat.postMessage", times=-1)
    slack.faults.clear()

    assert (await client.chat_postMessage(channel=C_GPU, text="x"))["ok"]


async def test_a_response_url_can_fail_too(slack: Playground, app: AsyncApp, connect: Connect):
    statuses: list[int] = []

    @app.command("/gpujob")
    async def command(ack, respond):
        await ack()
        statuses.extend([(await respond("x")).status_code for _ in range(2)])

    slack.faults.server_error("response_url", channel=C_GPU)
    await connect(app)
    await slack.command(U_ANA, C_GPU, "status")
    await slack.until(lambda: slack.ephemerals(U_ANA))

    assert statuses[0] == 500
    assert len(slack.ephemerals(U_ANA)) == 1
