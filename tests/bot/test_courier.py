"""Notices on their way: exactly once, in order, and honest when Slack is not."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from slack_sdk.web.async_client import AsyncWebClient
from sqlalchemy import create_engine, delete, insert

from bot import news
from bot.courier import LOOK, places
from bot.playground.server import Playground
from scheduler.jobs.job import JobId, JobState
from scheduler.jobs.mail import Notice, NoticeId, NoticeKind
from scheduler.store import tables
from scheduler.store.mailbox import Card, Mailbox
from tests.bot.answering import Answering, a_tell, now
from tests.bot.conftest import Office, eventually, opened


def a_notice(kind: NoticeKind, **payload: Any) -> Notice:
    return Notice(id=NoticeId(7), job=JobId(1), kind=kind, at=datetime(2026, 12, 1, tzinfo=UTC), payload=payload)


@pytest.mark.parametrize(
    ("notice", "expected"),
    [
        (a_notice(NoticeKind.SUBMITTED), ("card",)),
        (a_notice(NoticeKind.WAITING), ("thread",)),
        (
            a_notice(NoticeKind.APPROVAL_NEEDED, approvers=["U0BO", "U0CY", "S0APP", "bo"]),
            ("thread", "dm:U0BO", "dm:U0CY"),
        ),
        (a_notice(NoticeKind.PREEMPTED, nth=1), ("thread",)),
        (a_notice(NoticeKind.PREEMPTED, nth=2), ("thread", "dm:U0ANA")),
        (a_notice(NoticeKind.COMPLETED), ("thread", "dm:U0ANA")),
        (a_notice(NoticeKind.FAILED), ("thread", "dm:U0ANA")),
        (a_notice(NoticeKind.CANCELLED), ("thread", "dm:U0ANA")),
        (a_notice(NoticeKind.DENIED), ("thread", "dm:U0ANA")),
        (a_notice(NoticeKind.EXPIRED), ("thread", "dm:U0ANA")),
    ],
)
def test_each_kind_goes_where_it_must_be_read(notice: Notice, expected: tuple[str, ...]):
    assert places(notice, "U0ANA") == expected


def test_an_owner_without_slack_gets_no_dm():
    assert places(a_notice(NoticeKind.COMPLETED), "ana") == ("thread",)


async def submitted(office: Office, channel: str = "C0GPU") -> Card:
    job = office.scheduler.submit(channel=channel)
    card = await eventually(lambda: office.mailbox.card(job))
    assert card is not None
    return card


def settled(mailbox: Mailbox) -> bool:
    return not mailbox.unexpanded() and not mailbox.due()


def kinds(office: Office, card: Card) -> list[str]:
    return [str(payload["kind"]) for payload in office.notices(card.channel, card.ts)]


async def test_the_thread_of_a_job_tells_its_story_in_order(office: Office):
    card = await submitted(office)
    story = [NoticeKind.WAITING, NoticeKind.STARTED, NoticeKind.PREEMPTED, NoticeKind.RESUMED, NoticeKind.COMPLETED]
    for kind in story:
        office.scheduler.tell(1, kind, nth=1, saved_step="120", from_step="120", reason="chat needed 4 GPUs")

    await eventually(lambda: len(kinds(office, card)) == 6)
    assert kinds(office, card) == ["submitted", *(kind.value for kind in story)]
    payloads = office.notices(card.channel, card.ts)
    assert payloads[3]["saved_step"] == "120"
    assert payloads[4]["from_step"] == "120"
    assert {payload["job"] for payload in payloads} == {"job-1"}
    (dm,) = await eventually(lambda: office.notices("U0ANA"))
    assert (dm["kind"], dm["place"]) == ("completed", "dm:U0ANA")


@pytest.mark.parametrize("kind", ["drop_after", "server_error"])
async def test_slk_08_an_unknown_outcome_makes_no_second_message(office: Office, kind: str):
    getattr(office.slack.faults, kind)("chat.postMessage", times=1)
    card = await submitted(office)
    getattr(office.slack.faults, kind)("chat.postMessage", times=1)
    office.scheduler.tell(1, NoticeKind.WAITING)
    await eventually(lambda: len(kinds(office, card)) == 2)
    getattr(office.slack.faults, kind)("chat.postMessage", times=1)
    office.scheduler.move(1, JobState.COMPLETED)
    office.scheduler.tell(1, NoticeKind.COMPLETED)

    await eventually(lambda: settled(office.mailbox))
    assert kinds(office, card) == ["submitted", "waiting", "completed"]
    assert len(office.notices("C0GPU")) == 1
    assert [payload["kind"] for payload in office.notices("U0ANA")] == ["completed"]


async def test_slk_08_what_a_killed_bot_had_posted_is_found_and_not_posted_again(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str
):
    job = scheduler.submit()
    scheduler.tell(job, NoticeKind.WAITING)
    client = AsyncWebClient(token=slack.bot_token, base_url=slack.base_url)
    first, second = mailbox.unexpanded()
    mailbox.expand(first, ("card",))
    mailbox.expand(second, ("thread",))
    # Killed after Slack had taken the card, before it was recorded.
    (delivery, _) = mailbox.due()
    mailbox.tried(delivery.id)
    posted = await client.chat_postMessage(channel="C0GPU", text="card", metadata=news.metadata(first, "card"))

    async with opened(slack, scheduler, mailbox, url) as office:
        await eventually(lambda: not mailbox.due())
        card = mailbox.card(job)
        assert card is not None
        assert card.ts == posted["ts"]
        assert kinds(office, card) == ["submitted", "waiting"]
        assert len(office.notices("C0GPU")) == 1
        # Found cards show what they were posted with; they are brought up to date.
        await eventually(lambda: "job-1 sft" in slack.messages("C0GPU")[0]["text"])


async def test_slk_08_another_notice_of_the_same_job_is_not_taken_for_it(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str
):
    async with opened(slack, scheduler, mailbox, url) as office:
        card = await submitted(office)
        scheduler.tell(1, NoticeKind.WAITING)
        await eventually(lambda: len(kinds(office, card)) == 2)
    scheduler.tell(1, NoticeKind.WAITING)
    (notice,) = mailbox.unexpanded()
    mailbox.expand(notice, ("thread",))
    mailbox.tried(mailbox.due()[0].id)

    async with opened(slack, scheduler, mailbox, url) as office:
        await eventually(lambda: not mailbox.due())
        assert kinds(office, card) == ["submitted", "waiting", "waiting"]


@pytest.mark.parametrize("expanded", [False, True])
async def test_a_notice_of_a_newer_scheduler_ends_no_carrying(office: Office, *, expanded: bool):
    card = await submitted(office)
    engine = create_engine(office.url)
    with engine.begin() as rows:
        strange = insert(tables.notices).values(
            job=1, kind="paused", at=now(), payload="{}", expanded=expanded, terminal=False
        )
        (notice,) = rows.execute(strange.returning(tables.notices.c.id)).one()
        if expanded:
            rows.execute(insert(tables.deliveries).values(notice=notice, place="thread", state="open"))
    office.scheduler.move(1, JobState.RUNNING)

    # What it does not touch goes on while it is there, everything once it can be read.
    await eventually(lambda: "job-1 sft: running" in office.slack.messages("C0GPU")[0]["text"])
    with engine.begin() as rows:
        rows.execute(delete(tables.deliveries).where(tables.deliveries.c.notice == notice))
        rows.execute(delete(tables.notices).where(tables.notices.c.id == notice))
    engine.dispose()
    office.scheduler.tell(1, NoticeKind.STARTED)
    await eventually(lambda: kinds(office, card) == ["submitted", "started"])


async def test_a_redrawn_card_keeps_its_metadata_even_after_a_restart(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str
):
    async with opened(slack, scheduler, mailbox, url) as office:
        await submitted(office)
    before = slack.messages("C0GPU")[0]["metadata"]
    scheduler.move(1, JobState.RUNNING)

    async with opened(slack, scheduler, mailbox, url):
        await eventually(lambda: "job-1 sft: running" in slack.messages("C0GPU")[0]["text"])
        assert slack.messages("C0GPU")[0]["metadata"] == before


HOSTILE = {
    "latin": "x" * 100_000,
    "hangul": "\uac00" * 100_000,
    "emoji": "\U0001f468\u200d\U0001f469" * 50_000,
    "rtl": "\u202e" + "\u05d0" * 100_000,
    "nul": "\x00a" * 50_000,
    "entities": "<&>" * 33_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
async def test_slk_32_text_of_100_kb_arrives_cut_with_a_marker(office: Office, text: str):
    card = await submitted(office)
    office.scheduler.move(1, JobState.FAILED, why=text)
    office.scheduler.tell(1, NoticeKind.FAILED, step=text, task=text, why=text, log=text, exit_code=1)

    await eventually(lambda: len(kinds(office, card)) == 2)
    await eventually(lambda: "failed" in office.slack.messages("C0GPU")[0]["text"])
    reply = office.slack.thread(card.channel, card.ts)[1]
    assert "cut)" in reply["text"]
    assert reply["blocks"], "the blocks were refused"
    assert "(cut)" in str(office.slack.messages("C0GPU")[0]["blocks"])


@pytest.mark.parametrize("evil", ["<!channel>", "<!here>", "<@U0BO>", "<http://evil.example|bank>"])
async def test_slk_34_nothing_that_people_wrote_comes_alive(office: Office, evil: str):
    card = await submitted(office)
    office.scheduler.move(1, JobState.DENIED, why=evil)
    office.scheduler.tell(1, NoticeKind.DENIED, by=evil, reason=evil)
    await eventually(lambda: len(kinds(office, card)) == 2)
    await eventually(lambda: "denied" in office.slack.messages("C0GPU")[0]["text"])

    shown = [*office.slack.thread(card.channel, card.ts), *office.slack.messages("U0ANA")]
    for message in shown:
        assert evil not in message["text"]
        assert evil not in str(message["blocks"])
    assert evil.replace("<", "&lt;").replace(">", "&gt;") in shown[1]["text"]


async def test_slk_35_timestamps_stay_text_to_the_last_zero(office: Office):
    job = office.scheduler.submit()
    await eventually(lambda: office.mailbox.card(job))
    message = office.slack.workspace.messages["C0GPU"][0]
    message.ts = "1602251441.001700"
    office.mailbox.card_posted(Card(job=job, channel="C0GPU", ts="1602251441.001700", shown_version=99))

    office.scheduler.tell(1, NoticeKind.WAITING)
    card = Card(job=job, channel="C0GPU", ts="1602251441.001700", shown_version=99)
    await eventually(lambda: kinds(office, card) == ["submitted", "waiting"])
    posts = [arguments for method, arguments in office.slack.calls if method == "chat.postMessage"]
    assert posts[-1]["thread_ts"] == "1602251441.001700"
    assert office.mailbox.card(job).ts == "1602251441.001700"  # type: ignore[union-attr]


async def test_slk_36_a_card_that_was_deleted_is_posted_anew_and_the_thread_goes_on_there(office: Office):
    card = await submitted(office)
    room = office.slack.workspace.messages["C0GPU"]
    room.clear()

    office.scheduler.tell(1, NoticeKind.WAITING)
    await eventually(lambda: settled(office.mailbox))
    anew = office.mailbox.card(JobId(1))
    assert anew is not None
    assert anew.ts != card.ts
    assert kinds(office, anew) == ["submitted", "waiting"]
    assert [payload["place"] for payload in office.notices("C0GPU")] == ["card"]

    office.scheduler.tell(1, NoticeKind.STARTED)
    await eventually(lambda: kinds(office, anew) == ["submitted", "waiting", "started"])


@pytest.mark.parametrize("error", ["message_not_found", "cant_update_message", "edit_window_closed", "is_inactive"])
async def test_slk_37_a_card_that_cannot_be_updated_is_replaced_once(office: Office, error: str):
    card = await submitted(office)
    office.slack.faults.refuse("chat.update", error, times=1)

    office.scheduler.move(1, JobState.RUNNING)
    anew = await eventually(lambda: (now := office.mailbox.card(JobId(1))) and now.ts != card.ts and now)
    assert anew
    await asyncio.sleep(0.5)
    assert len(office.notices("C0GPU")) == 2


@pytest.mark.parametrize("error", ["is_archived", "channel_not_found", "not_in_channel", "restricted_action"])
async def test_slk_38_a_channel_that_refuses_is_left_for_the_owners_dm(office: Office, error: str):
    office.slack.faults.refuse("chat.postMessage", error, channel="C0GPU", times=-1)
    job = office.scheduler.submit()
    office.scheduler.tell(job, NoticeKind.WAITING)

    card = await eventually(lambda: office.mailbox.card(job))
    assert card is not None
    assert card.channel == "D0ANA"
    await eventually(lambda: kinds(office, card) == ["submitted", "waiting"])


async def test_slk_39_an_owner_who_is_gone_holds_nothing_up(office: Office):
    card = await submitted(office)
    office.slack.workspace.users["U0ANA"].deleted = True
    office.scheduler.move(1, JobState.COMPLETED)
    office.scheduler.tell(1, NoticeKind.COMPLETED)

    await eventually(lambda: kinds(office, card) == ["submitted", "completed"])
    await eventually(lambda: settled(office.mailbox))


async def test_slk_40_a_limit_of_one_channel_delays_no_other_and_loses_nothing(office: Office):
    near, far = await submitted(office), await submitted(office, "C0NLP")
    begun = time.monotonic()
    office.slack.faults.rate_limit("chat.postMessage", channel="C0GPU", retry_after=2, times=1)
    for kind in (NoticeKind.WAITING, NoticeKind.STARTED, NoticeKind.STEP_DONE):
        office.scheduler.tell(1, kind)
        office.scheduler.tell(2, kind)

    await eventually(lambda: len(kinds(office, far)) == 4)
    assert time.monotonic() - begun < 1.5
    assert kinds(office, near) == ["submitted"]
    await eventually(lambda: len(kinds(office, near)) == 4)
    assert time.monotonic() - begun >= 2.0
    assert kinds(office, near) == ["submitted", "waiting", "started", "step_done"]


async def test_slk_40_a_channel_that_holds_up_more_than_one_look_delays_no_other(office: Office):
    office.slack.faults.rate_limit("chat.postMessage", channel="C0GPU", retry_after=60, times=-1)
    job = office.scheduler.submit(channel="C0GPU")
    office.scheduler.record(*(a_tell(job, NoticeKind.WAITING) for _ in range(LOOK)))
    await eventually(lambda: not office.mailbox.unexpanded())

    other = office.scheduler.submit(channel="C0NLP")
    assert await eventually(lambda: office.mailbox.card(other))
    assert office.mailbox.card(job) is None


async def test_slk_40_updates_that_had_to_wait_become_one_with_the_newest_state(office: Office):
    await submitted(office)
    office.slack.faults.rate_limit("chat.update", retry_after=1, times=1)
    for state in (JobState.RUNNING, JobState.PREEMPTED, JobState.RUNNING, JobState.COMPLETED):
        office.scheduler.move(1, state)
        await asyncio.sleep(0.1)

    await eventually(lambda: "completed" in office.slack.messages("C0GPU")[0]["text"])
    updates = [arguments for method, arguments in office.slack.calls if method == "chat.update"]
    assert len(updates) == 2
    assert "completed" in updates[-1]["text"]


async def test_a_dm_is_sent_only_after_its_notice_stands_in_the_thread(office: Office):
    office.slack.faults.slow("chat.postMessage", 0.5, channel="C0GPU", times=2)
    office.scheduler.approvers = ("U0BO",)
    await office.slack.command("U0ANA", "C0GPU", "submit image=train:1 gpus=8 name=big priority=high -- python t.py")

    (question,) = await eventually(lambda: office.slack.messages("U0BO"))
    card = office.mailbox.card(JobId(1))
    assert card is not None
    assert kinds(office, card) == ["submitted", "approval_needed"]
    thread = office.slack.thread(card.channel, card.ts)
    assert thread[0]["ts"] < thread[1]["ts"] < question["ts"]


async def test_a_thread_that_is_stuck_keeps_no_other_jobs_dm_waiting(office: Office):
    stuck, free = await submitted(office, "C0GPU"), office.scheduler.submit(channel="C0NLP")
    await eventually(lambda: office.mailbox.card(free))
    office.slack.faults.server_error("chat.postMessage", channel="C0GPU", times=-1)
    office.scheduler.tell(stuck.job, NoticeKind.COMPLETED)
    office.scheduler.tell(free, NoticeKind.COMPLETED)

    await eventually(lambda: office.notices("U0ANA"))
    assert [payload["job"] for payload in office.notices("U0ANA")] == ["job-2"]
    office.slack.faults.clear()
    await eventually(lambda: len(office.notices("U0ANA")) == 2)
    assert kinds(office, stuck) == ["submitted", "completed"]


async def test_a_thread_that_takes_nothing_any_more_keeps_its_dm_from_nobody(office: Office):
    card = await submitted(office)
    office.slack.faults.refuse("chat.postMessage", "msg_too_long", channel="C0GPU", times=-1)
    office.scheduler.tell(card.job, NoticeKind.FAILED, why="out of memory")

    await eventually(lambda: [payload["kind"] for payload in office.notices("U0ANA")] == ["failed"])
