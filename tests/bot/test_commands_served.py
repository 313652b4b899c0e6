"""Commands and forms, typed by people in the playground and served by the real bot."""

from __future__ import annotations

import asyncio
import time

import pytest
from slack_sdk.web.async_client import AsyncWebClient

from bot import words
from bot.playground.server import Playground
from scheduler.jobs.job import JobState
from scheduler.jobs.mail import BoardWindow, Cancel, Logs, Rerun, Submit
from scheduler.store.mailbox import Mailbox
from tests.bot.answering import Answering, now
from tests.bot.before_slack import before_slack
from tests.bot.conftest import Office, eventually, opened

ONE_LINE = "submit image=train:1 gpus=2 name=sft -- python t.py"
FORM = {
    "name": {"name": "sft"},
    "image": {"image": "train:1"},
    "command": {"command": 'python t.py --note "two words"'},
}


async def test_a_one_liner_becomes_a_job_and_its_card(office: Office):
    await office.said("U0ANA", ONE_LINE, "job-1 (sft) is submitted")

    card = await office.card(1)
    assert "job-1 sft: waiting" in str(card["text"])
    assert office.scheduler.store.job(1).spec.steps[0].gpus == (2,)


async def test_a_wrong_one_liner_names_what_is_wrong_and_asks_nothing(office: Office):
    await office.said("U0ANA", "submit image=train:1 gpus=two -- python t.py", "gpus")

    assert office.scheduler.taken == []


async def test_every_command_that_only_reads_answers(office: Office):
    office.scheduler.submit(owner="U0ANA")
    office.scheduler.show_board(
        8, BoardWindow(node="node-1", gpus=8, since=now(), until=None, confidence=0.9, why="idle")
    )

    await office.said("U0ANA", "status job-1", "job-1 sft: waiting")
    await office.said("U0ANA", "status job-9", "There is no job-9")
    await office.said("U0ANA", "list", "job-1")
    await office.said("U0BO", "list", "No jobs to show")
    await office.said("U0BO", "list all waiting", "job-1")
    await office.said("U0BO", "list team", "None of your jobs names a team")
    await office.said("U0ANA", "pool", "8 idle")
    await office.said("U0ANA", "report 2026-01", "No job ran in 2026-01")
    await office.said("U0ANA", "settings", "Messages that reach you")
    await office.said("U0ANA", "help", "/gpujob submit")
    assert office.scheduler.taken == []


async def test_a_list_has_pages(office: Office):
    for number in range(12):
        office.scheduler.submit(f"run-{number}", owner="U0ANA")

    result = await office.slack.command("U0ANA", "C0GPU", "list")
    first = await office.heard(result, "job-12")
    assert "job-2 " not in first
    turned = await office.slack.click("U0ANA", "C0GPU", result.responses[0]["ts"], "gpujob_page")
    assert turned.acked_s is not None
    await eventually(lambda: any("job-1*" in str(m["blocks"]) for m in office.slack.ephemerals("U0ANA")))


async def test_cancel_asks_before_it_ends_anything(office: Office):
    office.scheduler.submit(owner="U0ANA")

    result = await office.slack.command("U0ANA", "C0GPU", "cancel 1")
    await office.heard(result, "Cancel job-1 (sft, waiting)?")
    assert office.scheduler.taken == []
    await office.slack.click("U0ANA", "C0GPU", result.responses[0]["ts"], "gpujob_cancel")
    await eventually(lambda: office.scheduler.store.job(1).state is JobState.CANCELLED)
    assert isinstance(office.scheduler.taken[0].body, Cancel)


async def test_logs_and_rerun_reach_the_scheduler(office: Office):
    office.scheduler.submit(owner="U0ANA")

    result = await office.slack.command("U0ANA", "C0GPU", "logs job-1 main")
    await office.heard(result, "last lines of its output")
    assert "epoch 2" in str(result.responses[-1]["blocks"])
    await office.said("U0ANA", "rerun 1 from main param.lr=1e-5", "job-2 (sft) is submitted")
    logs, rerun = (request.body for request in office.scheduler.taken)
    assert isinstance(logs, Logs)
    assert logs.step == "main"
    assert isinstance(rerun, Rerun)
    assert (rerun.from_step, dict(rerun.params), rerun.channel) == ("main", {"lr": "1e-5"}, "C0GPU")


async def test_an_answer_that_is_late_comes_by_itself(office: Office):
    office.scheduler.awake = False

    result = await office.slack.command("U0ANA", "C0GPU", ONE_LINE)
    await office.heard(result, words.TAKEN)
    office.scheduler.awake = True
    await office.heard(result, "job-1 (sft) is submitted")


async def test_slk_04_a_form_sent_twice_makes_one_job(office: Office):
    office.scheduler.show_board()
    await office.slack.command("U0ANA", "C0GPU", "submit")
    await eventually(lambda: "name" in str(office.slack.open_view("U0ANA")))

    both = await asyncio.gather(*(office.slack.submit_view("U0ANA", FORM) for _ in range(2)))
    await office.card(1)
    assert all(result.error is None for result in both)
    await asyncio.sleep(0.3)
    assert [type(request.body) for request in office.scheduler.taken] == [Submit]
    assert office.scheduler.store.job(2) is None


