"""Text to Slack and from people."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.slack_text import cut, cut_bytes, escape, moment, tail, typed


@pytest.mark.parametrize(
    ("raw", "meant"),
    [
        ("\u201cmy run\u201d", '"my run"'),
        ("\u2018my run\u2019", "'my run'"),
        ("submit \u2014gpus 4", "submit --gpus 4"),
        ("a=1 \u2014 python t.py", "a=1 -- python t.py"),
        ("a=1 \u2013 python t.py", "a=1 -- python t.py"),
        ("well\u2014known", "well\u2014known"),
        ("status\u00a0job-41", "status job-41"),
        ("status\u200b job-41", "status job-41"),
        ("lr=\u22125", "lr=-5"),
    ],
)
def test_slk_21_what_a_keyboard_dressed_up_reads_as_plain_text(raw: str, meant: str):
    assert typed(raw) == meant


@pytest.mark.parametrize(
    ("raw", "meant"),
    [
        ("image=<http://gcr.io/x|gcr.io/x>:tag", "image=gcr.io/x:tag"),
        ("<mailto:ana@example.com|ana@example.com>", "ana@example.com"),
        ("<mailto:ana@example.com>", "ana@example.com"),
        ("<@U1|bob>", "@bob"),
        ("<@U1>", "@U1"),
        ("<#C1|ops>", "#ops"),
        ("<https://example.com/a?b=1&amp;c=2>", "https://example.com/a?b=1&c=2"),
        ("<http://evil.example|bank.example>", "bank.example"),
        ("a &lt; b", "a < b"),
        ("<!subteam^S1|@ml>", "@ml"),
    ],
)
def test_slk_22_words_that_slack_turned_into_links_are_typed_text_again(raw: str, meant: str):
    assert typed(raw) == meant


def test_nothing_untrusted_comes_alive():
    assert escape("<!channel> & <@U1>") == "&lt;!channel&gt; &amp; &lt;@U1&gt;"


def test_text_that_turns_the_reading_direction_is_disarmed():
    assert escape("exe\u202egpj\x00") == "exegpj"


@given(st.text(), st.integers(20, 300))
def test_cut_text_fits_and_says_so(text: str, limit: int):
    short = cut(text, limit)

    assert len(short) <= limit
    assert short == text if len(text) <= limit else short.endswith("(cut)")


@given(st.text(), st.integers(20, 300))
def test_cut_bytes_fit_and_are_whole_letters(text: str, limit: int):
    short = cut_bytes(escape(text), limit)

    assert len(short.encode()) <= limit


@given(st.text(alphabet="&<>a", min_size=40, max_size=80))
def test_no_entity_is_cut_in_half(text: str):
    short = cut(escape(text), 40).removesuffix(" … (cut)")

    rest = short.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "")
    assert set(rest) <= {"a"}


def test_a_letter_of_several_marks_is_kept_or_dropped_whole():
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"

    assert cut(family * 10, 22) in {family * 2 + " … (cut)", family + " … (cut)"}


def test_the_end_of_a_log_is_what_stays():
    short = tail("a" * 100 + "the error", 40)

    assert short.endswith("the error")
    assert short.startswith("(cut)")
    assert len(short) <= 40


def test_a_moment_has_a_fallback_with_its_zone():
    at = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)

    assert moment(at, ZoneInfo("Asia/Seoul")) == (
        "<!date^1796068800^{date_short_pretty} at {time}|2026-12-01 05:00 KST>"
    )
