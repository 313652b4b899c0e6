"""Socket Mode: who is connected, what is sent to one of them, and whether it was acknowledged in time."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from socket import SHUT_RDWR

from aiohttp import WSMsgType, web

from bot.playground import people
from bot.playground.faults import Faults
from bot.playground.refusal import Json

MAX_SOCKETS = 10
CONNECTION_TIME_S = 18_060  # what Slack announces: about five hours
ACK_S = 3.0


@dataclass(slots=True, kw_only=True)
class Acknowledged:
    """What came back for an envelope."""

    seconds: float
    payload: Json | None


@dataclass(slots=True, kw_only=True)
class Late:
    """Nothing came back in time; `error` is Slack's word for it."""

    error: str


@dataclass(slots=True, kw_only=True)
class Sent:
    """One envelope as it left, for those who look back."""

    envelope: Json
    socket: int
    acks: int = 0
    late_acks: int = 0


class Sockets:
    """All open sockets of the app."""

    def __init__(self, faults: Faults, changed: Callable[[], None], *, ack_s: float = ACK_S) -> None:
        self.faults = faults
        self.changed = changed
        self.ack_s = ack_s
        self.sent: list[Sent] = []
        self.opened = 0  # sockets in all, closed ones too
        self._tickets: set[str] = set()
        self._open: dict[int, web.WebSocketResponse] = {}
        self._waiting: dict[str, asyncio.Future[Json | None]] = {}

    @property
    def connected(self) -> int:
        """How many sockets are open now."""
        return len(self._open)

    def new_ticket(self) -> str:
        """What a client must show to connect, once."""
        ticket = secrets.token_urlsafe(16)
        self._tickets.add(ticket)
        return ticket

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One socket, from hello to its end."""
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets:
            return web.Response(status=403, text="This link was used before. Ask apps.connections.open for a new one.")
        self._tickets.discard(ticket)
        socket = web.WebSocketResponse(heartbeat=30)
        await socket.prepare(request)
        if self.connected >= MAX_SOCKETS:
            await socket.send_json({"type": "disconnect", "reason": "too_many_websockets", **self._debug()})
            await socket.close()
            return socket
        self.opened += 1
        number = self.opened
        self._open[number] = socket
        self.changed()
        try:
            await socket.send_json(self._hello())
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    self._receive(message.json())
        finally:
            self._open.pop(number, None)
            self.changed()
        return socket

    async def send(self, kind: str, payload: Json, *, answers: bool = True, **more: object) -> Acknowledged | Late:
        """Send an envelope to one socket, and wait for its ack."""
        if fault := self.faults.strike("socket", None):
            await asyncio.sleep(fault.delay_s)
        if not self._open:
            return Late(error="dispatch_failed")
        envelope: Json = {
            "envelope_id": secrets.token_hex(16),
            "type": kind,
            "accepts_response_payload": answers,
            "payload": payload,
            **more,
        }
        number = secrets.choice(list(self._open))
        self.sent.append(Sent(envelope=envelope, socket=number))
        waiting: asyncio.Future[Json | None] = asyncio.get_running_loop().create_future()
        self._waiting[envelope["envelope_id"]] = waiting
        begun = time.monotonic()
        try:
            await self._open[number].send_json(envelope)
            answer = await asyncio.wait_for(waiting, self.ack_s)
        except (TimeoutError, ConnectionError):
            return Late(error="operation_timeout")
        finally:
            self._waiting.pop(envelope["envelope_id"], None)
        return Acknowledged(seconds=time.monotonic() - begun, payload=answer)

    async def disconnect(self, reason: str = "refresh_requested", *, close: bool = False, abort: bool = False) -> None:
        """Tell every socket to go; `close` ends it too, `abort` only breaks the line without a word."""
        for socket in list(self._open.values()):
            if abort:
                line = socket.get_extra_info("socket")
                line.shutdown(SHUT_RDWR)
                continue
            await socket.send_json({"type": "disconnect", "reason": reason, **self._debug()})
            if close:
                await socket.close()

    async def end(self) -> None:
        """Close every socket."""
        for socket in list(self._open.values()):
            await socket.close()

    def _receive(self, answer: Json) -> None:
        name = answer.get("envelope_id", "")
        sent = next((sent for sent in reversed(self.sent) if sent.envelope["envelope_id"] == name), None)
        if sent is None:
            return
        waiting = self._waiting.get(name)
        if waiting is None or waiting.done():
            sent.late_acks += 1
            return
        sent.acks += 1
        waiting.set_result(answer.get("payload"))

    def _hello(self) -> Json:
        return {
            "type": "hello",
            "num_connections": self.connected,
            "connection_info": {"app_id": people.APP},
            **self._debug(),
        }

    @staticmethod
    def _debug() -> Json:
        return {"debug_info": {"host": "playground", "approximate_connection_time": CONNECTION_TIME_S}}
