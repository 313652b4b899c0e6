"""Whether replicas answer yet."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException

TIMEOUT_S = 0.3  # the whole turn waits for it


def answering(ports: Sequence[int]) -> tuple[bool, ...]:
    """For each loopback port, whether GET /health there answers 200."""
    if not ports:
        return ()
    with ThreadPoolExecutor(max_workers=min(16, len(ports))) as pool:
        return tuple(pool.map(_answers, ports))


def _answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
