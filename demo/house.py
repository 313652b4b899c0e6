"""What the story runs on: a folder, its settings, and the processes that are started and ended with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent
GRACE_S = 8

SETTINGS = """\
# Settings of the demo: two nodes of 8 GPUs, one service of up to three replicas with 4 GPUs each.
[database]
url = "sqlite:///gpujob.sqlite3"

[slack]
bot_token = "xoxb-playground"
app_token = "xapp-playground"
channel = "{channel}"
base_url = "{slack}/api/"
posts_per_second = 20

[cluster]
kind = "local"
tick_s = 0.5
grace_s = {grace}
state = "state"

[[node]]
name = "node-1"
gpus = 8

[[node]]
name = "node-2"
gpus = 8

[metrics]
kind = "scrape"
interval_s = 0.5

[[service]]
name = "chat"
gpus_per_replica = 4
max_num_seqs = 8
min_replicas = 1
max_replicas = 3
mode = "manage"
drain_s = 5
command = [
  "python", "{replica}", "--port", "{{port}}", "--name", "{{name}}", "--service", "{{service}}",
  "--load-file", "{folder}/load.txt", "--registry", "{folder}/registry",
  "--signals", "{folder}/signals.jsonl", "--loading-s", "2.5",
]

[policy]
# A night in two minutes: every span is short.
busy_window_s = 3
idle_window_s = 5
stale_after_s = 4
stall_s = 30
lower_after_s = 6
min_run_s = 5
restart_s = 2

[approval]
approvers = ["{approver}"]

[money]
currency = "USD"
per_gpu_hour = 2.5

[storage]
root = "file://{folder}/storage"
"""


class Stopped(Exception):
    """One of the processes ended by itself, or something expected did not happen in time."""


class House:
    """Playground, scheduler and bot, with their logs in one folder."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port if port and _is_free(port) else _any_port()
        self.slack = f"http://127.0.0.1:{self.port}"
        self.config = folder / "gpujob.toml"
        self.people: dict[str, str] = {}  # name -> Slack's id
        self.channel = ""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def open(self) -> None:
        """Writes the settings and starts everything."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.load(20)
        self._start("playground", "gpujob-playground", "--port", str(self.port))
        seen = self.until("the playground answers", lambda: self.get("/playground/state"), 20)
        self.people = {person["name"]: user for user, person in seen["people"].items()}
        self.channel = next(room["id"] for room in seen["channels"] if room["name"] == "gpu-jobs")
        self.config.write_text(
            SETTINGS.format(
                slack=self.slack,
                folder=self.folder,
                replica=ROOT / "demo" / "replica.py",
                grace=GRACE_S,
                channel=self.channel,
                approver=self.people["bo"],
            )
        )
        self._start("scheduler", "gpujob", "serve", "--config", str(self.config))
        self._start("bot", "gpujob-bot", "serve", "--config", str(self.config))
        self.until("the bot is connected", lambda: self.get("/playground/state")["connected"], 30)

    def close(self) -> None:
        """Ends what was started, newest first: jobs, processes, and the service's replicas last."""
        scheduler = self.processes.get("scheduler")
        if scheduler is not None and scheduler.poll() is None:
            self._end_jobs()
        for name in reversed(list(self.processes)):
            process = self.processes[name]
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
        end_replicas(self.folder)

    def load(self, clients: int) -> None:
        """How many people use the service now."""
        half = self.folder / "load.txt.part"
        half.write_text(str(clients))
        half.replace(self.folder / "load.txt")

    def gpujob(self, *words: str) -> Any:
        """What `gpujob WORDS --json` answers."""
        command = [str(PROGRAMS / "gpujob"), *words, "--json", "--config", str(self.config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode > 1:
            raise Stopped(f"gpujob {' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr[-500:]}")
        return json.loads(done.stdout)

    def get(self, path: str) -> Any:
        """What the playground shows."""
        with urllib.request.urlopen(f"{self.slack}{path}", timeout=10) as answer:
            return json.load(answer)

    def act(self, person: str, path: str, **body: Any) -> Any:
        """What a person does on the playground's page, in the channel of the jobs."""
        body = {"user": self.people[person], "channel": self.channel, **body}
        request = urllib.request.Request(
            f"{self.slack}/playground/{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["result"]

    def until(self, what: str, holds: Callable[[], Any], seconds: float) -> Any:
        """Waits for something; gives what it was."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._all_alive()
            try:
                found = holds()
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                found = None
            if found:
                return found
            time.sleep(0.2)
        raise Stopped(f"not within {seconds:g} s: {what}")

    def _start(self, name: str, program: str, *words: str) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(PROGRAMS / program), *words], stdout=log, stderr=log, env=environment, cwd=self.folder
            )

    def _all_alive(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                tail = (self.folder / f"{name}.log").read_text(errors="replace")[-1500:]
                raise Stopped(f"the {name} ended with {process.returncode}:\n{tail}")

    def _end_jobs(self) -> None:
        """Programs outlive the scheduler too: what people still run here is cancelled while it can be."""
        with contextlib.suppress(Stopped, subprocess.SubprocessError, OSError, ValueError):
            for job in self._unfinished():
                self.gpujob("cancel", job["id"], "--as", job["owner"])
            self.until("all jobs have ended", lambda: not self._unfinished(), GRACE_S + 3)

    def _unfinished(self) -> list[Any]:
        return [job for state in ("waiting", "running") for job in self.gpujob("list", "--state", state)["jobs"]]


def end_replicas(folder: Path) -> None:
    """Replicas outlive the scheduler, as Deployments do; those of this folder end here."""
    for number in _pids(f"{ROOT / 'demo' / 'replica.py'}", str(folder)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGTERM)


def _pids(*words: str) -> Sequence[int]:
    """Processes whose command line holds all these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in line for word in words):
            found.append(int(entry.name))
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _any_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
