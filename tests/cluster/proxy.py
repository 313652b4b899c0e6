"""A TCP proxy that may stop forwarding without closing anything: how a network fails silently."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class SilentProxy:
    """Between a client and 127.0.0.1:`target`. TLS passes through untouched."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listening.getsockname()[1]
        self._speaks = threading.Event()
        self._speaks.set()
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._frozen: set[int] = set()  # numbers of connections that never get another byte
        self._open: dict[int, tuple[socket.socket, socket.socket]] = {}
        self._count = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True, name="proxy").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._speaks.set()
        self._listening.close()
        with self._lock:
            for pair in self._open.values():
                for one in pair:
                    with contextlib.suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """Not a byte more, on any connection, old or new; none is closed."""
        self._speaks.clear()

    def speak(self) -> None:
        """Forwards again what it held."""
        self._speaks.set()

    def freeze(self) -> None:
        """Not a byte more on those that are open now: watches fall silent, while new connections work."""
        with self._lock:
            self._frozen |= set(self._open)

    def _accept(self) -> None:
        while not self._ends.is_set():
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target), timeout=10)
            except OSError:
                continue
            server.settimeout(None)
            with self._lock:
                self._count += 1
                number = self._count
                self._open[number] = (client, server)
            threading.Thread(target=self._connect, args=(number, client, server), daemon=True, name="proxy").start()

    def _connect(self, number: int, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            back = threading.Thread(target=self._forward, args=(number, server, client), daemon=True, name="proxy")
            back.start()
            self._forward(number, client, server)
            back.join()
        with self._lock:
            del self._open[number]

    def _forward(self, number: int, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._speaks.wait()
                if number not in self._frozen:
                    sink.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
