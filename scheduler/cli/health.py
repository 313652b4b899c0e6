"""What a probe and Prometheus may ask a running scheduler: `/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from scheduler.errors import BadInput, Unavailable
from scheduler.jobs.mail import Board
from scheduler.ports import Clock, HandBack

_LATELY = timedelta(hours=24)  # hand-backs that /metrics speaks of
_PLAIN = "text/plain; version=0.0.4; charset=utf-8"


class Health(ThreadingHTTPServer):
    """Serves on a thread of its own, until `stop`; port 0 = any that is free.

    Raises:
        BadInput: the port is taken.
    """

    daemon_threads = True

    def __init__(
        self,
        port: int,
        *,
        age_s: Callable[[], float],
        limit_s: float,
        board: Callable[[], Board | None],
        hand_backs: Callable[[datetime], tuple[HandBack, ...]],
        counts: Callable[[], Mapping[str, int]],
        clock: Clock,
    ) -> None:
        try:
            super().__init__(("", port), _Handler)
        except OSError as error:
            raise BadInput(f"--health-port {port}: {error.strerror}; choose another") from error
        self.age_s = age_s
        self.limit_s = limit_s
        self.board = board
        self.hand_backs = hand_backs
        self.counts = counts
        self.clock = clock
        self._thread = threading.Thread(target=self.serve_forever, name="health", daemon=True)

    def start(self) -> None:
        """Answers from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answers no more."""
        self.shutdown()
        self.server_close()
        self._thread.join(timeout=5)

    def answer(self, path: str) -> tuple[HTTPStatus, str]:
        """Of one question."""
        age_s = self.age_s()
        if path == "/healthz":
            good = age_s <= self.limit_s
            return _status(good), f"the last turn ended {age_s:.1f} s ago\n"
        if path not in {"/readyz", "/metrics"}:
            return HTTPStatus.NOT_FOUND, "ask for /healthz, /readyz or /metrics\n"
        try:
            board = self.board()
            recent = self.hand_backs(self.clock() - _LATELY) if path == "/metrics" else ()
        except Unavailable as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, f"the database does not answer: {error}\n"
        if path == "/readyz":
            return _status(board is not None), "ready\n" if board else "no turn has seen the cluster yet\n"
        return HTTPStatus.OK, "".join(f"{line}\n" for line in exposition(board, recent, age_s, self.counts()))


class _Handler(BaseHTTPRequestHandler):
    server: Health
    timeout = 10

    def do_GET(self) -> None:
        status, text = self.server.answer(self.path.partition("?")[0])
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", _PLAIN)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in http.server
        """Probes come every few seconds; they are no news."""


def exposition(
    board: Board | None, hand_backs: tuple[HandBack, ...], age_s: float, counts: Mapping[str, int]
) -> Iterator[str]:
    """The board and the hand-backs of the last day as Prometheus reads them."""
    yield from _gauge("gpujob_turn_age_seconds", "Since the last turn ended.", [("", age_s)])
    if board is not None:
        states = {"serving": board.serving, "running": board.running, "idle": board.idle, "unknown": board.unknown}
        gpus = [(f'{{state="{state}"}}', count) for state, count in states.items()]
        yield from _gauge("gpujob_gpus", "GPUs of the pool, by who holds them.", gpus)
        yield from _gauge("gpujob_waiting_tasks", "Tasks that wait for GPUs.", [("", board.waiting_tasks)])
        yield from _gauge("gpujob_waiting_gpus", "GPUs that these tasks want.", [("", board.waiting_gpus)])
        for name, text, field in (
            ("have", "Replicas that a service has.", "have"),
            ("want", "Replicas that it needs.", "want"),
        ):
            replicas = [(f'{{service="{service.name}"}}', getattr(service, field)) for service in board.services]
            yield from _gauge(f"gpujob_replicas_{name}", text, replicas)
        yield from _gauge("gpujob_alerts", "Things that an operator should look at.", [("", len(board.alerts))])
    slowest: dict[str, float] = {}
    for row in hand_backs:
        if row.freed_at is not None:
            took_s = (row.freed_at - row.signal_at).total_seconds()
            slowest[row.service] = max(took_s, slowest.get(row.service, 0.0))
    longest = [(f'{{service="{service}"}}', took_s) for service, took_s in sorted(slowest.items())]
    yield from _gauge("gpujob_hand_back_seconds_max", "From need to free GPUs, the slowest of the last day.", longest)
    for name, count in counts.items():
        yield from (f"# TYPE {name} counter", f"{name}_total {count}")


def _gauge(name: str, text: str, values: Sequence[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} gauge"
    for labels, value in values:
        yield f"{name}{labels} {value:g}"


def _status(good: bool) -> HTTPStatus:
    return HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
