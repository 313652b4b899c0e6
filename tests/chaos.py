"""`make chaos`: 200 random kill -9 of scheduler and bot during a compressed story; JSON, exit 0 if nothing broke.

The real entry points run as processes against the playground; a service whose replicas play back real vLLM metrics goes
through day and night; people submit, approve, deny and cancel. Then everything is left in peace, and what is stored,
what stands in Slack and what the programs themselves wrote down is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bot.playground import people
from bot.playground.refusal import NotThere
from bot.playground.server import Playground
from demo.house import PROGRAMS, ROOT, end_replicas
from scheduler.jobs.job import JOB_MOVES, TERMINAL_JOB, TERMINAL_TASK, JobId, JobState, Run, RunState
from scheduler.jobs.mail import TERMINAL_NOTICES
from scheduler.store.mailbox import JobView, Mailbox

KINDS_OF_TERMINAL = {str(kind) for kind in TERMINAL_NOTICES}
NODES = {"node-1": 8, "node-2": 8}

SETTINGS = """
[database]
url = "sqlite:///gpujob.sqlite3"
[slack]
bot_token = "xoxb-playground"
app_token = "xapp-playground"
channel = "{channel}"
base_url = "{base_url}"
posts_per_second = 50
[cluster]
tick_s = 0.3
grace_s = 5
state = "state"
[metrics]
interval_s = 0.3
[[node]]
name = "node-1"
gpus = 8
[[node]]
name = "node-2"
gpus = 8
[[service]]
name = "chat"
gpus_per_replica = 4
max_num_seqs = 8
max_replicas = 3
mode = "manage"
drain_s = 3
command = ["python", "{replica}", "--port", "{{port}}", "--name", "{{name}}", "--service", "{{service}}",
  "--load-file", "{folder}/load.txt", "--registry", "{folder}/registry", "--loading-s", "0.5"]
[policy]
busy_window_s = 0.9
idle_window_s = 0.9
min_samples_ratio = 0.5
stale_after_s = 3
stall_s = 30
lower_after_s = 0.5
min_run_s = 1
restart_s = 1
[approval]
approvers = ["{approver}"]
"""

PROGRAM = 'command: [python, "{program}", --steps, "{steps}", --diary, "{folder}/diary.jsonl", --fail, "{fail}"]'
ONE = (
    """gpujob: 1
name: one-{number}
gpus: {gpus}
priority: {priority}
checkpoint: {{every: 10s, on_sigterm: true, save: 1s}}
"""
    + PROGRAM
)
PIPELINE = (
    """gpujob: 1
