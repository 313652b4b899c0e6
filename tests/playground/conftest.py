"""A playground with short deadlines, a client of its Web API, and a real Bolt app connected to it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.async_app import AsyncApp
from slack_sdk.web.async_client import AsyncWebClient

from bot.playground import Playground

Connect = Callable[[AsyncApp], Awaitable[AsyncSocketModeHandler]]


@pytest.fixture
async def slack() -> AsyncIterator[Playground]:
    async with Playground(rate_limits=False, ack_s=0.3, trigger_life_s=0.3, speed=1200) as playground:
        yield playground


@pytest.fixture
def client(slack: Playground) -> AsyncWebClient:
    return AsyncWebClient(token=slack.bot_token, base_url=slack.base_url, retry_handlers=[])


@pytest.fixture
def app(client: AsyncWebClient) -> AsyncApp:
    return AsyncApp(client=client, logger=logging.getLogger("bolt"))


@pytest.fixture
async def connect(slack: Playground) -> AsyncIterator[Connect]:
    handlers: list[AsyncSocketModeHandler] = []

    async def connected(app: AsyncApp) -> AsyncSocketModeHandler:
        before = slack.sockets.opened
        handler = AsyncSocketModeHandler(app, slack.app_token)
        handlers.append(handler)
        await handler.connect_async()
        await slack.until(lambda: slack.sockets.opened > before)
        return handler

    yield connected
    for handler in handlers:
        await handler.close_async()
