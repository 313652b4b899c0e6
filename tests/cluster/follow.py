"""Lists and watches pods in a thread, and tells of each; the plainest reflector there is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduler.adapters.kube.api import Api, Gone, Refused, Watch
from scheduler.errors import Unavailable

Raw = Mapping[str, Any]


class Follow:
    """`all_of` gets every list, `one_of` every event."""

    def __init__(
        self, api: Api, path: str, all_of: Callable[[Sequence[Raw]], None], one_of: Callable[[str, Raw], None]
    ) -> None:
        self._api, self._path, self._all_of, self._one_of = api, path, all_of, one_of
        self._ends = threading.Event()
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"follow {path}")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        while self._thread.is_alive():
            if self._watch is not None:
                self._watch.cut()
            self._thread.join(0.05)

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                listed = self._api.get(self._path)
                self._all_of(listed["items"])
                version = listed["metadata"]["resourceVersion"]
                while not self._ends.is_set():
                    version = self._follow(version)
            except (Unavailable, Gone, Refused):
                self._ends.wait(0.1)

    def _follow(self, version: str) -> str:
        self._watch = self._api.watch(self._path, version, 240, 90.0)
        try:
            for kind, raw in self._watch:
                version = raw["metadata"]["resourceVersion"]
                if kind != "BOOKMARK":
                    self._one_of(kind, raw)
                if self._ends.is_set():
                    break
        finally:
            self._watch.close()
            self._watch = None
        return version
