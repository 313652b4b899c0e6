"""A copy of one list of the API server, kept up by a watch: what client-go calls a reflector."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from scheduler.adapters.kube.api import Api, Gone, Refused, Watch
from scheduler.adapters.kube.objects import Raw
from scheduler.errors import Unavailable

log = logging.getLogger(__name__)

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
_WATCH_S = (240.0, 300.0)  # the server closes a watch after so long; differing times keep many of them apart
_PAUSES_S = (0.2, 10.0)  # between two tries, doubled each time
_ABSENT_S = 60.0  # a kind that is not installed is asked for again so often
_TOMBSTONES = 20_000  # uids of deleted objects that a list may still bring, because it is older


class Named(Protocol):
    """Whatever is mirrored."""

    @property
    def uid(self) -> str:
        """Its identity; names are used again."""
        ...


T = TypeVar("T", bound=Named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Generic[T]):
    """One change, as the mirror took it in."""

    kind: str
    old: T | None
    new: T | None


class Mirror(Generic[T]):
    """One list. Objects are trimmed on arrival; what the server sent is not kept.

    The watch and `refresh` may tell of the same object in any order: the newer resourceVersion wins, and what was
    deleted stays so.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        trim: Callable[[Raw], T],
        name: str,
        *,
        page: int = 500,
        silence_s: float = 75.0,
        query: Mapping[str, str] = MappingProxyType({}),
        optional: bool = False,
        watch_s: tuple[float, float] = _WATCH_S,
        pauses_s: tuple[float, float] = _PAUSES_S,
    ) -> None:
        self.name = name
        self.synced = False
        self.absent = False  # optional, and not installed or not allowed
        self.trouble = ""
        self._api, self._path, self._trim, self._page = api, path, trim, page
        self._silence_s, self._query, self._optional = silence_s, query, optional
        self._watch_s, self._pauses_s = watch_s, pauses_s
        self._chance = Random(path)  # noqa: S311 - spreads requests, guards nothing
        self._order = threading.RLock()  # held while listeners hear: they hear one thing after the other
        self._lock = threading.Lock()
        self._items: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        self._listed = 0  # the newest list that was taken in
        self._tombstones: OrderedDict[str, None] = OrderedDict()
        self._view: Mapping[str, T] | None = None
        self._listeners: list[Callable[[Event[T]], None]] = []
        self._heard_at: float | None = None
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._run, name=f"mirror of {name}", daemon=True)

    def start(self) -> None:
        """Lists and watches on a thread of its own, until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Returns once the thread has ended, or after a second."""
        self._stopping.set()
        self._cut()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def items(self) -> Mapping[str, T]:
        """All objects by uid, as they were at one time."""
        with self._lock:
            if self._view is None:
                self._view = MappingProxyType(dict(self._items))
            return self._view

    def age_s(self) -> float:
        """Seconds since the server said anything about this list; infinite before it has."""
        heard_at = self._heard_at
        return float("inf") if heard_at is None else time.monotonic() - heard_at

    def listen(self, heard: Callable[[Event[T]], None]) -> None:
        """`heard` is called for each change from now on, in order, on the thread that learnt of it."""
        with self._order:
            self._listeners.append(heard)

    def refresh(self) -> None:
        """Lists now, on the thread of the caller.

        Raises:
            Unavailable: no answer, or a refusal.
        """
        try:
            changes = self._list()[1]
        except Refused as refused:
            raise Unavailable(f"{self.name} cannot be listed: {refused}") from refused
        if changes:  # the watch should have told: it may be dead without knowing
            self._cut()

    def _run(self) -> None:
        version: str | None = None
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if version is None:
                    version = self._list()[0]
                version = self._follow(version)
                failures = 0 if time.monotonic() - began > self._pauses_s[0] else failures + 1
            except Gone:
                version, failures = None, failures + 1
            except (Refused, Unavailable) as error:
                failures += 1
                version = self._refused(error, version)
            self._pause(failures)

    def _refused(self, error: Refused | Unavailable, version: str | None) -> str | None:
        """The version to go on from."""
        if isinstance(error, Refused) and self._optional and error.status in {403, 404}:
            self.absent = True
            self._take_list({}, 0)
            self._stopping.wait(_ABSENT_S * self._chance.uniform(0.8, 1.2))
            return None
        said = str(error)
        if not self._stopping.is_set() and said != self.trouble:
            log.warning("mirror=%s trouble=%s", self.name, said)
            self.trouble = said
        return None if isinstance(error, Refused) else version

    def _pause(self, failures: int) -> None:
        if failures:
            first, longest = self._pauses_s
            self._stopping.wait(min(longest, first * 2 ** min(failures - 1, 16)) * self._chance.uniform(0.5, 1.0))

    def _follow(self, version: str) -> str:
        seconds = max(1, round(self._chance.uniform(*self._watch_s)))
        watch = self._watch = self._api.watch(self._path, version, seconds, self._silence_s, self._query)
        try:
            self._well()
            if self._stopping.is_set():
                watch.cut()
            for kind, raw in watch:
                version = self._version(raw)
                self._heard_at = time.monotonic()
                if kind != "BOOKMARK":
                    self._take_event(kind, self._trimmed(raw), int(version))
        finally:
            self._watch = None
            watch.close()
        return version

    def _list(self) -> tuple[str, int]:
        """The version of the list, and how much it changed."""
        found: dict[str, tuple[T, int]] = {}
        position = self._listed
        query: dict[str, str | int] = {**self._query, "limit": self._page}
        while True:
            try:
                page = self._api.get(self._path, **query)
            except Refused as refused:
                if refused.status != 410 or "continue" not in query:
                    raise
                query.pop("continue")  # the pages have grown too old: from the beginning
                found.clear()
                continue
            for raw in page.get("items") or ():
                one = self._trimmed(raw)
                found[one.uid] = one, int(raw["metadata"].get("resourceVersion") or 0)
            version, meta = self._version(page), page["metadata"]
            if not meta.get("continue"):
                break
            query["continue"] = meta["continue"]
        self.absent = False
        listed = int(version)
        if listed < position:
            self._history_went_back(position, listed)
        changes = self._take_list(found, listed)
        return version, changes

    def _version(self, raw: Raw) -> str:
        """What stands between us and the server may answer with anything, and this thread must outlive it."""
        try:
            version: str = raw["metadata"]["resourceVersion"]
            int(version)
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable(
                f"{self.name}: the answer has no resourceVersion, so it is not the API server's"
            ) from error
        return version

    def _trimmed(self, raw: Raw) -> T:
        """An object that cannot be read must not be passed over: its GPUs would look free."""
        try:
            return self._trim(raw)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            name = raw.get("metadata", {}).get("name", "without a name")
            raise Unavailable(f"{self.name}: {name} cannot be read: {error!r}") from error

    def _take_event(self, kind: str, one: T, version: int) -> None:
        with self._order:
            with self._lock:
                event = None
                if version > self._listed:  # what is older is in the list already, or is not for a reason
                    event = self._deleted(one) if kind == DELETED else self._seen(one, version)
            self._tell((event,) if event else ())

    def _take_list(self, found: Mapping[str, tuple[T, int]], listed: int) -> int:
        """Takes a list of version `listed` in: also what is missing from it, unless that is newer than the list."""
        with self._order:
            with self._lock:
                missing = [
                    one for uid, one in self._items.items() if uid not in found and self._versions[uid] <= listed
                ]
                if not found and not listed:  # the kind has gone
                    missing = list(self._items.values())
                self._listed = max(self._listed, listed)
                events = [self._deleted(one) for one in missing]
                events += [self._seen(one, version) for one, version in found.values()]
            changes = [event for event in events if event]
            self._well()
            self.synced = True
            self._tell(changes)
        return len(changes)

    def _history_went_back(self, position: int, listed: int) -> None:
        """The server was restored from a backup: what we know of versions is worth nothing any more."""
        log.warning("mirror=%s version went back from %d to %d", self.name, position, listed)
        with self._lock:
            self._listed = 0
            self._tombstones.clear()
            self._versions = dict.fromkeys(self._items, 0)

    def _seen(self, one: T, version: int) -> Event[T] | None:
        known = self._versions.get(one.uid)
        if one.uid in self._tombstones or (known is not None and version <= known):
            return None
        old = self._items.get(one.uid)
        self._items[one.uid] = one
        self._versions[one.uid] = version
        self._view = None
        return Event(kind=ADDED if old is None else MODIFIED, old=old, new=one)

    def _deleted(self, one: T) -> Event[T] | None:
        self._tombstones[one.uid] = None
        if len(self._tombstones) > _TOMBSTONES:
            self._tombstones.popitem(last=False)
        old = self._items.pop(one.uid, None)
        self._versions.pop(one.uid, None)
        self._view = None
        # The event of a deletion carries the last state of the object, which may be the first that we see of it.
        return Event(kind=DELETED, old=one, new=None) if old is not None else None

    def _tell(self, events: Iterable[Event[T]]) -> None:
        for event in events:
            for heard in self._listeners:
                heard(event)

    def _well(self) -> None:
        self._heard_at = time.monotonic()
        if self.trouble:
            log.info("mirror=%s follows again", self.name)
        self.trouble = ""

    def _cut(self) -> None:
        watch = self._watch
        if watch is not None:
            watch.cut()
