"""The knobs of `scheduler/policy.py` from what people write: section `[policy]` of the settings and of scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from scheduler.configfile import nearest
from scheduler.errors import BadInput
from scheduler.policy import Policy


def policy(given: Mapping[str, Any]) -> Policy:
    """The policy with these knobs turned.

    Raises:
        BadInput: one sentence for each knob that is unknown, and for each value that cannot be.
    """
    kinds = {field.name: field.type for field in fields(Policy)}
    faults = []
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in kinds:
            faults.append(f"[policy] {key} is no knob{nearest(key, set(kinds))}")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            faults.append(f"[policy] {key} = {value!r}: must be a number")
        elif not value >= 0 or (kinds[key] == "int" and value != int(value)):
            faults.append(
                f"[policy] {key} = {value}: must be {'a whole number' if kinds[key] == 'int' else '0 or more'}"
            )
        else:
            values[key] = int(value) if kinds[key] == "int" else float(value)
    if faults:
        raise BadInput(*faults)
    return Policy(**values)
