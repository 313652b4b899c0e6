"""Everything that the workspace holds: people, channels, messages, views, and what may be used once."""

from __future__ import annotations

import asyncio
import copy
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bot.playground import people
from bot.playground.people import Channel, User
from bot.playground.refusal import Json, NotThere, Refusal

RESPONSE_USES = 5
RESPONSE_LIFE_S = 30 * 60
TRIGGER_LIFE_S = 3.0


@dataclass(slots=True, kw_only=True)
class Message:
    """One message. `only_for` is set for those that one person alone can see."""

    channel: str
    ts: str
    user: str
    text: str
    blocks: list[Json] = field(default_factory=list)
    thread_ts: str | None = None
    metadata: Json | None = None
    edited: str | None = None
    only_for: str | None = None
    reactions: dict[str, list[str]] = field(default_factory=dict)
    files: list[Json] = field(default_factory=list)

    def as_slack(self) -> Json:
        """As the Web API shows it, with its metadata."""
        shown: Json = {"type": "message", "ts": self.ts, "user": self.user, "text": self.text, "team": people.TEAM}
        if self.user == people.U_GPUJOB:
            shown |= {"bot_id": people.BOT, "app_id": people.APP}
        if self.edited:
            shown["edited"] = {"user": self.user, "ts": self.edited}
        if self.reactions:
            shown["reactions"] = [
                {"name": name, "users": list(users), "count": len(users)} for name, users in self.reactions.items()
            ]
        optional = {
            "blocks": self.blocks,
            "thread_ts": self.thread_ts,
            "metadata": self.metadata,
            "files": self.files,
        }
        return shown | copy.deepcopy({key: value for key, value in optional.items() if value})


@dataclass(slots=True, kw_only=True)
class View:
    """One open modal, or a home tab. `state` is what the person has typed: block -> action -> value."""

    id: str
    user: str
    content: Json
    hash: str
    root: str
    previous: str | None = None
    state: dict[str, dict[str, Json]] = field(default_factory=dict)

    def as_slack(self) -> Json:
        """As the Web API and the payloads show it."""
        defaults: Json = {"private_metadata": "", "callback_id": "", "external_id": "", "clear_on_close": False}
        return {
            **defaults,
            "notify_on_close": False,
            **copy.deepcopy(self.content),
            "id": self.id,
            "team_id": people.TEAM,
            "app_id": people.APP,
            "bot_id": people.BOT,
            "app_installed_team_id": people.TEAM,
            "hash": self.hash,
            "root_view_id": self.root,
            "previous_view_id": self.previous,
            "state": {"values": copy.deepcopy(self.state)},
        }


@dataclass(slots=True, kw_only=True)
class Trigger:
    """What lets the app open one view, for a moment."""

    user: str
    until: float
    view: str | None = None
    used: bool = False


@dataclass(slots=True, kw_only=True)
class ResponseUrl:
    """What lets the app answer one action a few times."""

    user: str
    channel: str
    until: float
    message: Message | None = None  # the message whose button was clicked
    uses: int = 0
    thread_ts: str | None = None


