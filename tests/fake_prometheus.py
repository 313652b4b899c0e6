"""A stand-in for Prometheus on the loopback: it is given scrapes and answers questions about them as Prometheus does.

What it shares with a real one (tests/data/vllm/prometheus-api): a value is repeated for five minutes while nothing
newer comes; a failed scrape sets `up` to 0 and ends all other series at once; a range of more than 11,000 points is
refused; all values are text. Of functions over a time it knows those that we ask for.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any, Self
from urllib.parse import parse_qs

from prometheus_client.parser import text_string_to_metric_families

_LOOKBACK_S = 300.0
_MOST_POINTS = 11_000
_STALE = "stale"

_Labels = tuple[tuple[str, str], ...]


class FakePrometheus:
    """One Prometheus. `questions` are the queries that it was asked; `tls`: it speaks HTTPS."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.questions: list[Mapping[str, str]] = []
        self.warnings: list[str] = []
        self.verbatim: dict[str, Any] | None = None  # this recorded answer, whatever is asked
        self.recorded: Mapping[
            str, str
        ] = {}  # question (see `question`) -> body of a real answer; nothing else is known
        self.failures: list[tuple[int, str]] = []  # status and body of the next answers
        self.most_points = _MOST_POINTS  # more than so many at once are refused as too much work (422)
        self.authorization = ""  # of the header; with one, others are turned away
        self._series: dict[_Labels, list[tuple[float, float | str]]] = defaultdict(list)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def scrape(self, at: datetime, page: str | None, **target: str) -> None:
        """One scrape of the target with these labels; None: it failed."""
        when = at.timestamp()
        self._add({"__name__": "up", **target}, when, 0.0 if page is None else 1.0)
        if page is None:
            for labels in [key for key in self._series if self._is_of(key, target) and ("__name__", "up") not in key]:
                self._series[labels].append((when, _STALE))
            return
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    self._add({"__name__": sample.name, **sample.labels, **target}, when, sample.value)

    def answer(self, path: str, form: Mapping[str, str], authorization: str = "") -> tuple[int, str]:
        with self._lock:
            self.questions.append({"path": path, **form})
            if self.failures:
                return self.failures.pop(0)
        if self.authorization and authorization != self.authorization:
            return 401, "Unauthorized"
        if self.recorded:
            body = self.recorded.get(question(path, form))
            return (200, body) if body else (404, f"not recorded: {question(path, form)}")
        if self.verbatim is not None:
            return self.verbatim["http_status"], json.dumps(self.verbatim["body"])
        if path.endswith("query_range"):
            start, end, step = (float(form[key]) for key in ("start", "end", "step"))
            points = int((end - start) / step + 1e-9) + 1
            if points > _MOST_POINTS:
                error = "exceeded maximum resolution of 11,000 points per timeseries."
                return 400, json.dumps({"status": "error", "errorType": "bad_data", "error": error})
            if points > self.most_points:
                error = "query processing would load too many samples into memory in query execution"
                return 422, json.dumps({"status": "error", "errorType": "execution", "error": error})
            times = [start + i * step for i in range(points)]
            result = [
                {"metric": labels, "values": [[at, _text(value)] for at, value in values]}
                for labels, values in self._lines(form["query"], times)
            ]
            return self._success("matrix", result)
        if path.endswith("/series"):
            asked = {name.partition("{")[0] for name in form["match[]"].split("\n")}
            first, last = float(form["start"]), float(form["end"])
            there = [
                dict(key)
                for key, points in self._series.items()
                if dict(key)["__name__"] in asked and any(first <= at <= last for at, _ in points)
            ]
            return 200, json.dumps({"status": "success", "data": there})
        if path.endswith("/values"):
            every = sorted({dict(key)["__name__"] for key in self._series})
            return 200, json.dumps({"status": "success", "data": every})
        name = form["query"].removeprefix("count(").removesuffix(")")
        there = any(("__name__", name) in labels for labels in self._series)
        return self._success("vector", [{"metric": {}, "value": [0, "1"]}] if there else [])

    def _success(self, kind: str, result: list[dict[str, Any]]) -> tuple[int, str]:
        body: dict[str, Any] = {"status": "success", "data": {"resultType": kind, "result": result}}
        if self.warnings:
            body["warnings"] = self.warnings
        return 200, json.dumps(body)

    def _add(self, labels: Mapping[str, str], at: float, value: float) -> None:
        self._series[tuple(sorted(labels.items()))].append((at, value))

    def _is_of(self, key: _Labels, target: Mapping[str, str]) -> bool:
        return target.items() <= dict(key).items()

    def _lines(self, query: str, times: list[float]) -> Iterator[tuple[dict[str, str], list[tuple[float, float]]]]:
        told: set[_Labels] = set()
        for part in query.split(" or "):
            match = re.fullmatch(r"(?:([a-z_]+)\()?([a-z0-9_:]+)\{(.*)\}(?:\[(\d+)([sh])\])?\)?", part)
            assert match, f"the fake does not understand {part}"
            matchers = re.findall(r'([a-z_]+)(=~|=)"((?:[^"\\]|\\.)*)"', match[3])
            for key, points in self._series.items():
                labels = dict(key)
                if labels["__name__"] != match[2] or key in told or not all(_fits(labels, *m) for m in matchers):
                    continue
                told.add(key)
                if match[4]:
                    seconds = int(match[4]) * (3600 if match[5] == "h" else 1)
                    when = [scraped for scraped, _ in points]
                    windows = ((at, points[bisect_right(when, at - seconds) : bisect_right(when, at)]) for at in times)
                    found = [(at, _OVER_TIME[match[1]](_numbers(window))) for at, window in windows]
                    over = [(at, value) for at, value in found if value is not None]
                    if over:
                        yield {name: value for name, value in labels.items() if name != "__name__"}, over
                    continue
                values = [(at, point) for at in times if (point := _value_at(points, at)) is not None]
                if values:
                    stamps = [(at, scraped if match[1] else value) for at, (scraped, value) in values]
                    yield labels, stamps