async def test_slk_05_the_same_command_within_seconds_is_the_same_job(office: Office):
    await office.said("U0ANA", ONE_LINE, "is submitted")

    await office.said("U0ANA", ONE_LINE, "Already submitted as job-1")
    await office.said("U0BO", ONE_LINE, "job-2 (sft) is submitted")
    assert len(office.scheduler.taken) == 2


async def test_slk_06_forty_commands_at_once_are_acknowledged_while_each_takes_seconds(
    slack: Playground, scheduler: Answering, url: str
):
    mailbox = Mailbox(url, on_call=lambda name: time.sleep(0.5))
    async with opened(slack, scheduler, mailbox, url):
        results = await asyncio.gather(*(slack.command("U0ANA", "C0GPU", f"status {n}") for n in range(40)))
        acked = [result.acked_s for result in results]
        assert None not in acked
        assert max(acked) <= 1.0
        await eventually(lambda: len(slack.ephemerals("U0ANA")) == 40)
    mailbox.close()


async def test_slk_07_a_bug_before_the_ack_still_gives_the_person_an_error_id(office: Office):
    async def broken() -> None:
        raise LookupError("a bug")

    office.bot.app.use(broken)
    result = await office.slack.command("U0ANA", "C0GPU", ONE_LINE)
    said = await office.heard(result, "logged as error")
    assert len(said.split("error ")[1].split(".")[0]) == 8
    assert result.acked_s is not None
    assert result.acked_s < 3
    assert office.scheduler.taken == []


async def test_slk_07_a_bug_after_the_ack_does_too(slack: Playground, scheduler: Answering, url: str):
    def on_call(name: str) -> None:
        if name == "job":
            raise LookupError("a bug")

    mailbox = Mailbox(url, on_call=on_call)
    async with opened(slack, scheduler, mailbox, url) as office:
        await office.said("U0ANA", "status job-1", "logged as error")
    mailbox.close()


async def test_slk_18_the_form_opens_at_once_however_slow_the_database(
    slack: Playground, scheduler: Answering, url: str
):
    mailbox = Mailbox(url, on_call=lambda name: time.sleep(1.5 if name == "board" else 0))
    scheduler.show_board()
    async with opened(slack, scheduler, mailbox, url):
        begun = time.monotonic()
        result = await slack.command("U0ANA", "C0GPU", "submit")
        await eventually(lambda: slack.open_view("U0ANA"))
        assert time.monotonic() - begun < 1.0
        assert result.acked_s is not None
        assert words.LOADING in str(slack.open_view("U0ANA"))
        await eventually(lambda: "Docker image" in str(slack.open_view("U0ANA")))
    mailbox.close()


@pytest.mark.parametrize("error", ["expired_trigger_id", "exchanged_trigger_id", "invalid_trigger_id"])
async def test_slk_19_a_late_trigger_is_told_with_the_way_out(office: Office, error: str):
    office.slack.faults.refuse("views.open", error)

    await office.said("U0ANA", "submit", words.TRY_AGAIN)


async def test_slk_19_a_late_trigger_that_slack_calls_an_invalid_argument_is_told_too(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str
):
    refused = {
        "ok": False,
        "error": "invalid_arguments",
        "response_metadata": {"messages": ["trigger_id expired"]},
    }
    async with (
        before_slack(slack, {"views.open": refused}) as base_url,
        opened(slack, scheduler, mailbox, url, base_url=base_url) as office,
    ):
        await office.said("U0ANA", "submit", words.TRY_AGAIN)


async def test_slk_19_a_form_that_slack_refuses_for_another_reason_is_not_called_late(office: Office):
    office.slack.faults.refuse("views.open", "invalid_arguments")

    await office.said("U0ANA", "submit", words.FORM_FAILED)


async def test_slk_19_a_trigger_that_is_really_too_old_is_told_too(scheduler: Answering, mailbox: Mailbox, url: str):
    async with (
        Playground(port=0, trigger_life_s=0.0) as slack,
        opened(slack, scheduler, mailbox, url) as office,
    ):
        await office.said("U0ANA", "submit", words.TRY_AGAIN)


async def test_slk_20_a_form_that_was_closed_meanwhile_is_no_error(slack: Playground, scheduler: Answering, url: str):
    mailbox = Mailbox(url, on_call=lambda name: time.sleep(0.5 if name == "board" else 0))
    async with opened(slack, scheduler, mailbox, url):
        result = await slack.command("U0ANA", "C0GPU", "submit")
        await eventually(lambda: slack.open_view("U0ANA"))
        await slack.close_view("U0ANA")
        await eventually(lambda: any(method == "views.update" for method, _ in slack.calls))
        await asyncio.sleep(0.2)
        assert result.responses == []
        assert slack.messages("U0ANA") == []
    mailbox.close()