class Workspace:
    """The state, and the clock that names messages."""

    def __init__(self, *, trigger_life_s: float = TRIGGER_LIFE_S) -> None:
        self.users = people.users()
        self.channels = people.channels()
        self.groups = people.groups()
        self.messages: dict[str, list[Message]] = {channel: [] for channel in self.channels}
        self.ephemerals: dict[str, list[Message]] = {user: [] for user in self.users}
        self.views: dict[str, list[View]] = {user: [] for user in self.users}  # the stack of each person
        self.homes: dict[str, View] = {}
        self.triggers: dict[str, Trigger] = {}
        self.response_urls: dict[str, ResponseUrl] = {}
        self.uploads: dict[str, Json] = {}
        self.trigger_life_s = trigger_life_s
        self.write_public = True  # the app has chat:write.public
        self.started_at = time.time()
        self.version = 0
        self.on_message: list[Callable[[Message], None]] = []
        self._last_us = 0
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Tell all who wait for news."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def news(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def new_ts(self) -> str:
        """A name for a message: seconds with six digits, unique and growing."""
        self._last_us = max(time.time_ns() // 1000, self._last_us + 1)
        return f"{self._last_us // 1_000_000}.{self._last_us % 1_000_000:06d}"

    def user(self, name: str) -> User:
        """A person by id, name or the name of the constant."""
        found = [user for user in self.users.values() if name.lower() in {user.id.lower(), user.name, f"u_{user.name}"}]
        if not found:
            raise NotThere(f"there is no user {name!r}; there are {', '.join(self.users)}")
        return found[0]

    def channel(self, name: str) -> Channel:
        """A channel by id, or by name with or without `#`."""
        if name in self.channels:
            return self.channels[name]
        found = [room for room in self.channels.values() if room.kind != "im" and room.name == name.removeprefix("#")]
        if not found:
            raise NotThere(f"there is no channel {name!r}; there are {', '.join(self.channels)}")
        return found[0]

    def find(self, channel: str, ts: str) -> Message | None:
        """A message that everyone in the channel sees."""
        return next((message for message in self.messages.get(channel, []) if message.ts == ts), None)

    def add(self, message: Message) -> Message:
        """Show a message to those it is meant for."""
        shelf = self.ephemerals[message.only_for] if message.only_for else self.messages[message.channel]
        shelf.append(message)
        for told in self.on_message:
            told(message)
        self.changed()
        return message

    def thread(self, channel: str, ts: str) -> list[Message]:
        """The parent and its replies, oldest first."""
        return [message for message in self.messages.get(channel, []) if ts in {message.ts, message.thread_ts}]

    def new_trigger(self, user: str, view: str | None = None) -> str:
        """A trigger id that opens one view within three seconds."""
        name = f"{secrets.randbelow(10**12)}.{secrets.randbelow(10**12)}.{secrets.token_hex(16)}"
        self.triggers[name] = Trigger(user=user, until=time.monotonic() + self.trigger_life_s, view=view)
        return name

    def use_trigger(self, name: str) -> Trigger:
        """Spend a trigger id.

        Raises:
            Refusal: it is unknown, spent or too old.
        """
        trigger = self.triggers.get(name)
        if trigger is None:
            raise Refusal("invalid_trigger_id")
        if trigger.used:
            raise Refusal("exchanged_trigger_id")
        if time.monotonic() > trigger.until:
            raise Refusal("expired_trigger_id")
        trigger.used = True
        return trigger

    def new_response_url(self, user: str, channel: str, message: Message | None = None) -> str:
        """The path of a new response_url, below the playground's own address."""
        name = secrets.token_urlsafe(18)
        until = time.monotonic() + RESPONSE_LIFE_S
        thread_ts = message.thread_ts if message else None
        self.response_urls[name] = ResponseUrl(
            user=user, channel=channel, until=until, message=message, thread_ts=thread_ts
        )
        return f"response/{name}"

    def all_views(self) -> list[View]:
        """Every open modal and home tab."""
        return [view for stack in self.views.values() for view in stack] + list(self.homes.values())


def with_ids(blocks: list[Json]) -> list[Json]:
    """Blocks in which each block and each element has an id; Slack makes up those that are missing."""
    named = copy.deepcopy(blocks)
    for block in named:
        block.setdefault("block_id", secrets.token_urlsafe(4))
        for element in elements(block):
            element.setdefault("action_id", secrets.token_urlsafe(4))
    return named


def elements(block: Json) -> list[Json]:
    """What a person can use in a block: its buttons, selects and inputs."""
    found: list[Any] = []
    if block.get("type") in {"actions", "context_actions"}:
        found += block.get("elements", [])
    found += [block[key] for key in ("accessory", "element") if key in block]
    return [element for element in found if isinstance(element, dict) and element.get("type") != "image"]
