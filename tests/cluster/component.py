"""One program of the control plane: a process with a log file, which can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class NotReady(Exception):
    """It ended, or was not ready in time; the end of its log is told."""


class Component:
    """A program in a session of its own, so that only it is ended."""

    def __init__(
        self, name: str, words: Sequence[str], log: Path, ready: Callable[[], object], env: Mapping[str, str] = {}
    ) -> None:
        self.name, self.words, self.log, self.env = name, tuple(words), log, dict(env)
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """While it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Returns at once; see `wait`."""
        assert self.pid is None, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.words,
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, seconds: float = 60.0) -> None:
        """Until it is ready.

        Raises:
            NotReady: it ended, or the time is over.
        """
        end = time.monotonic() + seconds
        while not self._is_ready():
            if self.pid is None:
                raise NotReady(f"{self.name} ended:\n{self.tail()}")
            if time.monotonic() > end:
                raise NotReady(f"{self.name} was not ready in {seconds:g} s:\n{self.tail()}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            return bool(self._ready())
        except Exception:  # noqa: BLE001  (whatever keeps it from answering: it is asked again)
            return False

    def kill(self) -> None:
        """SIGKILL, and its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self, seconds: float = 60.0) -> None:
        """Killed and started, and ready again."""
        self.kill()
        self.start()
        self.wait(seconds)

    def tail(self, characters: int = 3000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""


def free_port() -> int:
    """One that nobody listens on now, below those that the system gives to outgoing connections.

    A server that is killed must find its port free again; one of those may have been given away meanwhile.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with contextlib.suppress(OSError), socket.socket() as listening:
            listening.bind(("127.0.0.1", port))
            return port
