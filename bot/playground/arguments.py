"""The arguments of one Web API call, whether they came as JSON or as a form."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from bot.playground.refusal import Json, Refusal

STRUCTURES = frozenset({"blocks", "view", "metadata", "files", "attachments", "message"})


class Arguments:
    """Reads arguments by name; empty ones count as missing."""

    def __init__(self, values: Json, token: str) -> None:
        self.values = values
        self.token = token

    def text(self, name: str) -> str:
        """A word or a sentence; empty if it is missing."""
        value = self.values.get(name)
        return "" if value is None else str(value)

    def need(self, name: str, error: str = "invalid_arguments") -> str:
        """A word that must be there."""
        value = self.text(name)
        if not value:
            raise Refusal(error, f"missing required field: {name}")
        return value

    def flag(self, name: str) -> bool:
        """A yes or no."""
        return self.text(name).lower() in {"true", "1"}

    def number(self, name: str, default: int) -> int:
        """A whole number."""
        text = self.text(name)
        if not text:
            return default
        if not text.removeprefix("-").isdecimal():
            raise Refusal("invalid_arguments", f"must be an integer [json-pointer:/{name}]")
        return int(text)

    def structure(self, name: str) -> Any:
        """A list or an object; None if it is missing."""
        return self.values.get(name) or None


async def read(request: web.Request) -> Arguments:
    """The arguments and the token of a call.

    Raises:
        Refusal: `invalid_json`, `invalid_form_data` or a structure that is no JSON.
    """
    values: Json = dict(request.query)
    if request.content_type == "application/json":
        values |= _object(await request.text())
    elif request.can_read_body:
        values |= {key: value for key, value in (await request.post()).items() if isinstance(value, str)}
    for name in STRUCTURES & values.keys():
        if isinstance(values[name], str) and values[name]:
            values[name] = _parsed(name, values[name])
    header = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
    return Arguments(values, header or str(values.get("token", "")))


def _object(text: str) -> Json:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise Refusal("invalid_json") from error
    if not isinstance(value, dict):
        raise Refusal("json_not_object")
    return value


def _parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        code = "invalid_blocks_format" if name == "blocks" else "invalid_arguments"
        raise Refusal(code, f"must be valid JSON [json-pointer:/{name}]") from error