name: line-{number}
checkpoint: {{every: 10s, on_sigterm: true, save: 1s}}
steps:
  - name: prepare
    gpus: 0
    """
    + PROGRAM
    + """
  - name: train
    needs: [prepare]
    gpus: 2
    sweep: {{seed: [1, 2, 3]}}
    parallel: 2
    """
    + PROGRAM
    + """
  - name: evaluate
    needs: [train]
    gpus: 1
    """
    + PROGRAM
)


@dataclass
class Victim:
    """A process that is killed again and again."""

    name: str
    command: Sequence[str]
    process: asyncio.subprocess.Process | None = None
    started_at: float = 0.0
    kills: int = 0
    after_work: int = 0  # kills after it had finished a turn, or acknowledged something, since its start


@dataclass
class Chaos:
    """The whole run."""

    folder: Path
    kills: int
    chance: random.Random
    slack: Playground
    mailbox: Mailbox
    victims: list[Victim]
    acked_at: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    calm: asyncio.Event = field(default_factory=asyncio.Event)
    between_kills_s: tuple[float, float] = (1.0, 5.5)
    between_jobs_s: tuple[float, float] = (1.5, 3.5)

    async def run(self) -> dict[str, Any]:
        """The story, the kills, the peace after them, and the findings."""
        began = time.monotonic()
        self.load(20)
        for victim in self.victims:
            await self._start(victim)
        await self.slack.until(lambda: self.slack.sockets.connected, 30)
        others = [asyncio.create_task(task) for task in (self._traffic(), self._people(), self._approver())]
        await asyncio.gather(*(self._killer(victim) for victim in self.victims))
        self.calm.set()
        await asyncio.gather(*others)
        self.load(2)
        await self._peace(180)
        await self._end()
        return {**self._findings(), "seconds": round(time.monotonic() - began, 1)}

    def load(self, clients: int) -> None:
        half = self.folder / "load.part"
        half.write_text(str(clients))
        half.replace(self.folder / "load.txt")

    async def _traffic(self) -> None:
        while not self.calm.is_set():
            for clients, seconds in ((2, 7.0), (20, 5.0)):
                self.load(clients)
                await _sleep_unless(self.calm, seconds)

    async def _killer(self, victim: Victim) -> None:
        while sum(each.kills for each in self.victims) < self.kills:
            await asyncio.sleep(self.chance.uniform(*self.between_kills_s))
            worked = await self._has_worked(victim)
            assert victim.process is not None
            if victim.process.returncode is not None:
                raise SystemExit(f"the {victim.name} ended by itself with {victim.process.returncode}")
            victim.process.send_signal(signal.SIGKILL)
            await victim.process.wait()
            victim.kills += 1
            victim.after_work += worked
            await self._start(victim)

    async def _has_worked(self, victim: Victim) -> bool:
        if victim.name == "bot":
            return self.acked_at > victim.started_at
        board = await asyncio.to_thread(self.mailbox.board)
        return board is not None and board.at.timestamp() > victim.started_at

    async def _start(self, victim: Victim) -> None:
        log = (self.folder / f"{victim.name}.log").open("ab")
        victim.started_at = time.time()
        victim.process = await asyncio.create_subprocess_exec(
            *victim.command, stdout=log, stderr=log, cwd=self.folder, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        log.close()

    async def _people(self) -> None:
        number = 0
        while not self.calm.is_set():
            number += 1
            kind = self.chance.choice(("one", "one", "one", "high", "fail", "line", "cancel"))
            text = self._job_file(kind, number)
            if await self._ask(people.U_ANA, f"/gpujob submit {text}"):
                self.asked[kind] += 1
            if kind == "cancel":
                await asyncio.sleep(self.chance.uniform(0.5, 3.0))
                found = await asyncio.to_thread(self.mailbox.jobs, limit=3)
                for job in found:
                    if job.spec.name == f"one-{number}":
                        await self._cancel(job.id)
            await _sleep_unless(self.calm, self.chance.uniform(*self.between_jobs_s))

    async def _cancel(self, job: JobId) -> None:
        """Presses Cancel on the card, if it is there and still has the button."""
        card = await asyncio.to_thread(self.mailbox.card, job)
        if card is not None:
            with contextlib.suppress(ValueError, NotThere):
                await self.slack.click(people.U_ANA, people.C_GPU, card.ts, "gpujob_cancel")

    def _job_file(self, kind: str, number: int) -> str:
        form = PIPELINE if kind == "line" else ONE
        return form.format(
            number=number,
            gpus=self.chance.choice((1, 2, 4, 8)),
            priority="high" if kind == "high" else "normal",
            program=ROOT / "tests" / "chaos_program.py",
            steps=self.chance.randint(10, 60),
            folder=self.folder,
            fail=3 if kind == "fail" else 0,
        )

    async def _approver(self) -> None:
        """Presses the buttons of the cards that wait for approval, until none is left."""
        while not self.calm.is_set() or await self._awaiting():
            for ts, label in await self._awaiting():
                act = "gpujob_approve" if self.chance.random() < 0.7 else "approve-by-command"
                try:
                    if act == "gpujob_approve":
                        await self.slack.click(people.U_BO, people.C_GPU, ts, act)
                    else:
                        await self._ask(people.U_BO, f"/gpujob deny {label} not now")
                except (ValueError, NotThere):
                    continue  # the card was redrawn in the meantime
            await asyncio.sleep(1.0)

    async def _awaiting(self) -> list[tuple[str, str]]:
        jobs = await asyncio.to_thread(self.mailbox.jobs, states=(JobState.AWAITING_APPROVAL,), limit=50)
        found = []
        for job in jobs:
            card = await asyncio.to_thread(self.mailbox.card, job.id)
            if card is not None:
                found.append((card.ts, job.label))
        return found

    async def _ask(self, user: str, text: str) -> bool:
        """One command, typed again while Slack says that nobody took it."""
        for _ in range(20):
            result = await self.slack.command(user, people.C_GPU, text)
            if result.acked_s is not None:
                self.acked_at = time.time()
                return True
            await asyncio.sleep(0.5)
        self.unanswered += 1
        return False

    async def _peace(self, seconds: float) -> None:
        """Until every job has ended, every notice has arrived and every card shows the newest version."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(1.0)
            live = [job for job in await asyncio.to_thread(self._all_jobs) if job.job.state not in TERMINAL_JOB]
            due = await asyncio.to_thread(self.mailbox.due)
            new = await asyncio.to_thread(self.mailbox.unexpanded)
            stale = await asyncio.to_thread(self.mailbox.stale_cards)
            if not live and not due and not new and not stale:
                return

    async def _end(self) -> None:
        for victim in self.victims:
            assert victim.process is not None
            victim.process.send_signal(signal.SIGTERM)
            await victim.process.wait()

    def _all_jobs(self) -> list[JobView]:
        jobs = self.mailbox.jobs(limit=10_000)
        return [view for job in jobs if (view := self.mailbox.job(job.id)) is not None]

    def _findings(self) -> dict[str, Any]:
        views = self._all_jobs()
        messages = list(notices_in_slack(self.slack))
        copies = Counter((message["id"], message["place"]) for message in messages)
        ends: dict[str, list[str]] = defaultdict(list)
        for message in messages:
            if message["kind"] in KINDS_OF_TERMINAL and message["place"] == "thread":
                ends[message["job"]].append(message["kind"])
        diary = _diary(self.folder / "diary.jsonl")
        return {
            "kills": {victim.name: victim.kills for victim in self.victims},
            "kills_after_work": sum(victim.after_work for victim in self.victims),
            "asked": dict(self.asked),
            "commands_never_taken": self.unanswered,
            "jobs": len(views),
            "states": dict(Counter(str(view.job.state) for view in views)),
            "runs": sum(len(view.runs) for view in views),
            "preemptions": sum(view.job.preemptions for view in views),
            "messages": len(messages),
            "jobs_lost": sum(self.asked.values()) - len({view.job.spec.name for view in views}),
            "jobs_doubled": len(views) - len({view.job.spec.name for view in views}),
            "not_ended": [view.job.label for view in views if view.job.state not in TERMINAL_JOB],
            "unlawful": [fault for view in views for fault in _unlawful(view)],
            "terminal_notices_missing": [view.job.label for view in views if not ends[view.job.label]],
            "notices_doubled": sum(count - 1 for count in copies.values()),
            "gpus_in_two_hands": _two_hands([run for view in views for run in view.runs]),
            "tasks_run_twice_at_once": _overlaps(diary),
            "steps_lost": _steps_lost(diary),
        }


