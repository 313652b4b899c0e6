"""A place before the playground that answers some calls itself, with words that it does not have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from bot.playground.server import Playground


@asynccontextmanager
async def before_slack(slack: Playground, answers: Mapping[str, Mapping[str, Any]]) -> AsyncIterator[str]:
    """The base URL to use; methods without an answer here go to the playground."""

    async def serve(request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        if method in answers:
            return web.json_response(dict(answers[method]))
        headers = {name: request.headers[name] for name in ("Authorization", "Content-Type") if name in request.headers}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method,
                f"{slack.base_url}{method}",
                params=request.query,
                data=await request.read(),
                headers=headers,
            ) as answer,
        ):
            return web.Response(body=await answer.read(), status=answer.status, content_type=answer.content_type)

    application = web.Application()
    application.router.add_route("*", "/api/{method}", serve)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/api/"
    await runner.cleanup()
