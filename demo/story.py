"""What happens in the demo, and what is expected of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from demo.house import GRACE_S, ROOT, House, Stopped

DAY, NIGHT = 20, 2  # clients of the service
ORDER = ("submitted", "approval_needed", "approved", "waiting", "started", "preempted", "resumed", "completed")
HAND_BACK_S = GRACE_S + 5.0
SLACK_DATE = re.compile(r"<!date\^[^|>]*\|([^>]*)>")  # a terminal shows what Slack keeps for old clients
EPOCHS, PACE_S = 44, 0.04  # of the big job: about 40 s of work

Say = Callable[[str], None]


class Story:
    """One night. Everything that people do goes through the playground, as from its page."""

    def __init__(self, house: House, say: Say) -> None:
        self.house = house
        self.say = say
        self.began = time.monotonic()
        self._told = 0
        self._over = threading.Event()

    def tell(self) -> None:
        """The whole story.

        Raises:
            Stopped: something expected did not happen in time.
        """
        listener = threading.Thread(target=self._listen, daemon=True)
        listener.start()
        try:
            self._day()
            self._night()
            self._morning()
            self._lull()
        finally:
            time.sleep(1.0)
            self._over.set()
            listener.join(5)

    def _day(self) -> None:
        self.narrate("Day: the chat service has many users; its three replicas hold 12 of the 16 GPUs.")
        self.house.until("three replicas answer", lambda: self._ready() == 3, 60)
        self.narrate("Ana opens the form with `/gpujob submit` and pastes a job that wants 8 GPUs with high priority.")
        self.submit("big-pretrain.yaml", {"epochs": EPOCHS, "hidden": 64, "lr": 0.02, "pace": PACE_S})
        self.wait_for("job-1", "approval_needed", 20)
        self.narrate("High priority needs an approver. Bo looks at the card and presses Approve.")
        card = self.house.until("the card has its button", lambda: self._card("job-1", "gpujob_approve"), 20)
        self.house.act("bo", "click", ts=card, action_id="gpujob_approve")
        self.wait_for("job-1", "approved", 15)
        self.wait_for("job-1", "waiting", 30)

    def _night(self) -> None:
        self.narrate("Night: traffic falls, replicas leave one after the other, and their GPUs come free.")
        self.house.load(NIGHT)
        self.wait_for("job-1", "started", 90)
        self.narrate("Ana hands in a pipeline too: prepare, six trainings, evaluate.")
        self.submit("digits-pipeline.yaml", {"epochs": 12, "pace": 0.005})
        self.wait_for("job-2", "started", 40)
        self.house.until("the big job has saved", lambda: self._saved_step("job-1") > 0, 40)

    def _morning(self) -> None:
        self.narrate("Morning: traffic rises. The service needs its GPUs, and gets them back before anything else.")
        self.house.load(DAY)
        self.wait_for("job-1", "preempted", 30)
        self.house.until("the new replicas answer", lambda: self._ready() == 3, 60)

    def _lull(self) -> None:
        self.narrate("A lull: the GPUs come free again, and the job goes on from where it was.")
        self.house.load(NIGHT)
        self.wait_for("job-1", "resumed", 90)
        self.wait_for("job-1", "completed", 90)
        self.wait_for("job-2", "completed", 90)
        self.narrate("Cy asks for the month: `/gpujob report`.")
        answer = self.house.act("cy", "command", text="/gpujob report")
        for line in _texts(answer):
            self.say(f"          {line}")

    def submit(self, example: str, params: Mapping[str, object]) -> None:
        """Pastes one of the examples into the form, with other parameters."""
        text = (ROOT / "examples" / example).read_text()
        runs = f"file://{self.house.folder}/storage/runs"
        values = ", ".join(f"{key}: {value}" for key, value in {"runs": f'"{runs}"', **params}.items())
        text = re.sub(r"^params: .*$", f"params: {{{values}}}", text, flags=re.MULTILINE)
        text += f"workdir: {ROOT / 'examples'}\n"
        self.house.act("ana", "command", text="/gpujob submit")
        self.house.until("the form is filled", self._form, 10)
        result = self.house.act("ana", "view_submit", values={"job_file": {"job_file": text}})
        if result.get("errors"):
            raise Stopped(f"the form was refused: {result['errors']}")

    def _form(self) -> bool:
        view = self.house.get(f"/playground/state?user={self.house.people['ana']}")["view"]
        return bool(view) and any(block.get("block_id") == "job_file" for block in view["blocks"])

    def wait_for(self, job: str, kind: str, seconds: float) -> Mapping[str, Any]:
        """Until the playground has received this notice."""

        def arrived() -> Mapping[str, Any] | None:
            return next((e for e in self.events() if e["job"] == job and e["kind"] == kind), None)

        found: Mapping[str, Any] = self.house.until(f"{job} {kind}", arrived, seconds)
        return found

    def events(self) -> Sequence[Mapping[str, Any]]:
        """All notices that the playground has received."""
        events: Sequence[Mapping[str, Any]] = self.house.get("/playground/transcript")["events"]
        return events

    def narrate(self, text: str) -> None:
        """A sentence of the story, between the messages."""
        self.say("")
        self.say(f"{self._clock()}  {text}")

    def _clock(self) -> str:
        return f"{time.monotonic() - self.began:6.1f} s"

    def _listen(self) -> None:
        while not self._over.wait(0.3):
            try:
                self._print_new()
            except (OSError, ValueError):
                continue

    def _print_new(self) -> None:
        events = self.events()
        for event in events[self._told :]:
            where = "DM" if str(event["channel"]).startswith("D") else "#gpu-jobs"
            text = SLACK_DATE.sub(r"\1", " ".join(str(event["text"]).split()))
            self.say(f"{self._clock()}  {where:10} {event['job']} {event['kind']:16} {text}")
        self._told = len(events)

    def _ready(self) -> int:
        services = self.house.gpujob("scale")["services"]
        states = [replica["state"] for service in services for replica in service["replicas"]]
        return len([state for state in states if state in {"busy", "saturated", "idle", "fresh_idle", "unsure"}])

    def _saved_step(self, job: str) -> int:
        """The newest step whose checkpoint is in storage, as files say."""
        folder = self.house.folder / "storage" / job / "checkpoints"
        steps = [int(path.stem.removeprefix("step-")) for path in folder.glob("*/step-*.npz")]
        return max(steps, default=0)

    def _card(self, job: str, action: str) -> str | None:
        """The message of a job that has this button."""
        state = self.house.get(f"/playground/state?user={self.house.people['bo']}")
        for channel in state["channels"]:
            for message in channel["messages"] if channel["id"] == self.house.channel else ():
                text = json.dumps(message.get("blocks", []))
                if action in text and job in text:
                    return str(message["ts"])
        return None


def check(story: Story) -> list[str]:
    """What did not happen as it should; also writes the transcript and the timings."""
    folder = ROOT / "demo"
    events = story.events()
    (folder / "transcript.json").write_text(json.dumps({"events": events}, indent=1, ensure_ascii=False) + "\n")
    hand_backs = _hand_backs(story.house)
    timings = {"grace_s": GRACE_S, "hand_backs": hand_backs}
    (folder / "timings.json").write_text(json.dumps(timings, indent=1) + "\n")
    return [
        *_wrong_order(events, story.house.channel),
        *_wrong_steps(events),
        *_slow(hand_backs),
        *_other_weights(story),
    ]


def _wrong_order(events: Sequence[Mapping[str, Any]], channel: str) -> list[str]:
    kinds = [event["kind"] for event in events if event["job"] == "job-1" and event["channel"] == channel]
    left = iter(kinds)
    missing = [kind for kind in ORDER if kind not in left]
    return [f"job-1 lacks, in this order: {', '.join(missing)}; it had {', '.join(kinds)}"] if missing else []


def _wrong_steps(events: Sequence[Mapping[str, Any]]) -> list[str]:
    saved = [e["saved_step"] for e in events if e["job"] == "job-1" and e["kind"] == "preempted" and "saved_step" in e]
    went_on = [e["from_step"] for e in events if e["job"] == "job-1" and e["kind"] == "resumed" and "from_step" in e]
    if not saved or not went_on or not saved[0]:
        return [f"job-1 told no saved step ({saved}) or none that it went on from ({went_on})"]
    return [] if went_on[0] >= saved[0] else [f"job-1 saved step {saved[0]} and went on from {went_on[0]}"]


def _hand_backs(house: House) -> list[dict[str, Any]]:
    """Measured from the outside: the signal is the replica's own first /metrics answer above the threshold."""
    signals = [json.loads(line) for line in (house.folder / "signals.jsonl").read_text().splitlines()]
    rows = []
    for row in house.gpujob("hand-backs")["hand_backs"]:
        decided, freed, ready = (_unix(row[key]) for key in ("decided_at", "freed_at", "ready_at"))
        before = [s["at"] for s in signals if s["service"] == row["service"] and freed and s["at"] <= freed]
        if not before or freed is None:
            continue
        # The rise that led to it: several replicas see the same one within a second or two.
        first = min(at for at in before if before[-1] - at < 10.0)
        rows.append(
            {
                "service": row["service"],
                "signal_at": round(first, 3),
                # A turn reads its clock before it reads the metrics, so its time may be some milliseconds too early.
                "decided_at": max(decided or first, first),
                "freed_at": freed,
                "ready_at": ready,
                "seconds": round(freed - first, 3),
            }
        )
    return rows


