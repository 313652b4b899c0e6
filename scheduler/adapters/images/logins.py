"""Logins to registries, from a file as `docker login` and pull Secrets of Kubernetes write it (`config.json`)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from scheduler.adapters.images.reference import hub_or
from scheduler.errors import Unavailable


def read_logins(path: Path) -> Mapping[str, str]:
    """`user:password` in base64, by the host of the registry.

    Raises:
        Unavailable: the file cannot be read; nothing of what it holds is told.
    """
    try:
        auths = json.loads(path.read_text(encoding="utf-8"))["auths"]
        return {_host(key): login for key, entry in auths.items() if (login := _login(entry))}
    except OSError as error:
        raise Unavailable(f"the logins in {path} cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unavailable(f"the logins in {path} are not written as `docker login` writes them") from None


def _host(key: str) -> str:
    """Keys are hosts, or URLs, as that of Docker Hub in old files."""
    return hub_or(urlsplit(key if "://" in key else f"//{key}").netloc)


def _login(entry: Mapping[str, str]) -> str:
    if auth := entry.get("auth", "").strip():
        base64.b64decode(auth, validate=True)  # what cannot be a header would be told by the error about it
        return auth
    if entry.get("username"):
        return base64.b64encode(f"{entry['username']}:{entry.get('password', '')}".encode()).decode()
    return ""  # kept by a helper program, which is not there
