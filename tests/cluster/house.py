"""gpujob as it is installed, on a plane: the real processes, the settings file, a serving Deployment, and who watches.

Nothing here knows how gpujob works inside: jobs go in by the mailbox as the bot puts them there, and what became of
them is read from the database and from the API server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from scheduler.adapters.kube.api import MERGE, Gone, Refused
from scheduler.errors import Unavailable
from scheduler.jobs.job import JobId
from scheduler.jobs.mail import Person, Submit
from scheduler.store.mailbox import JobView, Mailbox
from tests.cluster.plane import Plane
from tests.cluster.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
PROGRAM = ROOT / "tests" / "chaos_program.py"
ANA = Person(id="U_ANA")
SERVICE = "chat"

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
kind = "kubernetes"
kubeconfig = "{kubeconfig}"
namespace = "{namespace}"
tick_s = {tick_s}
grace_s = {grace_s}
stale_s = {stale_s}
[storage]
root = "file://{folder}/storage"
[metrics]
interval_s = 1
[[service]]
name = "chat"
namespace = "{serving}"
deployment = "chat"
gpus_per_replica = {gpus_per_replica}
max_num_seqs = 8
min_replicas = 0
max_replicas = 16
mode = "observe"
[policy]
busy_window_s = 3
idle_window_s = 3
stale_after_s = 5
min_run_s = 1
restart_s = 1
[approval]
approvers = ["{approver}"]
"""

JOB = """gpujob: 1
name: {name}
image: registry.example.com/research/chaos:1
gpus: {gpus}
checkpoint: {{every: 10s, on_sigterm: true, save: 1s}}
command: [python, "{program}", --steps, "{steps}", --diary, "{diary}", --save-s, "{save_s}"]
"""


