"""What may stand inside blocks: texts, options, buttons, selects, inputs. Source: docs.slack.dev, block-kit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bot.playground.shapes import (
    Rule,
    Wrong,
    anything,
    both,
    flag,
    items,
    link,
    number,
    one_of,
    record,
    string,
    typed,
)


def plain(most: int, least: int = 1) -> Rule:
    """A `plain_text` object."""
    return typed({"plain_text": record({"text": string(most, least)}, {"emoji": flag})})


def text(most: int, least: int = 1) -> Rule:
    """A `plain_text` or `mrkdwn` object."""
    return typed(
        {
            "plain_text": record({"text": string(most, least)}, {"emoji": flag}),
            "mrkdwn": record({"text": string(most, least)}, {"verbatim": flag}),
        }
    )


def option(label: Rule) -> Rule:
    """One choice of a select; the shorter of two published lengths of its value counts."""
    return record({"text": label, "value": string(75, 1)}, {"description": plain(75), "url": link()})


def _options_or_groups(value: Any, at: str) -> Wrong:
    if isinstance(value, dict) and ("options" in value) == ("option_groups" in value):
        yield f"must provide either options or option_groups [json-pointer:{at}]"


def _number_has_decimal_rule(value: Any, at: str) -> Wrong:
    for name in ("min_value", "max_value", "initial_value"):
        if not isinstance(value.get(name, ""), str):
            yield f"must provide a string [json-pointer:{at}/{name}]"


ACTION: Mapping[str, Rule] = {"action_id": string(255, 1)}
CONFIRM = record({"title": plain(100), "text": text(300), "confirm": plain(30), "deny": plain(30)}, {"style": anything})
FOCUS: Mapping[str, Rule] = {**ACTION, "focus_on_load": flag}
CHOOSE: Mapping[str, Rule] = {**FOCUS, "confirm": CONFIRM, "placeholder": plain(150)}
TYPE: Mapping[str, Rule] = {**FOCUS, "placeholder": plain(150), "dispatch_action_config": anything}
STYLE = one_of("primary", "danger")
CHOICE = option(plain(75))
RICH_CHOICE = option(text(75))
GROUP = record({"label": plain(75), "options": items(CHOICE, 100)}, {})
IMAGE: Mapping[str, Rule] = {"image_url": link(), "slack_file": anything}


def _image_source(value: Any, at: str) -> Wrong:
    if ("image_url" in value) == ("slack_file" in value):
        yield f"must provide either image_url or slack_file [json-pointer:{at}]"


BUTTON = record(
    {"text": plain(75)},
    {
        **ACTION,
        "url": link(),
        "value": string(2000),
        "style": STYLE,
        "confirm": CONFIRM,
        "accessibility_label": string(75),
    },
)
STATIC = {"options": items(CHOICE, 100), "option_groups": items(GROUP, 100)}
ELEMENTS: Mapping[str, Rule] = {
    "button": BUTTON,
    "image": both(record({"alt_text": string(2000, 1)}, IMAGE), _image_source),
    "overflow": record({"options": items(CHOICE, 5)}, {**ACTION, "confirm": CONFIRM}),
    "static_select": both(record({}, {**CHOOSE, **STATIC, "initial_option": CHOICE}), _options_or_groups),
    "multi_static_select": both(
        record({}, {**CHOOSE, **STATIC, "initial_options": items(CHOICE, 100), "max_selected_items": number(1, 100)}),
        _options_or_groups,
    ),
    "external_select": record({}, {**CHOOSE, "initial_option": CHOICE, "min_query_length": number(0, 100)}),
    "users_select": record({}, {**CHOOSE, "initial_user": string(20)}),
    "conversations_select": record(
        {},
        {
            **CHOOSE,
            "initial_conversation": string(20),
            "default_to_current_conversation": flag,
            "filter": anything,
            "response_url_enabled": flag,
        },
    ),
    "channels_select": record({}, {**CHOOSE, "initial_channel": string(20), "response_url_enabled": flag}),
    "radio_buttons": record(
        {"options": items(RICH_CHOICE, 10)}, {**FOCUS, "confirm": CONFIRM, "initial_option": RICH_CHOICE}
    ),
    "checkboxes": record(
        {"options": items(RICH_CHOICE, 10)}, {**FOCUS, "confirm": CONFIRM, "initial_options": items(RICH_CHOICE, 10)}
    ),
    "datepicker": record({}, {**CHOOSE, "initial_date": string(10, 10)}),
    "timepicker": record({}, {**CHOOSE, "initial_time": string(5, 5), "timezone": string(255)}),
    "datetimepicker": record({}, {**FOCUS, "confirm": CONFIRM, "initial_date_time": number(10**9, 10**10 - 1)}),
    "plain_text_input": record(
        {},
        {
            **TYPE,
            "initial_value": string(3000),
            "multiline": flag,
            "min_length": number(0, 3000),
            "max_length": number(1, 3000),
        },
    ),
    "number_input": both(
        record(
            {"is_decimal_allowed": flag},
            {**TYPE, "initial_value": anything, "min_value": anything, "max_value": anything},
        ),
        _number_has_decimal_rule,
    ),
    "email_text_input": record({}, {**TYPE, "initial_value": string(3000)}),
    "url_text_input": record({}, {**TYPE, "initial_value": string(3000)}),
    "rich_text_input": record({}, {**TYPE, "initial_value": anything}),
    "file_input": record({}, {**ACTION, "filetypes": items(string(20, 1), 100), "max_files": number(1, 10)}),
    "workflow_button": record(
        {"text": plain(75), "workflow": anything}, {**ACTION, "style": STYLE, "accessibility_label": string(75)}
    ),
    "feedback_buttons": record({"positive_button": anything, "negative_button": anything}, ACTION),
    "icon_button": record(
        {"text": plain(75), "icon": one_of("trash")},
        {
            **ACTION,
            "value": string(2000),
            "confirm": CONFIRM,
            "accessibility_label": string(75),
            "visible_to_user_ids": anything,
        },
    ),
}

SELECTS = frozenset(name for name in ELEMENTS if name.endswith("_select"))
PICKERS = frozenset({"datepicker", "timepicker", "datetimepicker"})
CHOICES = frozenset({"radio_buttons", "checkboxes"})
MULTI = frozenset({"multi_static_select"})
IN_ACTIONS = (SELECTS - MULTI) | PICKERS | CHOICES | {"button", "overflow", "workflow_button"}
IN_SECTION = SELECTS | (PICKERS - {"datetimepicker"}) | CHOICES | {"button", "overflow", "image", "workflow_button"}
IN_INPUT = (
    SELECTS
    | PICKERS
    | CHOICES
    | {"plain_text_input", "number_input", "email_text_input", "url_text_input", "rich_text_input", "file_input"}
)

_STYLE = record({}, {"bold": flag, "italic": flag, "strike": flag, "code": flag, "underline": flag, "highlight": flag})
_STYLED: Mapping[str, Rule] = {"style": _STYLE}
RICH_PIECE = typed(
    {
        "text": record({"text": string(40_000, 1)}, _STYLED),
        "link": record({"url": link()}, {**_STYLED, "text": string(40_000), "unsafe": flag}),
        "emoji": record({"name": string(100, 1)}, {**_STYLED, "unicode": string(100), "skin_tone": anything}),
        "user": record({"user_id": string(20, 1)}, _STYLED),
        "channel": record({"channel_id": string(20, 1)}, _STYLED),
        "usergroup": record({"usergroup_id": string(20, 1)}, _STYLED),
        "broadcast": record({"range": one_of("here", "channel", "everyone")}, _STYLED),
        "color": record({"value": string(7, 7)}, _STYLED),
        "date": record(
            {"timestamp": number(0, 10**11), "format": string(200, 1)},
            {**_STYLED, "url": link(), "fallback": string(200), "timezone": string(255)},
        ),
    }
)
_PIECES = items(RICH_PIECE, 10_000, 0)
_BORDER: Mapping[str, Rule] = {"border": number(0, 1)}
RICH_SECTION = record({"elements": _PIECES}, {})
RICH_ELEMENT = typed(
    {
        "rich_text_section": RICH_SECTION,
        "rich_text_list": record(
            {"style": one_of("bullet", "ordered"), "elements": items(typed({"rich_text_section": RICH_SECTION}), 1000)},
            {**_BORDER, "indent": number(0, 8), "offset": number(0, 10_000)},
        ),
        "rich_text_preformatted": record({"elements": _PIECES}, {**_BORDER, "language": string(50)}),
        "rich_text_quote": record({"elements": _PIECES}, _BORDER),
    }
)
