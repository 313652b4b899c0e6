from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.playground import blocks
from tests.playground.block_samples import (
    actions,
    button,
    home,
    input_block,
    modal,
    mrkdwn,
    option,
    plain,
    section,
    select,
)

Json = dict[str, Any]
Make = Callable[[int], Json]


def overflow(count: int) -> Json:
    return {"type": "overflow", "action_id": "more", "options": [option(f"o{n}") for n in range(count)]}


def radios(count: int) -> Json:
    return {"type": "radio_buttons", "action_id": "r", "options": [option(f"o{n}") for n in range(count)]}


def confirm(**texts: Json) -> Json:
    usual = {"title": plain("Sure?"), "text": mrkdwn("It ends."), "confirm": plain("Yes"), "deny": plain("No")}
    return button(confirm=usual | texts)


def rows(count: int, columns: int = 2) -> Json:
    cell = {"type": "raw_text", "text": "x"}
    return {"type": "table", "rows": [[cell] * columns for _ in range(count)]}


LENGTHS: list[tuple[str, int, Make]] = [
    ("section text", 3000, lambda n: section("x" * n)),
    ("section field", 2000, lambda n: {"type": "section", "fields": [mrkdwn("x" * n)]}),
    ("section fields", 10, lambda n: {"type": "section", "fields": [mrkdwn("x")] * n}),
    ("header", 150, lambda n: {"type": "header", "text": plain("x" * n)}),
    ("context elements", 10, lambda n: {"type": "context", "elements": [mrkdwn("x")] * n}),
    ("actions elements", 25, lambda n: actions(*(button(f"b{i}") for i in range(n)))),
    ("button text", 75, lambda n: actions(button(text=plain("x" * n)))),
    ("button value", 2000, lambda n: actions(button(value="x" * n))),
    ("button label", 75, lambda n: actions(button(accessibility_label="x" * n))),
    ("action_id", 255, lambda n: actions(button("x" * n))),
    ("block_id", 255, lambda n: section(block_id="x" * n)),
    ("select options", 100, lambda n: actions(select(n))),
    ("option text", 75, lambda n: actions(select(options=[{"text": plain("x" * n), "value": "v"}]))),
    ("option value", 75, lambda n: actions(select(options=[{"text": plain("x"), "value": "v" * n}]))),
    ("option description", 75, lambda n: actions(select(options=[option("v", description=plain("x" * n))]))),
    ("placeholder", 150, lambda n: actions(select(placeholder=plain("x" * n)))),
    ("overflow options", 5, lambda n: section(accessory=overflow(n))),
    ("radio options", 10, lambda n: section(accessory=radios(n))),
    ("confirm title", 100, lambda n: actions(confirm(title=plain("x" * n)))),
    ("confirm text", 300, lambda n: actions(confirm(text=mrkdwn("x" * n)))),
    ("confirm yes", 30, lambda n: actions(confirm(confirm=plain("x" * n)))),
    ("confirm no", 30, lambda n: actions(confirm(deny=plain("x" * n)))),
    (
        "image alt text",
        2000,
        lambda n: {"type": "image", "image_url": "https://example.com/a.png", "alt_text": "x" * n},
    ),
    ("markdown", 12_000, lambda n: {"type": "markdown", "text": "x" * n}),
    ("table rows", 100, rows),
    ("table columns", 20, lambda n: rows(2, n)),
]


@pytest.mark.parametrize(("limit", "make"), [row[1:] for row in LENGTHS], ids=[row[0] for row in LENGTHS])
def test_the_limit_itself_passes_and_one_more_does_not(limit: int, make: Make):
    assert blocks.message([make(limit)]) == []
    assert blocks.message([make(limit + 1)]) != []


VIEW_LENGTHS: list[tuple[str, int, Callable[[int], Json]]] = [
    ("title", 24, lambda n: modal(title=plain("x" * n))),
    ("submit", 24, lambda n: modal(submit=plain("x" * n))),
    ("close", 24, lambda n: modal(close=plain("x" * n))),
    ("private_metadata", 3000, lambda n: modal(private_metadata="x" * n)),
    ("callback_id", 255, lambda n: modal(callback_id="x" * n)),
    ("external_id", 255, lambda n: modal(external_id="x" * n)),
    ("modal blocks", 100, lambda n: modal(*[section()] * n)),
    ("home blocks", 100, lambda n: home(*[section()] * n)),
    ("label", 2000, lambda n: modal(input_block(label=plain("x" * n)))),
    ("hint", 2000, lambda n: modal(input_block(hint=plain("x" * n)))),
]


@pytest.mark.parametrize(("limit", "make"), [row[1:] for row in VIEW_LENGTHS], ids=[row[0] for row in VIEW_LENGTHS])
def test_the_limit_of_a_view_passes_and_one_more_does_not(limit: int, make: Make):
    assert blocks.view(make(limit)) == []
    assert blocks.view(make(limit + 1)) != []


