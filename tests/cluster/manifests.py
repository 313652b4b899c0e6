"""The manifests as plain values, the rights that they give, and which right a request uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"

Raw = dict[str, Any]
Right = tuple[str, str, str]  # API group, resource with its subresource, verb

_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


def documents(file: Path) -> Iterator[Raw]:
    """Of one YAML file."""
    yield from filter(None, YAML(typ="safe", pure=True).load_all(file.read_text(encoding="utf-8")))


def objects(*folders: str) -> list[Raw]:
    """Every object of these folders of manifests/; kustomize's own files are none."""
    files = [file for folder in folders for file in sorted((MANIFESTS / folder).glob("*.yaml"))]
    return [
        one
        for file in files
        for one in documents(file)
        if isinstance(one, dict) and "kustomize" not in one["apiVersion"]
    ]


def one(kind: str, name: str, *folders: str) -> Raw:
    """The object of that kind and name."""
    (found,) = (o for o in objects(*folders) if o["kind"] == kind and o["metadata"]["name"] == name)
    return found


def rights(role: Mapping[str, Any]) -> frozenset[Right]:
    """What a Role or ClusterRole allows."""
    return frozenset(
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def right_of(method: str, path: str) -> Right | None:
    """The right that a request needs; None for those that everybody has, such as discovery and reviews of oneself."""
    split = urlsplit(path)
    words = split.path.strip("/").split("/")
    group, rest = ("", words[2:]) if words[0] == "api" else (words[1] if len(words) > 1 else "", words[3:])
    if words[0] not in {"api", "apis"} or not rest or group == "authorization.k8s.io":
        return None
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    verb = _VERBS.get(method) or ("get" if len(rest) > 1 else "list")
    if parse_qs(split.query).get("watch", [""])[0] in {"true", "1"}:
        verb = "watch"
    return group, "/".join((rest[0], *rest[2:])), verb


def unused(roles: Iterable[Mapping[str, Any]], requests: Iterable[tuple[str, str]]) -> frozenset[Right]:
    """Rights of these roles that none of the requests (method, path with its query) needed."""
    held: frozenset[Right] = frozenset().union(*(rights(role) for role in roles))
    return held - {right_of(method, path) for method, path in requests}