def question(path: str, form: Mapping[str, str]) -> str:
    """A question as the key of a recorded answer."""
    return json.dumps([path.rpartition("/api/v1/")[2], sorted(form.items())])


def _fits(labels: Mapping[str, str], name: str, how: str, text: str) -> bool:
    text = text.replace("\\\\", "\\")
    value = labels.get(name, "")
    return value == text if how == "=" else re.fullmatch(text, value) is not None


def _value_at(points: list[tuple[float, float | str]], at: float) -> tuple[float, float] | None:
    i = bisect_right([when for when, _ in points], at) - 1
    if i < 0:
        return None
    when, value = points[i]
    return None if isinstance(value, str) or at - when >= _LOOKBACK_S else (when, value)


def _numbers(points: list[tuple[float, float | str]]) -> list[tuple[float, float]]:
    return [(at, value) for at, value in points if not isinstance(value, str)]


def _rate(points: list[tuple[float, float]]) -> float | None:
    """Without the extrapolation of a real one, which is nothing for even scrapes."""
    if len(points) < 2:
        return None
    grown = sum(now - before if now >= before else now for (_, before), (_, now) in pairwise(points))
    return grown / (points[-1][0] - points[0][0])


_OVER_TIME: Mapping[str, Callable[[list[tuple[float, float]]], float | None]] = {
    "avg_over_time": lambda points: sum(value for _, value in points) / len(points) if points else None,
    "max_over_time": lambda points: max(value for _, value in points) if points else None,
    "count_over_time": lambda points: len(points) or None,
    "rate": _rate,
}


def _text(value: float) -> str:
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(str(value), str(value))


def _handler(fake: FakePrometheus) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self._answer({key: "\n".join(values) for key, values in form.items()})

        def do_GET(self) -> None:
            self._answer({})

        def _answer(self, form: Mapping[str, str]) -> None:
            status, body = fake.answer(self.path, form, self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Silent."""

    return Handler
