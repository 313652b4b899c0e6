"""Our frozen values to JSON and back: snapshots, plans, job files, letters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import datetime
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import cattrs
from cattrs.dispatch import StructureHook, UnstructureHook
from cattrs.preconf.json import make_converter

T = TypeVar("T")

_TAG = "do"  # says which member of a union of values this is: {"do": "take_back", ..}
_INNER_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def to_plain(value: object, kind: Any = None) -> Any:
    """Dicts, lists, strings, numbers: what `json.dumps` takes. `kind` is needed for a bare member of a union."""
    return _converter.unstructure(value, unstructure_as=kind)


def from_plain(plain: Any, kind: type[T]) -> T:
    """The value again.

    Raises:
        cattrs.BaseValidationError: `plain` is no such value.
    """
    return _converter.structure(plain, kind)


def word_of(kind: type) -> str:
    """The name of a member of a union, as it is written down: `take_back` for `TakeBack`."""
    return _INNER_CAPITAL.sub("_", kind.__name__).lower()


def _make() -> cattrs.Converter:
    converter = make_converter(forbid_extra_keys=False, omit_if_default=False)
    converter.register_unstructure_hook(datetime, lambda at: at.isoformat())
    converter.register_structure_hook(datetime, lambda text, _: datetime.fromisoformat(text))
    converter.register_structure_hook_func(_is_json, lambda plain, _: plain)
    # By rule and not by name: this module must not know the planner's actions, the bot reads through it too.
    converter.register_structure_hook_factory(_is_union_of_values, _structure_tagged)
    converter.register_unstructure_hook_factory(_is_union_of_values, _unstructure_tagged)
    return converter


def _is_json(kind: Any) -> bool:
    # The type of JSON names itself, so it looks different at each depth: any union of text and mappings is meant.
    members = get_args(kind) if _is_union(kind) else ()
    return str in members and any(get_origin(member) is Mapping for member in members)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in {Union, UnionType}


def _is_union_of_values(kind: Any) -> bool:
    return _is_union(kind) and all(is_dataclass(member) for member in get_args(kind))


def _structure_tagged(kind: Any, converter: cattrs.Converter) -> StructureHook:
    members: Mapping[str, type] = {word_of(member): member for member in get_args(kind)}

    def structure(plain: Mapping[str, Any], _: type) -> object:
        return converter.structure(plain, members[plain[_TAG]])

    return structure


def _unstructure_tagged(_: Any, converter: cattrs.Converter) -> UnstructureHook:
    def unstructure(value: object) -> dict[str, Any]:
        return {_TAG: word_of(type(value)), **converter.unstructure(value)}

    return unstructure


_converter = _make()
