"""A stand-in for vLLM servers on the loopback: pages that change, errors, slowness, refusal."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class FakeVllm:
    """Many replicas behind one port, one path each. What is not published is refused with 404."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        self.statuses: dict[str, int] = {}
        self.scrapes: Counter[str] = Counter()
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._gate = threading.Event()
        self._gate.set()
        self._meeting: threading.Barrier | None = None
        self._dripping: set[str] = set()
        self._dripping_headers: set[str] = set()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{name}/metrics"

    def hang(self) -> None:
        """No answer until the end of the test."""
        self._gate.clear()

    def answer_together(self, count: int) -> None:
        """No answer before `count` scrapes are there at the same time."""
        self._meeting = threading.Barrier(count, timeout=10)

    def drip(self, name: str) -> None:
        """Answers a byte now and then and never ends."""
        self._dripping.add(name)

    def drip_headers(self, name: str) -> None:
        """Sends a header now and then and never comes to the page."""
        self._dripping_headers.add(name)

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        name = handler.path.split("/")[1]
        with self._lock:
            self.scrapes[name] += 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if self._meeting is not None:
                self._meeting.wait()
            self._gate.wait()
            self._answer(handler, name)
        finally:
            with self._lock:
                self._at_once -= 1

    def _answer(self, handler: BaseHTTPRequestHandler, name: str) -> None:
        status = self.statuses.get(name, 200 if name in self.pages else 404)
        body = self.pages.get(name, "").encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
        ended = threading.Event()
        while name in self._dripping_headers and not ended.wait(0.02):
            handler.send_header("X-More", "to come")
            handler.flush_headers()
        if name in self._dripping:
            handler.end_headers()
            while not ended.wait(0.02):
                handler.wfile.write(b"#")
                handler.wfile.flush()
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that gave up is no event; other errors are told as usual."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(fake: FakeVllm) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            fake.serve(self)

        def log_message(self, *_: object) -> None:
            """Silent."""

    return Handler
