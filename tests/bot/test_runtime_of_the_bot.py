"""Events that come again, restarts, and the end of the process."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from bot import words
from bot.app import running
from bot.playground.server import Playground
from scheduler.errors import BadInput
from scheduler.jobs.job import JobId
from scheduler.jobs.mail import NoticeKind
from scheduler.store.mailbox import Card, Mailbox
from scheduler.store.migrations import migrate
from tests.bot.answering import Answering, now
from tests.bot.bot_process import Process
from tests.bot.conftest import Office, eventually, opened, settings

ONE_LINE = "submit image=train:1 gpus=2 name=sft -- python t.py"


async def card_of(office: Office) -> Card:
    job = office.scheduler.submit()
    card = await eventually(lambda: office.mailbox.card(job))
    assert card is not None
    return card


def answers(office: Office, card: Card, words: str) -> list[dict[str, Any]]:
    """What the bot said in a thread that is no notice."""
    said = office.slack.thread(card.channel, card.ts)[1:]
    return [message for message in said if not message.get("metadata") and words in message["text"]]


async def test_a_mention_in_a_jobs_thread_acts_on_that_job(office: Office):
    card = await card_of(office)

    await office.slack.mention("U0ANA", "C0GPU", "status", card.ts)
    await eventually(lambda: answers(office, card, "job-1 sft: waiting"))
    await office.slack.mention("U0ANA", "C0GPU", "logs main", card.ts)
    await eventually(lambda: answers(office, card, "last lines of its output"))
    await office.slack.mention("U0ANA", "C0GPU", "cancel", card.ts)
    await eventually(lambda: answers(office, card, "Cancel job-1 (sft, waiting)?"))
    await office.slack.mention("U0ANA", "C0GPU", "dance", card.ts)
    await eventually(lambda: answers(office, card, "In a thread I understand"))


async def test_slk_01_the_same_event_four_times_has_one_effect(office: Office):
    card = await card_of(office)

    await office.slack.mention("U0ANA", "C0GPU", "status", card.ts)
    for attempt in (1, 2, 3):
        await office.slack.redeliver(attempt=attempt)
    await eventually(lambda: answers(office, card, "job-1"))
    await asyncio.sleep(0.3)
    assert len(answers(office, card, "job-1")) == 1


async def test_slk_02_an_event_first_seen_as_a_retry_is_served(scheduler: Answering, mailbox: Mailbox, url: str):
    async with Playground(port=0, speed=0.001) as slack:
        async with opened(slack, scheduler, mailbox, url) as office:
            card = await card_of(office)
        await slack.mention("U0ANA", "C0GPU", "status", card.ts)

        async with opened(slack, scheduler, mailbox, url) as office:
            await slack.redeliver(attempt=1)
            await eventually(lambda: answers(office, card, "job-1 sft: waiting"))


async def test_slk_03_an_event_is_remembered_over_a_restart(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str
):
    async with opened(slack, scheduler, mailbox, url) as office:
        card = await card_of(office)
        await slack.mention("U0ANA", "C0GPU", "status", card.ts)
        await eventually(lambda: answers(office, card, "job-1"))

    async with opened(slack, scheduler, mailbox, url) as office:
        await slack.redeliver(attempt=2)
        await asyncio.sleep(0.5)
        assert len(answers(office, card, "job-1")) == 1


async def test_slk_09_bots_are_not_listened_to(office: Office):
    card = await card_of(office)
    await office.slack.mention("U0ANA", "C0GPU", "status", card.ts)
    await eventually(lambda: answers(office, card, "job-1"))
    event = office.slack.last_event
    assert event is not None

    for number, spoken_by in enumerate(
        ({"user": "U0GPUJOB"}, {"user": "U0OTHER", "bot_id": "B0OTHER"}, {"subtype": "bot_message", "user": ""})
    ):
        again = {**event, "event_id": f"Ev{number}", "event": {**event["event"], **spoken_by}}
        await office.slack.sockets.send("events_api", again, answers=False)
    await asyncio.sleep(0.5)
    assert len(answers(office, card, "job-1")) == 1


async def test_slk_54_who_waits_for_an_answer_at_the_end_is_told_that_it_is_kept(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str
):
    scheduler.awake = False
    async with opened(slack, scheduler, mailbox, url) as office:
        result = await slack.command("U0ANA", "C0GPU", ONE_LINE)
        await office.heard(result, words.TAKEN)

    assert [message["text"] for message in result.responses] == [words.TAKEN, words.RESTARTING]
    assert len(scheduler.store.open_requests()) == 1


async def test_slk_54_a_command_that_was_just_acknowledged_is_finished_first(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str
):
    async with opened(slack, scheduler, mailbox, url):
        result = await slack.command("U0ANA", "C0GPU", ONE_LINE)

    assert result.acked_s is not None
    assert "job-1 (sft) is submitted" in str(result.responses)


@pytest.mark.slow
async def test_slk_54_sigterm_ends_the_process_cleanly(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str, tmp_path: Path
):
    process = Process(slack, url, tmp_path)
    await eventually(lambda: slack.sockets.connected, 20)
    job = scheduler.submit()
    await eventually(lambda: mailbox.card(job), 10)

    code, log = await process.end(signal.SIGTERM)
    assert code == 0, log
    assert "stopping" in log
    assert "Traceback" not in log
    assert slack.bot_token not in log


@pytest.mark.slow
async def test_a_probe_is_told_whether_slack_is_connected(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str, tmp_path: Path
):
    port = free_port()
    process = Process(slack, url, tmp_path, "--health-port", str(port))
    await eventually(lambda: slack.sockets.connected, 20)
    job = scheduler.submit()

    async def asked(path: str) -> tuple[int, str]:
        async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, await answer.text()

    await eventually(lambda: mailbox.card(job), 10)
    answers = [await asked("/healthz"), await asked("/readyz")]
    code, log = await process.end(signal.SIGTERM)
    await eventually(lambda: not slack.sockets.connected, 10)

    assert answers == [(200, "ok\n"), (200, "connected to Slack\n")]
    assert code == 0, log


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.slow
async def test_slk_08_a_bot_that_is_killed_while_it_posts_tells_everything_once(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str, tmp_path: Path
):
    for round_ in range(3):
        process = Process(slack, url, tmp_path)
        await eventually(lambda: slack.sockets.connected, 20)
        job = scheduler.submit(f"run-{round_}")
        for kind in (NoticeKind.WAITING, NoticeKind.STARTED, NoticeKind.STEP_DONE):
            scheduler.tell(job, kind)
        await eventually(lambda: slack.workspace.messages["C0GPU"], 10)
        await asyncio.sleep(0.02 * round_)
        await process.end(signal.SIGKILL)

    async with opened(slack, scheduler, mailbox, url) as office:
        await eventually(lambda: not mailbox.unexpanded() and not mailbox.due(), 15)
        for number in (1, 2, 3):
            card = mailbox.card(JobId(number))
            assert card is not None
            told = [payload["kind"] for payload in office.notices("C0GPU", card.ts)]
            assert told == ["submitted", "waiting", "started", "step_done"]
        assert len(office.notices("C0GPU")) == 3


@pytest.mark.slow
async def test_a_bot_without_its_tables_waits_for_them(slack: Playground, tmp_path: Path):
    process = Process(slack, f"sqlite:///{tmp_path}/not-yet.sqlite3", tmp_path)
    await asyncio.sleep(3)

    code, log = await process.end(signal.SIGTERM)
    assert code == 0, log
    assert "database_not_ready" in log
    assert "gpujob migrate" in log


@pytest.mark.parametrize(
    ("channel", "archived", "says"), [("C0NOWHERE", False, "no such"), ("C0GPU", True, "archived")]
)
async def test_a_channel_that_cannot_take_cards_is_refused_at_the_start(
    tmp_path: Path, channel: str, archived: bool, says: str
):
    """Started with it, the bot would give up the card and the thread of every job for good."""
    url = f"sqlite:///{tmp_path / 'gpujob.sqlite3'}"
    migrate(url)
    mailbox = Mailbox(url)
    async with Playground(port=0) as slack:
        slack.workspace.channel("C0GPU").archived = archived
        chosen = settings(slack, url)
        wrong = chosen.model_copy(update={"slack": chosen.slack.model_copy(update={"channel": channel})})
        with pytest.raises(BadInput, match=says):
            async with running(wrong, mailbox, now):
                pass
    mailbox.close()
