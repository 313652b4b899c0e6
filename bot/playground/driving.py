"""The calls of the page, and of other processes that act for people, under `/playground/`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web

from bot.playground import people
from bot.playground.faults import Fault, FaultKind
from bot.playground.hands import Hands
from bot.playground.refusal import Json, NotThere
from bot.playground.screen import screen
from bot.playground.transcript import Transcript

PAGE = Path(__file__).parent / "page"
QUIET_S = 0.05  # changes closer together than this are told once
ALIVE_S = 15.0  # seconds of silence before a sign of life


class Driving:
    """Routes to the same calls that tests make in Python."""

    def __init__(self, slack: Hands, story: Transcript) -> None:
        self.slack = slack
        self.story = story

    def add_to(self, application: web.Application) -> None:
        """Lay the routes."""
        posts: dict[str, Callable[[Json], Awaitable[Any]]] = {
            "command": self._command,
            "click": self._click,
            "view_click": self._view_click,
            "view_submit": self._view_submit,
            "view_close": self._view_close,
            "suggestions": self._suggestions,
            "mention": self._mention,
            "message": self._message,
            "file": self._file,
            "home": self._home,
            "faults": self._faults,
            "disconnect": self._disconnect,
            "redeliver": self._redeliver,
        }
        for name, act in posts.items():
            application.router.add_post(f"/playground/{name}", _answering(act))
        application.router.add_get("/playground/state", self._state)
        application.router.add_get("/playground/transcript", self._transcript)
        application.router.add_get("/playground/stream", self._stream)
        application.router.add_get("/", self._page)
        application.router.add_static("/page", PAGE)

    async def _command(self, body: Json) -> Any:
        return asdict(await self.slack.command(body["user"], body["channel"], body["text"]))

    async def _click(self, body: Json) -> Any:
        where = {"block_id": body.get("block_id"), "value": body.get("value")}
        return asdict(await self.slack.click(body["user"], body["channel"], body["ts"], body["action_id"], **where))

    async def _view_click(self, body: Json) -> Any:
        more = {name: body.get(name) for name in ("block_id", "value", "values")}
        return asdict(await self.slack.click_view(body["user"], body["action_id"], **more))

    async def _view_submit(self, body: Json) -> Any:
        return asdict(await self.slack.submit_view(body["user"], body.get("values")))

    async def _view_close(self, body: Json) -> Any:
        await self.slack.close_view(body["user"])

    async def _suggestions(self, body: Json) -> Any:
        where = (body.get("ts", ""), body.get("channel", ""))
        return {"options": await self.slack.suggestions(body["user"], body["action_id"], body.get("query", ""), *where)}

    async def _mention(self, body: Json) -> Any:
        return await self.slack.mention(body["user"], body["channel"], body["text"], body.get("thread_ts"))

    async def _message(self, body: Json) -> Any:
        return await self.slack.say(body["user"], body["channel"], body["text"], body.get("thread_ts"))

    async def _file(self, body: Json) -> Any:
        return self.slack.upload(body["user"], body["name"], body["content"])

    async def _home(self, body: Json) -> Any:
        await self.slack.open_home(body["user"])

    async def _faults(self, body: Json) -> Any:
        if body.get("clear"):
            self.slack.sockets.faults.clear()
        if "method" in body:
            rule = {name: value for name, value in body.items() if name != "clear"}
            self.slack.sockets.faults.add(Fault(**rule | {"kind": FaultKind(body["kind"])}))
        return {"rules": [asdict(rule) for rule in self.slack.sockets.faults.rules]}

    async def _disconnect(self, body: Json) -> Any:
        how = {name: bool(body.get(name)) for name in ("close", "abort")}
        await self.slack.sockets.disconnect(body.get("reason", "refresh_requested"), **how)

    async def _redeliver(self, body: Json) -> Any:
        return asdict(await self.slack.redeliver(attempt=body.get("attempt", 1)))

    async def _state(self, request: web.Request) -> web.StreamResponse:
        try:
            user = self.slack.workspace.user(request.query.get("user", people.U_ANA))
        except NotThere as error:
            return web.json_response({"error": str(error)}, status=404)
        return web.json_response(screen(self.slack.workspace, user, connected=self.slack.sockets.connected))

    async def _transcript(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(self.story.as_json())

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        workspace = self.slack.workspace
        told = -1
        while request.transport and not request.transport.is_closing():
            if told != workspace.version:
                told = workspace.version
                await response.write(f"data: {told}\n\n".encode())
                await asyncio.sleep(QUIET_S)
                continue
            try:
                await asyncio.wait_for(workspace.news(), ALIVE_S)
            except TimeoutError:
                await response.write(b": still here\n\n")
        return response

    async def _page(self, _: web.Request) -> web.StreamResponse:
        return web.FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-store"})


def _answering(act: Callable[[Json], Awaitable[Any]]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def serve(request: web.Request) -> web.StreamResponse:
        try:
            body = await request.json()
            return web.json_response({"ok": True, "result": await act(body)})
        except json.JSONDecodeError:
            return web.json_response({"ok": False, "error": "The body must be JSON."}, status=400)
        except KeyError as error:
            return web.json_response({"ok": False, "error": f"The body must have {error}."}, status=400)
        except (ValueError, TypeError) as error:
            return web.json_response({"ok": False, "error": str(error)}, status=400)
        except NotThere as error:
            return web.json_response({"ok": False, "error": str(error)}, status=404)

    return serve
