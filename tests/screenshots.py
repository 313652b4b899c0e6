"""`make screenshots`: docs/images, from the real page with a lively night behind it.

Everything runs as for people: playground, scheduler, bot, a service, and jobs that compute. It takes about two minutes.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, expect

from demo.house import ROOT, House
from demo.story import DAY, NIGHT
from tests.browser.person import IMAGES, LATER, NO_CHROMIUM, SOON, Human, chromium

ANY_PORT = 0
IMAGE = "registry.example.com/nlp/train:1.4"
PIPELINE = {"epochs": 40, "pace": 0.01}  # each of its six trainings: some 15 s
PRETRAIN = {"epochs": 90, "pace": 0.04, "hidden": 64}  # longer than the pictures take


def main() -> int:
    """The exit code: 2 without Chromium."""
    with tempfile.TemporaryDirectory(prefix="gpujob-") as folder, chromium() as browser:
        if browser is None:
            print(NO_CHROMIUM)
            return 2
        house = House(Path(folder), ANY_PORT)
        try:
            house.open()
            house.load(NIGHT)
            try:
                take(browser, house)
            finally:
                end_jobs(house)
        finally:
            house.close()
    for path in sorted(IMAGES.glob("*.png")):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} kB")
    return 0


def take(browser: Browser, house: House) -> None:
    """All the pictures, while the night goes on."""
    human = Human(browser, house.slack)
    form(human)
    small(human)
    pretrain(house, human)
    hand_back(house, human)
    rooms(browser, house, human)


def end_jobs(house: House) -> None:
    """Jobs outlive the scheduler; these do not outlive the pictures."""
    for job in house.gpujob("list")["jobs"]:
        if not job["ended_at"]:
            house.gpujob("cancel", job["id"], "--as", job["owner"])
    house.until("every job has ended", lambda: all(job["ended_at"] for job in house.gpujob("list")["jobs"]), 60)


def form(human: Human) -> None:
    """The form, filled in; and what it says to a mistake."""
    shown = human.open_form()
    shown.get_by_label("Name").fill("solar-sft")
    shown.get_by_label("Docker image").fill(IMAGE)
    shown.get_by_label("Command").fill("python sft.py --lr 2e-5 --epochs 3")
    shown.get_by_label("GPUs").select_option("4")
    human.picture(IMAGES / "form.png")
    shown.get_by_label("Name").fill("Solar SFT")
    shown.get_by_label("Command").fill("python sft.py --note 'a quote")
    shown.get_by_role("button", name="Submit").click()
    human.sees(shown, ["is no name", "A quote is opened and not closed"])
    human.picture(IMAGES / "form-error.png")
    shown.get_by_role("button", name="Close").last.click()
    expect(shown).to_be_hidden(timeout=SOON)


def small(human: Human) -> None:
    """job-1 completes, job-2 fails."""
    human.type(f"/gpujob submit image={IMAGE} gpus=1 name=tokenizer -- python -c \"print('32000 tokens')\"")
    human.sees(human.card("job-1"), ["completed"], LATER)
    human.type(f"/gpujob submit image={IMAGE} gpus=1 name=eval-mmlu -- python -c \"open('questions.jsonl')\"")
    human.sees(human.card("job-2"), ["failed"], LATER)


def pretrain(house: House, human: Human) -> None:
    """job-3 is large and urgent, so Bo has to approve it; then the pool is half full."""
    human.become("Cy")
    human.type("The chat is quiet from now on: 12 GPUs are yours until the morning.")
    human.become("Ana")
    submit(human, example(house, "big-pretrain.yaml", PRETRAIN))
    human.sees(human.card("job-3"), ["awaiting approval"])
    human.become("Bo")
    expect(human.page.get_by_role("button", name="gpujob").locator(".dot")).to_be_visible(timeout=SOON)
    human.picture(IMAGES / "approval.png")
    human.press("Approve job-3")
    human.sees(human.card("job-3"), [": running", "%"], LATER)
    human.become("Ana")
    human.type("/gpujob pool")
    human.sees(human.answer("Services"), ["% sure"])
    human.picture(IMAGES / "pool.png")


def hand_back(house: House, human: Human) -> None:
    """Morning and a lull: the service takes GPUs back, and job-3 goes on later.

    job-4 is a pipeline, job-5 waits for Bo.
    """
    submit(human, example(house, "digits-pipeline.yaml", PIPELINE))
    human.sees(human.card("job-4"), ["prepare: done"], LATER)
    house.until("the big job has saved", lambda: any((house.folder / "storage/job-3").rglob("step-*.npz")), 60)
    house.load(DAY)
    human.sees(human.card("job-3"), ["preempted once"], LATER)
    house.load(NIGHT)
    human.sees(human.card("job-3"), [": running"], 2 * LATER)
    submit(human, example(house, "big-pretrain.yaml", PRETRAIN, name="solar-32k"))
    human.sees(human.card("job-5"), ["awaiting approval"], LATER)


def rooms(browser: Browser, house: House, human: Human) -> None:
    """A thread, a direct message, and the channel in both colours."""
    human.open_thread("job-3")
    human.sees(human.thread.filter(has_text="Resumed"), ["from step"], LATER)
    human.picture(IMAGES / "thread.png")
    human.page.keyboard.press("Escape")
    human.go("gpujob")
    human.picture(IMAGES / "dm.png")
    channel(browser, house, "light")
    channel(browser, house, "dark")
    assert human.errors == []


def channel(browser: Browser, house: House, scheme: Literal["light", "dark"]) -> None:
    """What Cy sees of the others' jobs, from the one that was preempted on."""
    human = Human(browser, house.slack, scheme)
    human.become("Cy")
    human.sees(human.card("job-5"), ["awaiting approval"])
    human.card("job-3").evaluate("card => card.scrollIntoView()")
    human.picture(IMAGES / f"channel-{scheme}.png")
    assert human.errors == []


def submit(human: Human, text: str) -> None:
    """Pastes a job file into the form."""
    shown = human.open_form()
    shown.get_by_label("Job file, pasted").fill(text)
    shown.get_by_role("button", name="Submit").click()
    expect(shown).to_be_hidden(timeout=SOON)


def example(house: House, file: str, params: Mapping[str, object], name: str = "") -> str:
    """One of the examples, with parameters for here."""
    text = (ROOT / "examples" / file).read_text()
    given = {"runs": f'"file://{house.folder}/storage/runs"', "lr": 0.02, **params}
    lines = {"params": f"{{{', '.join(f'{key}: {value}' for key, value in given.items())}}}"}
    for key, value in (lines | ({"name": name} if name else {})).items():
        text = re.sub(rf"^{key}: .*$", f"{key}: {value}", text, flags=re.MULTILINE)
    return f"{text}team: nlp\nworkdir: {ROOT / 'examples'}\n"


if __name__ == "__main__":
    sys.exit(main())
