"""How long serving pods wait for GPUs that jobs hold: `python -m tests.cluster.hand_backs`, JSON.

Jobs hold all of 4 nodes with 8 GPUs. At a random moment the serving Deployment is scaled up; the time of each of its
pods from Pending to bound is measured. Once with gpujob alive, and once with it killed just before each scale-up, when
only kube-scheduler's own preemption is left.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import ControlPlane, end_tidily
from tests.cluster.fakelet import Fakelet
from tests.cluster.house import Eyes, House, Serving, quantiles
from tests.cluster.plane import Plane

NODES = {f"gpu-{number}": 8 for number in range(4)}
GPUS = sum(NODES.values())
GPUS_OF_A_REPLICA = 4
MOST_REPLICAS = 4
ENDLESS = 1_000_000  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is measured."""

    rounds: int
    alive: bool  # gpujob lives while the Deployment is scaled up
    grace_s: float = 5.0
    seed: int = 0

    @property
    def bound_s(self) -> float:
        """No serving pod may wait longer."""
        return self.grace_s + 5.0


class HandBacks:
    """A full cluster, and a service that comes and goes."""

    def __init__(self, plane: Plane, folder: Path, terms: Terms) -> None:
        self.terms, self.chance = terms, random.Random(terms.seed)
        self.kubelet = Fakelet(plane.api("admin"), NODES, folder / "kubelet", tls=plane.tls)
        self.house = House(plane, folder, grace_s=terms.grace_s, gpus_per_replica=GPUS_OF_A_REPLICA)
        self.eyes = Eyes(plane)
        self.plane = plane
        self.waits: list[float] = []

    def run(self) -> Mapping[str, Any]:
        """The numbers."""
        with self.kubelet, self.house, self.eyes:
            self.serving = Serving(self.plane, GPUS_OF_A_REPLICA)
            self.house.serve()
            for number in range(22):  # 44 GPUs are wanted, so that all are taken whoever comes and goes
                save_s = round(self.chance.uniform(0.0, self.terms.grace_s * 0.8), 1)
                self.house.submit(self.house.counting(f"fill-{number}", 2, ENDLESS, save_s))
            for _ in range(self.terms.rounds):
                self._round()
            return self._numbers()

    def _round(self) -> None:
        self.eyes.until(self._full, 120.0, self._told)
        time.sleep(self.chance.uniform(0.0, 2.0))
        if not self.terms.alive:
            self.house.kill()
        replicas = self.chance.randint(1, MOST_REPLICAS)
        self.serving.scale(replicas)
        self.eyes.until(lambda: self._bound() == replicas, self.terms.grace_s + 60.0, self._told)
        self.waits += [(pod.bound or 0.0) - pod.made for pod in self.eyes.serving()]
        if not self.terms.alive:
            self.house.serve()
        self.serving.scale(0)
        self.eyes.until(lambda: not self.eyes.serving(), 30.0, self._told)

    def _full(self) -> bool:
        leaving = any(p.leaving and p.gone is None and p.bound for p in self.eyes.pods.values())
        return self.eyes.holding() == GPUS and not leaving

    def _bound(self) -> int:
        return sum(1 for pod in self.eyes.serving() if pod.bound)

    def _told(self) -> str:
        pods = [f"{p.name} {p.phase} {p.node} leaving={p.leaving}" for p in self.eyes.pods.values() if p.gone is None]
        return "\n".join([f"{self.eyes.holding()} of {GPUS} GPUs held", *pods, self.house.tail()])

    def _numbers(self) -> Mapping[str, Any]:
        ended = [pod for pod in self.eyes.pods.values() if pod.disrupted]
        reasons = Counter(pod.disrupted for pod in ended)
        return {
            "gpujob": "alive" if self.terms.alive else "killed before each scale-up",
            "scale_ups": self.terms.rounds,
            "grace_s": self.terms.grace_s,
            "pending_to_bound_s": quantiles(self.waits),
            "most_allowed_s": self.terms.bound_s,
            "ended_by": dict(reasons),
            "gpus_asked_for": len(self.waits) * GPUS_OF_A_REPLICA,
            "gpus_taken_from_jobs": sum(pod.gpus for pod in ended),
            "gpus_in_two_hands": list(self.kubelet.violations),
        }


def broken(numbers: Mapping[str, Any]) -> list[str]:
    """Which promises were not kept."""
    found = ["gpus_in_two_hands"] if numbers["gpus_in_two_hands"] else []
    if numbers["pending_to_bound_s"]["max"] > numbers["most_allowed_s"]:
        found.append("pending_to_bound_s")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", choices=("alive", "killed"), help="one of the two measurements")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    end_tidily()
    folder = Path(tempfile.mkdtemp(prefix="gpujob-hand-backs-"))
    found = []
    try:
        with ControlPlane(folder / "plane") as plane:
            for name in ("alive", "killed"):
                if options.only in (None, name):
                    plane.sweep()
                    terms = Terms(rounds=options.rounds, alive=name == "alive", seed=options.seed)
                    numbers = HandBacks(plane, folder / name, terms).run()
                    found.append({**numbers, "broken": broken(numbers)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found, indent=1))
    return int(any(one["broken"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
