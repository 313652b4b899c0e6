"""The port Images: registries are asked beside the turn, and answers are remembered for a little while."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock

from scheduler.adapters.images.logins import read_logins
from scheduler.adapters.images.reference import Reference, parse
from scheduler.adapters.images.registry import Registry
from scheduler.errors import Unavailable
from scheduler.ports import Unresolved

_THREADS = 8
_KNOWN_S = 60.0  # so long a tag is taken to stand for the same image
_UNKNOWN_S = 20.0  # so long a registry that did not tell is left alone
_MOST = 10_000  # names remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One name, and what became of the question."""

    at: float
    image: str | Unresolved | None = None  # None while it is under way
    answered_at: float = 0.0
    told: bool = False  # an answer is given at least once, however late it is asked for


def _unheard() -> None:
    pass


class RegistryImages:
    """Implements `ports.Images` over HTTP.

    `logins` is a file as `docker login` writes it; without one, only public images can be looked up. `plain_http` names
    registries (HOST or HOST:PORT) that are asked without TLS, as those of this computer are. A lookup takes at most
    `timeout_s`; after twice that time its name is unresolved, whatever holds it up.
    """

    def __init__(
        self,
        plain_http: Collection[str] = (),
        timeout_s: float = 3.0,
        seconds: Callable[[], float] = time.monotonic,
        logins: Path | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._seconds = seconds
        self._registry = Registry(plain_http, timeout_s, seconds, partial(read_logins, logins) if logins else dict)
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="registry")
        self._lock = Lock()
        self._asked: dict[str, _Asked] = {}
        self._heard: Callable[[], None] = _unheard

    def listen(self, heard: Callable[[], None]) -> None:
        """`heard` is called, from a thread, when an answer has come."""
        self._heard = heard

    def digests(self, names: Collection[str]) -> Mapping[str, str | Unresolved]:
        """What is known of these names; one that is missing is being looked up, ask again. Never waits."""
        found = {name: self._known(name) for name in dict.fromkeys(names)}
        return {name: image for name, image in found.items() if image is not None}

    def close(self) -> None:
        """Give back connections and threads."""
        self._registry.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _known(self, name: str) -> str | Unresolved | None:
        reference = parse(name)
        if isinstance(reference, str):
            return Unresolved(why=f"it {reference}")
        if reference.digest:
            return name
        now = self._seconds()
        with self._lock:
            asked = self._asked.get(name)
            if asked is not None and not _is_old(asked, now):
                if asked.image is None and now - asked.at > 2 * self._timeout_s:
                    return Unresolved(why=f"{reference.host} was not heard of in time")
                self._asked[name] = replace(asked, told=asked.image is not None)
                return asked.image
            self._forget(now)
            self._asked[name] = _Asked(at=now)
        self._threads.submit(self._look_up, reference).add_done_callback(lambda done: self._keep(name, done))
        return None

    def _look_up(self, reference: Reference) -> str | Unresolved:
        try:
            return reference.pinned(self._registry.digest(reference))
        except Unavailable as error:
            return Unresolved(why=str(error))

    def _keep(self, name: str, done: Future[str | Unresolved]) -> None:
        if done.cancelled():
            return
        with self._lock:
            asked = self._asked.get(name) or _Asked(at=self._seconds())
            self._asked[name] = replace(asked, image=done.result(), answered_at=self._seconds(), told=False)
        self._heard()

    def _forget(self, now: float) -> None:
        if len(self._asked) >= _MOST:
            self._asked = {name: asked for name, asked in self._asked.items() if not _is_old(asked, now)}


def _is_old(asked: _Asked, now: float) -> bool:
    keeps_s = _UNKNOWN_S if isinstance(asked.image, Unresolved) else _KNOWN_S
    return asked.told and now - asked.answered_at > keeps_s