class House:
    """One installation in a folder. The scheduler may be killed and started as often as one likes."""

    def __init__(
        self,
        plane: Plane,
        folder: Path,
        *,
        grace_s: float = 5.0,
        tick_s: float = 1.0,
        gpus_per_replica: int = 4,
        stale_s: float = 30.0,
        kubeconfig: Path | None = None,
        channel: str = "C0GPU",
        base_url: str = "http://127.0.0.1:1/api/",
        approver: str = "U_BO",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.plane, self.folder, self.grace_s = plane, folder, grace_s
        self.config, self.diary, self.log = folder / "gpujob.toml", folder / "diary.jsonl", folder / "scheduler.log"
        self.config.write_text(
            SETTINGS.format(
                channel=channel,
                base_url=base_url,
                approver=approver,
                kubeconfig=kubeconfig or plane.kubeconfig("gpujob"),
                namespace=plane.namespace,
                serving=plane.serving,
                tick_s=tick_s,
                grace_s=grace_s,
                stale_s=stale_s,
                gpus_per_replica=gpus_per_replica,
                folder=folder,
            )
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._bot: subprocess.Popen[bytes] | None = None
        self._run("gpujob", "migrate")
        self.mailbox = Mailbox(f"sqlite:///{folder / 'gpujob.sqlite3'}")
        self._keys = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._bot is not None:
            self._bot.kill()
            self._bot.wait()
        self.mailbox.close()

    # its process

    def serve(self) -> None:
        """The scheduler. Returns at once."""
        self._process = self._start(self.log, "gpujob", "serve")

    def serve_until_it_turns(self) -> None:
        """The scheduler, back from its first turn."""
        began = datetime.now(UTC)
        self.serve()
        until(lambda: (board := self.mailbox.board()) is not None and board.at > began, 60.0, self.tail)

    def speak(self) -> None:
        """The bot. Returns at once."""
        self._bot = self._start(self.folder / "bot.log", "gpujob-bot", "serve")

    def kill(self) -> None:
        """kill -9 of the scheduler."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self, log: Path, *words: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen(
                self._words(*words), cwd=self.folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=_clean()
            )

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tail(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    def asked(self, *words: str) -> str:
        """What a command of the operator prints."""
        return self._run("gpujob", *words)

    def _run(self, *words: str) -> str:
        done = subprocess.run(self._words(*words), cwd=self.folder, env=_clean(), capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def _words(self, program: str, *words: str) -> list[str]:
        return [str(PROGRAMS / program), *words, "--config", str(self.config)]

    # jobs

    def submit(self, text: str) -> JobId:
        """As the bot would: one request, and the answer to it."""
        self._keys += 1
        request = self.mailbox.send(f"house-{self._keys}", ANA, datetime.now(UTC), Submit(text=text))
        answer = until(lambda: self.mailbox.answer(request), 60.0, self.tail)
        assert answer is not None
        assert answer.job is not None, answer
        return answer.job

    def counting(self, name: str, gpus: int, steps: int, save_s: float = 0.0) -> str:
        """A job that counts to `steps`, 20 a second; on SIGTERM it saves for so long, and goes on from there later."""
        return JOB.format(name=name, gpus=gpus, steps=steps, save_s=save_s, program=PROGRAM, diary=self.diary)

    def views(self) -> list[JobView]:
        """All jobs."""
        jobs = self.mailbox.jobs(limit=10_000)
        return [view for job in jobs if (view := self.mailbox.job(job.id)) is not None]


@dataclass
class Seen:
    """One pod, by the clock of this process; None = not yet."""

    name: str
    labels: Mapping[str, str]
    gpus: int
    made: float
    bound: float | None = None
    bound_at: datetime | None = None  # the same, by the clock of the day
    node: str = ""
    leaving: float | None = None
    terminal: float | None = None
    gone: float | None = None
    gated: bool = False
    ungated: float | None = None
    phase: str = ""
    main: dict[str, Any] = field(default_factory=dict)  # the last state of its first container
    disrupted: str = ""


class Eyes(threading.Thread):
    """Somebody who watches all pods and is no part of gpujob."""

    def __init__(self, plane: Plane) -> None:
        super().__init__(daemon=True, name="eyes")
        self._api = plane.api("admin")
        self.pods: dict[str, Seen] = {}
        self.changed = threading.Condition()
        self._ends = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()

    def run(self) -> None:
        while not self._ends.is_set():
            try:
                listed = self._api.get("/api/v1/pods")
                self._see_all(listed["items"])
                for kind, raw in self._api.watch("/api/v1/pods", listed["metadata"]["resourceVersion"], 600, 120.0):
                    if self._ends.is_set():
                        return
                    if kind != "BOOKMARK":
                        self._see(kind, raw)
            except (Unavailable, Gone, Refused):
                self._ends.wait(0.1)

    def _see_all(self, pods: Iterable[Mapping[str, Any]]) -> None:
        there = set()
        for raw in pods:
            there.add(raw["metadata"]["uid"])
            self._see("ADDED", raw)
        with self.changed:
            for uid, seen in self.pods.items():
                if uid not in there and seen.gone is None:
                    seen.gone = time.monotonic()
            self.changed.notify_all()

    def _see(self, kind: str, raw: Mapping[str, Any]) -> None:
        now, meta, spec, status = time.monotonic(), raw["metadata"], raw["spec"], raw["status"]
        with self.changed:
            seen = self.pods.get(meta["uid"])
            if seen is None:
                seen = Seen(name=meta["name"], labels=meta.get("labels") or {}, gpus=_gpus(spec), made=now)
                self.pods[meta["uid"]] = seen
            if spec.get("schedulingGates"):
                seen.gated = True
            elif seen.gated and seen.ungated is None:
                seen.ungated = now
            if spec.get("nodeName") and seen.bound is None:
                seen.bound, seen.node, seen.bound_at = now, spec["nodeName"], datetime.now(UTC)
            if meta.get("deletionTimestamp") and seen.leaving is None:
                seen.leaving = now
            seen.phase = status.get("phase", "")
            if seen.phase in ("Succeeded", "Failed") and seen.terminal is None:
                seen.terminal = now
            conditions = {one["type"]: one for one in status.get("conditions") or ()}
            seen.disrupted = (conditions.get("DisruptionTarget") or {}).get("reason", "") or seen.disrupted
            states = [one for one in status.get("containerStatuses") or () if one["name"] in ("main", "vllm")]
            seen.main = states[0]["state"] if states else seen.main
            if kind == "DELETED":
                seen.gone = now
            self.changed.notify_all()

    def holding(self) -> int:
        """GPUs of pods that are bound and have not ended."""
        with self.changed:
            return sum(p.gpus for p in self.pods.values() if p.bound and p.terminal is None and p.gone is None)

    def serving(self) -> list[Seen]:
        """Pods of the service that are not gone."""
        with self.changed:
            return [pod for pod in self.pods.values() if pod.labels.get("app") == SERVICE and pod.gone is None]

    def until(self, look: Callable[[], object], seconds: float, what: object = "") -> None:
        """Looks again at each event."""
        end = time.monotonic() + seconds
        with self.changed:
            while not look():
                left = end - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
                self.changed.wait(min(left, 0.5))


class Serving:
    """A Deployment of vLLM pods, played by the kubelet: their GPUs are real to everybody."""

    def __init__(self, plane: Plane, gpus: int, replicas: int = 0, scheduler: str = "default-scheduler") -> None:
        self._api = plane.api("admin")
        self._path = f"/apis/apps/v1/namespaces/{plane.serving}/deployments"
        container = {"name": "vllm", "image": "vllm:1", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 1, "schedulerName": scheduler}
        template = {"metadata": {"labels": {"app": SERVICE}}, "spec": spec}
        told = {"replicas": replicas, "selector": {"matchLabels": {"app": SERVICE}}, "template": template}
        self._api.create(self._path, {"metadata": {"name": SERVICE}, "spec": told})

    def scale(self, replicas: int) -> None:
        """As its autoscaler would."""
        self._api.patch(f"{self._path}/{SERVICE}/scale", {"spec": {"replicas": replicas}}, MERGE)


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """p50, p99, max, in the unit of the values; nearest rank."""
    ordered = sorted(values)
    if not ordered:
        return {}
    ranks = {"p50": 0.50, "p99": 0.99}
    found = {name: ordered[max(0, -(-int(100 * share) * len(ordered) // 100) - 1)] for name, share in ranks.items()}
    return {name: round(value, 3) for name, value in {**found, "max": ordered[-1]}.items()} | {"n": len(ordered)}


def _gpus(spec: Mapping[str, Any]) -> int:
    limits = [(one.get("resources") or {}).get("limits") or {} for one in spec["containers"]]
    return sum(int(one.get("nvidia.com/gpu", 0)) for one in limits)


def _clean() -> dict[str, str]:
    """The environment without settings of ours that somebody may have set."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GPUJOB")}
