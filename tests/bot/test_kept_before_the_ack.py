"""What changes something is written down before Slack tells its person that all is well."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bot import words
from bot.playground.server import Playground
from scheduler.errors import Unavailable
from scheduler.jobs.mail import Cancel, Decide, Rerun, Submit
from scheduler.store.mailbox import Mailbox
from tests.bot.answering import Answering
from tests.bot.bot_process import Process
from tests.bot.conftest import Office, eventually, opened

ONE_LINE = "submit image=train:1 gpus=2 name=sft -- python t.py"
FORM = {"name": {"name": "sft"}, "image": {"image": "train:1"}, "command": {"command": "python t.py"}}


async def test_slk_06_forty_commands_of_both_kinds_are_acknowledged_within_a_second(
    slack: Playground, scheduler: Answering, url: str
):
    mailbox = Mailbox(url, on_call=lambda name: time.sleep(0.5))
    texts = [ONE_LINE.replace("sft", f"sft-{n}") if n % 2 else f"status {n}" for n in range(40)]
    async with opened(slack, scheduler, mailbox, url):
        results = await asyncio.gather(*(slack.command("U0ANA", "C0GPU", text) for text in texts))
        acked = [result.acked_s for result in results]
        assert None not in acked
        assert max(acked) <= 1.0  # type: ignore[type-var]
        assert min(acked[1::2]) >= 0.5  # type: ignore[type-var]
        await eventually(lambda: scheduler.store.live().next_job == 21, 10)
    mailbox.close()


async def test_a_question_waits_for_nothing(slack: Playground, scheduler: Answering, url: str):
    mailbox = Mailbox(url, on_call=lambda name: time.sleep(0.5))
    async with opened(slack, scheduler, mailbox, url):
        for text in (
            "status job-1",
            "list",
            "pool",
            "help",
            "submit",
            "logs job-1",
            "cancel job-1",
            "sumbit",
            "report",
        ):
            result = await slack.command("U0ANA", "C0GPU", text)
            assert result.acked_s is not None
            assert result.acked_s < 0.4, text
    mailbox.close()


async def test_an_ack_waits_no_longer_than_seven_tenths_of_a_second(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str
):
    slow = Mailbox(url, on_call=lambda name: time.sleep(1.5 if name == "send" else 0))
    async with opened(slack, scheduler, slow, url) as office:
        result = await slack.command("U0ANA", "C0GPU", ONE_LINE)
        assert result.acked_s is not None
        assert 0.7 <= result.acked_s <= 1.2
        assert scheduler.taken == []
        await office.heard(result, "job-1 (sft) is submitted")
    slow.close()


async def typed(office: Office, text: str) -> float | None:
    return (await office.slack.command("U0BO", "C0GPU", text)).acked_s


async def clicked(office: Office, act: str, number: int) -> float | None:
    card = await office.card(number)
    return (await office.slack.click("U0BO", "C0GPU", str(card["ts"]), act)).acked_s


async def denied(office: Office) -> float | None:
    card = await office.card(1)
    await office.slack.click("U0BO", "C0GPU", str(card["ts"]), "gpujob_deny")
    await eventually(lambda: office.slack.open_view("U0BO"))
    return (await office.slack.submit_view("U0BO", {"reason": {"reason": "too large"}})).acked_s


async def filled(office: Office) -> float | None:
    await office.slack.command("U0BO", "C0GPU", "submit")
    await eventually(lambda: "Docker image" in str(office.slack.open_view("U0BO")))
    return (await office.slack.submit_view("U0BO", FORM)).acked_s


@pytest.mark.parametrize(
    ("deed", "body"),
    [
        (lambda office: typed(office, ONE_LINE), Submit),
        (lambda office: typed(office, "approve job-1"), Decide),
        (lambda office: typed(office, "deny job-1 too large"), Decide),
        (lambda office: typed(office, "rerun job-1"), Rerun),
        (lambda office: clicked(office, "gpujob_approve", 1), Decide),
        (lambda office: clicked(office, "gpujob_cancel", 1), Cancel),
        (denied, Decide),
        (filled, Submit),
    ],
)
async def test_whatever_changes_something_is_in_the_mailbox_when_slack_has_the_ack(
    slack: Playground,
    scheduler: Answering,
    url: str,
    deed: Callable[[Office], Awaitable[float | None]],
    body: type,
):
    mailbox = Mailbox(url, on_call=lambda name: time.sleep(0.2 if name == "send" else 0))
    async with opened(slack, scheduler, mailbox, url) as office:
        await office.said("U0ANA", ONE_LINE.replace("submit ", "submit priority=high "), "job-1")
        await office.card(1)
        scheduler.awake = False

        assert await deed(office) is not None
        assert [type(request.body) for request in scheduler.store.open_requests()] == [body]
    mailbox.close()


async def test_a_database_that_goes_away_after_the_ack_is_not_called_a_wish_that_failed(
    slack: Playground, scheduler: Answering, url: str
):
    away = True

    def on_call(name: str) -> None:
        if name in {"answer", "card"} and away:
            raise Unavailable("database")

    mailbox = Mailbox(url, on_call=on_call)
    async with opened(slack, scheduler, mailbox, url) as office:
        result = await slack.command("U0ANA", "C0GPU", ONE_LINE)
        await office.heard(result, words.TAKEN)
        away = False
        await office.heard(result, "job-1 (sft) is submitted")
    mailbox.close()


async def test_a_wish_that_could_not_be_kept_is_told_and_may_be_typed_again(
    slack: Playground, scheduler: Answering, url: str
):
    away = True

    def on_call(name: str) -> None:
        if name == "send" and away:
            raise Unavailable("database")

    mailbox = Mailbox(url, on_call=on_call)
    async with opened(slack, scheduler, mailbox, url) as office:
        await office.said("U0ANA", ONE_LINE, words.NO_DATABASE)
        away = False
        await office.said("U0ANA", ONE_LINE, "job-1 (sft) is submitted")
    mailbox.close()


@pytest.mark.slow
async def test_slk_06_a_bot_that_is_killed_at_the_ack_has_kept_the_submit(slack: Playground, url: str, tmp_path: Path):
    process = Process(slack, url, tmp_path)
    await eventually(lambda: slack.sockets.connected, 20)

    # Nobody can write for a moment: a bot that acknowledged first would be dead before it wrote.
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        asyncio.get_running_loop().call_later(0.25, database.execute, "COMMIT")
        result = await slack.command("U0ANA", "C0GPU", ONE_LINE)
        process.process.kill()

        assert result.acked_s is not None
        assert database.execute("SELECT kind FROM requests").fetchall() == [("submit",)]
    await process.end(signal.SIGKILL)
