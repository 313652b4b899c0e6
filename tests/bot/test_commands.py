"""The grammar of /gpujob."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.commands import (
    CancelJob,
    Command,
    DecideJob,
    Group,
    Help,
    ListJobs,
    OpenForm,
    RerunJob,
    ShowLogs,
    ShowPool,
    ShowReport,
    ShowSettings,
    Status,
    SubmitText,
    Whose,
    Wrong,
    mention,
    parse,
)
from scheduler.jobs.job import JobId

JOB = JobId(41)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("", Help()),
        ("help", Help()),
        ("help submit", Help(topic="submit")),
        ("submit", OpenForm()),
        ("SUBMIT", OpenForm()),
        ("submit image=a gpus=2 -- run", SubmitText(text="image=a gpus=2 -- run", is_file=False)),
        ("submit image=a \u2014 run \u201cx y\u201d", SubmitText(text='image=a -- run "x y"', is_file=False)),
        ("submit gpujob: 1\nname: a", SubmitText(text="gpujob: 1\nname: a", is_file=True)),
        ("submit\ngpujob: 1\nname: a", SubmitText(text="gpujob: 1\nname: a", is_file=True)),
        ("submit ```gpujob: 1\nname: a```", SubmitText(text="gpujob: 1\nname: a", is_file=True)),
        ('submit {"gpujob": 1}', SubmitText(text='{"gpujob": 1}', is_file=True)),
        ("status", ListJobs()),
        ("status job-41", Status(job=JOB)),
        ("status #41", Status(job=JOB)),
        ("status 41", Status(job=JOB)),
        ("job-41", Status(job=JOB)),
        ("list", ListJobs()),
        ("list all running page 3", ListJobs(whose=Whose.ALL, group=Group.RUNNING, page=3)),
        ("list team done", ListJobs(whose=Whose.TEAM, group=Group.DONE)),
        ("cancel 41", CancelJob(job=JOB)),
        ("logs job-41", ShowLogs(job=JOB)),
        ("logs job-41 sft", ShowLogs(job=JOB, step="sft")),
        ("rerun 41", RerunJob(job=JOB)),
        ("rerun 41 from sft param.lr=1e-5", RerunJob(job=JOB, from_step="sft", params={"lr": "1e-5"})),
        ('rerun 41 param.note="two words"', RerunJob(job=JOB, params={"note": "two words"})),
        ("approve #41", DecideJob(job=JOB, approve=True)),
        ("deny 41 too large for tonight", DecideJob(job=JOB, approve=False, reason="too large for tonight")),
        ("pool", ShowPool()),
        ("report", ShowReport()),
        ("report 2026-11", ShowReport(month="2026-11")),
        ("settings", ShowSettings()),
    ],
)
def test_typed_text_is_read_as_it_was_meant(text: str, command: Command):
    assert parse(text) == command


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("statsu 41", 'did you mean "/gpujob status"'),
        ("sumbit image=a", 'did you mean "/gpujob submit"'),
        ("xyzzy", 'Type "/gpujob help"'),
        ("cancel", "Which job?"),
        ("cancel solar", '"solar" is no job'),
        ("approve", "Which job?"),
        ("list page", '"page" says nothing to list'),
        ("list ours", '"ours" says nothing to list'),
        ("rerun 41 lr=3", '"lr=3" does not belong there'),
        ('rerun 41 param.a="x', "A quote is opened"),
        ("report november", '"november" is no month'),
        ("report 2026-13", '"2026-13" is no month'),
    ],
)
def test_what_cannot_be_read_is_told_with_the_way_out(text: str, words: str):
    command = parse(text)

    assert isinstance(command, Wrong)
    assert words in command.sentence


def test_a_mention_is_read_after_the_name():
    assert mention("<@U0GPUJOB> status 41") == Status(job=JOB)


@given(st.text(max_size=200))
def test_no_text_at_all_breaks_the_grammar(text: str):
    assert parse(text) is not None
