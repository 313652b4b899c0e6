"""The Web API: who calls, how often, what goes wrong on purpose, and the method that answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aiohttp import web

from bot.playground import chat, conversations, people, views
from bot.playground.arguments import Arguments, read
from bot.playground.faults import Fault, FaultKind, Faults
from bot.playground.rates import Rates
from bot.playground.refusal import Json, Refusal
from bot.playground.sockets import Sockets
from bot.playground.workspace import Workspace

METHODS: dict[str, Callable[[Workspace, Arguments], Json]] = {
    **chat.METHODS,
    **conversations.METHODS,
    **views.METHODS,
}
ADDRESSES = frozenset({"upload_url"})  # answers that need the playground's own address before them


class WebApi:
    """Answers `/api/METHOD`."""

    def __init__(self, workspace: Workspace, sockets: Sockets, faults: Faults, rates: Rates) -> None:
        self.workspace = workspace
        self.sockets = sockets
        self.faults = faults
        self.rates = rates
        self.calls: list[tuple[str, Json]] = []  # every call in order, refused ones too; without tokens

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One call."""
        method = request.match_info["method"]
        try:
            arguments = await read(request)
            shown = {name: value for name, value in arguments.values.items() if name != "token"}
            self.calls.append((method, shown))
            channel = arguments.text("channel") or arguments.text("channel_id")
            fault = self.faults.strike(method, channel)
            if refused := await before(fault):
                return refused
            answer = self._answer(method, arguments, channel, str(request.url.origin()))
        except Refusal as refusal:
            return refused_response(refusal)
        if fault and fault.kind is FaultKind.DROP_AFTER and request.transport:
            request.transport.abort()
        return web.json_response({"ok": True, **answer})

    def _answer(self, method: str, arguments: Arguments, channel: str, origin: str) -> Json:
        self._authorise(method, arguments.token)
        self.rates.check(method, channel, time.monotonic())
        if method == "apps.connections.open":
            address = origin.replace("http", "ws", 1)
            return {"url": f"{address}/link?ticket={self.sockets.new_ticket()}"}
        answer = METHODS[method](self.workspace, arguments)
        return {key: f"{origin}/{value}" if key in ADDRESSES else value for key, value in answer.items()}

    @staticmethod
    def _authorise(method: str, token: str) -> None:
        if method not in METHODS and method != "apps.connections.open":
            raise Refusal("unknown_method", req_method=method)
        if not token:
            raise Refusal("not_authed")
        if token not in {people.BOT_TOKEN, people.APP_TOKEN}:
            raise Refusal("invalid_auth")
        if (token == people.APP_TOKEN) != (method == "apps.connections.open"):
            raise Refusal("not_allowed_token_type")


async def before(fault: Fault | None) -> web.StreamResponse | None:
    """What a fault does before the call is looked at."""
    if fault is None:
        return None
    match fault.kind:
        case FaultKind.RATE_LIMITED:
            return refused_response(Refusal("ratelimited", retry_after=fault.retry_after))
        case FaultKind.SERVER_ERROR:
            return web.Response(status=500, text="Internal Server Error")
        case FaultKind.REFUSE:
            return refused_response(Refusal(fault.error))
        case FaultKind.SLOW:
            await asyncio.sleep(fault.delay_s)
            return None
        case FaultKind.DROP_AFTER:
            return None


def refused_response(refusal: Refusal) -> web.Response:
    """A refusal as HTTP; Slack answers 200 for all but the limit of calls."""
    if refusal.retry_after is None:
        return web.json_response(refusal.body())
    return web.json_response(refusal.body(), status=429, headers={"Retry-After": str(refusal.retry_after)})