def notices_in_slack(slack: Playground) -> Iterator[dict[str, str]]:
    for messages in slack.workspace.messages.values():
        for message in messages:
            metadata = message.metadata or {}
            if metadata.get("event_type") == "gpujob_notice":
                payload = metadata["event_payload"]
                yield {key: str(payload.get(key)) for key in ("id", "job", "kind", "place")}


def _unlawful(view: JobView) -> Iterator[str]:
    """States that cannot stand together."""
    job = view.job
    if job.state not in JOB_MOVES:
        yield f"{job.label} is {job.state}"
    for task in view.tasks:
        done = [run for run in view.runs if run.task == task.name and run.state is RunState.DONE]
        if len(done) > 1:
            yield f"{job.label} {task.name} was done {len(done)} times"
        if job.state in TERMINAL_JOB and task.state not in TERMINAL_TASK:
            yield f"{job.label} is {job.state} and its task {task.name} is {task.state}"
        if job.state is JobState.COMPLETED and not done:
            yield f"{job.label} is completed and {task.name} was never done"
    for run in view.runs:
        if run.ended_at is None:
            yield f"{job.label} {run.uid} has not ended"
            continue
        parts = run.kept_s + run.lost_s + run.restart_s + run.ending_s
        if abs(parts - (run.ended_at - run.since).total_seconds()) > 0.01:
            yield f"{run.uid}: kept, lost, restart and ending do not add up"


