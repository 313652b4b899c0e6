"""Approving and denying, by people who may and by people who may not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from bot.playground.server import Playground
from scheduler.jobs.job import JobState
from scheduler.jobs.mail import Decide
from scheduler.store.mailbox import Mailbox
from tests.bot.answering import Answering
from tests.bot.conftest import Office, eventually, opened

HIGH = "submit image=train:1 gpus=8 name=big priority=high -- python t.py"


def offers(card: dict[str, Any]) -> set[str]:
    blocks = [block for block in card["blocks"] if block["type"] == "actions"]
    return {element["action_id"] for block in blocks for element in block["elements"]}


async def waiting_for_approval(office: Office) -> dict[str, Any]:
    await office.said("U0ANA", HIGH, "job-1 (big) is submitted")
    card = await office.card(1)
    await eventually(lambda: office.mailbox.card(1))
    return card


async def test_approvers_are_asked_in_a_dm_with_buttons(office: Office):
    await waiting_for_approval(office)

    question = await eventually(lambda: office.slack.messages("U0BO"))
    assert "job-1" in question[0]["text"]
    assert {"gpujob_approve", "gpujob_deny"} <= offers(question[0])
    assert question[0]["metadata"]["event_payload"]["place"] == "dm:U0BO"
    result = await office.slack.click("U0BO", "U0BO", question[0]["ts"], "gpujob_approve")
    assert result.acked_s is not None
    # The private copy loses its buttons at once; the card is redrawn.
    await eventually(lambda: "is approved" in office.slack.messages("U0BO")[0]["text"])
    assert office.scheduler.store.job(1).state is JobState.WAITING


async def test_slk_10_of_two_approvers_at_once_one_decides(office: Office):
    card = await waiting_for_approval(office)

    bo, cy = await asyncio.gather(
        *(office.slack.click(who, "C0GPU", card["ts"], "gpujob_approve") for who in ("U0BO", "U0CY"))
    )
    await eventually(lambda: bo.responses and cy.responses)
    said = sorted((result.responses[0] for result in (bo, cy)), key=lambda message: str(message["text"]))
    winner = office.scheduler.store.job(1).decided_by
    assert [message["text"] for message in said] == ["job-1 is already approved.", "job-1 is approved."]
    assert f"already approved by <@{winner}>." in str(said[0]["blocks"])


async def test_slk_11_a_click_of_somebody_else_changes_nothing_and_is_on_record(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str
):
    scheduler.approvers = ("U0BO",)
    async with opened(slack, scheduler, mailbox, url) as office:
        card = await waiting_for_approval(office)

        result = await slack.click("U0CY", "C0GPU", card["ts"], "gpujob_approve")
        await office.heard(result, "You are no approver")
        assert scheduler.store.job(1).state is JobState.AWAITING_APPROVAL
        assert [(a.who, a.what) for a in scheduler.store.audits()] == [("U0CY", "refused")]
        assert "gpujob_approve" in offers(await office.card(1))


async def test_slk_12_groups_that_cannot_be_read_approve_nothing(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str
):
    scheduler.approvers = ("S0APPROVERS",)
    slack.faults.refuse("usergroups.users.list", "missing_scope", times=-1)
    async with opened(slack, scheduler, mailbox, url, approvers=("S0APPROVERS",)) as office:
        await waiting_for_approval(office)

        await office.said("U0BO", "approve job-1", "You are no approver")
        assert scheduler.store.job(1).state is JobState.AWAITING_APPROVAL


async def test_slk_12_a_member_of_the_group_may_when_it_can_be_read(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str
):
    scheduler.approvers = ("S0APPROVERS",)
    async with opened(slack, scheduler, mailbox, url, approvers=("S0APPROVERS",)) as office:
        await waiting_for_approval(office)

        await office.said("U0CY", "approve job-1", "You are no approver")
        await office.said("U0BO", "approve job-1", "job-1 is approved")


async def test_slk_12_no_approvers_at_all_is_warned_of_at_the_start(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str, caplog: pytest.LogCaptureFixture
):
    async with opened(slack, scheduler, mailbox, url, approvers=()):
        assert "no_approvers" in caplog.text


async def test_slk_13_nobody_approves_their_own_job_by_button_or_by_word(office: Office):
    await office.said("U0BO", HIGH, "job-1 (big) is submitted")
    card = await office.card(1)

    result = await office.slack.click("U0BO", "C0GPU", card["ts"], "gpujob_approve")
    await office.heard(result, "your own job")
    await office.said("U0BO", "approve job-1", "your own job")
    assert office.scheduler.store.job(1).state is JobState.AWAITING_APPROVAL
    assert [request.by.id for request in office.scheduler.taken] == ["U0BO"] * 3


async def test_slk_14_who_lost_the_role_while_the_form_was_open_is_refused(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str
):
    scheduler.approvers = ("S0APPROVERS",)
    async with opened(slack, scheduler, mailbox, url, approvers=("S0APPROVERS",)) as office:
        card = await waiting_for_approval(office)
        await slack.click("U0BO", "C0GPU", card["ts"], "gpujob_deny")
        await eventually(lambda: slack.open_view("U0BO"))

        slack.workspace.groups["S0APPROVERS"].users.remove("U0BO")
        sent = await slack.submit_view("U0BO", {"reason": {"reason": "too large"}})
        assert sent.closed
        await eventually(lambda: any("You are no approver" in m["text"] for m in slack.messages("U0BO")))
        assert scheduler.store.job(1).state is JobState.AWAITING_APPROVAL


async def test_a_denial_tells_the_owner_why(office: Office):
    card = await waiting_for_approval(office)
    await office.slack.click("U0BO", "C0GPU", card["ts"], "gpujob_deny")
    await eventually(lambda: office.slack.open_view("U0BO"))

    await office.slack.submit_view("U0BO", {"reason": {"reason": "not <!channel> tonight"}})
    told = await eventually(lambda: office.slack.messages("U0ANA"))
    assert "not &lt;!channel&gt; tonight" in told[0]["text"]
    body = office.scheduler.taken[-1].body
    assert isinstance(body, Decide)
    assert (body.approve, body.reason) == (False, "not <!channel> tonight")


async def test_slk_15_after_a_restart_the_first_click_on_an_old_card_works(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str
):
    async with opened(slack, scheduler, mailbox, url) as office:
        card = await waiting_for_approval(office)

    async with opened(slack, scheduler, mailbox, url) as office:
        result = await slack.click("U0BO", "C0GPU", card["ts"], "gpujob_approve")
        await office.heard(result, "job-1 is approved")


async def test_slk_16_the_buttons_go_within_a_second_and_the_card_names_who_decided(office: Office):
    card = await waiting_for_approval(office)
    assert "gpujob_approve" in offers(card)

    await office.slack.click("U0BO", "C0GPU", card["ts"], "gpujob_approve")
    await eventually(lambda: office.scheduler.store.job(1).state is JobState.WAITING)
    begun = time.monotonic()

    def shown() -> bool:
        return "gpujob_approve" not in offers(office.slack.messages("C0GPU")[0])

    await eventually(shown)
    assert time.monotonic() - begun < 1.0
    assert "Approved by <@U0BO> <!date^" in str(office.slack.messages("C0GPU")[0]["blocks"])


async def test_slk_16_a_card_that_could_not_be_redrawn_is_repaired(office: Office):
    card = await waiting_for_approval(office)

    office.slack.faults.server_error("chat.update", times=6)
    await office.slack.click("U0BO", "C0GPU", card["ts"], "gpujob_approve")
    await eventually(lambda: office.scheduler.store.job(1).state is JobState.WAITING)
    await eventually(lambda: "gpujob_approve" not in offers(office.slack.messages("C0GPU")[0]), 15)
    assert len(office.notices("C0GPU")) == 1


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.EXPIRED])
async def test_slk_17_approving_what_has_ended_changes_nothing_and_says_so(office: Office, state: JobState):
    card = await waiting_for_approval(office)
    office.scheduler.move(1, state, why="somebody was faster")

    result = await office.slack.click("U0BO", "C0GPU", card["ts"], "gpujob_approve")
    await office.heard(result, f"job-1 is {state} already")
    assert office.scheduler.store.job(1).state is state
