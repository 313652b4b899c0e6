"""What a program finds around it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from scheduler.errors import Unavailable


def base(path_first: Path | None) -> Mapping[str, str]:
    """The few variables every program gets; its `python` is the one in `path_first`."""
    path = os.environ.get("PATH", os.defpath)
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TZ") if name in os.environ}
    return {**kept, "PATH": f"{path_first}{os.pathsep}{path}" if path_first else path, "PYTHONUNBUFFERED": "1"}


def make_parents(urls: tuple[str, ...]) -> None:
    """Make the folders in which file:// outputs and checkpoints will lie; other URLs are left alone.

    Raises:
        Unavailable: the disk refused.
    """
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme != "file":
            continue
        folder = Path(unquote(parts.path)).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"{folder} cannot be made: {error.strerror}") from error


def make_folder(folder: Path) -> Path:
    """The folder, made if need be.

    Raises:
        Unavailable: the disk refused.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"{folder} cannot be made: {error.strerror}") from error
    return folder
