"""Ways of people through the whole product: the page, and behind it the real bot, scheduler, jobs and service."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from demo.house import House
from tests.browser.person import LATER, SOON, Human

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(170)]

Keep = Callable[[str], None]

PAGE_CODES = re.compile(r":[a-z][a-z_]+:")  # emoji that the page, and so perhaps Slack, does not know


def one_liner(house: House, name: str, *words: str) -> str:
    command = f"python {house.folder}/train.py"
    return " ".join(
        ["/gpujob submit", "image=registry.example.com/nlp/train:1.4", f"name={name}", *words, "--", command]
    )


def stored(house: House, job: str) -> Any:
    """What the scheduler has in its books."""
    return house.gpujob("status", job)["job"]


def pool(house: House) -> str:
    """What Cy is told; Ana and Bo do not see it."""
    return str(house.act("cy", "command", text="/gpujob pool")["responses"])


def test_a_job_goes_from_a_mistake_in_the_form_to_its_end(house: House, human: Human, keep: Keep):
    form = human.open_form()
    form.get_by_label("Name").fill("Solar SFT")
    form.get_by_label("Docker image").fill("registry.example.com/nlp/train:1.4")
    form.get_by_label("Command").fill(f"python {house.folder}/train.py")
    form.get_by_label("GPUs").select_option("2")
    form.get_by_label("Priority").select_option("high")
    form.get_by_label("Team").fill("nlp")
    keep("01-form")
    form.get_by_role("button", name="Submit").click()
    human.sees(form, ['"Solar SFT" is no name'])
    expect(form.get_by_label("Name")).to_be_focused()
    expect(form.get_by_label("Command")).to_have_value(f"python {house.folder}/train.py")
    keep("02-the-mistake")

    form.get_by_label("Name").fill("solar-sft")
    form.get_by_role("button", name="Submit").click()
    expect(form).to_be_hidden(timeout=SOON)
    human.sees(human.card("job-1"), ["solar-sft", "awaiting approval", "2 GPUs", "team nlp"])
    keep("03-awaiting-approval")

    human.become("Bo")
    human.press("Approve job-1")
    human.sees(human.card("job-1"), ["Approved by @bo", "running", "42% loss=1.3"], LATER)
    expect(human.page.get_by_role("button", name="Approve job-1")).to_have_count(0)
    keep("04-running")

    (house.folder / "done").touch()
    human.sees(human.card("job-1"), ["completed"], LATER)
    expect(human.page.get_by_role("button", name="Run job-1 again")).to_be_visible()
    human.become("Ana")
    human.open_thread("job-1")
    told = ["solar-sft", "Needs approval.", "Approved by @bo", "Started: main runs on node-", "Completed. It used"]
    expect(human.thread).to_contain_text(told, timeout=SOON)
    keep("05-thread")
    human.page.keyboard.press("Escape")
    expect(human.thread).to_have_count(0)

    human.go("gpujob")
    human.sees(human.messages.last, ["job-1", "solar-sft", "Completed. It used"])
    keep("06-direct-message")
    assert PAGE_CODES.findall(human.page.locator("body").inner_text()) == []
    assert stored(house, "job-1")["state"] == "completed"


def test_a_running_job_is_cancelled_after_a_question(house: House, human: Human, keep: Keep):
    human.type(one_liner(house, "tokenizer", "gpus=1"))
    human.sees(human.card("job-1"), ["tokenizer", "running"], LATER)

    human.press("Cancel job-1")
    question = human.page.get_by_role("dialog", name="Cancel job-1?")
    human.sees(question, ["This cannot be undone."])
    keep("07-question")
    question.get_by_role("button", name="Keep it").click()
    expect(question).to_be_hidden()
    assert stored(house, "job-1")["state"] == "running"

    human.press("Cancel job-1")
    question.get_by_role("button", name="Cancel the job").click()
    human.sees(human.card("job-1"), ["cancelled"], LATER)
    expect(human.page.get_by_role("button", name="Cancel job-1")).to_have_count(0)
    keep("08-cancelled")
    assert stored(house, "job-1")["state"] == "cancelled"


def test_the_pool_and_a_status_are_told_to_who_asks_alone(house: House, human: Human, keep: Keep):
    human.type(one_liner(house, "probe", "gpus=4"))
    human.sees(human.card("job-1"), ["running"], LATER)
    house.until("the pool counts the job", lambda: "4 with jobs" in pool(house) and "nothing waits" in pool(house), 30)

    human.type("/gpujob pool")
    human.sees(human.answer("Services"), ["Pool", "16 GPUs", "4 with jobs", "chat", "% sure", "nothing waits"])
    human.type("/gpujob status job-1")
    human.sees(human.answer("probe"), ["running", "by @ana", "4 GPUs"])
    keep("09-pool-and-status")

    human.become("Bo")
    expect(human.card("job-1")).to_be_visible()
    expect(human.answer(re.compile("."))).to_have_count(0)


def test_only_an_approver_approves_and_a_denial_says_why(house: House, human: Human, keep: Keep):
    job_file = (
        f'gpujob: 1\nname: big\nimage: a/b:1\npriority: high\ngpus: 1\ncommand: [python, "{house.folder}/train.py"]'
    )
    form = human.open_form()
    form.get_by_label("Job file, pasted").fill(job_file)
    form.get_by_role("button", name="Submit").click()
    human.sees(human.card("job-1"), ["awaiting approval"])
    human.press("Approve job-1")
    human.sees(human.answer("approver"), ["job-1"])

    human.become("Bo")
    human.press("Deny job-1")
    form = human.page.get_by_role("dialog", name="Deny job-1")
    form.get_by_label("Reason").fill("The conference needs the GPUs <until> Friday")
    keep("10-denial")
    form.get_by_role("button", name="Deny").click()
    human.sees(human.card("job-1"), ["denied", "Denied by @bo"])

    human.become("Ana")
    human.go("gpujob")
    human.sees(human.messages.last, ["Denied by @bo", "The conference needs the GPUs <until> Friday"])
    assert stored(house, "job-1")["state"] == "denied"


def test_a_job_is_submitted_and_cancelled_with_the_keyboard_alone(house: House, human: Human):
    keyboard = human.page.keyboard
    expect(human.box).to_be_focused()
    keyboard.type("/gpujob sub")
    expect(human.page.get_by_role("option", selected=True)).to_contain_text("/gpujob submit")
    keyboard.press("Tab")
    expect(human.box).to_have_value("/gpujob submit ")
    keyboard.type(one_liner(house, "by-hand", "gpus=1").removeprefix("/gpujob submit "))
    keyboard.press("Enter")
    human.sees(human.card("job-1"), ["by-hand", "running", "42%"], LATER)

    cancel = human.page.get_by_role("button", name="Cancel job-1", exact=True)
    for _ in range(12):
        keyboard.press("Shift+Tab")
        if cancel.evaluate("button => button === document.activeElement"):
            break
    expect(cancel).to_be_focused()
    keyboard.press("Enter")
    question = human.page.get_by_role("dialog", name="Cancel job-1?")
    expect(question.get_by_role("button", name="Keep it")).to_be_focused()
    keyboard.press("Tab")
    expect(question.get_by_role("button", name="Cancel the job")).to_be_focused()
    keyboard.press("Enter")

    human.sees(human.card("job-1"), ["cancelled"], LATER)
    assert stored(house, "job-1")["state"] == "cancelled"
