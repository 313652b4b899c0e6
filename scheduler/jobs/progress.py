"""What a program says of itself: lines of `GPUJOB_PROGRESS 0.42 loss=1.3`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

MARK = "GPUJOB_PROGRESS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The newest progress of a run.

    `values` holds what stands after the fraction. Two keys have a meaning for us: `saved_step`, the last step whose
    checkpoint is in storage, and `from_step`, the step that this run went on from.
    """

    fraction: float  # 0 to 1
    values: Mapping[str, str] = field(default_factory=dict)
    first_at: datetime | None = None  # first such line of this run: the restart is over
    saved_at: datetime | None = None  # when `saved_step` last grew


def parse_line(line: str) -> tuple[float, Mapping[str, str]] | None:
    """The fraction and the values of one line of output; None for any other line.

    A fraction outside 0..1, or one that is no number, makes it any other line: a program's output is never an error.
    """
    words = line.split()
    if len(words) < 2 or words[0] != MARK:
        return None
    try:
        fraction = float(words[1])
    except ValueError:
        return None
    if not 0.0 <= fraction <= 1.0:
        return None
    pairs = (word.partition("=") for word in words[2:])
    return fraction, {key: value for key, mark, value in pairs if mark and key}
