"""Ports of the loopback interface."""

from __future__ import annotations

import socket
from collections.abc import Collection

from scheduler.errors import Unavailable


def free_port(taken: Collection[int]) -> int:
    """A port that nobody listens on and that is not promised to anyone.

    Raises:
        Unavailable: none was found.
    """
    for _ in range(50):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in taken:
            return port
    raise Unavailable("no loopback port is free")
