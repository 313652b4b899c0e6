"""kill -9 of everything while jobs flow: `python -m tests.cluster.chaos`; JSON, exit 0 if nothing broke.

The story of tests/chaos.py on the real control plane: people submit in Slack, a serving Deployment grows and shrinks,
and gpujob, Argo's controller, the API server and etcd are killed again and again. Then everything is left in peace,
and what is stored, what stands in Slack, what the programs wrote down and what the kubelet saw is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bot.playground import people
from bot.playground.server import Playground
from scheduler.adapters.kube.api import Refused
from scheduler.errors import Unavailable
from tests.chaos import Chaos, Victim, broken
from tests.cluster.component import NotReady
from tests.cluster.control_plane import ControlPlane, end_tidily
from tests.cluster.fakelet import Fakelet
from tests.cluster.house import PROGRAM, PROGRAMS, House, Serving

NODES = {f"gpu-{number}": 8 for number in range(4)}
GPUS_OF_A_REPLICA = 4
MOST_REPLICAS = 5
SCHEDULER, ARGO, API, ETCD = "scheduler", "workflow-controller", "kube-apiserver", "etcd"
KILLS = {SCHEDULER: 50, ARGO: 20, API: 10, ETCD: 5}

HEAD = """gpujob: 1
name: {name}
image: registry.example.com/research/chaos:1
priority: {priority}
checkpoint: {{every: 10s, on_sigterm: true, save: 1s}}
"""
COMMAND = (
    'command: [python, "{program}", --steps, "{steps}", --diary, "{folder}/diary.jsonl", --fail, "{fail}", '
    '--save-s, "{save_s}"]'
)
ONE = HEAD + "gpus: {gpus}\n" + COMMAND
PIPELINE = (
    HEAD
    + """steps:
  - name: prepare
    gpus: 0
    """
    + COMMAND
    + """
  - name: train
    needs: [prepare]
    gpus: 2
    sweep: {{seed: [1, 2, 3]}}
    parallel: 2
    """
    + COMMAND
    + """
  - name: evaluate
    needs: [train]
    gpus: 1
    """
    + COMMAND
)


@dataclass
class ClusterChaos(Chaos):
    """The whole run; `kills` of the base is how often the scheduler is killed."""

    plane: ControlPlane = field(kw_only=True)
    kubelet: Fakelet = field(kw_only=True)
    parts: dict[str, int] = field(kw_only=True)  # kills of the control plane's parts
    between_kills_s: tuple[float, float] = (2.0, 8.0)
    between_jobs_s: tuple[float, float] = (2.0, 5.0)
    killed: Counter[str] = field(default_factory=Counter)

    async def run(self) -> dict[str, Any]:
        began = time.monotonic()
        self.serving = await asyncio.to_thread(Serving, self.plane, GPUS_OF_A_REPLICA, 1)
        for victim in self.victims:
            await self._start(victim)
        await self.slack.until(lambda: self.slack.sockets.connected, 30)
        others = [asyncio.create_task(task) for task in (self._traffic(), self._people(), self._approver())]
        await asyncio.gather(self._killer(self.victims[0]), *(self._part_killer(*part) for part in self.parts.items()))
        self.calm.set()
        await asyncio.gather(*others)
        await self._scale(1)
        await self._peace(300)
        await self._end()
        return {
            **self._findings(),
            "parts_killed": dict(self.killed),
            "gpus_in_two_hands": list(self.kubelet.violations),
            "left_on_the_plane": await asyncio.to_thread(self._left),
            "parts_dead": [name for name, part in self.plane.parts.items() if part.pid is None],
            "seconds": round(time.monotonic() - began, 1),
        }

    async def _traffic(self) -> None:
        while not self.calm.is_set():
            await self._scale(self.chance.randint(0, MOST_REPLICAS))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.calm.wait(), self.chance.uniform(4.0, 12.0))

    async def _scale(self, replicas: int) -> None:
        for _ in range(60):  # the API server may be away
            try:
                await asyncio.to_thread(self.serving.scale, replicas)
            except (Unavailable, Refused):
                await asyncio.sleep(0.5)
            else:
                return

    async def _part_killer(self, name: str, kills: int) -> None:
        """As often as is asked for, spread over the time in which the scheduler is killed."""
        part = self.plane.parts[name]
        mean_s = sum(self.between_kills_s) / 2 * self.kills / (kills + 1)
        for _ in range(kills):
            await asyncio.sleep(self.chance.uniform(0.4, 1.6) * mean_s)
            await asyncio.to_thread(part.kill)
            await asyncio.sleep(self.chance.uniform(0.0, 2.0))
            await asyncio.to_thread(self._bring_back, name)
            self.killed[name] += 1

    def _bring_back(self, name: str) -> None:
        """As systemd or a Deployment would: again, if it ended because another part was away."""
        for _ in range(20):
            try:
                if name == ARGO:
                    self.plane.start_argo()
                else:
                    self.plane.parts[name].start()
                    self.plane.parts[name].wait(120.0)
            except NotReady:
                self.plane.parts[name].kill()
            else:
                return

    def _job_file(self, kind: str, number: int) -> str:
        return (PIPELINE if kind == "line" else ONE).format(
            name=f"{'line' if kind == 'line' else 'one'}-{number}",
            gpus=self.chance.choice((1, 2, 4, 8)),
            priority="high" if kind == "high" else "normal",
            program=PROGRAM,
            steps=self.chance.randint(20, 160),
            folder=self.folder,
            fail=3 if kind == "fail" else 0,
            save_s=round(self.chance.uniform(0.0, 2.0), 1),
        )

    def _left(self) -> list[str]:
        """Pods of jobs that still run although their jobs have ended."""
        pods = self.plane.api("admin").get(f"/api/v1/namespaces/{self.plane.namespace}/pods")["items"]
        return [one["metadata"]["name"] for one in pods if one["status"].get("phase") == "Running"]


async def chaos(plane: ControlPlane, folder: Path, kills: dict[str, int], seed: int = 0) -> dict[str, Any]:
    """All findings; `broken` among them names the promises that were not kept."""
    chance = random.Random(seed)
    kubelet = Fakelet(plane.api("admin"), NODES, folder / "kubelet", tls=plane.tls)
    async with Playground(port=0, speed=100.0) as slack:
        house = House(
            plane,
            folder,
            channel=people.C_GPU,
            base_url=slack.base_url,
            approver=people.U_BO,
            gpus_per_replica=GPUS_OF_A_REPLICA,
        )
        victims = [
            Victim("scheduler", [str(PROGRAMS / "gpujob"), "serve", "--config", str(house.config)]),
            Victim("bot", [str(PROGRAMS / "gpujob-bot"), "serve", "--config", str(house.config)]),
        ]
        parts = {name: count for name, count in kills.items() if name != SCHEDULER and count}
        story = ClusterChaos(
            folder, kills[SCHEDULER], chance, slack, house.mailbox, victims, plane=plane, kubelet=kubelet, parts=parts
        )
        with kubelet, house:
            try:
                found = await story.run()
            finally:
                for victim in victims:
                    if victim.process is not None and victim.process.returncode is None:
                        victim.process.send_signal(signal.SIGKILL)
                        await victim.process.wait()
    faults = broken(found) + [name for name in ("left_on_the_plane", "parts_dead") if found[name]]
    return {**found, "broken": faults}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, count in KILLS.items():
        parser.add_argument(f"--{name}", type=int, default=count, metavar="KILLS", help=f"kills of it ({count})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="leave the folder for a look")
    options = parser.parse_args()
    end_tidily()
    kills = {name: getattr(options, name.replace("-", "_")) for name in KILLS}
    folder = Path(tempfile.mkdtemp(prefix="gpujob-cluster-chaos-"))
    with ControlPlane(folder / "plane") as plane:
        found = asyncio.run(chaos(plane, folder / "house", kills, options.seed))
    print(json.dumps(found, indent=1))
    if options.keep or found["broken"]:
        print(f"kept: {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
