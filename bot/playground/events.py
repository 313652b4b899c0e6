"""The Events API: what the app subscribes to, and again what nobody acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from bot.playground import payloads
from bot.playground.refusal import Json, NotThere
from bot.playground.sockets import Acknowledged, Late, Sockets

RETRY_AFTER_S = (0.0, 60.0, 300.0)  # an event that nobody acknowledged comes again
EVENTS = frozenset({"app_mention", "app_home_opened"})  # what the app subscribes to, by its manifest


class Events:
    """Delivers events. `speed` is how many seconds of the waits between retries pass in one of ours."""

    def __init__(self, sockets: Sockets, *, speed: float, subscribed: frozenset[str]) -> None:
        self.sockets = sockets
        self.speed = speed
        self.subscribed = subscribed
        self.last: Json | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def happened(self, name: str, body: Json) -> None:
        """Tell the app, if it subscribes to this; again later, if nobody acknowledges it."""
        if name not in self.subscribed:
            return
        self.last = payloads.event(body)
        if isinstance(await self._send(self.last, 0, ""), Late):
            self._later(self._send_again(self.last))

    async def redeliver(self, *, attempt: int = 1, reason: str = "timeout") -> Acknowledged | Late:
        """Send the last event once more, with the same event id."""
        if self.last is None:
            raise NotThere("no event was sent yet")
        return await self._send(self.last, attempt, reason)

    async def rest(self) -> None:
        """End what still waits to be sent again."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send_again(self, event: Json) -> None:
        for attempt, wait_s in enumerate(RETRY_AFTER_S, start=1):
            await asyncio.sleep(wait_s / self.speed)
            if isinstance(await self._send(event, attempt, "timeout"), Acknowledged):
                return

    async def _send(self, event: Json, attempt: int, reason: str) -> Acknowledged | Late:
        return await self.sockets.send("events_api", event, answers=False, retry_attempt=attempt, retry_reason=reason)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
