"""Our frozen values to JSON and back: snapshots, plans, job files, letters."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

import cattrs
from cattrs.preconf.json import make_converter
from cattrs.strategies import configure_tagged_union

from scheduler.planning.plan import Action

T = TypeVar("T")

_WORDS = {
    "TakeBack": "take_back",
    "Release": "release",
    "ScaleUp": "scale_up",
    "ScaleDown": "scale_down",
}


def _make() -> cattrs.Converter:
    converter = make_converter(forbid_extra_keys=False, omit_if_default=False)
    converter.register_unstructure_hook(datetime, lambda at: at.isoformat())
    converter.register_structure_hook(datetime, lambda text, _: datetime.fromisoformat(text))
    configure_tagged_union(Action, converter, tag_name="do", tag_generator=lambda kind: _WORDS[kind.__name__])
    return converter


_converter = _make()


def to_plain(value: object) -> Any:
    """Dicts, lists, strings, numbers: what `json.dumps` takes."""
    return _converter.unstructure(value)


def from_plain(plain: Any, kind: type[T]) -> T:
    """The value again.

    Raises:
        cattrs.BaseValidationError: `plain` is no such value.
    """
    return _converter.structure(plain, kind)
