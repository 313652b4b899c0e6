"""What a person chooses or types into an element, as payloads say it, and what Slack's own client refuses."""

from __future__ import annotations

from typing import Any

from bot.playground.refusal import Json, NotThere
from bot.playground.views import INITIAL, first_value
from bot.playground.workspace import View

REQUIRED = "Please complete this required field."
Value = Any  # a word, a number, several words, or a whole value as payloads have it


def filled(element: Json, value: Value) -> Json:
    """The element's value after a person used it: `{"type", ..}`; an option is chosen by its value."""
    if isinstance(value, dict) and "type" in value:
        return value
    kind = element["type"]
    if kind == "button":
        return {"type": kind, "text": element["text"], **({"value": element["value"]} if "value" in element else {})}
    key = "selected_option" if kind == "overflow" else INITIAL.get(kind, ("value", ""))[0]
    return {"type": kind, key: _content(element, key, value)}


def shortcomings(view: View) -> dict[str, str]:
    """Block -> sentence, for every field that Slack's client does not let pass."""
    found: dict[str, str] = {}
    for block in view.content["blocks"]:
        if block["type"] != "input":
            continue
        element = block["element"]
        value = view.state[block["block_id"]].get(element["action_id"], first_value(element))
        sentence = _shortcoming(element, value, optional=bool(block.get("optional")))
        if sentence:
            found[block["block_id"]] = sentence
    return found


def _shortcoming(element: Json, value: Json, *, optional: bool) -> str:
    content = next((item for name, item in value.items() if name != "type"), None)
    if content in (None, "", []):
        return "" if optional else REQUIRED
    if element["type"] == "plain_text_input":
        return _wrong_length(element, str(content))
    if element["type"] == "number_input":
        return _wrong_number(element, str(content))
    return ""


def _wrong_length(element: Json, text: str) -> str:
    if len(text) < element.get("min_length", 0):
        return f"Enter at least {element['min_length']} characters."
    if len(text) > element.get("max_length", 3000):
        return f"Enter at most {element.get('max_length', 3000)} characters."
    return ""


def _wrong_number(element: Json, text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        return "Enter a valid number."
    if not element["is_decimal_allowed"] and not number.is_integer():
        return "Enter a whole number."
    if "min_value" in element and number < float(element["min_value"]):
        return f"Enter a number of at least {element['min_value']}."
    if "max_value" in element and number > float(element["max_value"]):
        return f"Enter a number of at most {element['max_value']}."
    return ""


def _content(element: Json, key: str, value: Value) -> Any:
    if value in (None, "", []):
        return [] if key in {"selected_options", "files"} else None
    match key:
        case "selected_option":
            return _option(element, value)
        case "selected_options":
            return [_option(element, word) for word in value]
        case "selected_date_time":
            return int(value)
        case "value":
            return str(value)
        case _:
            return value


def _option(element: Json, value: Value) -> Json:
    if isinstance(value, dict):
        return value
    groups = element.get("option_groups", [])
    options = [*element.get("options", []), *(option for group in groups for option in group["options"])]
    for option in options:
        if option["value"] == value:
            return dict(option)
    if element["type"] == "external_select":
        return {"text": {"type": "plain_text", "text": str(value)}, "value": str(value)}
    raise NotThere(f"there is no option {value!r}; there are {', '.join(str(option['value']) for option in options)}")
