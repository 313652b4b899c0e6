"""Who asks: a person with the approver groups they are in, as Slack says right now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from bot.outbound import Outbound, Sent
from scheduler.jobs.mail import Person

log = logging.getLogger("gpujob.bot.people")

FRESH_S = 300.0  # a group read so long ago is read again
DECISION_FRESH_S = 0.0  # before a decision it is always read: who left the approvers may not approve
AGAIN_S = 10.0  # after a failure; meanwhile nobody is in the group
PATIENCE_S = 1.5  # a person waits for the answer


class People:
    """Reads the members of the configured groups. What cannot be read has no members: approval fails closed."""

    def __init__(self, outbound: Outbound, groups: Sequence[str]) -> None:
        self._outbound = outbound
        self._groups = tuple(groups)
        self._members: dict[str, tuple[float, frozenset[str]]] = {}  # group -> (read at, members)
        self._closed_until: dict[str, float] = {}
        self._reading = asyncio.Lock()

    async def person(self, user: str, fresh_s: float = FRESH_S) -> Person:
        """The person with their groups, as they were at most `fresh_s` ago."""
        if not self._groups:
            return Person(id=user)
        async with self._reading:
            for group in self._groups:
                await self._refresh(group, fresh_s)
        return Person(id=user, groups=tuple(group for group in self._groups if user in self._members[group][1]))

    async def _refresh(self, group: str, fresh_s: float) -> None:
        now = asyncio.get_running_loop().time()
        read_at = self._members[group][0] if group in self._members else float("-inf")
        if now - read_at < fresh_s or now < self._closed_until.get(group, 0.0):
            return
        try:
            outcome = await asyncio.wait_for(
                self._outbound.call("usergroups.users.list", {"usergroup": group}), PATIENCE_S
            )
        except TimeoutError:
            outcome = None
        if isinstance(outcome, Sent):
            self._members[group] = (now, frozenset(str(user) for user in outcome.data.get("users", ())))
            return
        log.error("group_unreadable group=%s outcome=%s effect=nobody of it can approve", group, outcome)
        self._members[group] = (float("-inf"), frozenset())
        self._closed_until[group] = now + AGAIN_S
