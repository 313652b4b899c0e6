"""Who asks: a person with the approver groups they are in, as Slack says right now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from bot.outbound import Outbound, Sent
from scheduler.jobs.mail import Person

log = logging.getLogger("gpujob.bot.people")

FRESH_S = 300.0  # a group read so long ago is read again
AGAIN_S = 10.0  # after a failure; meanwhile nobody is in the group
PATIENCE_S = 1.5  # a person waits for the answer


class People:
    """Reads the members of the configured groups. What cannot be read has no members: approval fails closed."""

    def __init__(self, outbound: Outbound, groups: Sequence[str]) -> None:
        self._outbound = outbound
        self._groups = tuple(groups)
        self._members: dict[str, tuple[float, frozenset[str]]] = {}  # group -> (fresh until, members)
        self._reading = asyncio.Lock()

    async def person(self, user: str) -> Person:
        """The person with their groups."""
        if not self._groups:
            return Person(id=user)
        async with self._reading:
            for group in self._groups:
                await self._refresh(group)
        return Person(id=user, groups=tuple(group for group in self._groups if user in self._members[group][1]))

    async def _refresh(self, group: str) -> None:
        now = asyncio.get_running_loop().time()
        if group in self._members and self._members[group][0] > now:
            return
        try:
            outcome = await asyncio.wait_for(
                self._outbound.call("usergroups.users.list", {"usergroup": group}), PATIENCE_S
            )
        except TimeoutError:
            outcome = None
        if isinstance(outcome, Sent):
            self._members[group] = (now + FRESH_S, frozenset(str(user) for user in outcome.data.get("users", ())))
            return
        log.error("group_unreadable group=%s outcome=%s effect=nobody of it can approve", group, outcome)
        self._members[group] = (now + AGAIN_S, frozenset())
