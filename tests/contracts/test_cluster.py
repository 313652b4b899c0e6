"""What every cluster promises of nodes and services. Only the fixture knows which one it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from scheduler.adapters.local.services import LocalService
from scheduler.errors import Unavailable
from scheduler.fleet.pool import Hold, HolderKind, Pool, Replica, ReplicaPhase
from scheduler.fleet.services import Mode
from tests.local_bench import Bench, a_task, an_order, clock, until

SERVER = """
import http.server, os, signal, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write((os.environ["CUDA_VISIBLE_DEVICES"] + " " + sys.argv[2]).encode())
    def log_message(self, *words): pass
if sys.argv[3] == "stubborn": signal.signal(signal.SIGTERM, signal.SIG_IGN)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def a_service(name: str = "chat", gpus: int = 1, manner: str = "polite", drain_s: float = 10.0) -> LocalService:
    command = (sys.executable, "-I", "-S", "-c", SERVER, "{port}", "{name}", manner)
    return LocalService(name=name, gpus_per_replica=gpus, mode=Mode.MANAGE, command=command, drain_s=drain_s)


@pytest.fixture(params=["local"])
def bench(tmp_path: Path) -> Iterator[Bench]:
    services = [
        a_service(),
        a_service("big", gpus=2),
        a_service("stubborn", manner="stubborn", drain_s=0.3),
        LocalService(name="broken", gpus_per_replica=1, mode=Mode.MANAGE, command=("false",)),
    ]
    bench = Bench(tmp_path, services=services)
    yield bench
    bench.clear()


def look(bench: Bench) -> Pool:
    return bench.cluster.pool(clock())


def phases(bench: Bench, service: str = "chat") -> dict[str, ReplicaPhase]:
    return {replica.id: replica.phase for replica in look(bench).replicas if replica.service == service}


def replica(bench: Bench, name: str) -> Replica:
    return next(replica for replica in look(bench).replicas if replica.id == name)


def all_ready(bench: Bench, count: int, service: str = "chat") -> list[str]:
    """Ids of the replicas of a service, once there are so many and all are ready."""

    def found() -> list[str] | None:
        seen = phases(bench, service)
        return list(seen) if list(seen.values()) == [ReplicaPhase.READY] * count else None

    return until(found)


def hold(bench: Bench, node: str, gpus: int, job: int = 9) -> str:
    """A run that holds GPUs until it is taken back."""
    bench.executor.submit(an_order(a_task("hold", "while :; do sleep 0.02; done", gpus=gpus), job=job))
    bench.release(f"{job}.hold.1", node=node, gpus=gpus)
    return f"{job}.hold.1"


def test_a_pool_without_work_is_all_idle(bench: Bench):
    assert look(bench).idle() == {"node-1": 2, "node-2": 2}


def test_scaling_up_starts_replicas_that_become_ready_where_they_were_sent(bench: Bench):
    bench.cluster.scale("chat", 2, (), ("node-2", "node-1"))

    names = all_ready(bench, 2)

    assert [replica(bench, name).node for name in names] == ["node-2", "node-1"]
    assert look(bench).idle() == {"node-1": 1, "node-2": 1}


def test_a_ready_replica_answers_at_its_url_and_sees_its_gpus_alone(bench: Bench):
    bench.cluster.scale("big", 1, (), ("node-2",))
    (name,) = all_ready(bench, 1, "big")

    url = replica(bench, name).url

    assert urlopen(url, timeout=5).read().decode() == f"0,1 {name}"


def test_a_replica_that_was_just_started_is_starting_and_holds_its_gpus(bench: Bench):
    bench.cluster.scale("chat", 1, (), ("node-1",))

    replicas = bench.cluster.pool(clock())

    assert replicas.replicas[0].phase is ReplicaPhase.STARTING
    assert replicas.holds == (Hold(node="node-1", gpus=1, kind=HolderKind.REPLICA, holder=replicas.replicas[0].id),)


def test_scaling_to_the_same_number_twice_changes_nothing(bench: Bench):
    bench.cluster.scale("chat", 1, (), ("node-1",))
    bench.cluster.scale("chat", 1, (), ("node-1",))

    assert len(all_ready(bench, 1)) == 1


def test_a_replica_waits_until_a_run_has_left_its_gpus(bench: Bench):
    uid = hold(bench, "node-1", 2)
    bench.cluster.scale("big", 1, (), ("node-1",))
    before = look(bench)

    bench.take_back(uid)
    bench.ended(uid)

    assert [replica.phase for replica in before.replicas] == [ReplicaPhase.PENDING]
    assert [(held.kind, held.gpus) for held in before.holds] == [(HolderKind.RUN, 2)]
    assert replica(bench, *all_ready(bench, 1, "big")).node == "node-1"


