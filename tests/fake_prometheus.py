"""A stand-in for Prometheus on the loopback: it is given scrapes and answers questions about them as Prometheus does.

What it shares with a real one (tests/data/vllm/prometheus-api): a value is repeated for five minutes while nothing
newer comes; a failed scrape sets `up` to 0 and ends all other series at once; a range of more than 11,000 points is
refused; all values are text.
"""

from __future__ import annotations

import json
import re
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs

from prometheus_client.parser import text_string_to_metric_families

_LOOKBACK_S = 300.0
_MOST_POINTS = 11_000
_STALE = "stale"

_Labels = tuple[tuple[str, str], ...]


class FakePrometheus:
    """One Prometheus. `questions` are the queries that it was asked."""

    def __init__(self) -> None:
        self.questions: list[Mapping[str, str]] = []
        self.warnings: list[str] = []
        self.verbatim: dict[str, Any] | None = None  # this recorded answer, whatever is asked
        self._series: dict[_Labels, list[tuple[float, float | str]]] = defaultdict(list)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
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
        return f"http://127.0.0.1:{self._server.server_port}"

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

    def answer(self, path: str, form: Mapping[str, str]) -> tuple[int, str]:
        with self._lock:
            self.questions.append(form)
        if self.verbatim is not None:
            return self.verbatim["http_status"], json.dumps(self.verbatim["body"])
        if path.endswith("query_range"):
            start, end, step = (float(form[key]) for key in ("start", "end", "step"))
            points = int((end - start) / step + 1e-9) + 1
            if points > _MOST_POINTS:
                error = "exceeded maximum resolution of 11,000 points per timeseries."
                return 400, json.dumps({"status": "error", "errorType": "bad_data", "error": error})
            times = [start + i * step for i in range(points)]
            result = [
                {"metric": labels, "values": [[at, _text(value)] for at, value in values]}
                for labels, values in self._lines(form["query"], times)
            ]
            return self._success("matrix", result)
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
            match = re.fullmatch(r"(timestamp\()?([a-z0-9_:]+)\{(.*)\}\)?", part)
            assert match, f"the fake does not understand {part}"
            matchers = re.findall(r'([a-z_]+)(=~|=)"((?:[^"\\]|\\.)*)"', match[3])
            for key, points in self._series.items():
                labels = dict(key)
                if labels["__name__"] != match[2] or key in told or not all(_fits(labels, *m) for m in matchers):
                    continue
                told.add(key)
                values = [(at, point) for at in times if (point := _value_at(points, at)) is not None]
                if values:
                    stamps = [(at, scraped if match[1] else value) for at, (scraped, value) in values]
                    yield labels, stamps


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


def _text(value: float) -> str:
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(str(value), str(value))


def _handler(fake: FakePrometheus) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            status, body = fake.answer(self.path, {key: values[0] for key, values in form.items()})
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Silent."""

    return Handler
