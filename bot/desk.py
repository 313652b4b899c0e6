"""The desk of the scheduler: hands in what people ask, waits for answers, reads; never blocks the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import ParamSpec, TypeVar

from bot.people import DECISION_FRESH_S, FRESH_S, People
from scheduler.errors import Unavailable
from scheduler.jobs.mail import Answer, Body, Decide, RequestId
from scheduler.store.mailbox import Mailbox

log = logging.getLogger("gpujob.bot.desk")

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 64  # as many people may ask at the same moment before one waits for another
ANSWER_S = 2.0  # an answer within this comes as the answer to the command
POLL_S = 0.05
SLOW_POLL_S = 0.5
WATCH_S = 29 * 60.0  # Slack takes answers to a command for 30 minutes


class Desk:
    """Calls of the mailbox run in threads of their own: the loop's default pool is small and belongs to others."""

    def __init__(self, mailbox: Mailbox, people: People, clock: Callable[[], datetime]) -> None:
        self.mailbox = mailbox
        self.people = people
        self.clock = clock
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="mailbox")

    async def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One call of the mailbox.

        Raises:
            Unavailable: the database did not answer.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def ask(self, key: str, user: str, body: Body) -> RequestId:
        """Hands in a request; the same key again is the same request.

        Raises:
            Unavailable: the database did not answer.
        """
        person = await self.people.person(user, DECISION_FRESH_S if isinstance(body, Decide) else FRESH_S)
        return await self.read(self.mailbox.send, key, person, self.clock(), body)

    async def answer(self, request: RequestId, seconds: float = ANSWER_S) -> Answer | None:
        """The answer, if it comes in time; a database that is away meanwhile is asked again."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        pause = POLL_S
        while True:
            answer = await self._answer(request)
            if answer is not None or loop.time() >= end:
                return answer
            await asyncio.sleep(pause)
            pause = POLL_S if seconds <= ANSWER_S else min(SLOW_POLL_S, pause * 1.2)

    async def _answer(self, request: RequestId) -> Answer | None:
        try:
            return await self.read(self.mailbox.answer, request)
        except Unavailable as error:
            log.warning("answer_unreadable request=%s why=%s", request, error)
            return None

    def close(self) -> None:
        """Ends its threads; calls that have begun finish."""
        self._threads.shutdown(wait=True, cancel_futures=True)
