"""A controller of the fake plane: a thread that looks at everything whenever something has changed."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Collection

from tests.cluster.fake_store import Event, FakeStore


class Loop:
    """Level triggered: `turn` may be called too often, never too seldom. `kill` forgets what is only in memory."""

    watches: Collection[str] = ()

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.errors: list[str] = []  # bugs: a turn that raised
        self._woken = threading.Event()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._due: float | None = None
        store.listen(self._heard)

    def turn(self) -> None:
        """Brings the objects one step on."""
        raise NotImplementedError

    def start(self) -> None:
        self._ends.clear()
        self._woken.set()
        self._thread = threading.Thread(target=self._run, daemon=True, name=type(self).__name__)
        self._thread.start()

    def kill(self) -> None:
        """Ends between two turns, and forgets what is only in memory."""
        self._ends.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(5.0)
        self._thread = None
        self._due = None
        self.forget()

    def forget(self) -> None:
        """Drops what is only in memory."""

    def later(self, seconds: float) -> None:
        """Asks for another turn then, whatever happens before."""
        at = time.monotonic() + seconds
        self._due = at if self._due is None else min(at, self._due)

    def _heard(self, event: Event) -> None:
        if event.resource in self.watches:
            self._woken.set()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._woken.wait(None if self._due is None else max(0.0, self._due - time.monotonic()))
            self._woken.clear()
            if self._ends.is_set():
                return
            self._due = None
            try:
                with self.store.lock:
                    self.turn()
            except Exception:  # noqa: BLE001  (reported by the plane; a dead controller would only time tests out)
                self.errors.append(traceback.format_exc())
                self.later(0.2)
