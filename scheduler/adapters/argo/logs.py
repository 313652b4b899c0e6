"""Output of attempts: the last lines for people, and what programs say of their progress."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Lock

from scheduler.adapters.argo.memory import Memory
from scheduler.adapters.kube.api import Api, Refused
from scheduler.adapters.kube.objects import Pod
from scheduler.errors import Unavailable
from scheduler.jobs.job import Uid
from scheduler.jobs.progress import Progress, parse_line
from scheduler.ports import Clock

TAIL_LINES = 40
_EVERY = timedelta(seconds=15)  # between two readings of one program
_LINES = 1000  # a reading; a program that writes more between two of them hides its older lines
_MOST = 65_536  # characters of a tail
_MOST_LINES = 5000
_NO_LOG = frozenset({400, 404})  # its container has not begun, or its pod is gone
_KEPT_KEYS = ("saved_step", "from_step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What was read of one pod's output so far."""

    read_at: datetime
    last_at: datetime | None = None  # of its newest line
    tail: str = ""
    progress: Progress | None = None


class LogBook:
    """Pages by the pods' own uids. Safe for many threads; readings of one pod must not overlap."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._lock = Lock()
        self._pages: dict[str, Page] = {}

    def page(self, pod: Pod) -> Page | None:
        """What is known of it."""
        with self._lock:
            return self._pages.get(pod.uid)

    def due(self, pod: Pod, now: datetime) -> bool:
        """Whether it is time to read it again."""
        page = self.page(pod)
        return page is None or now - page.read_at >= _EVERY

    def read(self, pod: Pod) -> None:
        """Read what is new of one pod; nothing, if it cannot be read any more.

        Raises:
            Refused, Unavailable: it cannot be read now.
        """
        at = self._clock()
        before = self.page(pod) or Page(read_at=at)
        try:
            text = self._api.text(f"{pod.key}/log", container="main", tailLines=_LINES, timestamps="true")
        except Refused as refused:
            if refused.status not in _NO_LOG:
                raise
            text = ""
        page = turned(before, text, at) if text else replace(before, read_at=at)
        with self._lock:
            self._pages[pod.uid] = page

    def forget(self, but: Collection[str]) -> None:
        """Drop the pages of all other pods."""
        with self._lock:
            self._pages = {uid: page for uid, page in self._pages.items() if uid in but}


class ArgoLogs:
    """The port `LogReader`."""

    def __init__(self, api: Api, memory: Memory, book: LogBook) -> None:
        self._api = api
        self._memory = memory
        self._book = book

    def tail(self, uid: Uid, lines: int) -> str:
        """The last lines of an attempt; of a pod that is gone those that were read in time."""
        seen = self._memory.find(uid.rpartition("/")[2])
        if seen is None:
            return ""
        page = self._book.page(seen.pod)
        kept = "\n".join(page.tail.splitlines()[-lines:]) if page and lines > 0 else ""
        if seen.gone or lines < 1:
            return kept
        try:
            text = self._api.text(f"{seen.pod.key}/log", container="main", tailLines=min(lines, _MOST_LINES))
        except Refused as refused:
            if refused.status not in _NO_LOG:
                raise Unavailable(f"the output of {uid} cannot be read: {refused}") from refused
            return kept
        return text.rstrip("\n")[-_MOST:]


def turned(page: Page, text: str, at: datetime) -> Page:
    """The page after a reading of lines that begin with their times; lines without one count as written now."""
    lines = [_stamped(line) for line in text.splitlines()]
    progress = page.progress
    for when, line in lines:
        if page.last_at is None or when is None or when > page.last_at:
            progress = told(progress, line, when or at)
    stamps = [when for when, _ in lines if when is not None]
    tail = "\n".join(line for _, line in lines[-TAIL_LINES:])[-_MOST:]
    return Page(read_at=at, last_at=max(stamps, default=page.last_at), tail=tail, progress=progress)


def told(before: Progress | None, line: str, at: datetime) -> Progress | None:
    """Progress after one more line of output."""
    parsed = parse_line(line)
    if parsed is None:
        return before
    fraction, values = parsed
    old = before.values if before else {}
    saved = before.saved_at if before else None
    if "saved_step" in values and _number(values["saved_step"]) > _number(old.get("saved_step", "-inf")):
        saved = at
    # A line without them does not unsay what an earlier one said of checkpoints.
    kept = {key: old[key] for key in _KEPT_KEYS if key in old}
    first = before.first_at if before else at
    return Progress(fraction=fraction, values={**kept, **values}, first_at=first, saved_at=saved)


def _stamped(line: str) -> tuple[datetime | None, str]:
    stamp, _, rest = line.partition(" ")
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        return None, line
    return (when, rest) if when.tzinfo is not None else (None, line)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("-inf")