def test_a_message_takes_fifty_blocks():
    assert blocks.message([section()] * 50) == []
    assert blocks.message([section()] * 51) == ["no more than 50 items allowed [json-pointer:/blocks]"]


WRONG: list[tuple[str, Json, str]] = [
    ("an unknown block", {"type": "marquee"}, "unsupported type: marquee [json-pointer:/blocks/0/type]"),
    ("an unknown key", section(color="red"), "invalid additional property: color [json-pointer:/blocks/0]"),
    ("an empty section", {"type": "section"}, "missing required field: text [json-pointer:/blocks/0]"),
    ("empty text", section(""), "must be more than 0 characters [json-pointer:/blocks/0/text/text]"),
    (
        "mrkdwn in a header",
        {"type": "header", "text": mrkdwn("x")},
        "unsupported type: mrkdwn [json-pointer:/blocks/0/text/type]",
    ),
    (
        "a made-up style",
        actions(button(style="warning")),
        "must be one of primary, danger [json-pointer:/blocks/0/elements/0/style]",
    ),
    (
        "a button in a context",
        {"type": "context", "elements": [button()]},
        "unsupported type: button [json-pointer:/blocks/0/elements/0/type]",
    ),
    ("a field in a message", input_block(), "unsupported type: input [json-pointer:/blocks/0/type]"),
    (
        "an alert in a message",
        {"type": "alert", "text": plain("x")},
        "unsupported type: alert [json-pointer:/blocks/0/type]",
    ),
    (
        "two buttons of one name",
        actions(button(), button()),
        'action_id "ok" already exists for another element [json-pointer:/blocks/0/elements/1/action_id]',
    ),
    ("no elements", actions(), "no less than 1 items allowed [json-pointer:/blocks/0/elements]"),
    (
        "a select without options",
        actions({"type": "static_select", "action_id": "s"}),
        "must provide either options or option_groups [json-pointer:/blocks/0/elements/0]",
    ),
    (
        "a link that runs code",
        actions(button(url="javascript:alert(1)")),
        "must be a valid URL [json-pointer:/blocks/0/elements/0/url]",
    ),
    (
        "an image without words",
        {"type": "image", "image_url": "https://example.com/a.png"},
        "missing required field: alt_text [json-pointer:/blocks/0]",
    ),
]


@pytest.mark.parametrize(("block", "sentence"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_what_is_wrong_is_said_with_its_place(block: Json, sentence: str):
    assert blocks.message([block]) == [sentence]


def test_two_blocks_may_not_share_an_id():
    assert blocks.message([section(block_id="a"), section(block_id="a")]) == [
        'block_id "a" already exists [json-pointer:/blocks/1/block_id]'
    ]


def test_markdown_blocks_share_one_limit():
    half = {"type": "markdown", "text": "x" * 6001}

    assert blocks.message([half]) == []
    assert blocks.message([half, half]) == [
        "all markdown blocks must be less than 12001 characters [json-pointer:/blocks]"
    ]


@pytest.mark.parametrize("kind", ["table", "markdown", "data_table", "data_visualization", "plan"])
def test_what_only_messages_show_is_refused_in_modals(kind: str):
    assert blocks.view(modal({"type": kind})) == [f"unsupported type: {kind} [json-pointer:/view/blocks/0/type]"]


def test_a_form_needs_a_submit_button():
    without = {key: value for key, value in modal(input_block()).items() if key != "submit"}

    assert blocks.view(without) == ["missing required field: submit [json-pointer:/view]"]
    assert blocks.view(modal(input_block())) == []


def test_a_home_tab_has_no_submit_button():
    assert blocks.view(home(section()) | {"submit": plain("Go")}) == [
        "invalid additional property: submit [json-pointer:/view]"
    ]


def test_a_number_field_says_whether_it_takes_decimals():
    number = {"type": "number_input", "action_id": "n"}

    assert blocks.view(modal(input_block(element=number))) != []
    assert blocks.view(modal(input_block(element=number | {"is_decimal_allowed": False, "min_value": "0"}))) == []
    assert blocks.view(modal(input_block(element=number | {"is_decimal_allowed": False, "min_value": 0}))) != []


SAMPLES = st.sampled_from(
    [
        section(),
        section(accessory=button()),
        actions(button(), select()),
        {"type": "divider"},
        {"type": "header", "text": plain("x")},
        {"type": "context", "elements": [mrkdwn("x")]},
    ]
)


@given(st.lists(SAMPLES, max_size=50))
def test_valid_blocks_in_any_order_are_a_valid_message(found: list[Json]):
    assert blocks.message(found) == []


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda one: st.lists(one) | st.dictionaries(st.text(), one),
    )
)
def test_any_json_gets_an_answer_and_never_an_error(value: Any):
    assert isinstance(blocks.message(value), list)
    assert isinstance(blocks.message([value]), list)
    assert isinstance(blocks.view({"type": "modal", "blocks": value}), list)
