"""Amounts and sentences as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot import words
from bot.slack_text import escape, named


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        (0, "0 GPU-hours"),
        (0.0001, "less than 0.1 GPU-minutes"),
        (0.0031, "0.2 GPU-minutes"),
        (1 / 60, "1 GPU-minute"),
        (0.1, "6 GPU-minutes"),
        (0.995, "1.0 GPU-hours"),
        (3.21, "3.2 GPU-hours"),
        (12345.6, "12,345.6 GPU-hours"),
    ],
)
def test_an_amount_is_never_rounded_to_nothing(hours: float, said: str):
    assert words.gpu_hours(hours) == said


@given(st.floats(min_value=0.01, max_value=100_000))
def test_an_amount_is_right_to_one_part_in_ten(hours: float):
    number, unit = words.gpu_hours(hours).replace(",", "").split(" ")

    said = float(number) / (60 if unit.startswith("GPU-minute") else 1)
    assert said == pytest.approx(hours, rel=0.1)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "less than 1 s"), (45, "45 s"), (720, "12 min"), (12_000, "3 h 20 min"), (187_200, "2 d 4 h")],
)
def test_a_duration_has_its_two_largest_units(seconds: float, said: str):
    assert words.duration(seconds) == said


@pytest.mark.parametrize(("number", "said"), [(0, "no GPUs"), (1, "1 GPU"), (2, "2 GPUs"), (1200, "1,200 GPUs")])
def test_gpus_are_counted_in_the_right_number(number: int, said: str):
    assert words.gpus(number) == said


@pytest.mark.parametrize(
    "text", ["It asks for high priority.", "It asks for high priority", "It asks for high priority. "]
)
def test_a_sentence_has_one_full_stop(text: str):
    assert words.ended(text) == "It asks for high priority."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("job-1 is already approved by U0BO.", "job-1 is already approved by <@U0BO>."),
        ("These may: U2147483697, W012A3CDE", "These may: <@U2147483697>, <@W012A3CDE>"),
        ("Save it as UTF8; set USER, WANDB_MODE and UPPERCASE", "Save it as UTF8; set USER, WANDB_MODE and UPPERCASE"),
        ("<@U0BO>", "&lt;@U0BO&gt;"),
    ],
)
def test_people_are_shown_by_name_and_other_words_stay(text: str, shown: str):
    assert named(escape(text)) == shown
