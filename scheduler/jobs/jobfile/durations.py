"""Lengths of time as people write them: `30m`, `60s`, `12h`, `1h30m`."""

from __future__ import annotations

import re

PATTERN = r"^(?=.)(\d{1,6}(\.\d{1,3})?d)?(\d{1,6}(\.\d{1,3})?h)?(\d{1,6}(\.\d{1,3})?m)?(\d{1,9}(\.\d{1,3})?s)?$"

_DURATION = re.compile(PATTERN, re.ASCII)
_PART = re.compile(r"([\d.]+)([dhms])", re.ASCII)
_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


def seconds(text: str) -> float | None:
    """Seconds, to the millisecond; None if it is no duration."""
    if not _DURATION.fullmatch(text):
        return None
    return round(sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text)), 3)


def written(duration_s: float) -> str:
    """The shortest text that gives the same seconds, to the millisecond."""
    for unit, length in (("h", 3600), ("m", 60)):
        if duration_s and duration_s % length == 0:
            return f"{duration_s // length:.0f}{unit}"
    return f"{duration_s:.3f}".rstrip("0").rstrip(".") + "s"
