"""Every call of Slack's Web API: in order and at Slack's pace for each channel, and honest about what became of it."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

log = logging.getLogger("gpujob.bot.outbound")

Arguments = Mapping[str, Any]
Made = Arguments | Callable[[], Awaitable[Arguments | None]]

READS = frozenset(
    {
        "conversations.history",
        "conversations.replies",
        "conversations.info",
        "files.getUploadURLExternal",
        "files.info",
        "usergroups.users.list",
        "users.info",
    }
)
# Said twice, these do no harm; everything else is never sent again after an unknown outcome.
IDEMPOTENT = READS | {"chat.update", "chat.delete", "conversations.open", "views.update", "auth.test"}
PACED = frozenset({"chat.postMessage", "chat.update"})
TRIES = 4  # of an idempotent call
BURST = 3  # calls of one lane that may go at once after a pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Slack did it; `data` is its answer."""

    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Slack will not do it, however often it is asked; `error` is its word for why."""

    error: str
    details: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsure:
    """Slack may have done it: look before it is asked again."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSent:
    """It never reached Slack."""

    why: str


Outcome = Sent | Refused | Unsure | NotSent


@dataclass(slots=True)
class _Lane:
    """Calls that keep their order; `free_at` is loop time."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    free_at: float = 0.0
    blocked_until: float = 0.0


class Outbound:
    """The only way out. Calls of one channel keep their order; one channel's limit delays no other."""

    def __init__(self, client: AsyncWebClient, *, posts_per_second: float = 1.0) -> None:
        """`client` must retry nothing by itself."""
        self._client = client
        self._spacing = 1.0 / posts_per_second
        self._lanes: defaultdict[tuple[str, str], _Lane] = defaultdict(_Lane)
        self._stopped = asyncio.Event()
        self._flying: set[asyncio.Future[Any]] = set()

    async def call(self, method: str, arguments: Made, *, channel: str = "") -> Outcome:
        """One call. `arguments` may be made at the last moment, so that a late update shows the newest state.

        Paced methods wait for the lane of their channel; the others go at once. Arguments that turn out to be None
        mean that there is nothing to say any more.
        """
        if method not in PACED:
            return await self._attempts(method, arguments, self._lanes[method, ""])
        lane = self._lanes[method, channel]
        async with lane.turn:
            return await self._attempts(method, arguments, lane)

    async def stop(self, grace_s: float) -> None:
        """Sends nothing new; what is on its way gets `grace_s` to arrive."""
        self._stopped.set()
        if self._flying:
            await asyncio.wait(self._flying, timeout=grace_s)

    async def _attempts(self, method: str, arguments: Made, lane: _Lane) -> Outcome:
        outcome: Outcome = NotSent(why="stopping")
        tries = TRIES if method in IDEMPOTENT else 1
        tried = 0
        while tried < tries:
            if not await self._turn_comes(method, lane):
                return NotSent(why="stopping")
            made = await arguments() if callable(arguments) else arguments
            if made is None:
                return NotSent(why="nothing to say any more")
            answer = await self._finished(self._send(method, made))
            if isinstance(answer, _Limited):
                lane.blocked_until = asyncio.get_running_loop().time() + answer.seconds
                log.warning("rate_limited method=%s seconds=%s", method, answer.seconds)
                continue
            outcome = answer
            if isinstance(outcome, Sent | Refused):
                return outcome
            tried += 1
            lane.blocked_until = asyncio.get_running_loop().time() + min(8.0, 0.25 * 2**tried)
        return outcome

    async def _turn_comes(self, method: str, lane: _Lane) -> bool:
        """Waits for the lane's pace; False if we are told to stop first."""
        now = asyncio.get_running_loop().time()
        # Both limits are read again after a wait: a call of this method may have been told to wait meanwhile.
        while (start := max(lane.free_at, lane.blocked_until)) > now:
            try:
                await asyncio.wait_for(self._stopped.wait(), start - now)
            except TimeoutError:
                now = asyncio.get_running_loop().time()
                continue
            break
        if self._stopped.is_set():
            return False
        if method in PACED:
            lane.free_at = max(lane.free_at, now - (BURST - 1) * self._spacing) + self._spacing
        return True

    async def _finished(self, send: Awaitable[_Outcome]) -> _Outcome:
        """The outcome, even if whoever waits for it is cancelled: a post that left must be known of."""
        task = asyncio.ensure_future(send)
        self._flying.add(task)
        task.add_done_callback(self._flying.discard)
        return await asyncio.shield(task)

    async def _send(self, method: str, arguments: Arguments) -> _Outcome:
        try:
            if method in READS:
                answer = await self._client.api_call(method, http_verb="GET", params=dict(arguments))
            else:
                answer = await self._client.api_call(method, json=dict(arguments))
        except SlackApiError as error:
            return _refusal(error)
        except aiohttp.ClientConnectorError as error:
            return NotSent(why=f"Slack cannot be reached: {error}")
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            return Unsure(why=f"the connection broke: {type(error).__name__}")
        data = answer.data
        return Sent(data=data) if isinstance(data, dict) else Unsure(why="an answer that is no JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limited:
    """Slack wants us to wait."""

    seconds: float


_Outcome = Sent | Refused | Unsure | NotSent | _Limited

_PASSING = frozenset({"ratelimited", "rate_limited", "message_limit_exceeded"})
_SERVER = frozenset({"internal_error", "fatal_error", "service_unavailable", "request_timeout", "team_added_to_org"})


def _refusal(error: SlackApiError) -> _Outcome:
    response = error.response
    status = int(getattr(response, "status_code", 0) or getattr(response, "status", 0))
    headers = getattr(response, "headers", {})
    data = response.data if isinstance(getattr(response, "data", None), dict) else {}
    name = str(data.get("error", ""))
    if status == 429 or name in _PASSING:
        return _Limited(seconds=_seconds(headers))
    if status >= 500 or name in _SERVER or not name:
        return Unsure(why=f"Slack answered {status} {name}".strip())
    messages = data.get("response_metadata", {}).get("messages", ())
    return Refused(error=name, details="; ".join(str(line) for line in messages))


def _seconds(headers: Mapping[str, str]) -> float:
    for key, value in headers.items():
        if key.lower() == "retry-after":
            try:
                return max(0.05, float(value))
            except ValueError:
                return 30.0
    return 30.0  # Slack always says how long; without a word we are careful
