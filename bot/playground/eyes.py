"""What people see: channels, threads, messages for one person alone, views. All as Slack's own JSON."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from bot.playground import people
from bot.playground.people import Channel, User
from bot.playground.refusal import Json, NotThere
from bot.playground.workspace import Message, View, Workspace, elements

LOOK_S = 0.02  # `until` looks so often at what is not part of the workspace


class Eyes:
    """Everything on people's screens."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def messages(self, channel: str) -> list[Json]:
        """What stands in a channel, oldest first; replies stand in their threads alone."""
        room = self.workspace.channel(self._room_id(channel))
        found = self.workspace.messages[room.id]
        return [message.as_slack() for message in found if message.thread_ts in {None, message.ts}]

    def thread(self, channel: str, ts: str) -> list[Json]:
        """A parent and its replies, oldest first."""
        return [message.as_slack() for message in self.workspace.thread(self._room_id(channel), ts)]

    def ephemerals(self, user: str) -> list[Json]:
        """What one person alone can see, oldest first."""
        found = self.workspace.ephemerals[self.workspace.user(user).id]
        return [message.as_slack() | {"channel": message.channel} for message in found]

    def open_view(self, user: str) -> Json | None:
        """The view on top of a person's screen."""
        view = self._top(self.workspace.user(user))
        return view.as_slack() if view else None

    def home(self, user: str) -> Json | None:
        """The app's home tab of a person."""
        view = self.workspace.homes.get(self.workspace.user(user).id)
        return view.as_slack() if view else None

    async def until(self, true: Callable[[], Any], timeout_s: float = 5.0) -> Any:
        """Wait for something to be true; answers what `true` answered.

        Raises:
            TimeoutError: it was not in time.
        """

        async def wait() -> Any:
            while not (found := true()):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.workspace.news(), LOOK_S)
            return found

        return await asyncio.wait_for(wait(), timeout_s)

    def _room_id(self, name: str) -> str:
        return people.direct_message(name) if name in self.workspace.users else name

    def _seen(self, person: User, room: Channel, ts: str) -> Message:
        shown = [message for message in self.workspace.ephemerals[person.id] if message.ts == ts]
        message = self.workspace.find(room.id, ts) or (shown[0] if shown else None)
        if message is None:
            raise NotThere(f"{person.name} sees no message {ts} in {room.name}")
        return message

    def _top(self, person: User) -> View | None:
        stack = self.workspace.views[person.id]
        return stack[-1] if stack else None


def to_use(blocks: list[Json], action_id: str, block_id: str | None) -> tuple[Json, Json]:
    """The block and the element that a person means.

    Raises:
        NotThere: nothing of that name is on the screen.
    """
    for block in blocks:
        for element in elements(block):
            if element["action_id"] == action_id and block_id in {None, block["block_id"]}:
                return block, element
    names = [element["action_id"] for block in blocks for element in elements(block)]
    raise NotThere(f"there is nothing to use named {action_id!r}; there are {', '.join(names) or 'none'}")
