"""Cards, notices, boards and forms as values: within Slack's limits, with everything a person needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot import boards, cards, modals, news
from bot.blocks import Message
from bot.modals import Faults, Filled
from scheduler.jobs import jobfile
from scheduler.jobs.job import Job, JobId, JobState, Run, RunState, Task, TaskName, TaskState, Uid
from scheduler.jobs.mail import Board, BoardService, BoardWindow, Notice, NoticeId, NoticeKind
from scheduler.jobs.progress import Progress
from scheduler.jobs.spec import JobSpec, StepSpec
from scheduler.jobs.usage import Month
from scheduler.jobs.waits import Wait, WaitReason
from scheduler.store.mailbox import JobView

ZONE = ZoneInfo("Asia/Seoul")
NOW = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)


def a_job(state: JobState = JobState.WAITING, steps: int = 1, **more: Any) -> Job:
    made = tuple(StepSpec(name=f"step-{number}", command=("python",), gpus=(4,)) for number in range(steps))
    plain = Job(
        id=JobId(41),
        spec=JobSpec(name="sft", steps=made),
        spec_hash="sha256:1",
        owner="U0ANA",
        channel="C0GPU",
        state=state,
        submitted_at=NOW,
    )
    return replace(plain, **more)


def a_task(step: int = 0, state: TaskState = TaskState.WAITING, **more: Any) -> Task:
    name = f"step-{step}"
    plain = Task(job=JobId(41), name=TaskName(name), step=name, index=0, state=state, since=NOW)
    return replace(plain, **more)


def a_run(**more: Any) -> Run:
    plain = Run(
        uid=Uid("pod-1"),
        job=JobId(41),
        task=TaskName("step-0"),
        attempt=1,
        placement={"node-1": 4},
        state=RunState.RUNNING,
        since=NOW,
    )
    return replace(plain, **more)


def a_view(job: Job, *tasks: Task, runs: tuple[Run, ...] = ()) -> JobView:
    return JobView(job=job, tasks=tasks or (a_task(),), runs=runs)


def texts(value: Any) -> Iterator[tuple[str, str]]:
    """Every text object: its kind and its text."""
    if isinstance(value, Mapping):
        if isinstance(value.get("text"), str):
            yield str(value.get("type")), value["text"]
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)


def acts(message: Message) -> list[str]:
    rows = [block["elements"] for block in message.blocks if block["type"] == "actions"]
    return [element["action_id"] for row in rows for element in row]


def assert_slack_takes(message: Message) -> None:
    assert message.text
    assert len(message.text.encode()) <= 3900
    assert len(message.blocks) <= 50
    assert sum(len(text) for _, text in texts(list(message.blocks))) <= 13_200
    for block in message.blocks:
        assert all(0 < len(text) <= 3000 for _, text in texts(block))
        if block["type"] == "actions":
            names = [element["action_id"] for element in block["elements"]]
            assert len(names) == len(set(names))
            assert all(len(element["text"]["text"]) <= 75 for element in block["elements"])


@pytest.mark.parametrize(
    ("state", "buttons"),
    [
        (JobState.AWAITING_APPROVAL, ["approve", "deny", "status", "cancel"]),
        (JobState.WAITING, ["status", "logs", "cancel"]),
        (JobState.RUNNING, ["status", "logs", "cancel"]),
        (JobState.PREEMPTED, ["status", "logs", "cancel"]),
        (JobState.COMPLETED, ["status", "logs", "rerun"]),
        (JobState.DENIED, ["status", "logs", "rerun"]),
    ],
)
def test_a_card_offers_what_its_state_allows(state: JobState, buttons: list[str]):
    assert acts(cards.job_card(a_view(a_job(state)), ZONE)) == [f"gpujob_{name}" for name in buttons]


def test_a_card_says_why_a_job_waits_and_until_when():
    wait = Wait(reason=WaitReason.GPUS, short_by=2, held_by="chat (16)", earliest=NOW + timedelta(hours=1))

    shown = str(cards.job_card(a_view(a_job(), a_task(wait=wait)), ZONE).blocks)
    assert "is 2 GPUs short; GPUs are held by chat (16)" in shown
    assert "Earliest start: <!date^1796072400^" in shown
    assert "2026-12-01 06:00 KST" in shown


def test_a_card_says_where_a_job_runs_how_far_it_is_and_what_was_lost():
    progress = Progress(fraction=0.42, values={"loss": "1.3"})
    ended = a_run(uid=Uid("pod-0"), state=RunState.PREEMPTED, ended_at=NOW, kept_s=3600, lost_s=900)
    view = a_view(a_job(JobState.RUNNING, preemptions=1), a_task(progress=progress), runs=(ended, a_run()))

    shown = str(cards.job_card(view, ZONE).blocks)
    assert "42% loss=1.3" in shown
    assert "runs on node-1 (4 GPUs)" in shown
    assert "kept 4.0 GPU-hours · lost 1.0 GPU-hours · preempted once" in shown


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (JobState.CANCELLED, "Cancelled by <@U0BO>."),
        (JobState.RUNNING, "<@U0BO> cancels it; what it runs is being ended."),
    ],
)
def test_a_card_names_who_cancels_its_job(state: JobState, said: str):
    job = a_job(state, cancelled_by="U0BO", why="cancelled by U0BO")

    assert said in str(cards.job_card(a_view(job), ZONE).blocks)


def test_a_card_tells_an_approver_every_reason_as_a_sentence():
    job = a_job(
        JobState.AWAITING_APPROVAL, approval_why=("It asks for high priority.", "Nobody but U0BO may approve it")
    )

    shown = str(cards.job_card(a_view(job), ZONE).blocks)
    assert "Waits for an approver. It asks for high priority. Nobody but <@U0BO> may approve it." in shown


def test_a_swept_step_is_counted_by_state():
    tasks = [a_task(state=state, name=TaskName(f"t-{state}")) for state in (TaskState.DONE, TaskState.RUNNING)]

    assert "*step-0*: 1 running, 1 done" in str(cards.job_card(a_view(a_job(), *tasks), ZONE).blocks)


@given(st.text(min_size=1, max_size=5000), st.integers(1, 60), st.sampled_from(JobState))
def test_slk_32_any_card_is_within_the_limits(text: str, steps: int, state: JobState):
    job = a_job(state, steps, why=text * 5, approval_why=(text,) * 5, decided_by=text, decided_at=NOW)
    wait = Wait(reason=WaitReason.QUEUE, detail=text)
    tasks = [a_task(number, wait=wait, progress=Progress(fraction=0.5, values={"x": text})) for number in range(steps)]
    runs = tuple(a_run(uid=Uid(f"pod-{number}"), placement={text: 8}) for number in range(8))

    assert_slack_takes(cards.job_card(a_view(job, *tasks, runs=runs), ZONE))


@given(st.text(max_size=5000), st.sampled_from(NoticeKind))
def test_slk_32_any_notice_is_within_the_limits(text: str, kind: NoticeKind):
    keys = "name team warnings why by reason code held_by task service step deadline earliest_end node log currency"
    payload: dict[str, Any] = dict.fromkeys(keys.split(), text)
    lists: dict[str, Any] = {"why": [text, text], "tasks": [text], "nodes": {text: 4}, "outputs": {text: text}}
    notice = Notice(id=NoticeId(7), job=JobId(41), kind=kind, at=NOW, payload=payload | lists)

    assert_slack_takes(news.in_thread(notice, ZONE))
    assert_slack_takes(news.in_dm(notice, text, ZONE))
    assert len(str(news.metadata(notice, "thread")).encode()) < 8000


@pytest.mark.parametrize("kind", NoticeKind)
def test_a_notice_with_an_empty_payload_is_still_a_sentence(kind: NoticeKind):
    said = news.in_thread(Notice(id=NoticeId(7), job=JobId(41), kind=kind, at=NOW, payload={}), ZONE).text

    assert said.endswith((".", "again."))
    assert "None" not in said


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        (
            NoticeKind.PREEMPTED,
            {"service": "chat", "gpus": 4, "kept_s": 5400, "lost_s": 120, "saved_step": 120, "reason": "traffic rose"},
            "Preempted: chat needed GPUs back, and this job gave up 4 GPUs. 1 h 30 min of work kept, 2 min lost."
            " It goes on by itself from step 120, as soon as enough GPUs are idle.",
        ),
        (
            NoticeKind.RESUMED,
            {"task": "sft", "nodes": {"node-1": 4}, "gpus": 4, "from_step": 120},
            "Resumed from step 120: sft runs on node-1 with 4 GPUs.",
        ),
        (
            NoticeKind.COMPLETED,
            {"used_gpu_hours": 8, "lost_gpu_hours": 1, "queue_s": 60, "money": 16, "currency": "USD", "preemptions": 2},
            "Completed. It used 8.0 GPU-hours, of which 1.0 GPU-hours went into work that was lost."
            " It waited 1 min for its start and was preempted twice."
            " Renting such GPUs would have cost about 16.00 USD.",
        ),
        (
            NoticeKind.FAILED,
            {"task": "sft", "exit_code": 1, "why": "out of memory", "used_gpu_hours": 0.05},
            "Failed: sft ended with exit code 1: out of memory. It used 3 GPU-minutes; no work was lost.",
        ),
        (
            NoticeKind.FAILED,
            {"task": "sft", "exit_code": 1, "why": "sft: ended with exit code 1"},
            "Failed: sft ended with exit code 1. It used no GPU-hours.",
        ),
        (
            NoticeKind.STARTED,
            {"task": "prepare", "nodes": {"node-1": 0}, "gpus": 0},
            "Started: prepare runs on node-1 without GPUs.",
        ),
        (NoticeKind.APPROVAL_NEEDED, {"why": ["It is large.", "It asks for much"]}, "It is large. It asks for much."),
        (
            NoticeKind.PREEMPTED,
            {"reason": "somebody deleted its pod", "lost_s": 30},
            "Preempted: somebody deleted its pod. No new work kept, 30 s lost. It goes on by itself, as soon as",
        ),
        (NoticeKind.EXPIRED, {"why": "nobody approved it"}, "Expired: nobody approved it. Submit it again"),
        (
            NoticeKind.CANCELLED,
            {"by": "U0ANA", "used_gpu_hours": 2},
            "Cancelled. It used 2.0 GPU-hours; no work was lost.",
        ),
        (
            NoticeKind.WAITING,
            {"reason": "is 2 GPUs short"},
            "Not started yet: it is 2 GPUs short. Nobody can say yet when it starts.",
        ),
    ],
)
def test_a_notice_says_what_its_reader_needs(kind: NoticeKind, payload: dict[str, Any], words: str):
    notice = Notice(id=NoticeId(7), job=JobId(41), kind=kind, at=NOW, payload=payload)

    assert words in news.in_thread(notice, ZONE).text


def test_an_image_without_a_digest_is_told_on_the_card_and_when_the_job_starts():
    says = "Image train:1 could not be resolved to a digest: docker.io failed (500); the tag is used as it is."
    job = a_job(JobState.RUNNING, unresolved={"train:1": "docker.io failed (500)"})
    payload = {"task": "main", "nodes": {"node-1": 4}, "gpus": 4, "warnings": list(job.warnings)}
    notice = Notice(id=NoticeId(7), job=JobId(41), kind=NoticeKind.STARTED, at=NOW, payload=payload)

    assert says in str(cards.job_card(a_view(job), ZONE).blocks)
    assert news.in_thread(notice, ZONE).text.endswith(f"Note: {says}")
    assert says not in str(cards.job_card(a_view(replace(job, state=JobState.COMPLETED)), ZONE).blocks)


def test_metadata_names_the_notice_the_place_and_the_progress():
    payload = {"reason": "traffic", "saved_step": 120, "from_step": None}
    notice = Notice(id=NoticeId(7), job=JobId(41), kind=NoticeKind.PREEMPTED, at=NOW, payload=payload)

    assert news.metadata(notice, "thread") == {
        "event_type": "gpujob_notice",
        "event_payload": {
            "id": 7,
            "job": "job-41",
            "kind": "preempted",
            "place": "thread",
            "reason": "traffic",
            "saved_step": 120,
        },
    }


def test_the_text_that_notifies_mentions_nobody():
    card = cards.job_list([a_job()], 1, False, "mine any", ZONE)

    assert "<@" not in card.text
    assert "<@U0ANA>" in str(card.blocks)


def a_board(**more: Any) -> Board:
    service = BoardService(name="chat", have=2, want=1, gpus=8, why="quiet")
    window = BoardWindow(node="node-1", gpus=4, since=NOW, until=NOW, confidence=0.8, why="idle")
    plain = Board(
        at=NOW,
        gpus=16,
        serving=8,
        running=4,
        idle=4,
        unknown=0,
        services=(service,),
        windows=(window,),
        waiting_tasks=3,
        waiting_gpus=12,
    )
    return replace(plain, **more)


def test_the_pool_shows_who_uses_what_and_what_is_free_until_when():
    shown = str(boards.pool(a_board(observe_only=True, alerts=("chat-1 is stalled",)), ZONE).blocks)

    for words in ("*chat*: 2 replicas (needs 1), 8 GPUs", "4 GPUs, until <!date^", "80% sure", "3 tasks wait for 12"):
        assert words in shown
    assert "only observes" in shown
    assert "chat-1 is stalled" in shown


@given(st.text(max_size=3000), st.integers(0, 60))
def test_slk_32_any_pool_is_within_the_limits(text: str, count: int):
    service = BoardService(name=text, have=1, want=1, gpus=1, why=text)
    window = BoardWindow(node=text or "n", gpus=1, since=NOW, until=None, confidence=1.0, why=text)

    assert_slack_takes(
        boards.pool(a_board(services=(service,) * count, windows=(window,) * count, alerts=(text,) * count), ZONE)
    )


def test_the_report_says_what_a_month_was_worth():
    month = Month(
        month="2026-11",
        jobs=12,
        gpu_hours=340.0,
        kept_gpu_hours=300.0,
        lost_gpu_hours=20.0,
        restart_gpu_hours=12.0,
        ending_gpu_hours=8.0,
        gpus_12h=9.4,
        gpus_24h=4.7,
        money=680.0,
        currency="USD",
        trend=0.7,
    )
    said = boards.report(month, "2026-11").text

    assert "12 jobs used 340.0 GPU-hours, +70% against the month before" in said
    assert "4.7 GPUs all day" in said
    assert "680.00 USD" in said


def a_form(**values: str) -> Mapping[str, Any]:
    """A submitted view in which people typed these values."""
    given_values = {"name": "sft", "image": "train:1", "command": "python t.py", **values}
    state = {block: {block: {"type": "plain_text_input", "value": value}} for block, value in given_values.items()}
    return {"state": {"values": state}, "private_metadata": "C0GPU"}


def test_a_form_becomes_the_job_file_that_it_stands_for():
    read = modals.read_submit(
        a_form(
            command='python t.py "two words" C:\\\\x',
            gpus="4",
            nodes="2",
            params="lr=2e-5\nbase=s3://a/b\nflag=true",
            max_hours="12",
            checkpoint="30m",
            team="nlp",
            priority="high",
        )
    )
    assert isinstance(read, Filled)
    spec = jobfile.parse(read.text).spec
    assert spec is not None
    assert spec.steps[0].command == ("python", "t.py", "two words", "C:\\x")
    assert (spec.steps[0].gpus, spec.steps[0].nodes, spec.team, spec.max_hours) == ((4,), 2, "nlp", 12)
    assert dict(spec.params) == {"lr": 2e-5, "base": "s3://a/b", "flag": True}
    assert read.channel == "C0GPU"


@pytest.mark.parametrize(
    ("block", "value", "words"),
    [
        ("name", "Solar", "is no name"),
        ("name", "", "is no name"),
        ("image", "", "Which image?"),
        ("command", "", "What should run?"),
        ("command", 'python "x', "A quote is opened"),
        ("nodes", "two", "is no number of nodes"),
        ("nodes", "0", "is no number of nodes"),
        ("params", "lr 3", "is no parameter"),
        ("estimate_hours", "-1", "is no number of hours"),
        ("checkpoint", "often", "is no time between saves"),
        ("team", "Team One", "team"),
    ],
)
def test_slk_25_each_wrong_value_is_told_at_its_own_field(block: str, value: str, words: str):
    read = modals.read_submit(a_form(**{block: value}))

    assert isinstance(read, Faults)
    assert set(read.by_block) == {block}
    assert words in read.by_block[block]


@given(st.dictionaries(st.sampled_from(["name", "image", "command", "params", "team", "job_file"]), st.text()))
def test_no_filled_form_breaks_us(values: dict[str, str]):
    read = modals.read_submit(a_form(**values))

    assert isinstance(read, Filled) or all(0 < len(sentence) <= 2000 for sentence in read.by_block.values())


@pytest.mark.parametrize("board", [None, a_board(), a_board(gpus=0)])
def test_slk_28_a_form_carries_ids_only_and_fits(board: Board | None):
    form = modals.submit_form(board, "C0GPU", ZONE)

    assert form["private_metadata"] in {"C0GPU", ""}
    assert len(form["title"]["text"]) <= 24
    assert len(form["blocks"]) <= 100
    for block in form["blocks"]:
        options = block.get("element", {}).get("options", [{"text": {"text": "x"}}])
        assert 1 <= len(options) <= 100
