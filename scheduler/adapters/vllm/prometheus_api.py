"""Questions to Prometheus, and its answers."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from scheduler.errors import Unavailable

MOST_POINTS = 10_000  # Prometheus refuses a range of more than 11,000 points a series
LARGEST_ANSWER = 64_000_000  # bytes; what is read of it takes some eight times as much memory

_FAULTS = {
    400: "refused the query as wrong",
    401: "wants to know who asks",
    403: "does not let us ask",
    422: "could not carry the query out",
    503: "gave the query up, because it took too long or was stopped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series of an answer."""

    labels: Mapping[str, str]
    values: Sequence[tuple[float, float]]  # unix time, value; NaN and infinities as they come


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one question gave. With warnings it may be incomplete."""

    lines: tuple[Line, ...]
    warnings: tuple[str, ...] = ()


class Refused(Unavailable):
    """An answer that is an error; `status` is its HTTP status."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class TooLarge(Unavailable):
    """An answer of more bytes than are taken; less can be asked for at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a Prometheus lets us in; a name and password stand in its URL (`https://name:password@host`)."""

    token: str = ""  # sent as a bearer token
    ca_file: str = ""  # the authority that its certificate must come from; "" = those of the system


OPEN = Access()


class PrometheusApi:
    """The HTTP API of one Prometheus, or of something that speaks like one.

    Raises:
        Unavailable: the file of its authority cannot be used.
    """

    def __init__(self, url: str, timeout_s: float, access: Access = OPEN, largest: int = LARGEST_ANSWER) -> None:
        self._url = url.rstrip("/")
        self._shown = shown(self._url)
        self._largest = largest
        headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
        self._client = httpx.Client(timeout=timeout_s, headers=headers, verify=_authority(access.ca_file))

    def instant(self, query: str) -> Answer:
        """The newest values.

        Raises:
            Unavailable: no answer, or an error; it says which.
        """
        return _answer(self._ask("query", {"query": query}), self._shown)

    def range(self, query: str, start: float, end: float, step: float) -> Answer:
        """Values at start, start + step and so on until end, in unix time; long ranges are asked for in parts.

        Raises:
            Unavailable: no answer, or an error; it says which.
        """
        parts = [self.part(query, first, last, step) for first, last in parts_of(start, end, step)]
        return Answer(
            lines=tuple(line for part in parts for line in part.lines),
            warnings=tuple(warning for part in parts for warning in part.warnings),
        )

    def part(self, query: str, start: float, end: float, step: float) -> Answer:
        """The same for a range of at most `MOST_POINTS` points: one question.

        Raises:
            Unavailable: no answer, or an error; `Refused` and `TooLarge` tell some of them apart.
        """
        form = {"query": query, "start": f"{start}", "end": f"{end}", "step": f"{step}"}
        return _answer(self._ask("query_range", form), self._shown)

    def labels_of(self, selectors: Sequence[str], start: float, end: float) -> tuple[Mapping[str, str], ...]:
        """The labels of all series that had a sample between these unix times, with their name as `__name__`.

        Raises:
            Unavailable: no answer, or an error.
        """
        data = self._ask("series", {"match[]": list(selectors), "start": f"{start}", "end": f"{end}"})["data"]
        if not isinstance(data, list) or not all(isinstance(labels, dict) for labels in data):
            raise Unavailable(_stranger(self._shown))
        return tuple(data)

    def metric_names(self) -> tuple[str, ...]:
        """The names of all metrics that it has.

        Raises:
            Unavailable: no answer, or an error.
        """
        data = self._ask("label/__name__/values", None)["data"]
        if not isinstance(data, list):
            raise Unavailable(_stranger(self._shown))
        return tuple(map(str, data))

    def close(self) -> None:
        """Give back connections."""
        self._client.close()

    def _ask(self, path: str, form: Mapping[str, Any] | None) -> Mapping[str, Any]:
        # POST: a query that names a hundred replicas is too long for a URL. Names of metrics can only be had by GET.
        method = "GET" if form is None else "POST"
        try:
            with self._client.stream(method, f"{self._url}/api/v1/{path}", data=form) as answer:
                text = self._text(answer)
        except httpx.TimeoutException as error:
            raise Unavailable(f"Prometheus at {self._shown} did not answer in time") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(
                f"Prometheus at {self._shown} cannot be reached: {error or type(error).__name__}"
            ) from error
        if answer.status_code != httpx.codes.OK:
            raise Refused(_refusal(self._shown, answer.status_code, text), answer.status_code)
        try:
            body = json.loads(text)
        except ValueError as error:
            raise Unavailable(_stranger(self._shown)) from error
        if not isinstance(body, dict) or "data" not in body:
            raise Unavailable(_stranger(self._shown))
        return body

    def _text(self, answer: httpx.Response) -> str:
        body = bytearray()
        for part in answer.iter_bytes():
            body += part
            if len(body) > self._largest:
                raise TooLarge(f"Prometheus at {self._shown} sent more than {self._largest:,} bytes at once")
        return body.decode("utf-8", errors="replace")


def shown(url: str) -> str:
    """A URL without the name and password in it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def parts_of(start: float, end: float, step: float) -> Iterator[tuple[float, float]]:
    """First and last time of each part of a range; no part has too many points, no point is in two parts."""
    points = int((end - start) / step + 1e-6) + 1
    for first in range(0, points, MOST_POINTS):
        last = min(first + MOST_POINTS, points) - 1
        yield start + first * step, start + last * step


def _authority(ca_file: str) -> ssl.SSLContext | bool:
    if not ca_file:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one too
        raise Unavailable(f"{ca_file} holds no certificate of an authority ({error.strerror or error})") from error


def _answer(body: Mapping[str, Any], url: str) -> Answer:
    try:
        return Answer(
            lines=tuple(_line(result) for result in body["data"]["result"]),
            warnings=tuple(map(str, body.get("warnings") or ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unavailable(_stranger(url)) from error


def _line(result: Mapping[str, Any]) -> Line:
    values = result["values"] if "values" in result else [result["value"]]
    return Line(labels=result["metric"], values=tuple((float(at), float(value)) for at, value in values))


def _stranger(url: str) -> str:
    return f"{url} answered, but not as a Prometheus does; check metrics.url"


def _refusal(url: str, status: int, text: str) -> str:
    what = _FAULTS.get(status, "failed")
    try:
        body = json.loads(text)
        detail = f"{body['errorType']}: {body['error']}"
    except (ValueError, KeyError, TypeError):
        detail = text[:120]
    return f"Prometheus at {url} {what} ({status}, {detail})"