def test_a_replica_without_a_named_node_goes_where_there_is_room(bench: Bench):
    hold(bench, "node-1", 1)
    bench.cluster.scale("big", 1, (), ())

    assert replica(bench, *all_ready(bench, 1, "big")).node == "node-2"


def test_a_run_that_is_stopping_still_holds_its_gpus_and_is_ending(bench: Bench):
    script = f"trap '' TERM; echo > {bench.files}/up; while :; do sleep 0.02; done"
    bench.executor.submit(an_order(a_task("slow", script)))
    bench.release("1.slow.1")
    bench.said("up")
    bench.take_back("1.slow.1", grace_s=600)

    assert look(bench).holds == (Hold(node="node-1", gpus=1, kind=HolderKind.RUN, holder="1.slow.1", ending=True),)


def test_a_run_without_gpus_holds_nothing(bench: Bench):
    bench.executor.submit(an_order(a_task("prep", "sleep 30")))
    bench.release("1.prep.1", gpus=0)

    assert look(bench).holds == ()


def test_scaling_down_drains_those_that_should_leave_first(bench: Bench):
    bench.cluster.scale("chat", 3, (), ())
    first, second, third = all_ready(bench, 3)

    bench.cluster.scale("chat", 2, (second,), ())
    during = phases(bench)
    left = all_ready(bench, 2)

    assert during.get(second, ReplicaPhase.LEAVING) is ReplicaPhase.LEAVING
    assert left == [first, third]


def test_a_replica_that_does_not_drain_holds_its_gpus_until_it_is_killed(bench: Bench):
    bench.cluster.scale("stubborn", 1, (), ("node-1",))
    all_ready(bench, 1, "stubborn")

    bench.cluster.scale("stubborn", 0, (), ())
    during = look(bench)

    assert [replica.phase for replica in during.replicas] == [ReplicaPhase.LEAVING]
    assert during.idle()["node-1"] == 1
    until(lambda: look(bench).idle()["node-1"] == 2)


def test_a_new_scheduler_finds_the_replicas_that_run(bench: Bench):
    bench.cluster.scale("chat", 2, (), ())
    before = {name: replica(bench, name) for name in all_ready(bench, 2)}

    bench.restart()
    after = look(bench).replicas

    assert {found.id: found for found in after} == before


def test_a_new_scheduler_remembers_what_was_asked_for(bench: Bench):
    hold(bench, "node-1", 2)
    bench.cluster.scale("big", 1, (), ("node-1",))

    bench.restart()

    assert list(phases(bench, "big").values()) == [ReplicaPhase.PENDING]


def test_a_replica_that_died_is_replaced_by_a_new_one(bench: Bench):
    bench.cluster.scale("chat", 1, (), ("node-1",))
    (dead,) = all_ready(bench, 1)
    (lease,) = bench.state.ledger.live().values()
    bench.stop_program(lease)

    until(lambda: dead not in phases(bench))
    (new,) = all_ready(bench, 1)

    assert new != dead


def test_a_replica_that_keeps_dying_is_started_again_later_each_time(bench: Bench):
    at = clock()
    bench.cluster.scale("broken", 1, (), ())

    def waits() -> bool:
        return bench.cluster.pool(at).replicas[0].phase is ReplicaPhase.PENDING

    until(waits)
    still = [waits() for _ in range(3)]
    later = bench.cluster.pool(at + timedelta(seconds=5)).replicas[0]

    assert still == [True, True, True]
    assert later.phase is ReplicaPhase.STARTING


def test_folders_of_replicas_that_died_do_not_pile_up(bench: Bench):
    at = clock()
    bench.cluster.scale("broken", 1, (), ())

    def died(time: int) -> bool:
        return bench.cluster.pool(at + timedelta(seconds=100 * time)).replicas[0].id != f"broken-{time}"

    for time in range(1, 15):
        until(partial(died, time))

    assert len(list(bench.state.service("broken").glob("broken-*"))) <= 12


def test_replicas_that_wait_get_gpus_in_the_order_in_which_they_were_asked_for(bench: Bench):
    uid = hold(bench, "node-1", 2)
    bench.cluster.scale("big", 1, (), ("node-1",))
    bench.cluster.scale("chat", 1, (), ("node-1",))

    bench.take_back(uid)
    bench.ended(uid)
    all_ready(bench, 1, "big")

    assert list(phases(bench, "chat").values()) == [ReplicaPhase.PENDING]


def test_a_pending_replica_that_is_not_wanted_any_more_vanishes(bench: Bench):
    hold(bench, "node-1", 2)
    bench.cluster.scale("big", 1, (), ("node-1",))

    bench.cluster.scale("big", 0, (), ())

    assert phases(bench, "big") == {}


def test_an_unknown_service_cannot_be_scaled(bench: Bench):
    with pytest.raises(Unavailable, match="no-such is no service that gpujob scales"):
        bench.cluster.scale("no-such", 1, (), ())
