"""Text as Slack stores it: what is not its own markup is escaped."""

from __future__ import annotations

import re
from typing import Any

from bot.playground.refusal import Json

_MARKUP = re.compile(r"<(?:[@#!][^<>\n]+|(?:https?://|mailto:|tel:|slack:)[^<>\s][^<>\n]*)>")
_BARE_AMPERSAND = re.compile(r"&(?!amp;|lt;|gt;)")


def stored(text: str) -> str:
    """Escapes `&`, `<` and `>`, but for links, mentions, dates, and what is escaped already."""
    pieces: list[str] = []
    end = 0
    for markup in _MARKUP.finditer(text):
        pieces += [_escaped(text[end : markup.start()]), markup.group()]
        end = markup.end()
    return "".join([*pieces, _escaped(text[end:])])


def stored_blocks(blocks: Any) -> Any:
    """Blocks with every `mrkdwn` text as it is stored; other texts parse nothing and stay."""
    if isinstance(blocks, list):
        return [stored_blocks(block) for block in blocks]
    if not isinstance(blocks, dict):
        return blocks
    kept: Json = {key: stored_blocks(value) for key, value in blocks.items()}
    if kept.get("type") == "mrkdwn" and isinstance(kept.get("text"), str):
        kept["text"] = stored(kept["text"])
    return kept


def _escaped(text: str) -> str:
    return _BARE_AMPERSAND.sub("&amp;", text).replace("<", "&lt;").replace(">", "&gt;")
