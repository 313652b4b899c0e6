"""Requests that go on beside the turns: many at once, none twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import ParamSpec

from scheduler.adapters.kube.api import Refused
from scheduler.errors import Unavailable

log = logging.getLogger(__name__)

P = ParamSpec("P")


class Hands:
    """A pool of threads. What fails is logged and left to whoever asks again; a bug comes out of `settle`."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="argo-hand")
        self._lock = Lock()
        self._under_way: dict[Hashable, Future[None]] = {}

    def do(self, key: Hashable, call: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> bool:
        """Begin; not if the same is under way, which is then said by False."""
        with self._lock:
            if key in self._under_way and not self._under_way[key].done():
                return False
            before = self._under_way.get(key)
            self._under_way[key] = self._pool.submit(call, *arguments, **named)
        if before is not None:
            _told(key, before)
        return True

    def settle(self, timeout_s: float) -> bool:
        """Wait until nothing is under way that was begun before; False if that took too long."""
        with self._lock:
            begun = dict(self._under_way)
        ended = wait(begun.values(), timeout_s)
        with self._lock:
            over = [key for key, future in begun.items() if future.done() and self._under_way.get(key) is future]
            for key in over:
                del self._under_way[key]
        for key in over:
            _told(key, begun[key])
        return not ended.not_done

    def close(self) -> None:
        """Nothing new is begun; what has not begun is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _told(key: Hashable, future: Future[None]) -> None:
    try:
        future.result()
    except (Unavailable, Refused) as error:
        log.warning("request=%s failed=%s, asked again at the next turn", key, error)
