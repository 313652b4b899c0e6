"""How one person is answered: where they asked, or in a direct message when that way is closed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from slack_sdk.webhook.async_client import AsyncWebhookClient

from bot.blocks import Message
from bot.outbound import Outbound, Refused, Sent

log = logging.getLogger("gpujob.bot.voice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Where a person spoke to us."""

    user: str
    channel: str = ""
    response_url: str = ""  # Slack takes five answers within 30 minutes, wherever the person is
    thread_ts: str = ""

    @property
    def home(self) -> str:
        """The channel of a job that is submitted here; in somebody's DM there is none, the settings name one."""
        return self.channel if self.channel.startswith(("C", "G")) else ""


def line_of(body: Mapping[str, Any]) -> Line:
    """The line of a command, a click or a form."""
    user = body.get("user_id") or (body.get("user") or {}).get("id", "")
    channel = body.get("channel_id") or (body.get("channel") or {}).get("id", "")
    return Line(user=str(user), channel=str(channel), response_url=str(body.get("response_url") or ""))


class Voice:
    """Speaks to one person at a time; what cannot be said in one place is said in another."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound

    async def say(self, line: Line, message: Message, *, replace: bool = False) -> None:
        """The answer: in the thread of the question, by the response_url, for one person in the channel, or in a DM."""
        if line.thread_ts:
            await self.reply(line, message)
            return
        if line.response_url and await self._respond(line.response_url, message, replace=replace):
            return
        if line.channel and not line.response_url:
            body = {"channel": line.channel, "user": line.user, **_shown(message)}
            if isinstance(await self._outbound.call("chat.postEphemeral", body), Sent):
                return
        await self.tell(line.user, message)

    async def reply(self, line: Line, message: Message) -> None:
        """The answer in a thread, where everybody reads it."""
        body = {"channel": line.channel, "thread_ts": line.thread_ts, **_shown(message)}
        outcome = await self._outbound.call("chat.postMessage", body, channel=line.channel)
        if isinstance(outcome, Refused):
            await self.tell(line.user, message)

    async def tell(self, user: str, message: Message) -> None:
        """A direct message."""
        outcome = await self._outbound.call("conversations.open", {"users": user})
        if isinstance(outcome, Sent):
            channel = str(outcome.data["channel"]["id"])
            outcome = await self._outbound.call(
                "chat.postMessage", {"channel": channel, **_shown(message)}, channel=channel
            )
        if not isinstance(outcome, Sent):
            log.warning("unheard user=%s outcome=%s", user, outcome)

    async def _respond(self, url: str, message: Message, *, replace: bool) -> bool:
        client = AsyncWebhookClient(url, retry_handlers=[])
        body = {"response_type": "ephemeral", "replace_original": replace, **_shown(message)}
        try:
            answer = await client.send_dict(body)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            log.warning("response_url_broke why=%s", type(error).__name__)
            return False
        if answer.status_code != 200:
            log.warning("response_url_refused status=%s", answer.status_code)
        return answer.status_code == 200


def _shown(message: Message) -> dict[str, Any]:
    return {"text": message.text, "blocks": list(message.blocks)} if message.blocks else {"text": message.text}
