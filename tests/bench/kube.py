"""A large cluster in the real API server: `python -m tests.bench.kube` (needs `make cluster`'s parts); JSON.

1,000 nodes with 8 GPUs and 10,000 pods, made as objects; ten of the nodes are played, so that jobs run there. Measured:
the first sync, memory, whole turns; the time from the wish for a replica to the eviction of a job for it; and what
happens when the network falls silent without closing anything.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from scheduler.adapters.kube.api import Api, Refused
from scheduler.adapters.kube.names import TASK
from scheduler.configfile import load
from scheduler.jobs.mail import Submit
from scheduler.settings import read
from scheduler.wiring import clock, house
from tests.cluster.control_plane import ControlPlane, end_tidily
from tests.cluster.fakelet import Fakelet
from tests.cluster.house import ANA, PROGRAM, ROOT, Eyes, House, Serving, quantiles
from tests.cluster.proxy import SilentProxy
from tests.cluster.waiting import until

PLAYED = {f"played-{number}": 8 for number in range(10)}
ELSEWHERE = "elsewhere"  # the namespace of pods that are none of ours
TURNS = 7
NOTICED_S = 90.0
JOB = """gpujob: 1
name: big-{number}
image: registry.example.com/research/chaos:1
gpus: 8
sweep: {{seed: {seeds}}}
checkpoint: {{every: 10s, on_sigterm: true, save: 1s}}
command: [python, "{program}", --steps, "1000000", --diary, "{diary}"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of the cluster, and of the measurement."""

    nodes: int = 1_000
    pods: int = 10_000  # with the attempts that wait
    jobs: int = 4
    tasks: int = 250  # of each job; each wants a whole node
    events: int = 100  # wishes for a replica
    stale_s: float = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=100, help="wishes for a replica")
    parser.add_argument(
        "--measure", type=Path, metavar="CONFIG", help="only sync and turns, on a cluster that is there"
    )
    parser.add_argument("--attempts", type=int, default=0, help="with --measure: how many Argo will make")
    options = parser.parse_args()
    end_tidily()
    if options.measure is not None:
        print(json.dumps(measured(options.measure, options.attempts)))
        return 0
    size = Size(nodes=options.nodes, pods=options.pods, events=options.events)
    folder = Path(tempfile.mkdtemp(prefix="gpujob-bench-kube-"))
    try:
        print(json.dumps(bench(folder, size), indent=2))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def bench(folder: Path, size: Size) -> Mapping[str, Any]:
    """All numbers."""
    told: dict[str, Any] = {"nodes": size.nodes, "pods": size.pods}
    with ControlPlane(folder / "plane") as plane, SilentProxy(plane.port) as proxy:
        began = time.monotonic()
        _fill(plane, size.nodes - len(PLAYED), size.pods - size.jobs * size.tasks)
        told["made_in_s"] = round(time.monotonic() - began, 1)
        way = plane.kubeconfig("gpujob", f"https://127.0.0.1:{proxy.port}")
        kubelet = Fakelet(plane.api("admin"), PLAYED, folder / "kubelet", tls=plane.tls)
        home = House(plane, folder / "house", gpus_per_replica=8, kubeconfig=way, stale_s=size.stale_s)
        with kubelet, home, Eyes(plane) as eyes:
            for number in range(size.jobs):
                text = JOB.format(number=number, seeds=list(range(size.tasks)), program=PROGRAM, diary=home.diary)
                home.mailbox.send(f"bench-{number}", ANA, datetime.now(UTC), Submit(text=text))
            told |= _apart(home.config, size.jobs * size.tasks)
            home.serve_until_it_turns()
            told["api_server_rss_mib"] = _rss_mib(plane.parts["kube-apiserver"].pid)
            told["wish_to_eviction_s"] = _wishes(plane, eyes, home, size.events)
            told["watches_frozen"] = _frozen(plane, eyes, home, proxy)
            told["silence"] = _silence(plane, eyes, home, proxy)
            told["gpus_in_two_hands"] = list(kubelet.violations)
    return told


# sync and turns, in a process of its own


def measured(config: Path, attempts: int) -> Mapping[str, Any]:
    """First sync, memory, and turns while all tasks wait behind their gates."""
    before = _rss_mib(None)
    parts = house(read(load(config, {})))
    began = time.monotonic()
    parts.ground.take()
    told: dict[str, Any] = {"first_sync_s": round(time.monotonic() - began, 2)}
    told["rss_mib"] = {"before": before, "after_sync": _rss_mib(None)}
    while parts.cycle.take_in(clock()):
        continue
    began = time.monotonic()
    parts.cycle.turn(parts.cycle.observe(clock()))
    told["first_turn_s"] = round(time.monotonic() - began, 2)
    time.sleep(attempts / 50)  # Argo makes them
    took = [_turn(parts) for _ in range(TURNS)]
    told["turn_s"] = {"median": round(median(took), 3), "slowest": round(max(took), 3)}
    told["rss_mib"]["after_turns"] = _rss_mib(None)
    parts.outside.leadership.let_go(parts.cycle.owner)
    parts.ground.leave()
    parts.store.close()
    return told


def _turn(parts: Any) -> float:
    began = time.monotonic()
    parts.cycle.turn(parts.cycle.observe(clock()))
    return time.monotonic() - began


def _apart(config: Path, attempts: int) -> dict[str, Any]:
    words = [sys.executable, "-m", "tests.bench.kube", "--measure", str(config), "--attempts", str(attempts)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# what happens to a running scheduler


def _wishes(plane: ControlPlane, eyes: Eyes, home: House, events: int) -> Mapping[str, Any]:
    """From the Deployment's new count, stored, to a job's deletionTimestamp, seen; kube-scheduler is not asked."""
    serving = Serving(plane, 8, scheduler="nobody")
    took = []
    for _ in range(events):
        eyes.until(lambda: len(_running(eyes)) == len(PLAYED), 180.0, home.tail)
        time.sleep(0.5)
        serving.scale(1)
        began = time.monotonic()
        eyes.until(lambda: len(_running(eyes)) < len(PLAYED), 30.0, home.tail)
        took.append(time.monotonic() - began)
        serving.scale(0)
        eyes.until(lambda: not eyes.serving(), 30.0, home.tail)
    return quantiles(took)


def _frozen(plane: ControlPlane, eyes: Eyes, home: House, proxy: SilentProxy) -> Mapping[str, Any]:
    """The connections that are open fall silent, new ones work: how long until freed GPUs are seen."""
    eyes.until(lambda: len(_running(eyes)) == len(PLAYED), 180.0, home.tail)
    proxy.freeze()
    began = time.monotonic()
    freed = _free(plane, 0)
    eyes.until(lambda: any(pod.node == freed for pod in _attempts(eyes)), 180.0, home.tail)
    return {"seen_after_s": round(time.monotonic() - began, 1)}


def _silence(plane: ControlPlane, eyes: Eyes, home: House, proxy: SilentProxy) -> Mapping[str, Any]:
    """Nothing gets through: how long until it is said, and what was released meanwhile."""
    time.sleep(5.0)
    size = home.log.stat().st_size
    proxy.silence()
    began = time.monotonic()
    _free(plane, 1)
    released = len(_attempts(eyes))
    until(lambda: "tick=turn failed=" in _since(home, size), NOTICED_S + 60, home.tail)
    told = {
        "noticed_after_s": round(time.monotonic() - began, 1),
        "most_allowed_s": NOTICED_S,
        "said": next(line for line in _since(home, size).splitlines() if "failed=" in line)[:300],
        "released_meanwhile": len(_attempts(eyes)) - released,
    }
    proxy.speak()
    began = time.monotonic()
    eyes.until(lambda: len(_attempts(eyes)) > released, 180.0, home.tail)
    return {**told, "back_after_s": round(time.monotonic() - began, 1)}


def _since(home: House, size: int) -> str:
    with home.log.open("rb") as file:
        file.seek(size)
        return file.read().decode(errors="replace")


def _attempts(eyes: Eyes) -> list[Any]:
    """Pods of jobs whose gate was opened."""
    with eyes.changed:
        return [pod for pod in eyes.pods.values() if TASK in pod.labels and pod.ungated is not None]


def _running(eyes: Eyes) -> list[Any]:
    return [pod for pod in _attempts(eyes) if pod.phase == "Running" and pod.leaving is None and pod.gone is None]


# the cluster


def _fill(plane: ControlPlane, nodes: int, pods: int) -> None:
    """Nodes that are full of other people's pods, and many pods without GPUs."""
    admin = plane.api("admin")
    admin.create("/api/v1/namespaces", {"metadata": {"name": ELSEWHERE}})
    until(lambda: _is_there(admin, f"/api/v1/namespaces/{ELSEWHERE}/serviceaccounts/default"), 30.0)
    _all("/api/v1/nodes", (_node(f"node-{number}") for number in range(nodes)), admin)
    full = (_pod(f"full-{number}", f"node-{number}", 8) for number in range(nodes))
    small = (_pod(f"small-{number}", f"node-{number % nodes}", 0) for number in range(pods - nodes))
    for made in (full, small):
        _all(f"/api/v1/namespaces/{ELSEWHERE}/pods", made, admin)


def _free(plane: ControlPlane, number: int) -> str:
    """A node of other people becomes idle; nobody plays it, so what is released there only binds."""
    path = f"/api/v1/namespaces/{ELSEWHERE}/pods/full-{number}"
    plane.api("admin").delete(path, {"gracePeriodSeconds": 0})
    return f"node-{number}"


def _all(path: str, bodies: Iterable[Mapping[str, Any]], admin: Api) -> None:
    with ThreadPoolExecutor(16) as hands:
        for made in hands.map(lambda body: admin.create(path, body), bodies):
            assert made["metadata"]["uid"]


def _node(name: str) -> Mapping[str, Any]:
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "250", "nvidia.com/gpu": "8"}
    ready = {"type": "Ready", "status": "True", "reason": "Made", "message": "an object"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.present": "true"}},
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]},
    }


def _pod(name: str, node: str, gpus: int) -> Mapping[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {"requests": {"cpu": "100m"}}
    container = {"name": "main", "image": "someone/else:1", "resources": resources}
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container]}}


def _is_there(admin: Api, path: str) -> bool:
    try:
        return bool(admin.get(path))
    except Refused:
        return False


def _rss_mib(pid: int | None) -> int:
    return round(psutil.Process(pid).memory_info().rss / 2**20)


if __name__ == "__main__":
    sys.exit(main())
