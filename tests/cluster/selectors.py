"""Label and field selectors, as far as anybody here uses them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_TERM = re.compile(r"\s*(!?)([^\s!=,]+)\s*(?:(==?|!=)\s*([^,\s]*)|\s(in|notin)\s*\(([^)]*)\))?\s*(?:,|$)")


def selects(query: Mapping[str, str], resource: str, item: Mapping[str, Any]) -> bool:
    """Whether a list or watch with this query is told of the object."""
    return labels_match(query.get("labelSelector", ""), item["metadata"].get("labels") or {}) and _fields_match(
        query.get("fieldSelector", ""), resource, item
    )


def labels_match(selector: str, labels: Mapping[str, str]) -> bool:
    """`a=b,c!=d,e,!f,g in (h,i)`."""
    at = 0
    while at < len(selector):
        found = _TERM.match(selector, at)
        assert found, f"no such label selector: {selector}"
        at = found.end()
        negated, key, operator, value, word, values = found.groups()
        if word:
            inside = labels.get(key) in {one.strip() for one in values.split(",")}
            matches = inside == (word == "in")
        elif operator:
            matches = (labels.get(key) == value) == (operator != "!=")
        else:
            matches = (key in labels) != bool(negated)
        if not matches:
            return False
    return True


def _fields_match(selector: str, resource: str, item: Mapping[str, Any]) -> bool:
    for term in filter(None, selector.split(",")):
        found = re.fullmatch(r"([^!=]+)(==?|!=)(.*)", term)
        assert found, f"no such field selector: {term}"
        name, operator, wanted = found.groups()
        value: Any = item
        for part in name.split("."):
            value = (value or {}).get(part) if isinstance(value, Mapping) else None
        assert resource == "pods" or name.startswith("metadata."), f"field label not supported: {name}"
        if ((value or "") == wanted) == (operator == "!="):
            return False
    return True
