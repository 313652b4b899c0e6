"""What a request to the fake API server means, and who may make it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.cluster.fake_store import Event, Kind, Problem, Raw
from tests.cluster.selectors import selects

_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?$"
)
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_SUBS = frozenset({"status", "eviction", "log", "scale", "binding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, understood."""

    user: str
    verb: str  # get, list, watch, create, ..
    resource: str
    sub: str
    namespace: str
    name: str
    query: Mapping[str, str]
    body: Any
    content: str

    @property
    def right(self) -> str:
        """The resource as a Role names it: pods/status."""
        return f"{self.resource}/{self.sub}" if self.sub else self.resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of a Role; `namespace` None = everywhere."""

    namespace: str | None
    groups: frozenset[str]
    resources: frozenset[str]  # pods, pods/status, ..
    verbs: frozenset[str]


class Rights:
    """Who may what. A user that nothing was granted to may everything."""

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self.kinds = kinds
        self._rules: dict[str, list[Rule]] = {}

    def grant(self, user: str, rules: Collection[Raw], namespace: str | None = None) -> None:
        """From now on the user may only what it was granted. `rules` are those of a Role, or of a ClusterRole."""
        for one in rules:
            rule = Rule(
                namespace=namespace,
                groups=frozenset(one["apiGroups"]),
                resources=frozenset(one["resources"]),
                verbs=frozenset(one["verbs"]),
            )
            self._rules.setdefault(user, []).append(rule)

    def revoke(self, user: str, verb: str, resource: str) -> None:
        """Takes one verb away."""
        self._rules[user] = [
            replace(one, verbs=one.verbs - {verb}) if resource in one.resources else one
            for one in self._rules.get(user, [])
        ]

    def may(self, call: Call) -> bool:
        rules, group = self._rules.get(call.user), self.kinds[call.resource].group
        # A Namespace belongs to itself.
        where = call.name if call.resource == "namespaces" else call.namespace
        return rules is None or any(
            one.namespace in (None, where)
            and one.groups & {group, "*"}
            and one.resources & {call.right, "*"}
            and one.verbs & {call.verb, "*"}
            for one in rules
        )


def understood(kinds: Mapping[str, Kind], user: str, method: str, path: str, content: str, body: bytes) -> Call:
    """Raises Problem 404 for a resource that is not installed, 400 for a body that is no JSON."""
    split = urlsplit(path)
    found = _PATH.fullmatch(split.path)
    kind = kinds.get(found["resource"]) if found else None
    asked = (found["group"] or "", found["version"] or found["core"]) if found else ("", "")
    sub = (found["sub"] or "") if found else ""
    if found is None or kind is None or (kind.group, kind.version) != asked or (sub and sub not in _SUBS):
        raise Problem(404, "NotFound", "the server could not find the requested resource")
    query = dict(parse_qsl(split.query, keep_blank_values=True))
    verb = _VERBS.get(method, "")
    if method == "GET":
        watch = query.get("watch") in ("true", "1")
        verb = "get" if found["name"] else ("watch" if watch else "list")
    try:
        decoded = json.loads(body) if body else None
    except ValueError as error:
        raise Problem(400, "BadRequest", f"the body is no JSON: {error}") from error
    return Call(
        user=user,
        verb=verb,
        resource=found["resource"],
        sub=sub,
        namespace=found["namespace"] or "",
        name=found["name"] or "",
        query=query,
        body=decoded,
        content=content,
    )


def kind_for(call: Call, event: Event) -> str:
    """How this watch is told of an event; "" = not at all."""
    if event.resource != call.resource or call.namespace not in ("", event.new["metadata"].get("namespace", "")):
        return ""
    is_one = event.type != "DELETED" and selects(call.query, call.resource, event.new)
    was_one = event.old is not None and selects(call.query, call.resource, event.old)
    if is_one:
        return "MODIFIED" if was_one else "ADDED"
    return "DELETED" if was_one else ""
