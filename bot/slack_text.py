"""Text as Slack wants it: escaped and within its limits; and what people typed, as they meant it."""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime
from zoneinfo import ZoneInfo

CUT = " … (cut)"
UPDATE_BYTES = 3900  # chat.update refuses texts over 4,000; bytes are the careful reading of it

_LINK = re.compile(r"<([^<>|]*)(?:\|([^<>]*))?>")
_PERSON = re.compile(r"(?<![@\w])(?:[UW]0[A-Z0-9]{2,}|[UW](?=[A-Z]*\d)[A-Z0-9]{8,})\b")
_UNFINISHED = re.compile(r"(?:&[a-z]{0,4}|<[^<>]*)$")
_DASH = re.compile(r"(?<!\S)[\u2013\u2014](?=\S|\s|$)")
_QUOTES = str.maketrans(
    {
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\uff02", '"'),
        **dict.fromkeys("\u2018\u2019\u201a\u201b\uff07", "'"),
        **dict.fromkeys("\u00a0\u2007\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u2060\ufeff"),
        "\u2212": "-",
    }
)
# Controls that turn the direction of what follows: they can make one name read as another.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_JOINS = frozenset("\u200d\ufe0f")


def clean(text: str) -> str:
    """Without control characters, except new lines and tabs."""
    return "".join(
        mark for mark in text if mark in "\n\t" or not (unicodedata.category(mark) in {"Cc", "Cs"} or mark in _TURNING)
    )


def escape(text: str) -> str:
    """Shows literally in mrkdwn: no mention, link or date can come alive."""
    return clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def named(escaped: str) -> str:
    """With mentions for the ids of people, so that readers see their names; not for text that people wrote."""
    return _PERSON.sub(r"<@\g<0>>", escaped)


def cut(text: str, limit: int) -> str:
    """At most `limit` characters, with a marker at the end if some were dropped; never half an entity or a letter."""
    if len(text) <= limit:
        return text
    end = limit - len(CUT)
    while end > 0 and (unicodedata.combining(text[end]) or text[end] in _JOINS or text[end - 1] in _JOINS):
        end -= 1
    return _UNFINISHED.sub("", text[:end]) + CUT


def cut_bytes(text: str, limit: int = UPDATE_BYTES) -> str:
    """At most `limit` bytes of UTF-8, with a marker at the end if some were dropped."""
    raw = text.encode()
    if len(raw) <= limit:
        return text
    kept = raw[: limit - len(CUT.encode())].decode(errors="ignore")
    return _UNFINISHED.sub("", kept) + CUT


def tail(text: str, limit: int) -> str:
    """The end of a log, at most `limit` characters, with a marker at its start if some were dropped."""
    cleaned = clean(text)
    return cleaned if len(cleaned) <= limit else "(cut) … " + cleaned[-(limit - 8) :]


def typed(text: str) -> str:
    """What a person typed: links, mentions, curly quotes, long dashes and odd spaces as plain text again."""
    plain = _LINK.sub(_unwrapped, text).translate(_QUOTES)
    plain = _DASH.sub("--", plain)
    return plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def moment(at: datetime, zone: ZoneInfo) -> str:
    """A time in the reader's own zone; readers that cannot show it see it in `zone`, named."""
    return f"<!date^{int(at.timestamp())}^{{date_short_pretty}} at {{time}}|{plain_moment(at, zone)}>"


def plain_moment(at: datetime, zone: ZoneInfo) -> str:
    """A time where Slack shows no dates of its own: buttons, options, titles."""
    return at.astimezone(zone).strftime("%Y-%m-%d %H:%M %Z")


def _unwrapped(found: re.Match[str]) -> str:
    target, label = found[1], found[2]
    if target.startswith(("@", "#")):
        return target[0] + (label or target[1:])
    if target.startswith("!"):
        return label or target[1:]
    # The label is what the person saw and typed; where the link leads does not matter.
    return label or target.removeprefix("mailto:")
