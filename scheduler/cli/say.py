"""What a command prints: sentences for people, or one JSON object; logs go to stderr."""

from __future__ import annotations

import json as json_module
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

DONE, NO, WRONG_USE, OUTSIDE = 0, 1, 2, 3


class Say:
    """Prints the answer of one command, once."""

    def __init__(self, *, json: bool) -> None:
        self._json = json

    def answer(self, plain: Mapping[str, Any], lines: Iterable[str], *, code: int = DONE) -> int:
        """`plain` as JSON, or `lines` for a person."""
        try:
            if self._json:
                print(json_module.dumps(plain, ensure_ascii=False, default=_plain))
            else:
                for line in lines:
                    print(line)
            sys.stdout.flush()
        except OSError as error:
            return _unheard(error)
        return code

    def no(self, *sentences: str, code: int = NO) -> int:
        """Why it was not done."""
        return self.answer({"ok": False, "errors": list(sentences)}, sentences, code=code)


def _unheard(error: OSError) -> int:
    """Nobody reads on (`gpujob list | head -1`), or the disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python writes again when it ends
    if not isinstance(error, BrokenPipeError):
        print(f"The answer could not be written: {error.strerror}", file=sys.stderr)
    return OUTSIDE


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Columns as wide as they need to be; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(head[i]), *(len(row[i]) for row in cells)) if cells else len(head[i]) for i in range(len(head))]
    right = [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        parts = (row[i].rjust(widths[i]) if right[i] else row[i].ljust(widths[i]) for i in range(len(head)))
        return "  ".join(parts).rstrip()

    return [line(head), *(line(row) for row in cells)]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return str(value)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON")