def _two_hands(runs: Sequence[Run]) -> list[str]:
    """Moments at which runs held more GPUs of a node than it has."""
    found = []
    for node, size in NODES.items():
        edges: list[tuple[float, int]] = []
        for run in runs:
            if run.started_at and run.ended_at and node in run.placement:
                gpus = run.placement[node]
                edges += [(run.started_at.timestamp(), gpus), (run.ended_at.timestamp(), -gpus)]
        held = 0
        for at, change in sorted(edges):
            held += change
            if held > size:
                found.append(f"{held} GPUs of {node} at {at:.1f}")
    return found


def _diary(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _overlaps(diary: Sequence[dict[str, Any]]) -> int:
    """Starts of a task while another run of it had not ended."""
    going: dict[tuple[str, str], set[str]] = defaultdict(set)
    twice = 0
    for line in diary:
        task = (line["job"], line["task"])
        if line["what"] == "start":
            twice += bool(going[task])
            going[task].add(line["run"])
        else:
            going[task].discard(line["run"])
    return twice


def _steps_lost(diary: Sequence[dict[str, Any]]) -> int:
    """Steps that were done again although the program had saved them."""
    reached: dict[tuple[str, str], int] = {}
    lost = 0
    for line in diary:
        task = (line["job"], line["task"])
        if line["what"] == "start":
            lost += max(0, reached.get(task, 0) - line["step"])
        reached[task] = line["step"]
    return lost


async def _sleep_unless(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


def broken(findings: dict[str, Any]) -> list[str]:
    """Which of the promises were broken."""
    zero = ("jobs_lost", "jobs_doubled", "notices_doubled", "tasks_run_twice_at_once", "steps_lost")
    empty = ("not_ended", "unlawful", "terminal_notices_missing", "gpus_in_two_hands")
    found = [name for name in zero if findings[name]] + [name for name in empty if findings[name]]
    if findings["kills_after_work"] * 2 < sum(findings["kills"].values()):
        found.append("kills_after_work")
    return found


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="leave the folder for a look")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gpujob-chaos-"))
    config = folder / "gpujob.toml"
    async with Playground(port=0, speed=100.0) as slack:
        config.write_text(
            SETTINGS.format(
                channel=people.C_GPU,
                base_url=slack.base_url,
                replica=ROOT / "demo" / "replica.py",
                folder=folder,
                approver=people.U_BO,
            )
        )
        migrate = await asyncio.create_subprocess_exec(
            str(PROGRAMS / "gpujob"), "migrate", "--config", str(config), stdout=asyncio.subprocess.DEVNULL
        )
        assert await migrate.wait() == 0
        mailbox = Mailbox(f"sqlite:///{folder / 'gpujob.sqlite3'}")
        victims = [
            Victim("scheduler", [str(PROGRAMS / "gpujob"), "serve", "--config", str(config)]),
            Victim("bot", [str(PROGRAMS / "gpujob-bot"), "serve", "--config", str(config)]),
        ]
        chaos = Chaos(folder, options.kills, random.Random(options.seed), slack, mailbox, victims)
        try:
            findings = await chaos.run()
        finally:
            for victim in victims:
                if victim.process is not None and victim.process.returncode is None:
                    victim.process.kill()
            end_replicas(folder)
            mailbox.close()
    faults = broken(findings)
    print(json.dumps({**findings, "broken": faults}, indent=1))
    if options.keep or faults:
        print(f"kept: {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
