"""Patches as the API server applies them: JSON merge patch, and strategic merge patch as far as we use it."""

from __future__ import annotations

import copy
from typing import Any

# Lists that a strategic merge patch merges by a key; every other list it replaces.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "schedulingGates": "name",
    "conditions": "type",
    "addresses": "type",
    "ownerReferences": "uid",
    "imagePullSecrets": "name",
}
_SETS = frozenset({"finalizers"})


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def strategic(target: Any, patch: Any) -> Any:
    """Strategic merge patch, with `$patch: delete|replace` and `$deleteFromPrimitiveList/..`."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            kept = [one for one in result.get(name) or () if one not in value]
            if kept:
                result[name] = kept
            else:
                result.pop(name, None)
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _list(key, result.get(key) or [], value)
            if key == "schedulingGates" and not result[key]:
                del result[key]
        else:
            result[key] = strategic(result.get(key), value)
    return result


def _list(name: str, old: list[Any], patch: list[Any]) -> list[Any]:
    if name in _SETS:
        return [*old, *(one for one in patch if one not in old)]
    key = _MERGE_KEYS.get(name)
    if key is None:
        return [copy.deepcopy(one) for one in patch]
    if any(isinstance(one, dict) and one.get("$patch") == "replace" for one in patch):
        return [copy.deepcopy(one) for one in patch if "$patch" not in one]
    result = list(old)
    for one in patch:
        at = next((i for i, there in enumerate(result) if there.get(key) == one.get(key)), None)
        if one.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(copy.deepcopy(one))
        else:
            result[at] = strategic(result[at], one)
    return result