async def test_slk_24_without_gpus_the_form_is_a_sentence(office: Office):
    office.scheduler.show_board(gpus=0)

    await office.slack.command("U0ANA", "C0GPU", "submit")
    await eventually(lambda: "There is no GPU in the pool" in str(office.slack.open_view("U0ANA")))
    assert "static_select" not in str(office.slack.open_view("U0ANA"))


async def test_slk_25_wrong_values_stay_with_a_sentence_at_their_field(office: Office):
    office.scheduler.show_board()
    await office.slack.command("U0ANA", "C0GPU", "submit")
    await eventually(lambda: "Docker image" in str(office.slack.open_view("U0ANA")))

    wrong = {**FORM, "name": {"name": "Not A Name"}, "max_hours": {"max_hours": "soon"}}
    result = await office.slack.submit_view("U0ANA", wrong)
    assert set(result.errors) == {"name", "max_hours"}
    assert '"Not A Name" is no name' in result.errors["name"]
    assert result.error is None
    view = office.slack.open_view("U0ANA")
    assert view is not None
    assert view["state"]["values"]["name"]["name"]["value"] == "Not A Name"
    assert office.scheduler.taken == []

    mended = await office.slack.submit_view("U0ANA", {"name": {"name": "sft"}, "max_hours": {"max_hours": "12"}})
    assert mended.closed
    await office.card(1)
    spec = office.scheduler.store.job(1).spec
    assert spec.steps[0].command == ("python", "t.py", "--note", "two words")
    assert spec.max_hours == 12


async def test_slk_25_a_pasted_file_is_told_its_faults_by_line(office: Office):
    office.scheduler.show_board()
    await office.slack.command("U0ANA", "C0GPU", "submit")
    await eventually(lambda: "Docker image" in str(office.slack.open_view("U0ANA")))

    pasted = {"job_file": {"job_file": "gpujob: 1\nname: sft\nimage: a\ngpus: two\ncommand: [python]\n"}}
    result = await office.slack.submit_view("U0ANA", pasted)
    assert set(result.errors) == {"job_file"}
    assert "line 4" in result.errors["job_file"]


async def test_slk_29_unknown_words_and_leftovers_of_old_versions_get_an_answer(office: Office):
    await office.said("U0ANA", "sumbit", 'did you mean "/gpujob submit"')

    client = AsyncWebClient(token=office.slack.bot_token, base_url=office.slack.base_url)
    old = {"type": "button", "action_id": "removed_long_ago", "text": {"type": "plain_text", "text": "Old"}}
    blocks = [{"type": "actions", "elements": [old]}]
    posted = await client.chat_postMessage(channel="C0GPU", text="old", blocks=blocks)
    result = await office.slack.click("U0ANA", "C0GPU", str(posted["ts"]), "removed_long_ago")
    await office.heard(result, words.OLD_BUTTON)

    field = {"type": "input", "label": {"type": "plain_text", "text": "Old"}}
    view = {
        "type": "modal",
        "callback_id": "removed_long_ago",
        "title": {"type": "plain_text", "text": "Old"},
        "submit": {"type": "plain_text", "text": "Send"},
        "blocks": [{**field, "element": {"type": "plain_text_input", "action_id": "old"}, "optional": True}],
    }
    await client.views_open(trigger_id=office.slack.workspace.new_trigger("U0ANA"), view=view)
    sent = await office.slack.submit_view("U0ANA")
    assert sent.closed
    await eventually(lambda: any(m["text"] == words.OLD_FORM for m in office.slack.messages("U0ANA")))


async def test_slk_30_in_a_dm_that_the_bot_is_not_in_the_answer_still_comes(office: Office):
    await office.said("U0ANA", ONE_LINE, "job-1 (sft) is submitted", channel="D0ANABO")

    assert office.scheduler.taken[0].body.channel == ""  # type: ignore[union-attr]
    await office.card(1, channel="C0GPU")


async def test_a_database_that_is_away_is_said_so(slack: Playground, scheduler: Answering, url: str, tmp_path: object):
    mailbox = Mailbox(f"sqlite:///{tmp_path}/empty.sqlite3")
    async with opened(slack, scheduler, mailbox, url) as office:
        await office.said("U0ANA", "status job-1", words.NO_DATABASE)
    mailbox.close()


async def test_the_form_offers_what_is_free_now(office: Office):
    window = BoardWindow(node="node-1", gpus=4, since=now(), until=None, confidence=0.9, why="idle")
    office.scheduler.show_board(8, window)

    await office.slack.command("U0ANA", "C0GPU", "submit")
    view = await eventually(lambda: (v := office.slack.open_view("U0ANA")) and "Docker image" in str(v) and v)
    (gpus,) = (block["element"] for block in view["blocks"] if block["block_id"] == "gpus")
    offered = {option["value"]: option["description"]["text"] for option in gpus["options"]}
    assert offered["4"] == "free now"
    assert offered["8"] == "none free on one node now; it waits"
    assert "16" not in offered
