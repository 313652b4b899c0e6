"""A folder of results: on this computer (`file:///folder`, or a path), or in object storage (`s3://bucket/folder`).

Object storage is found as AWS's own tools find it, by the environment: AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID
and AWS_SECRET_ACCESS_KEY.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit


class Folder(Protocol):
    """Files by their names."""

    def names(self) -> list[str]:
        """All of them, sorted; none if the folder is not there."""
        ...

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError if it is not there, another OSError if it cannot be read."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """The file is there whole, or not at all."""
        ...

    def remove(self, name: str) -> None:
        """It is there no longer."""
        ...


class Disk:
    """A folder on this computer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        """All files, sorted."""
        return sorted(file.name for file in self._path.iterdir()) if self._path.is_dir() else []

    def read(self, name: str) -> bytes:
        """One file."""
        return (self._path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """A file is written beside its place, and put there when it is whole."""
        self._path.mkdir(parents=True, exist_ok=True)
        unfinished = self._path / f"unfinished-{os.getpid()}"
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._path / name)

    def remove(self, name: str) -> None:
        """It is there no longer."""
        (self._path / name).unlink(missing_ok=True)


class Bucket:
    """A folder in object storage."""

    def __init__(self, url: str) -> None:
        try:
            import obstore  # noqa: PLC0415 - only who keeps results in S3 needs it
        except ModuleNotFoundError as error:
            raise SystemExit(f"{url}: reading S3 needs the Python package obstore; pip install obstore") from error
        plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        self._objects = obstore
        self._store = obstore.store.from_url(url, client_options={"allow_http": plain})

    def names(self) -> list[str]:
        """All files, sorted."""
        return sorted(found["path"] for found in self._objects.list_with_delimiter(self._store)["objects"])

    def read(self, name: str) -> bytes:
        """One file."""
        try:
            return bytes(self._objects.get(self._store, name).bytes())
        except self._objects.exceptions.BaseError as error:
            raise OSError(str(error)) from error

    def write(self, name: str, content: bytes) -> None:
        """An object appears when its upload has ended, so that nothing more is needed."""
        self._objects.put(self._store, name, content)

    def remove(self, name: str) -> None:
        """It is there no longer."""
        self._objects.delete(self._store, name)


def folder(url: str) -> Folder:
    """What a URL or a path names."""
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return Bucket(url)
    if parts.scheme not in {"", "file"}:
        raise SystemExit(f"{url}: only file:// and s3:// are read here")
    return Disk(Path(unquote(parts.path)))


def read_file(url: str) -> bytes:
    """One file by its own URL or path."""
    where, slash, name = url.rpartition("/")
    return folder(where + slash or ".").read(unquote(name))
