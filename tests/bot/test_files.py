"""Job files that people upload, and logs that are too long for a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr
from slack_sdk.web.async_client import AsyncWebClient

from bot.files import LIMIT, Files, Unread
from bot.outbound import Outbound
from bot.playground.hands import ViewResult
from bot.playground.server import Playground
from scheduler.jobs.mail import NoticeKind
from tests.bot.answering import Answering
from tests.bot.conftest import Office, eventually

FILE = "gpujob: 1\nname: sft\nimage: train:1\ngpus: 2\ncommand: [python, t.py]\n"
HOSTILE = "訓練 \U0001f469\u200d\U0001f4bb \u202eoops\u0000 العربية <!channel> & <@U0BO>\n" * 1600
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def open_form(office: Office) -> None:
    await office.slack.command("U0ANA", "C0GPU", "submit")
    await eventually(lambda: "Docker image" in str(office.slack.open_view("U0ANA")))


async def sent(office: Office, *files: dict[str, Any], **fields: str) -> ViewResult:
    typed = {block: {block: value} for block, value in fields.items()}
    return await office.slack.submit_view("U0ANA", {"upload": {"upload": list(files)}, **typed})


@asynccontextmanager
async def elsewhere(serve: Handler) -> AsyncIterator[str]:
    """Another place of Slack from which a file comes: its address."""
    application = web.Application()
    application.router.add_get("/file", serve)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/file"
    await runner.cleanup()


async def test_an_uploaded_job_file_becomes_a_job(office: Office):
    await open_form(office)

    result = await sent(office, office.slack.upload("U0ANA", "sft.yaml", FILE))
    assert result.closed
    await office.card(1)
    job = office.scheduler.store.job(1)
    assert job.spec.steps[0].gpus == (2,)
    assert job.channel == "C0GPU"


async def test_slk_25_faults_of_an_uploaded_file_are_told_at_its_field_by_line(office: Office):
    await open_form(office)

    result = await sent(office, office.slack.upload("U0ANA", "sft.yaml", FILE.replace("2", "two")))
    assert set(result.errors) == {"upload"}
    assert "line 4" in result.errors["upload"]
    assert office.scheduler.taken == []


@pytest.mark.parametrize(("said_size", "said"), [(LIMIT + 1, "257 kB"), (None, "more")])
async def test_a_file_over_256_kb_is_refused_with_its_size_and_the_limit(
    office: Office, said_size: int | None, said: str
):
    await open_form(office)
    large = office.slack.upload("U0ANA", "data.yaml", FILE + "#" * LIMIT)

    result = await sent(office, large | {"size": said_size})
    assert f"data.yaml has {said}; a job file has at most 256 kB" in result.errors["upload"]


async def test_a_file_beside_a_pasted_one_is_one_too_many(office: Office):
    await open_form(office)

    result = await sent(office, office.slack.upload("U0ANA", "sft.yaml", FILE), job_file=FILE)
    assert "Leave one of them" in result.errors["upload"]


async def test_a_file_of_another_workspace_is_asked_for_first(office: Office):
    await open_form(office)
    uploaded = office.slack.upload("U0ANA", "sft.yaml", FILE)

    result = await sent(office, {"id": uploaded["id"], "file_access": "check_file_info"})
    assert result.closed
    await office.card(1)


async def test_a_file_that_comes_slowly_is_submitted_after_the_ack(office: Office):
    arrived = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await arrived.wait()
        return web.Response(text=FILE)

    async with elsewhere(slow) as address:
        await open_form(office)
        uploaded = office.slack.upload("U0ANA", "sft.yaml", FILE) | {"url_private": address}
        result = await sent(office, uploaded)
        assert result.closed
        assert result.acked_s is not None
        assert 1.4 <= result.acked_s <= 2.2
        assert office.scheduler.taken == []
        arrived.set()
        await office.card(1)


async def test_faults_of_a_file_that_comes_slowly_are_told_to_its_person(office: Office):
    arrived = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await arrived.wait()
        return web.Response(text=FILE.replace("2", "two"))

    async with elsewhere(slow) as address:
        await open_form(office)
        result = await sent(office, office.slack.upload("U0ANA", "sft.yaml", FILE) | {"url_private": address})
        assert result.closed
        arrived.set()
        await eventually(lambda: any("line 4" in m["text"] for m in office.slack.ephemerals("U0ANA")))
    assert office.scheduler.taken == []


def plain_files(base_url: str) -> Files:
    return Files(Outbound(AsyncWebClient(token="xoxb-1", base_url=base_url)), SecretStr("xoxb-1"), base_url)


def answering(**more: Any) -> Handler:
    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(**more)

    return serve


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"text": "<html>Log in</html>", "content_type": "text/html"}, "lacks the permission files:read"),
        ({"status": 302, "headers": {"Location": "/login"}}, "lacks the permission files:read"),
        ({"status": 403}, "lacks the permission files:read"),
        ({"body": b"\xff\xfe\x00g"}, "sft.yaml is no UTF-8 text"),
        ({"body": b"#" * (LIMIT + 10)}, "at most 256 kB"),
    ],
)
async def test_a_file_that_cannot_be_used_is_told_with_the_way_out(answer: dict[str, Any], why: str):
    async with elsewhere(answering(**answer)) as address:
        read = await plain_files("http://127.0.0.1/api/").read({"name": "sft.yaml", "url_private": address})

    assert isinstance(read, Unread)
    assert why in read.why


async def test_a_byte_order_mark_is_no_part_of_the_text():
    async with elsewhere(answering(body=b"\xef\xbb\xbfgpujob: 1")) as address:
        read = await plain_files("http://127.0.0.1/api/").read({"url_private": address})

    assert read == "gpujob: 1"


@pytest.mark.parametrize("base_url", ["https://slack.com/api/", "https://27.0.0.1/api/"])
async def test_the_token_goes_to_no_other_host(base_url: str):
    asked: list[str] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers.get("Authorization", ""))
        return web.Response(text=FILE)

    async with elsewhere(serve) as address:
        read = await plain_files(base_url).read({"name": "sft.yaml", "url_private": address})

    assert isinstance(read, Unread)
    assert "does not lie in Slack" in read.why
    assert asked == []


def files_in(slack: Playground, channel: str, ts: str) -> list[dict[str, Any]]:
    return [file for message in slack.thread(channel, ts) for file in message.get("files", ())]


async def test_slk_32_a_log_of_100_kb_is_a_file_in_the_jobs_thread(office: Office):
    office.scheduler.submit()
    card = await office.card(1)
    office.scheduler.log = HOSTILE

    result = await office.slack.command("U0ANA", "C0GPU", "logs job-1")
    said = await office.heard(result, "job-1-main.log in the job's thread has more")
    (file,) = files_in(office.slack, "C0GPU", str(card["ts"]))
    assert len(HOSTILE.encode()) > 100_000
    assert file["name"] == "job-1-main.log"
    written = office.slack.workspace.uploads[file["id"]]["content"]
    assert written == HOSTILE.replace("\u0000", "").replace("\u202e", "")
    assert "<!channel>" not in said
    assert "(cut) … " in str(result.responses[-1]["blocks"])


async def test_slk_32_a_log_that_fits_is_no_file(office: Office):
    office.scheduler.submit()
    card = await office.card(1)

    await office.said("U0ANA", "logs job-1", "last lines of its output")
    assert files_in(office.slack, "C0GPU", str(card["ts"])) == []


@pytest.mark.parametrize(
    ("method", "error", "way_out"),
    [
        ("files.completeUploadExternal", "not_in_channel", "Invite me with `/invite @gpujob`"),
        ("files.getUploadURLExternal", "file_uploads_disabled", "`gpujob logs JOB` on the command line"),
        ("files.getUploadURLExternal", "missing_scope", "lacks files:write"),
        ("files.completeUploadExternal", "fatal_error", "Slack did not answer"),
    ],
)
async def test_slk_32_a_log_that_slack_does_not_take_is_still_shown_with_the_way_out(
    office: Office, method: str, error: str, way_out: str
):
    office.scheduler.submit()
    await office.card(1)
    office.scheduler.log = "epoch 1\n" * 1000
    office.slack.faults.refuse(method, error)

    result = await office.slack.command("U0ANA", "C0GPU", "logs job-1")
    await office.heard(result, way_out)
    assert "epoch 1" in str(result.responses[-1]["blocks"])


async def test_slk_32_the_log_of_a_failed_job_follows_its_notice_as_a_file(office: Office):
    job = office.scheduler.submit()
    card = await office.card(1)

    office.scheduler.tell(job, NoticeKind.FAILED, task="main", step="main", exit_code=1, log=HOSTILE)
    await eventually(lambda: files_in(office.slack, "C0GPU", str(card["ts"])))
    thread = office.slack.thread("C0GPU", str(card["ts"]))
    assert "job-1-main.log follows here" in str(thread[-2]["blocks"])
    assert [file["name"] for file in thread[-1]["files"]] == ["job-1-main.log"]
    await eventually(lambda: office.slack.messages("U0ANA"))
    assert "job-1-main.log in the job's thread has more" in str(office.slack.messages("U0ANA")[0]["blocks"])


async def test_slk_32_a_failed_jobs_log_that_cannot_be_a_file_is_said_so_in_the_thread(office: Office):
    job = office.scheduler.submit()
    card = await office.card(1)
    office.slack.faults.refuse("files.completeUploadExternal", "not_in_channel")

    office.scheduler.tell(job, NoticeKind.FAILED, task="main", exit_code=1, log=HOSTILE)
    await eventually(lambda: "Invite me" in office.slack.thread("C0GPU", str(card["ts"]))[-1]["text"])
    told = [payload["kind"] for payload in office.notices("C0GPU", str(card["ts"]))]
    assert told.count("failed") == 1


async def test_a_log_of_a_job_without_a_card_is_cut_and_said_so(office: Office, scheduler: Answering):
    office.slack.faults.refuse("chat.postMessage", "restricted_action", times=1000)
    office.scheduler.submit()
    office.scheduler.log = "epoch 1\n" * 1000

    await office.said("U0ANA", "logs job-1", "this job has no thread yet")
