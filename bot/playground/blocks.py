"""What Slack takes as blocks and views: types, surfaces, fields, lengths, counts. Source: docs.slack.dev, block-kit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bot.playground.elements import (
    BUTTON,
    ELEMENTS,
    IMAGE,
    IN_ACTIONS,
    IN_INPUT,
    IN_SECTION,
    RICH_ELEMENT,
    plain,
    text,
)
from bot.playground.refusal import Json
from bot.playground.shapes import Rule, Wrong, anything, both, flag, items, link, number, one_of, record, string, typed

MAX_MESSAGE_BLOCKS = 50
MAX_VIEW_BLOCKS = 100
MAX_MARKDOWN = 12_000  # characters, over all markdown blocks of a message
MAX_MESSAGE_TEXT = 13_200  # characters of all blocks; undocumented, seen as `msg_blocks_too_long`
MAX_CHARTS = 2
MAX_TABLE_ROWS = 100
MAX_TABLE_COLUMNS = 20
MAX_SERIES = 6

ID: Mapping[str, Rule] = {"block_id": string(255, 1)}


def message(blocks: Any, at: str = "/blocks") -> list[str]:
    """What is wrong with the blocks of a message; nothing, if Slack would take them."""
    return list(_on_surface("message", MAX_MESSAGE_BLOCKS, 0)(blocks, at))


def view(content: Json, at: str = "/view") -> list[str]:
    """What is wrong with a modal or a home tab; nothing, if Slack would take it."""
    return list(typed({"modal": _MODAL, "home": _HOME})(content, at))


def text_length(blocks: list[Json]) -> int:
    """Characters of all texts in blocks."""
    return sum(len(piece) for piece in _texts(blocks))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name == "text" and isinstance(item, str):
                yield item
            else:
                yield from _texts(item)


def _section_has_something(value: Any, at: str) -> Wrong:
    if "text" not in value and "fields" not in value:
        yield f"missing required field: text [json-pointer:{at}]"


def _same_columns(value: Any, at: str) -> Wrong:
    for index, row in enumerate(value.get("rows", [])):
        if isinstance(row, list) and len(row) > MAX_TABLE_COLUMNS:
            yield f"no more than {MAX_TABLE_COLUMNS} items allowed [json-pointer:{at}/rows/{index}]"


_CELL = typed(
    {
        "raw_text": record({"text": string(3000, 1)}, {}),
        "raw_number": record({"value": anything}, {"text": string(3000)}),
        "rich_text": record({"elements": items(RICH_ELEMENT, 100)}, ID),
    }
)
_TASK = {
    "task_id": string(255, 1),
    "title": string(300, 1),
}
_TASK_MORE: Mapping[str, Rule] = {
    **ID,
    "status": one_of("pending", "in_progress", "complete", "error"),
    "details": anything,
    "output": anything,
    "sources": anything,
}
_POINTS = items(record({"label": string(20, 1), "value": anything}, {}), 20)
_CHART = typed(
    {
        "pie": record({"segments": items(record({"label": string(20, 1), "value": anything}, {}), MAX_SERIES)}, {}),
        **{
            kind: record(
                {
                    "series": items(record({"name": string(20, 1), "data": _POINTS}, {}), MAX_SERIES),
                    "axis_config": anything,
                },
                {},
            )
            for kind in ("bar", "area", "line")
        },
    }
)
_CARD: Mapping[str, Rule] = {
    **ID,
    "title": text(150),
    "subtitle": text(150),
    "body": text(200),
    "subtext": text(200),
    "hero_image": anything,
    "icon": anything,
    "actions": items(typed({"button": BUTTON}), 3),
}
BLOCKS: Mapping[str, Rule] = {
    "section": both(
        record(
            {},
            {
                **ID,
                "text": text(3000),
                "fields": items(text(2000), 10),
                "accessory": typed(ELEMENTS, IN_SECTION),
                "expand": flag,
            },
        ),
        _section_has_something,
    ),
    "divider": record({}, ID),
    "header": record({"text": plain(150)}, {**ID, "level": number(1, 6)}),
    "image": record({"alt_text": string(2000, 1)}, {**ID, **IMAGE, "title": plain(2000)}),
    "context": record(
        {
            "elements": items(
                typed(
                    {
                        "image": ELEMENTS["image"],
                        "plain_text": record({"text": string(3000, 1)}, {"emoji": flag}),
                        "mrkdwn": record({"text": string(3000, 1)}, {"verbatim": flag}),
                    }
                ),
                10,
            )
        },
        ID,
    ),
    "actions": record({"elements": items(typed(ELEMENTS, IN_ACTIONS), 25)}, ID),
    "context_actions": record(
        {"elements": items(typed(ELEMENTS, frozenset({"feedback_buttons", "icon_button"})), 5)}, ID
    ),
    "input": record(
        {"label": plain(2000), "element": typed(ELEMENTS, IN_INPUT)},
        {**ID, "hint": plain(2000), "optional": flag, "dispatch_action": flag},
    ),
    "rich_text": record({"elements": items(RICH_ELEMENT, 1000)}, ID),
    "markdown": record({"text": string(MAX_MARKDOWN, 1)}, ID),
    "table": both(
        record({"rows": items(items(_CELL, 1000), MAX_TABLE_ROWS)}, {**ID, "column_settings": items(anything, 20, 0)}),
        _same_columns,
    ),
    "data_table": both(
        record(
            {"caption": string(300, 1), "rows": items(items(_CELL, 1000), MAX_TABLE_ROWS + 1, 2)},
            {**ID, "page_size": number(1, 100), "row_header_column_index": number(0, MAX_TABLE_COLUMNS - 1)},
        ),
        _same_columns,
    ),
    "data_visualization": record({"title": string(50, 1), "chart": _CHART}, ID),
    "plan": record({"title": string(300, 1)}, {**ID, "tasks": items(record(_TASK, _TASK_MORE), 50)}),
    "task_card": record(_TASK, _TASK_MORE),
    "card": record({}, _CARD),
    "carousel": record({"elements": items(typed({"card": record({}, _CARD)}), 10)}, ID),
    "container": record(
        {"title": text(150), "child_blocks": items(anything, 10)},
        {
            **ID,
            "subtitle": text(150),
            "icon": anything,
            "width": anything,
            "is_collapsible": flag,
            "default_collapsed": flag,
        },
    ),
    "alert": record({"text": text(200)}, {**ID, "level": one_of("default", "info", "warning", "error", "success")}),
    "video": record(
        {"alt_text": string(2000, 1), "title": plain(200), "thumbnail_url": link(), "video_url": link()},
        {**ID, "author_name": string(50), "description": plain(200), "provider_icon_url": link()}
        | {"provider_name": string(50), "title_url": link()},
    ),
    "file": record({"external_id": string(255, 1), "source": one_of("remote")}, ID),
}

EVERYWHERE = frozenset({"section", "divider", "header", "image", "context", "actions", "rich_text", "video", "card"})
SURFACES: Mapping[str, frozenset[str]] = {
    "message": frozenset(BLOCKS) - {"input", "alert"},
    "modal": EVERYWHERE | {"input", "alert"},
    "home": EVERYWHERE | {"input", "table", "data_table", "data_visualization", "carousel", "container"},
}


def _on_surface(surface: str, most: int, least: int) -> Rule:
    return both(items(typed(BLOCKS, SURFACES[surface]), most, least), _unique_ids, _sums)


def _unique_ids(blocks: Any, at: str) -> Wrong:
    seen: set[str] = set()
    for index, block in enumerate(blocks if isinstance(blocks, list) else []):
        if not isinstance(block, dict):
            continue
        name = block.get("block_id")
        if isinstance(name, str) and name in seen:
            yield f'block_id "{name}" already exists [json-pointer:{at}/{index}/block_id]'
        if isinstance(name, str):
            seen.add(name)
        yield from _unique_actions(block, f"{at}/{index}")


def _unique_actions(block: Json, at: str) -> Wrong:
    seen: set[str] = set()
    found = block.get("elements")
    for index, element in enumerate(found if isinstance(found, list) else []):
        name = element.get("action_id") if isinstance(element, dict) else None
        if isinstance(name, str) and name in seen:
            where = f"{at}/elements/{index}/action_id"
            yield f'action_id "{name}" already exists for another element [json-pointer:{where}]'
        if isinstance(name, str):
            seen.add(name)


def _sums(blocks: Any, at: str) -> Wrong:
    found = [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    markdown = [str(block.get("text", "")) for block in found if block.get("type") == "markdown"]
    if len(markdown) > 1 and sum(map(len, markdown)) > MAX_MARKDOWN:
        yield f"all markdown blocks must be less than {MAX_MARKDOWN + 1} characters [json-pointer:{at}]"
    if sum(block.get("type") == "data_visualization" for block in found) > MAX_CHARTS:
        yield f"no more than {MAX_CHARTS} data_visualization blocks allowed [json-pointer:{at}]"


def _submit_for_inputs(value: Any, at: str) -> Wrong:
    blocks = value.get("blocks")
    has_input = any(
        isinstance(block, dict) and block.get("type") == "input"
        for block in (blocks if isinstance(blocks, list) else [])
    )
    if has_input and "submit" not in value:
        yield f"missing required field: submit [json-pointer:{at}]"


_VIEW: Mapping[str, Rule] = {
    "private_metadata": string(3000),
    "callback_id": string(255),
    "external_id": string(255),
}
_MODAL = both(
    record(
        {"title": plain(24), "blocks": _on_surface("modal", MAX_VIEW_BLOCKS, 1)},
        {**_VIEW, "submit": plain(24), "close": plain(24), "clear_on_close": flag, "notify_on_close": flag}
        | {"submit_disabled": flag},
    ),
    _submit_for_inputs,
)
_HOME = record({"blocks": _on_surface("home", MAX_VIEW_BLOCKS, 0)}, _VIEW)
