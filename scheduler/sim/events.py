"""Everything that happens in a run, as JSON lines in a gzip file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scheduler.errors import BadInput

Tell = Callable[[float, str, Mapping[str, Any]], None]


@contextmanager
def writing(path: Path) -> Iterator[Tell]:
    """A function that writes one event as a line; the file has the same bytes for the same events.

    Raises:
        BadInput: it cannot be written.
    """
    try:
        with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:

            def tell(at: float, what: str, more: Mapping[str, Any]) -> None:
                packed.write(json.dumps({"t": at, "what": what, **more}, separators=(",", ":")).encode() + b"\n")

            yield tell
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error
