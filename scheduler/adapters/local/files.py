"""Small JSON files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scheduler.errors import Unavailable


def write(path: Path, plain: Mapping[str, Any]) -> None:
    """Replace the file.

    Raises:
        Unavailable: the disk refused.
    """
    try:
        os.replace(_beside(path, plain), path)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}") from error


def write_once(path: Path, plain: Mapping[str, Any]) -> bool:
    """Make the file unless it is there; whether it was made. Of several writers at once, one wins.

    Raises:
        Unavailable: the disk refused.
    """
    if path.exists():
        return False
    try:
        whole = _beside(path, plain)
        try:
            os.link(whole, path)  # unlike rename, refuses to replace
        except FileExistsError:
            return False
        finally:
            whole.unlink()
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}") from error
    return True


def read(path: Path) -> dict[str, Any] | None:
    """What the file says; None if there is none.

    Raises:
        Unavailable: it cannot be read, or is no JSON object.
    """
    try:
        plain = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise Unavailable(f"{path} cannot be read: {error}") from error
    if not isinstance(plain, dict):
        raise Unavailable(f"{path} is no JSON object")
    return plain


def tail(path: Path, lines: int, limit: int = 65_536) -> str:
    """The last lines, out of the last `limit` bytes; "" if there is no such file.

    Raises:
        Unavailable: it cannot be read.
    """
    if lines <= 0:
        return ""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            text = file.read(limit)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from error
    if size > limit:
        text = text.partition(b"\n")[2] or text
    return "\n".join(text.decode(errors="replace").splitlines()[-lines:])


def folders(path: Path) -> tuple[Path, ...]:
    """The folders inside, by name; none if there is no such folder."""
    try:
        with os.scandir(path) as entries:
            return tuple(sorted(Path(entry.path) for entry in entries if entry.is_dir()))
    except FileNotFoundError:
        return ()


def _beside(path: Path, plain: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        with whole.open("x", encoding="utf-8") as file:
            json.dump(plain, file)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            whole.unlink(missing_ok=True)
        raise
    return whole