def _slow(hand_backs: Sequence[Mapping[str, Any]]) -> list[str]:
    if not hand_backs:
        return ["no hand-back was measured"]
    return [
        f"a hand-back took {row['seconds']} s, allowed are {HAND_BACK_S:g} s"
        for row in hand_backs
        if row["seconds"] > HAND_BACK_S
    ]


def _other_weights(story: Story) -> list[str]:
    """Trains once more without being stopped, and compares the weights bit by bit."""
    storage = story.house.folder / "storage"
    stopped = json.loads((storage / "runs" / "job-1" / "model" / "metrics.json").read_text())
    command = [sys.executable, "train_digits.py", "--data", "data/digits.csv.gz", "--epochs", str(EPOCHS)]
    command += ["--lr", "0.02", "--hidden", "64", "--ckpt", f"file://{storage}/alone/ckpt"]
    command += ["--out", f"file://{storage}/alone/model"]
    # Jobs get little of our environment; what is left out may change how numpy adds up.
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    subprocess.run(command, cwd=ROOT / "examples", check=True, capture_output=True, timeout=120, env=environment)
    alone = json.loads((storage / "alone" / "model" / "metrics.json").read_text())
    if stopped["sha256"] != alone["sha256"]:
        return [f"the weights differ: {stopped['sha256'][:16]} after the stop, {alone['sha256'][:16]} without one"]
    story.narrate(
        f"The weights of job-1 equal those of a run that was never stopped: sha256 {alone['sha256'][:16]}, "
        f"accuracy {alone['accuracy']:.3f}."
    )
    return []


def _unix(text: str | None) -> float | None:
    return round(datetime.fromisoformat(text).timestamp(), 3) if text else None


def _texts(answer: Mapping[str, Any]) -> list[str]:
    found = []
    for response in [answer.get("payload") or {}, *answer.get("responses", [])]:
        found += str(response.get("text", "")).splitlines() if isinstance(response, dict) else []
    return found
