"""The few Block Kit pieces that we use, each within Slack's limits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bot.slack_text import clean, cut, cut_bytes

Block = Mapping[str, Any]
SECTION = 2900  # Slack takes 3,000
MESSAGE = 11_000  # all sections together; Slack refuses somewhere above 13,000
BLOCKS = 48  # Slack takes 50
FALLBACK_TEXT = 3900  # bytes of a message's top-level text
_MENTION = re.compile(r"(?: by )?<@([UW]\w+)>")


class Act(StrEnum):
    """Names of our buttons, and of the views that they open."""

    APPROVE = "gpujob_approve"
    DENY = "gpujob_deny"
    CANCEL = "gpujob_cancel"
    STATUS = "gpujob_status"
    LOGS = "gpujob_logs"
    RERUN = "gpujob_rerun"
    PAGE = "gpujob_page"
    SUBMIT_FORM = "gpujob_submit_form"
    DENY_FORM = "gpujob_deny_form"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is posted: `text` for notifications and screen readers, `blocks` for eyes. Both are escaped already."""

    text: str
    blocks: tuple[Block, ...] = ()


def message(text: str, blocks: Sequence[Block] = ()) -> Message:
    """A message within Slack's limits: too many or too long blocks end with a marker."""
    kept: list[Block] = []
    left = MESSAGE
    for block in blocks[:BLOCKS]:
        size = _size(block)
        if size > left:
            kept.append(context("… the rest does not fit into one message."))
            break
        left -= size
        kept.append(block)
    # Slack notifies whom the text names, not whom the blocks name: a card or a list must ping nobody.
    return Message(text=cut_bytes(_MENTION.sub(_unnamed, text), FALLBACK_TEXT), blocks=tuple(kept))


def section(text: str) -> Block:
    """A paragraph of mrkdwn; untrusted parts are escaped by the caller."""
    return {"type": "section", "text": {"type": "mrkdwn", "text": cut(text, SECTION) or " ", "verbatim": True}}


def heading(text: str) -> Block:
    """A title; plain text, nothing in it comes alive."""
    return {"type": "header", "text": plain(text, 150)}


def context(text: str) -> Block:
    """A line in small letters; mrkdwn."""
    return {
        "type": "context",
        "elements": [{"type": "mrkdwn", "text": cut(text, 2000) or " ", "verbatim": True}],
    }


def preformatted(text: str) -> Block:
    """Lines of a program, shown as they are."""
    return {
        "type": "rich_text",
        "elements": [
            {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": cut(clean(text), SECTION) or " "}]}
        ],
    }


def actions(buttons: Sequence[Block]) -> Block:
    """A row of buttons."""
    return {"type": "actions", "elements": list(buttons)}


def button(act: Act, label: str, value: str, *, style: str = "", ask: Block | None = None, spoken: str = "") -> Block:
    """One button; `spoken` is what a screen reader says."""
    made: dict[str, Any] = {
        "type": "button",
        "action_id": act.value,
        "text": plain(label, 75),
        "value": value,
    }
    if style:
        made["style"] = style
    if ask is not None:
        made["confirm"] = ask
    if spoken:
        made["accessibility_label"] = cut(spoken, 75)
    return made


def confirm(title: str, text: str, yes: str, no: str) -> Block:
    """The question that Slack asks before it sends the click."""
    return {
        "title": plain(title, 100),
        "text": plain(text, 300),
        "confirm": plain(yes, 30),
        "deny": plain(no, 30),
        "style": "danger",
    }


def plain(text: str, limit: int) -> Block:
    """Text in which nothing is parsed, not even `:words:` of emoji."""
    return {"type": "plain_text", "text": cut(clean(text), limit) or " ", "emoji": False}


def _unnamed(mention: re.Match[str]) -> str:
    # "Approved by U0BO." reads worse than "Approved."; the blocks have the name.
    return "" if mention[0].startswith(" by ") else mention[1]


def _size(block: Block) -> int:
    text = block.get("text")
    if isinstance(text, Mapping):
        return len(str(text.get("text", "")))
    return len(str(block.get("elements", "")))
