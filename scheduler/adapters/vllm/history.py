"""Weeks of vLLM's series from a Prometheus, a piece at a time, so that memory does not grow with the range."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scheduler.adapters.vllm import names
from scheduler.adapters.vllm.prometheus_api import (
    MOST_POINTS,
    OPEN,
    Access,
    Line,
    PrometheusApi,
    Refused,
    TooLarge,
)
from scheduler.errors import Unavailable

UP = "up"
_T = TypeVar("_T")
SAMPLES = "samples"  # how many of RUNNING there were in the window
GAUGES = (names.RUNNING, names.WAITING)
COUNTERS = (names.GENERATION_TOKENS, names.PROMPT_TOKENS)

_PIECE_S = 86_400.0  # of the first questions; a Prometheus that finds it too much is asked for less
_LEAST_POINTS = 30  # a piece of so few points is not cut again
_LARGEST_PIECE = 16_000_000  # bytes of one answer
_USUAL_S = (5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0)  # between scrapes
_LOOKS = 48  # at how often replicas are scraped
_TRIES = 4
_PAUSE_S = 1.0  # before the second try; doubles
_NEAREST = 5
_TOO_MUCH = (422, 503)  # it gave the query up
_NO_USE = (400, 401, 403, 404)  # asking again changes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What was read of one stretch: by name, one line for each series of each replica.

    Values of gauges are means over the window before their time, those of counters rates a second, those of UP and
    SAMPLES numbers of samples in the window; NaN as it comes.
    """

    start: float  # unix time of the first point
    end: float  # of the last
    lines: Mapping[str, Sequence[Line]]  # by UP, SAMPLES and the names of GAUGES and COUNTERS, without prefix
    expected: float = 1.0  # samples of UP and SAMPLES that a replica has which was there all the time
    window_s: float = 0.0  # of means and numbers of samples; 0: values are those of their time alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a Prometheus has of vLLM in a range."""

    prefixes: tuple[str, ...]  # of the names; () if there is nothing
    looked_for: tuple[str, ...]  # names of metrics
    nearest: tuple[str, ...] = ()  # names that it has, if there is nothing
    jobs: tuple[str, ...] = ()  # scrape jobs, by their label
    scrape_s: float = 0.0  # between two samples of a replica; of the slowest scrape job


