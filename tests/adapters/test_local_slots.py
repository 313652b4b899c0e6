"""A GPU slot is never in two hands, whatever is released, taken back, scaled, killed or restarted in whatever order."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scheduler.adapters.local import files
from scheduler.adapters.local.services import LocalReplica, LocalService
from scheduler.errors import Unavailable
from scheduler.fleet.pool import ReplicaPhase
from scheduler.fleet.services import Mode
from tests.local_bench import Bench, a_task, an_order, clock

NODES = {"node-1": 3, "node-2": 2}
SLEEPER = ("sleep", "60")
SERVICES = [
    LocalService(name="chat", gpus_per_replica=1, mode=Mode.MANAGE, command=SLEEPER),
    LocalService(
        name="fixed", gpus_per_replica=1, mode=Mode.OBSERVE, replicas=(LocalReplica(url="http://x", node="node-2"),)
    ),
]
nodes = st.sampled_from(sorted(NODES))


class Hands(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        # A shim that lost the race for a claim may still be on its way out.
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.bench = Bench(Path(self.folder.name), NODES, SERVICES)
        self.bench.executor.submit(an_order(*(a_task(f"t-{n}", command=SLEEPER, step="t") for n in range(3))))

    @rule(node=nodes, gpus=st.integers(0, 3), which=st.integers(0, 2))
    def release(self, node: str, gpus: int, which: int) -> None:
        free = self.bench.cluster.pool(clock()).idle()[node]
        gated = self.bench.gated()
        uid = gated[which % len(gated)] if gated else "1.t-0.1"
        before = self.held_by(uid)
        try:
            self.bench.release(uid, node, gpus)
        except Unavailable:
            assert gpus > free
        else:
            assert self.held_by(uid) == (gpus if gated else before)

    @rule(which=st.integers(0, 20), grace_s=st.sampled_from([0.0, 5.0]))
    def take_back(self, which: int, grace_s: float) -> None:
        reports = self.bench.reports()
        self.bench.take_back(reports[which % len(reports)].uid, grace_s)

    @rule(replicas=st.integers(0, 5), where=st.lists(nodes, max_size=2))
    def scale(self, replicas: int, where: list[str]) -> None:
        self.bench.cluster.scale("chat", replicas, (), where)
        seen = [one for one in self.bench.cluster.pool(clock()).replicas if one.service == "chat"]
        assert sum(one.phase is not ReplicaPhase.LEAVING for one in seen) == replicas

    @rule()
    def restart(self) -> None:
        before = self.bench.cluster.pool(clock()).holds
        self.bench.restart()
        after = self.bench.cluster.pool(clock()).holds
        assert {hold.holder for hold in after} <= {hold.holder for hold in before} | self.replicas()

    @rule()
    def crash(self) -> None:
        for lease in tuple(self.bench.state.ledger.live().values())[:1]:
            self.bench.stop_program(lease)

    @invariant()
    def no_slot_is_in_two_hands(self) -> None:
        hands = Counter(
            (node, slot)
            for placement in self.bench.folder.rglob("placement.json")
            if not (placement.parent / "0" / "exit.json").exists()
            for node, slots in (files.read(placement) or {})["slots"].items()
            for slot in slots
        )
        hands["node-2", 0] += 1
        assert set(hands.values()) == {1}
        assert all(slot < NODES[node] for node, slot in hands)

    def teardown(self) -> None:
        self.bench.clear()
        self.folder.cleanup()

    def held_by(self, uid: str) -> int:
        return sum(hold.gpus for hold in self.bench.cluster.pool(clock()).holds if hold.holder == uid)

    def replicas(self) -> set[str]:
        return {one.id for one in self.bench.cluster.pool(clock()).replicas}


TestHands = Hands.TestCase
TestHands.settings = settings(
    max_examples=8, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
