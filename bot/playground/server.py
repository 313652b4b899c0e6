"""The playground as one HTTP server: Web API, Socket Mode, response URLs, uploads, the page and its calls."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from bot.playground import people
from bot.playground.arguments import read
from bot.playground.conversations import keep_upload
from bot.playground.driving import Driving
from bot.playground.events import EVENTS, Events
from bot.playground.faults import FaultKind, Faults
from bot.playground.hands import Hands
from bot.playground.rates import Rates
from bot.playground.refusal import Json, Refusal
from bot.playground.responses import respond
from bot.playground.sockets import ACK_S, Sockets
from bot.playground.transcript import Transcript
from bot.playground.webapi import WebApi, before, refused_response
from bot.playground.workspace import TRIGGER_LIFE_S, Workspace

HOST = "127.0.0.1"
MAX_BODY = 64 * 2**20  # bytes; uploads included


class Playground(Hands):
    """A local Slack; `async with` starts and stops it.

    `speed` is how many seconds of Slack's rate limits and event retries pass in one of ours. `ack_s` and
    `trigger_life_s` are three seconds in Slack. `events` names what the app subscribes to.
    """

    bot_token = people.BOT_TOKEN
    app_token = people.APP_TOKEN
    U_ANA, U_BO, U_CY, U_GPUJOB = people.U_ANA, people.U_BO, people.U_CY, people.U_GPUJOB
    C_GPU, C_NLP, S_APPROVERS = people.C_GPU, people.C_NLP, people.S_APPROVERS

    def __init__(
        self,
        port: int = 0,
        *,
        speed: float = 1.0,
        transcript: Path | None = None,
        rate_limits: bool = True,
        ack_s: float = ACK_S,
        trigger_life_s: float = TRIGGER_LIFE_S,
        events: frozenset[str] = EVENTS,
    ) -> None:
        self.port = port
        self.faults = Faults()
        workspace = Workspace(trigger_life_s=trigger_life_s)
        sockets = Sockets(self.faults, workspace.changed, ack_s=ack_s)
        super().__init__(workspace, sockets, Events(sockets, speed=speed, subscribed=events))
        self.rates = Rates(speed=speed, enforced=rate_limits)
        self.api = WebApi(workspace, self.sockets, self.faults, self.rates)
        self.story = Transcript(workspace.started_at, transcript)
        workspace.on_message.append(self.story.hear)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where the page is."""
        return self.origin

    @property
    def base_url(self) -> str:
        """Where the Web API is; with the slash at its end that clients need."""
        return f"{self.origin}/api/"

    @property
    def calls(self) -> list[tuple[str, Json]]:
        """Every call of the Web API in order, refused ones too: method and arguments."""
        return self.api.calls

    async def disconnect(self, reason: str = "refresh_requested", *, close: bool = False, abort: bool = False) -> None:
        """Send every socket away: by a word, by closing it, or by breaking the line without a word."""
        await self.sockets.disconnect(reason, close=close, abort=abort)

    async def __aenter__(self) -> Self:
        """Listen."""
        self._runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.origin = f"http://{HOST}:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening."""
        del kind, error, trace
        await self.events.rest()
        await self.sockets.end()
        if self._runner:
            await self._runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=MAX_BODY)
        application.router.add_route("*", "/api/{method}", self.api.serve)
        application.router.add_get("/link", self.sockets.serve)
        application.router.add_post("/response/{name}", self._respond)
        application.router.add_post("/upload/{name}", self._upload)
        application.router.add_get("/files/{name}", self._file)
        Driving(self, self.story).add_to(application)
        return application

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        url = self.workspace.response_urls.get(name)
        fault = self.faults.strike("response_url", url.channel if url else None)
        if refused := await before(fault):
            return refused
        try:
            message = respond(self.workspace, name, await read(request))
        except Refusal as refusal:
            status = 404 if refusal.error.endswith("_url") else 200
            return web.json_response(refusal.body(), status=status)
        if fault and fault.kind is FaultKind.DROP_AFTER and request.transport:
            request.transport.abort()
        if url and message and message.only_for is None:
            self.told(url.user, message)
        return web.Response(text="ok")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {self.bot_token}":
            return web.Response(status=403)
        file = self.workspace.uploads.get(request.match_info["name"])
        return web.Response(text=file["content"]) if file and "content" in file else web.Response(status=404)

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        body = await _uploaded(request)
        try:
            keep_upload(self.workspace, request.match_info["name"], body)
        except Refusal as refusal:
            return refused_response(refusal)
        return web.Response(text=f"OK - {len(body)}")


async def _uploaded(request: web.Request) -> bytes:
    if not request.content_type.startswith("multipart/"):
        return await request.read()
    field = next((field for field in (await request.post()).values() if isinstance(field, web.FileField)), None)
    return field.file.read() if field else b""
