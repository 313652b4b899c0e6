"""Questions to Prometheus, and its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from scheduler.errors import Unavailable

MOST_POINTS = 10_000  # Prometheus refuses a range of more than 11,000 points a series

_FAULTS = {
    400: "refused the query as wrong",
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


class PrometheusApi:
    """The HTTP API of one Prometheus, or of something that speaks like one."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._client = httpx.Client(timeout=timeout_s)

    def instant(self, query: str) -> Answer:
        """The newest values.

        Raises:
            Unavailable: no answer, or an error; it says which.
        """
        return self._ask("query", {"query": query})

    def range(self, query: str, start: float, end: float, step: float) -> Answer:
        """Values at start, start + step and so on until end, in unix time; long ranges are asked for in parts.

        Raises:
            Unavailable: no answer, or an error; it says which.
        """
        parts = [
            self._ask("query_range", {"query": query, "start": f"{first}", "end": f"{last}", "step": f"{step}"})
            for first, last in parts_of(start, end, step)
        ]
        return Answer(
            lines=tuple(line for part in parts for line in part.lines),
            warnings=tuple(warning for part in parts for warning in part.warnings),
        )

    def close(self) -> None:
        """Give back connections."""
        self._client.close()

    def _ask(self, path: str, form: Mapping[str, str]) -> Answer:
        # POST: a query that names a hundred replicas is too long for a URL.
        try:
            answer = self._client.post(f"{self._url}/api/v1/{path}", data=form)
        except httpx.TimeoutException as error:
            raise Unavailable(f"Prometheus at {self._url} did not answer in time") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(
                f"Prometheus at {self._url} cannot be reached: {error or type(error).__name__}"
            ) from error
        if answer.status_code != httpx.codes.OK:
            raise Unavailable(_refusal(self._url, answer))
        try:
            body = answer.json()
            return Answer(
                lines=tuple(_line(result) for result in body["data"]["result"]),
                warnings=tuple(map(str, body.get("warnings") or ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unavailable(f"{self._url} answered, but not as a Prometheus does; check metrics.url") from error


def parts_of(start: float, end: float, step: float) -> Iterator[tuple[float, float]]:
    """First and last time of each part of a range; no part has too many points, no point is in two parts."""
    points = int((end - start) / step + 1e-6) + 1
    for first in range(0, points, MOST_POINTS):
        last = min(first + MOST_POINTS, points) - 1
        yield start + first * step, start + last * step


def _line(result: Mapping[str, Any]) -> Line:
    values = result["values"] if "values" in result else [result["value"]]
    return Line(labels=result["metric"], values=tuple((float(at), float(value)) for at, value in values))


def _refusal(url: str, answer: httpx.Response) -> str:
    what = _FAULTS.get(answer.status_code, "failed")
    try:
        body = answer.json()
        detail = f"{body['errorType']}: {body['error']}"
    except (ValueError, KeyError, TypeError):
        detail = answer.text[:120]
    return f"Prometheus at {url} {what} ({answer.status_code}, {detail})"
