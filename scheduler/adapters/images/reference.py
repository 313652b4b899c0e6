"""Names of images, read as registries and container runtimes read them."""

from __future__ import annotations

import re
from dataclasses import dataclass

DOCKER_HUB = "docker.io"
_HUB_API = "registry-1.docker.io"
_HUB_NAMES = frozenset({DOCKER_HUB, "index.docker.io", _HUB_API})
_LONGEST_NAME = 255

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?P<port>:[0-9]{{1,5}})?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One image, by the registry that it lies in."""

    written: str  # as a person wrote it, without tag and digest
    host: str  # of the registry, with its port if it was written
    repository: str
    tag: str
    digest: str = ""

    @property
    def api_host(self) -> str:
        """Where the registry answers; Docker Hub does so under another name than its own."""
        return _HUB_API if self.host == DOCKER_HUB else self.host

    def pinned(self, digest: str) -> str:
        """The image with this digest, which says more than any tag."""
        return f"{self.written}@{digest}"


def parse(text: str) -> Reference | str:
    """What `NAME[:TAG][@DIGEST]` names; or the rest of a sentence that begins with the image and says what is wrong."""
    name, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        return f"has no digest after its @; one is sha256: and 64 of 0-9a-f, not {digest[:80]!r}"
    written, tag = _without_tag(name)
    host, repository = _located(written)
    if not _HOST.fullmatch(host):
        return f"has no name of a registry before its first slash: {host[:80]!r}"
    if not _PATH.fullmatch(repository):
        return f"is no name of an image: {repository[:80]!r} may hold a-z 0-9 . _ - and / between them"
    if len(written) > _LONGEST_NAME:
        return f"has a name of {len(written)} characters; registries take {_LONGEST_NAME}"
    if not _TAG.fullmatch(tag):
        return f"has a tag that no registry takes: {tag[:80]!r}"
    return Reference(written=written, host=host, repository=repository, tag=tag, digest=digest)


def hub_or(host: str) -> str:
    """The host of a registry; Docker Hub has several names and one login."""
    return DOCKER_HUB if host in _HUB_NAMES else host


def _without_tag(name: str) -> tuple[str, str]:
    """The name and its tag; a colon before the last slash belongs to a port."""
    head, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, "latest"
    return head, tag


def _located(written: str) -> tuple[str, str]:
    """Host and repository; what does not look like a host is a part of a repository at Docker Hub."""
    first, slash, rest = written.partition("/")
    is_host = any(mark in first for mark in ".:[") or first == "localhost" or first != first.lower()
    if not slash or not is_host:
        return DOCKER_HUB, written if slash else f"library/{written}"
    if hub_or(first) == DOCKER_HUB:
        return DOCKER_HUB, rest if "/" in rest else f"library/{rest}"
    return first, rest
