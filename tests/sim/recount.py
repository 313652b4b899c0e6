"""The figures counted again, from the event log, the input files and the README of the benchmark alone.

`python -m tests.sim.recount SCENARIO.toml EVENTS.jsonl.gz FIGURES.json` says where they differ by more than 0.1 %.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

STEP_S = 10
DEAF_S = 30.0  # a job that does not save is gone after so long


class Broken(AssertionError):
    """A rule of the world was broken."""


class Recount:
    def __init__(self, scenario: Mapping[str, Any], folder: Path) -> None:
        told = {
            "nodes": 19, "gpus_per_node": 8, "start_s": 0, "measure_from_s": 86400, "end_s": 604800, "grace_s": 60,
            "drain_s": 30, "cleanup_s": 5, "move_s": 210, "arrivals": "saturated", "visible_jobs": 60,
        } | dict(scenario)  # fmt: skip
        self.told = told
        self.begin, self.end = float(told["measure_from_s"]), float(told["end_s"])
        self.sizes = {service["name"]: service["gpus_per_replica"] for service in told["service"]}
        with gzip.open(folder / told["jobs"], "rt") as file:
            self.jobs = {int(row["job"]): row for row in csv.DictReader(file)}
        self.names, self.wanted = read_wanted(folder / told["demand"])
        self.held: Counter[int] = Counter()  # GPUs by node
        self.replicas: dict[int, dict[str, Any]] = {}
        self.queue: list[int] = []
        self.waits: list[float] = []
        self.runs: dict[int, dict[str, Any]] = {}
        self.kept: defaultdict[int, float] = defaultdict(float)
        self.done: dict[int, float] = {}
        self.first: dict[int, float] = {}
        self.useful = self.lost = self.restart = 0.0
        self.stops = self.scale_ups = 0
        self.now = 0.0

    def count(self, events: Iterable[Mapping[str, Any]]) -> Mapping[str, float]:
        for event in events:
            if event["t"] < self.now:
                raise Broken(f"time went back at {event}")
            self.now = event["t"]
            getattr(self, f"on_{event['what']}")(event)
        for job, run in list(self.runs.items()):
            if not run["stopped"]:
                self.ended(job, run, self.end, self.progress(job, run, self.end))
        for replica in self.queue:
            if self.counts(self.replicas[replica]):
                self.waits.append(self.end - self.replicas[replica]["asked"])
        return self.figures()

    # services

    def on_replica_asked(self, event: Mapping[str, Any]) -> None:
        self.replicas[event["replica"]] = {"asked": event["t"], "service": event["service"], "node": None}
        self.queue.append(event["replica"])
        self.scale_ups += self.counts(self.replicas[event["replica"]])

    def counts(self, replica: Mapping[str, Any]) -> bool:
        return self.begin <= replica["asked"] < self.end and replica["asked"] > self.told["start_s"]

    def on_replica_start(self, event: Mapping[str, Any]) -> None:
        number = event["replica"]
        if "moved_from" in event:
            self.replicas[number] = {"asked": event["t"], "service": event["service"], "node": None}
        else:
            if self.queue.pop(0) != number:
                raise Broken(f"replica {number} was served before others that came earlier, at {event['t']}")
            if self.counts(self.replicas[number]):
                self.waits.append(event["t"] - self.replicas[number]["asked"])
        self.replicas[number]["node"] = event["node"]
        self.take(event["node"], self.sizes[event["service"]])

    def on_replica_cancelled(self, event: Mapping[str, Any]) -> None:
        replica = self.replicas.pop(event["replica"])
        self.queue.remove(event["replica"])
        if self.counts(replica):
            self.waits.append(event["t"] - replica["asked"])

    def on_replica_leave(self, event: Mapping[str, Any]) -> None:
        hold = self.told["move_s"] if event.get("moved") else self.told["drain_s"]
        self.replicas[event["replica"]]["gone"] = event["t"] + hold

    def on_replica_gone(self, event: Mapping[str, Any]) -> None:
        replica = self.replicas.pop(event["replica"])
        near(event["t"], replica["gone"], f"replica {event['replica']} is gone")
        self.held[replica["node"]] -= self.sizes[replica["service"]]

    # jobs

    def on_job_start(self, event: Mapping[str, Any]) -> None:
        job = event["job"]
        row = self.jobs[job]
        if job in self.runs or job in self.done:
            raise Broken(f"job {job} was started twice, at {event['t']}")
        self.must_be_visible(job, event["t"])
        if sum(event["gpus"].values()) != int(row["gpus"]):
            raise Broken(f"job {job} asks {row['gpus']} GPUs and got {event['gpus']}")
        if len(event["gpus"]) != max(1, -(-int(row["gpus"]) // self.told["gpus_per_node"])):
            raise Broken(f"job {job} stands on too many nodes: {event['gpus']}")
        for node, gpus in event["gpus"].items():
            self.take(int(node), gpus)
        self.first.setdefault(job, event["t"])
        self.runs[job] = {"since": event["t"], "gpus": event["gpus"], "base": self.kept[job], "stopped": None}

    def must_be_visible(self, job: int, at: float) -> None:
        if self.told["arrivals"] == "open":
            if float(self.jobs[job]["submit_s"]) > at:
                raise Broken(f"job {job} was started before it was submitted")
            return
        left = self.told["visible_jobs"]
        for number in self.jobs:
            if number == job:
                return
            left -= number not in self.done
            if left <= 0:
                raise Broken(f"job {job} was started before it could be seen, at {at}")

    def on_job_stop(self, event: Mapping[str, Any]) -> None:
        job, at = event["job"], event["t"]
        row, run = self.jobs[job], self.runs[job]
        made = self.progress(job, run, at)
        saves, save_s = row["saves_on_sigterm"] == "1", float(row["save_s"])
        if saves and (not event["urgent"] or save_s <= self.told["grace_s"]):
            kept, hold = made, save_s
        else:
            every = float(row["checkpoint_s"] or 0)
            kept = run["base"] + (made - run["base"]) // every * every if every else 0.0
            hold = self.told["grace_s"] if saves else DEAF_S
        run["stopped"] = at + hold + self.told["cleanup_s"]
        if self.begin <= at < self.end:
            self.stops += 1
            self.lost += (made - kept) * int(row["gpus"])
        self.ended(job, run, at, kept)

    def on_job_gone(self, event: Mapping[str, Any]) -> None:
        run = self.runs.pop(event["job"])
        near(event["t"], run["stopped"], f"job {event['job']} is gone")
        near(event["kept_s"], self.kept[event["job"]], f"job {event['job']} keeps")
        self.give(run)

    def on_job_done(self, event: Mapping[str, Any]) -> None:
        job = event["job"]
        run, work = self.runs.pop(job), float(self.jobs[job]["work_s"])
        near(self.progress(job, run, event["t"]), work, f"job {job} is done")
        self.ended(job, run, event["t"], work)
        self.done[job] = event["t"]
        self.give(run)

    def progress(self, job: int, run: Mapping[str, Any], at: float) -> float:
        return float(run["base"] + max(0.0, at - run["since"] - float(self.jobs[job]["restart_s"])))

    def ended(self, job: int, run: Mapping[str, Any], at: float, kept: float) -> None:
        gpus, restart_s = int(self.jobs[job]["gpus"]), float(self.jobs[job]["restart_s"])
        before = self.progress(job, run, self.begin) if run["since"] < self.begin else run["base"]
        self.useful += max(0.0, kept - before) * gpus
        self.restart += max(0.0, min(run["since"] + restart_s, at, self.end) - max(run["since"], self.begin)) * gpus
        self.kept[job] = kept

    # GPUs

    def take(self, node: int, gpus: int) -> None:
        self.held[node] += gpus
        if self.held[node] > self.told["gpus_per_node"]:
            raise Broken(f"{self.held[node]} GPUs of node {node} are held at {self.now}")

    def give(self, run: Mapping[str, Any]) -> None:
        for node, gpus in run["gpus"].items():
            self.held[int(node)] -= gpus

    def figures(self) -> Mapping[str, float]:
        first, last = int(self.begin // STEP_S), int(self.end // STEP_S)
        gpus = self.told["nodes"] * self.told["gpus_per_node"]
        size = next(iter(self.sizes.values()))
        wanted = [sum(row) for row in self.wanted[first:last]]
        idle = sum(gpus - size * want for want in wanted) * STEP_S
        oracle = size * sum(self.stretches(wanted, gpus // size - level) for level in range(1, gpus // size + 1))
        work = self.useful + self.lost + self.restart
        return {
            "useful_gpu_hours": self.useful / 3600,
            "idle_gpu_hours": idle / 3600,
            "oracle_gpu_hours": oracle / 3600,
            "useful_over_oracle": self.useful / oracle,
            "lost_share": self.lost / work,
            "restart_share": self.restart / work,
            "preemptions": self.stops,
            "scale_ups": self.scale_ups,
            "scale_ups_waited_share": sum(wait > 0 for wait in self.waits) / max(len(self.waits), 1),
            "scale_up_wait_mean_s": sum(self.waits) / max(len(self.waits), 1),
            "scale_up_wait_max_s": max(self.waits, default=0.0),
        }

    def stretches(self, wanted: Sequence[int], most: int) -> float:
        total, since = 0.0, None
        for number, want in enumerate([*wanted, most + 1]):
            if want <= most and since is None:
                since = number
            elif want > most and since is not None:
                price = 150.0 * (since > 0) + 52.0 * (number < len(wanted))
                total += max(0.0, (number - since) * STEP_S - price)
                since = None
        return total


def near(found: float, told: float, what: str) -> None:
    if abs(found - told) > 1e-3:
        raise Broken(f"{what}: {found}, by the rules {told}")


def read_wanted(path: Path) -> tuple[list[str], list[list[int]]]:
    with gzip.open(path, "rt") as file:
        rows = csv.DictReader(file)
        keys = [key for key in rows.fieldnames or () if key.endswith(":wanted")]
        return keys, [[int(row[key]) for key in keys] for row in rows]


def recount(scenario: Path, events: Path) -> Mapping[str, float]:
    with gzip.open(events, "rt") as lines:
        told = tomllib.loads(scenario.read_text())
        return Recount(told, scenario.parent).count(json.loads(line) for line in lines)


def differences(found: Mapping[str, float], figures: Mapping[str, float]) -> list[str]:
    """Figures that differ by more than 0.1 %."""
    return [
        f"{key}: {figures[key]}, counted again {value}"
        for key, value in found.items()
        if abs(figures[key] - value) > 1e-3 * max(abs(value), 1e-6)
    ]


if __name__ == "__main__":
    wrong = differences(recount(Path(sys.argv[1]), Path(sys.argv[2])), json.loads(Path(sys.argv[3]).read_text()))
    print("\n".join(wrong) or "The figures agree.")
    sys.exit(bool(wrong))
