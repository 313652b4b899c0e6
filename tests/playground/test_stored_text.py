from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.playground.stored_text import stored, stored_blocks


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("a < b & c > d", "a &lt; b &amp; c &gt; d"),
        ("a &lt; b &amp; c", "a &lt; b &amp; c"),
        ("<@U0ANA> and <!channel>", "<@U0ANA> and <!channel>"),
        ("<https://example.com/?a=1&b=2|here>", "<https://example.com/?a=1&b=2|here>"),
        ("<!date^1^{time}|x> <b>", "<!date^1^{time}|x> &lt;b&gt;"),
        ("<javascript:alert(1)|x>", "&lt;javascript:alert(1)|x&gt;"),
    ],
)
def test_only_slacks_own_markup_is_kept(sent: str, kept: str):
    assert stored(sent) == kept


@given(st.text(alphabet="<>&@#!|abc;ltgamp \n"))
def test_storing_what_is_stored_changes_nothing(text: str):
    assert stored(stored(text)) == stored(text)


def test_plain_text_parses_nothing_and_stays():
    block = {"type": "header", "text": {"type": "plain_text", "text": "a < b"}}

    assert stored_blocks([block]) == [block]
