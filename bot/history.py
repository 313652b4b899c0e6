"""What stands in Slack already: asked before anything whose outcome is unknown is sent again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from bot.news import EVENT_TYPE
from bot.outbound import Outbound, Outcome, Refused, Sent

log = logging.getLogger("gpujob.bot.history")

PAGE = 200
PAGES = 25  # of history; what lies further back was settled long ago

Found = str | Outcome  # the timestamp; "" if it is not there; or why nobody can say
Wanted = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]  # a message, and the payload of its metadata
SKEW = timedelta(minutes=10)  # Slack's clock and ours may differ


class History:
    """Finds our own messages by the metadata that they carry."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound
        self._dms: dict[str, str] = {}

    async def dm(self, user: str) -> Found:
        """The channel of the direct messages with a person."""
        if user not in self._dms:
            outcome = await self._outbound.call("conversations.open", {"users": user})
            if not isinstance(outcome, Sent):
                return outcome
            self._dms[user] = str(outcome.data["channel"]["id"])
        return self._dms[user]

    async def message(self, channel: str, notice: int, place: str, since: datetime) -> Found:
        """A notice that was posted into a channel or a DM; it happened at `since`."""
        arguments = {"channel": channel, "oldest": _oldest(since)}
        return await self._search("conversations.history", arguments, _is(notice, place))

    async def reply(self, channel: str, thread_ts: str, notice: int, place: str, since: datetime) -> Found:
        """A notice that was posted into a thread. A stray copy beside a deleted parent is removed."""
        arguments = {"channel": channel, "ts": thread_ts}
        found = await self._search("conversations.replies", arguments, _is(notice, place))
        if not (isinstance(found, Refused) and found.error in {"thread_not_found", "message_not_found"}):
            return found
        stray = await self.message(channel, notice, place, since)
        if isinstance(stray, str) and stray:
            await self._outbound.call("chat.delete", {"channel": channel, "ts": stray}, channel=channel)
            return ""
        return stray

    async def card(self, channel: str, label: str, since: datetime, but_not: str = "") -> Found:
        """The card of a job that was submitted at `since`; `but_not` is one that is of no use any more."""

        def is_card(message: Mapping[str, Any], payload: Mapping[str, Any]) -> bool:
            return payload.get("job") == label and payload.get("place") == "card" and message.get("ts") != but_not

        return await self._search("conversations.history", {"channel": channel, "oldest": _oldest(since)}, is_card)

    async def metadata(self, channel: str, ts: str) -> Mapping[str, Any] | None:
        """The metadata of one message; None if it has none or cannot be read."""
        arguments = {"channel": channel, "oldest": ts, "latest": ts, "inclusive": "true", "limit": 1}
        outcome = await self._outbound.call("conversations.history", {**arguments, "include_all_metadata": "true"})
        messages = outcome.data.get("messages", []) if isinstance(outcome, Sent) else []
        found = messages[0].get("metadata") if messages and messages[0].get("ts") == ts else None
        return found if isinstance(found, Mapping) and found.get("event_type") == EVENT_TYPE else None

    async def _search(self, method: str, arguments: Mapping[str, Any], wanted: Wanted) -> Found:
        cursor = ""
        for _ in range(PAGES):
            asked = {**arguments, "limit": PAGE, "include_all_metadata": "true"}
            outcome = await self._outbound.call(method, {**asked, "cursor": cursor} if cursor else asked)
            if isinstance(outcome, Refused) and outcome.error in {"not_in_channel", "channel_not_found"}:
                # A public channel that the bot may write to without being in it: its history is closed to us. Told
                # twice is better than not told.
                log.warning("history_closed channel=%s way_out=invite the bot to it", arguments["channel"])
                return ""
            if not isinstance(outcome, Sent):
                return outcome
            for message in outcome.data.get("messages", ()):
                metadata = message.get("metadata") or {}
                if metadata.get("event_type") == EVENT_TYPE and wanted(message, metadata.get("event_payload") or {}):
                    return str(message["ts"])
            cursor = str((outcome.data.get("response_metadata") or {}).get("next_cursor") or "")
            if not cursor:
                break
        return ""


def _oldest(since: datetime) -> str:
    return f"{(since - SKEW).timestamp():.6f}"


def _is(notice: int, place: str) -> Wanted:
    return lambda _, payload: payload.get("id") == notice and payload.get("place") == place
