"""Small valid blocks, elements and views to build on."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def plain(text: str) -> Json:
    return {"type": "plain_text", "text": text}


def mrkdwn(text: str) -> Json:
    return {"type": "mrkdwn", "text": text}


def section(text: str = "hello", **fields: Any) -> Json:
    return {"type": "section", "text": mrkdwn(text), **fields}


def button(action_id: str = "ok", **fields: Any) -> Json:
    return {"type": "button", "action_id": action_id, "text": plain("OK"), **fields}


def actions(*elements: Json, **fields: Any) -> Json:
    return {"type": "actions", "elements": list(elements), **fields}


def option(value: str, **fields: Any) -> Json:
    return {"text": plain(value), "value": value, **fields}


def select(count: int = 2, **fields: Any) -> Json:
    options = [option(f"o{number}") for number in range(count)]
    return {"type": "static_select", "action_id": "choose", "options": options, **fields}


def input_block(block_id: str = "name", element: Json | None = None, **fields: Any) -> Json:
    element = element or {"type": "plain_text_input", "action_id": "value"}
    return {"type": "input", "block_id": block_id, "label": plain("Name"), "element": element, **fields}


def modal(*blocks: Json, **fields: Any) -> Json:
    shown = list(blocks) or [section()]
    return {"type": "modal", "title": plain("Title"), "submit": plain("Go"), "blocks": shown, **fields}


def home(*blocks: Json) -> Json:
    return {"type": "home", "blocks": list(blocks)}
