"""Plain values as YAML that every reader takes for the same: those of YAML 1.1 too, to whom `on` is a boolean."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scheduler.jobs.jobfile.writing import quoted

# Neither a number nor a word that any version of YAML means something else by.
_UNQUOTED = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[A-Za-z/][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*",
    re.IGNORECASE | re.ASCII,
)


def yaml(value: Mapping[str, Any] | Sequence[Any]) -> str:
    """One document in block style; mappings keep their order."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _entry(f"{_scalar(key)}:", inner)
    elif isinstance(value, list | tuple) and value:
        for inner in value:
            first, *rest = _lines(inner)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _entry(key: str, inner: Any) -> Iterator[str]:
    if isinstance(inner, Mapping | list | tuple) and inner:
        yield key
        yield from (f"  {line}" for line in _lines(inner))
    else:
        yield f"{key} {_scalar(inner)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _UNQUOTED.fullmatch(value):
        return value
    return quoted(value) if isinstance(value, str) else json.dumps(value)