class PrometheusHistory:
    """Range queries over weeks. `selector` is added to every query, for example `namespace="llm"`."""

    def __init__(
        self,
        url: str,
        prefix: str,
        pause: Callable[[float], None],
        access: Access = OPEN,
        timeout_s: float = 60.0,
        selector: str = "",
    ) -> None:
        self._api = PrometheusApi(url, timeout_s, access, _LARGEST_PIECE)
        self._prefixes = tuple(dict.fromkeys((prefix, *names.PREFIXES)))
        self._pause = pause
        self._selector = selector
        self.warnings: set[str] = set()  # what it said beside its answers: they may be incomplete

    def find(self, start: float, end: float) -> Found:
        """Whether there are series of vLLM between these unix times, under which names, and how often they come.

        Raises:
            Unavailable: no answer, or an error.
        """
        looked_for = tuple(prefix + names.RUNNING for prefix in self._prefixes)
        series = self._tried(lambda: self._api.labels_of([self._of(name) for name in looked_for], start, end))
        there = {labels.get("__name__", "") for labels in series}
        prefixes = tuple(prefix for prefix in self._prefixes if prefix + names.RUNNING in there)
        if not prefixes:
            every = self._tried(self._api.metric_names)
            return Found(prefixes=(), looked_for=looked_for, nearest=_nearest(every, looked_for[0]))
        jobs = sorted({labels["job"] for labels in series if labels.get("job")})
        scrape_s = self._scrape_s(prefixes, start, end)
        return Found(prefixes=prefixes, looked_for=looked_for, jobs=tuple(jobs), scrape_s=scrape_s)

    def pieces(self, found: Found, start: float, end: float, step: float) -> Iterator[Piece]:
        """The whole range in order of time; no point is in two pieces.

        Raises:
            Unavailable: no answer after several tries, or an error.
        """
        expected = _samples(found.scrape_s, step)
        questions = self._questions(found, step, expected)
        points = max(1, min(int(_PIECE_S / step), MOST_POINTS))
        at = start
        while at <= end:
            last = min(at + (points - 1) * step, end)
            try:
                lines = {name: self._lines(query, at, last, step) for name, query in questions.items()}
            except Unavailable as error:
                if points <= _LEAST_POINTS or not _is_too_much(error):
                    raise
                points = max(points // 2, _LEAST_POINTS)
                continue
            yield Piece(start=at, end=last, lines=lines, expected=expected, window_s=expected * found.scrape_s)
            at = last + step

    def close(self) -> None:
        """Give back connections."""
        self._api.close()

    def _of(self, name: str) -> str:
        return f"{name}{{{self._selector}}}"

    def _questions(self, found: Found, step: float, samples: int) -> Mapping[str, str]:
        # Windows hold what happened between two points. Two samples at least make a rate, four a steady one.
        mean_s = round(samples * found.scrape_s) if found.scrape_s else round(step)
        rate_s = round(max(step, 4 * found.scrape_s))
        every = {
            **{name: ("avg_over_time", name, mean_s) for name in GAUGES},
            **{name: ("rate", name, rate_s) for name in COUNTERS},
            SAMPLES: ("count_over_time", names.RUNNING, mean_s),
        }
        questions = {
            name: " or ".join(f"{how}({self._of(prefix + bare)}[{window}s])" for prefix in found.prefixes)
            for name, (how, bare, window) in every.items()
        }
        if found.jobs:
            # Of other jobs `up` tells nothing: a large cluster has thousands of targets.
            jobs = "|".join(_escaped(job) for job in found.jobs)
            more = f",{self._selector}" if self._selector else ""
            # A scrape that failed is a sample of `up` too: the replica was there.
            questions[UP] = f'count_over_time({UP}{{job=~"{jobs}"{more}}}[{mean_s}s])'
        return questions

    def _scrape_s(self, prefixes: Sequence[str], start: float, end: float) -> float:
        """Of each scrape job its most frequent replica, and of these the slowest; looked at now and then."""
        query = " or ".join(f"count_over_time({self._of(prefix + names.RUNNING)}[1h])" for prefix in prefixes)
        best: dict[str, float] = {}
        each = max(3600.0, (end - start) / _LOOKS)
        for line in self._lines(query, start + each, end, each):
            job = line.labels.get("job", "")
            best[job] = max(best.get(job, 0.0), max((count for _, count in line.values), default=0.0))
        return max((_interval(count) for count in best.values() if count > 0), default=0.0)

    def _lines(self, query: str, start: float, end: float, step: float) -> tuple[Line, ...]:
        answer = self._tried(lambda: self._api.part(query, start, end, step))
        self.warnings.update(answer.warnings)
        return answer.lines

    def _tried(self, ask: Callable[[], _T]) -> _T:
        for trial in range(_TRIES - 1):
            try:
                return ask()
            except (TooLarge, Refused) as error:
                if isinstance(error, TooLarge) or error.status in (*_TOO_MUCH, *_NO_USE):
                    raise
            except Unavailable:
                pass
            self._pause(_PAUSE_S * 2**trial)
        return ask()


def _interval(samples_an_hour: float) -> float:
    """Seconds between scrapes. An hour may hold one sample more than it has intervals."""
    seconds = 3600 / samples_an_hour
    return next((usual for usual in _USUAL_S if abs(seconds - usual) <= 0.04 * usual), float(round(seconds)))


def _samples(scrape_s: float, step: float) -> int:
    """How many a window holds: whole scrapes, so that each replica has as many, and two, so that a late one is in."""
    return max(2, math.ceil(step / scrape_s)) if scrape_s else 1


def _is_too_much(error: Unavailable) -> bool:
    return isinstance(error, TooLarge) or (isinstance(error, Refused) and error.status in _TOO_MUCH)


def _nearest(every: Sequence[str], wanted: str) -> tuple[str, ...]:
    close = difflib.get_close_matches(wanted, every, n=_NEAREST, cutoff=0.5)
    kin = [name for name in every if "vllm" in name.lower() or names.RUNNING in name]
    return tuple(dict.fromkeys([*close, *kin]))[:_NEAREST]


def _escaped(text: str) -> str:
    return "".join(
        character if character.isalnum() or character in "_- /:" else f"\\\\{character}" for character in text
    )
