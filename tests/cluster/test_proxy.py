"""The proxy falls silent as a network does: nothing is closed, nothing arrives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.cluster.proxy import SilentProxy


@pytest.fixture
def proxy() -> Iterator[SilentProxy]:
    """Before a server that sends back what it is sent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=echo, args=(client,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        with SilentProxy(listening.getsockname()[1]) as proxy:
            yield proxy
        listening.shutdown(socket.SHUT_RDWR)


def echo(client: socket.socket) -> None:
    with client:
        while data := client.recv(100):
            client.sendall(data)


def said(client: socket.socket, text: bytes = b"hello", seconds: float = 2.0) -> bytes | None:
    """What comes back; None = nothing, and the connection still stands."""
    client.settimeout(seconds)
    client.sendall(text)
    try:
        return client.recv(100)
    except TimeoutError:
        return None


def test_it_forwards_and_what_it_held_in_its_silence_arrives_later(proxy: SilentProxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        assert said(client) == b"hello"
        proxy.silence()
        assert said(client, b"anybody?", 0.1) is None
        with socket.create_connection(("127.0.0.1", proxy.port)) as late:
            assert said(late, seconds=0.1) is None
        proxy.speak()
        client.settimeout(2.0)
        assert client.recv(100) == b"anybody?"


def test_frozen_connections_never_get_another_byte_and_new_ones_do(proxy: SilentProxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as old:
        assert said(old) == b"hello"
        proxy.freeze()
        assert said(old, seconds=0.1) is None
        with socket.create_connection(("127.0.0.1", proxy.port)) as later:
            assert said(later) == b"hello"
