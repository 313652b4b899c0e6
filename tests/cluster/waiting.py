"""Waiting for something that other threads or processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T], seconds: float = 10.0, what: object = "") -> T:
    """What `look` says once that is truthy. Raises AssertionError with `what`, called if that can be."""
    end = time.monotonic() + seconds
    pause = 0.002
    while not (found := look()):
        if time.monotonic() >= end:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return found
