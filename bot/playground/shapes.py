"""A small language for the shapes of JSON; every rule answers what is wrong, in Slack's words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Wrong = Iterator[str]
Rule = Callable[[Any, str], Wrong]  # value, JSON pointer of the value -> sentences


def string(most: int, least: int = 0) -> Rule:
    """A string of so many characters."""

    def check(value: Any, at: str) -> Wrong:
        if not isinstance(value, str):
            yield f"must provide a string [json-pointer:{at}]"
        elif len(value) < least:
            yield f"must be more than {least - 1} characters [json-pointer:{at}]"
        elif len(value) > most:
            yield f"must be less than {most + 1} characters [json-pointer:{at}]"

    return check


def link(most: int = 3000) -> Rule:
    """An address."""
    fits = string(most, 1)

    def check(value: Any, at: str) -> Wrong:
        wrong = list(fits(value, at))
        yield from wrong
        if not wrong and not str(value).startswith(("http://", "https://", "mailto:", "slack://")):
            yield f"must be a valid URL [json-pointer:{at}]"

    return check


def flag(value: Any, at: str) -> Wrong:
    """A yes or no."""
    if not isinstance(value, bool):
        yield f"must provide a boolean [json-pointer:{at}]"


def number(least: int, most: int) -> Rule:
    """A whole number."""

    def check(value: Any, at: str) -> Wrong:
        if isinstance(value, bool) or not isinstance(value, int):
            yield f"must provide an integer [json-pointer:{at}]"
        elif not least <= value <= most:
            yield f"must be between {least} and {most} [json-pointer:{at}]"

    return check


def one_of(*words: str) -> Rule:
    """One of a few words."""

    def check(value: Any, at: str) -> Wrong:
        if value not in words:
            yield f"must be one of {', '.join(words)} [json-pointer:{at}]"

    return check


def anything(value: Any, at: str) -> Wrong:
    """What is not looked into."""
    del value, at
    yield from ()


def items(rule: Rule, most: int, least: int = 1) -> Rule:
    """A list of so many items."""

    def check(value: Any, at: str) -> Wrong:
        if not isinstance(value, list):
            yield f"must provide an array [json-pointer:{at}]"
            return
        if len(value) < least:
            yield f"no less than {least} items allowed [json-pointer:{at}]"
        if len(value) > most:
            yield f"no more than {most} items allowed [json-pointer:{at}]"
        for index, item in enumerate(value):
            yield from rule(item, f"{at}/{index}")

    return check


def record(required: Mapping[str, Rule], optional: Mapping[str, Rule]) -> Rule:
    """An object with these fields and no others."""
    known = {**required, **optional}

    def check(value: Any, at: str) -> Wrong:
        if not isinstance(value, dict):
            yield f"must provide an object [json-pointer:{at}]"
            return
        for name in required:
            if name not in value:
                yield f"missing required field: {name} [json-pointer:{at}]"
        for name, field in value.items():
            if name in known:
                yield from known[name](field, f"{at}/{name}")
            elif name != "type":
                yield f"invalid additional property: {name} [json-pointer:{at}]"

    return check


def typed(table: Mapping[str, Rule], allowed: frozenset[str] | None = None) -> Rule:
    """An object whose `type` chooses its rule; `allowed` narrows the types."""
    types = frozenset(table) if allowed is None else allowed

    def check(value: Any, at: str) -> Wrong:
        if not isinstance(value, dict):
            yield f"must provide an object [json-pointer:{at}]"
            return
        kind = value.get("type")
        if not isinstance(kind, str) or kind not in table or kind not in types:
            yield f"unsupported type: {kind} [json-pointer:{at}/type]"
            return
        yield from table[kind](value, at)

    return check


def both(*rules: Rule) -> Rule:
    """All of several rules."""

    def check(value: Any, at: str) -> Wrong:
        for rule in rules:
            yield from rule(value, at)

    return check
