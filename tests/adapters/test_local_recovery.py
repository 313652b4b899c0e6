"""Any process may die at any instant: each state of the files that a death can leave is made here by hand."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler.adapters.local import files, lease, processes, shim
from scheduler.adapters.local.lease import UNSEEN, Lease, Seat, Tenant
from scheduler.fleet.pool import HolderKind
from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.jobs.reports import Phase, Report
from tests.local_bench import Bench, a_task, an_order, clock, until

LOOP = "while :; do sleep 0.02; done"
DEAD = {"pid": 2**22 + 1, "start": 1, "boot": processes.this_boot()}  # above the largest number a process can have


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.clear()


def placed(bench: Bench, script: str) -> Lease:
    """A job whose first attempt was written down as released; the scheduler died before it started anything."""
    bench.executor.submit(an_order(a_task("train", script)))
    folder = bench.state.attempt(JobId(1), TaskName("train"), 1)
    tenant = Tenant(
        kind=HolderKind.RUN,
        holder="1.train.1",
        seats=(Seat(node="node-1", gpus=1, env={"PATH": os.environ["PATH"]}),),
        command=("sh", "-c", script),
        cwd=bench.files,
    )
    made = lease.make(folder, tenant, ((0,),), clock())
    bench.restart()
    return made


def running(bench: Bench, script: str) -> Lease:
    """A job whose first attempt runs; the script must write a line into `up`."""
    bench.executor.submit(an_order(a_task("train", script)))
    bench.release("1.train.1")
    bench.said("up")
    bench.report("1.train.1")
    (found,) = bench.state.ledger.live().values()
    return found


def kill_shim(found: Lease) -> None:
    claim = found.ranks[0].claim
    assert claim is not None
    processes.tell(claim, signal.SIGKILL)
    until(lambda: not processes.alive(claim))


def test_what_was_placed_and_not_started_is_started_once_by_the_next_scheduler(bench: Bench):
    placed(bench, "echo ran >> ran")

    for _ in range(3):
        bench.reports()
        bench.restart()
    bench.ended("1.train.1")

    assert bench.said("ran") == ["ran"]


def test_what_was_placed_and_not_started_holds_its_slot(bench: Bench):
    made = placed(bench, "exit 0")

    assert bench.state.ledger.free(bench.nodes)["node-1"] == (1,)
    assert made.phase is Phase.STARTING


def test_two_shims_at_one_lease_start_one_program(bench: Bench):
    made = placed(bench, "echo ran >> ran; sleep 0.2")
    command = [sys.executable, "-I", "-S", str(processes.SHIM), str(made.folder), "0"]

    shims = [subprocess.Popen(command) for _ in range(4)]
    codes = [shim.wait() for shim in shims]

    assert codes == [0, 0, 0, 0]
    assert bench.said("ran") == ["ran"]


def test_a_stop_that_came_before_the_start_starts_nothing(bench: Bench):
    made = placed(bench, "echo ran >> ran")
    files.write_once(made.folder / "stop.json", {"at": clock().timestamp(), "grace_s": 5.0})

    end = bench.ended("1.train.1")

    assert (end.exit_code, end.stop_asked_at is not None) == (143, True)
    assert not (bench.files / "ran").exists()
    assert bench.gated() == ["1.train.2"]


def test_a_shim_that_died_before_its_program_began_leaves_an_end_that_nobody_saw(bench: Bench):
    made = placed(bench, "exit 0")
    files.write_once(made.folder / "0" / "claim", DEAD)

    end = bench.report("1.train.1")

    assert (end.phase, end.exit_code, end.message) == (Phase.ENDED, None, UNSEEN)
    assert bench.gated() == ["1.train.2"]


@pytest.fixture
def bystander() -> Iterator[dict[str, Any]]:
    """A process that is none of ours."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield shim.identity(process.pid)
        process.kill()


def gone(bench: Bench, who: dict[str, Any]) -> Report:
    """The report of an attempt whose shim and program were `who`."""
    made = placed(bench, "exit 0")
    files.write_once(made.folder / "0" / "claim", who)
    files.write_once(made.folder / "0" / "started.json", {**who, "at": clock().timestamp()})
    return bench.report("1.train.1")


def test_a_program_that_is_gone_with_its_shim_has_ended_and_is_tried_again(bench: Bench):
    end = gone(bench, DEAD)

    assert (end.phase, end.exit_code, end.started_at is not None) == (Phase.ENDED, None, True)
    assert bench.state.ledger.free(bench.nodes)["node-1"] == (0, 1)
    assert bench.gated() == ["1.train.2"]


def test_nothing_outlives_a_restart_of_the_computer(bench: Bench, bystander: dict[str, Any]):
    assert gone(bench, {**bystander, "boot": "an earlier boot"}).phase is Phase.ENDED


def test_a_process_that_only_has_the_number_of_an_earlier_one_is_another(bench: Bench, bystander: dict[str, Any]):
    assert gone(bench, {**bystander, "start": 1}).phase is Phase.ENDED


def test_a_request_to_stop_that_came_after_the_end_is_not_reported(bench: Bench):
    made = placed(bench, "exit 0")
    files.write_once(made.folder / "0" / "claim", DEAD)
    files.write_once(
        made.folder / "0" / "exit.json", {"code": 0, "message": "", "stopped": False, "ended_at": clock().timestamp()}
    )
    files.write_once(made.folder / "stop.json", {"at": clock().timestamp(), "grace_s": 5.0})

    end = bench.report("1.train.1")

    assert (end.exit_code, end.stop_asked_at) == (0, None)


@pytest.mark.parametrize(
    ("codes", "code"),
    [((0, 0), 0), ((0, 3), 3), ((3, 4), 3), ((143, 1), 143), ((1, None), None), ((None, 1), None), ((0, None), None)],
)
def test_a_gang_ends_as_the_first_that_ended_badly_and_a_lost_program_explains_all_others(
    bench: Bench, codes: tuple[int | None, ...], code: int | None
):
    seats = tuple(Seat(node=node, gpus=1, env={}) for node in ("node-1", "node-2"))
    tenant = Tenant(kind=HolderKind.RUN, holder="1.train.1", seats=seats, command=("true",), cwd=bench.files)
    made = lease.make(bench.folder / "jobs" / "1" / "train" / "1", tenant, ((0,), (0,)), clock())
    for number, ended in enumerate(codes):
        files.write_once(made.folder / str(number) / "claim", DEAD)
        files.write_once(
            made.folder / str(number) / "exit.json",
            {"code": ended, "message": "", "stopped": False, "ended_at": 1e9 + number},
        )

    made.look()

    assert made.ending is not None
    assert made.ending.code == code


def test_half_written_files_are_not_read(bench: Bench):
    made = placed(bench, "exit 0")
    (made.folder / "0").mkdir()
    (made.folder / "0" / ".exit.json.123").write_text('{"co')
    (made.folder / ".stop.json.beef").write_text("{")

    assert bench.ended("1.train.1").exit_code == 0


def test_a_program_whose_shim_was_killed_goes_on_and_can_still_be_taken_back(bench: Bench):
    found = running(bench, f"trap 'echo saved >> {bench.files}/saved; exit 143' TERM; echo >> {bench.files}/up; {LOOP}")
    kill_shim(found)
    alone = bench.report("1.train.1")

    bench.take_back("1.train.1")
    end = bench.ended("1.train.1")

    assert alone.phase is Phase.RUNNING
    assert (end.exit_code, end.message, end.stop_asked_at is not None) == (None, UNSEEN, True)
    assert bench.said("saved") == ["saved"]
    assert bench.gated() == ["1.train.2"]


def test_a_program_without_shim_that_ignores_sigterm_is_killed_after_the_grace(bench: Bench):
    found = running(bench, f"trap '' TERM; echo >> {bench.files}/up; {LOOP}")
    kill_shim(found)
    program = found.ranks[0].program
    assert program is not None

    bench.take_back("1.train.1", grace_s=0.2)
    during = bench.report("1.train.1").phase
    bench.ended("1.train.1")

    assert during is Phase.STOPPING
    assert not processes.alive(program)


def test_what_a_program_without_shim_leaves_behind_is_killed_before_its_slot_is_free(bench: Bench):
    found = running(bench, f"setsid sleep 300 & echo >> {bench.files}/up; {LOOP}")
    kill_shim(found)
    bench.stop_program(found)

    bench.ended("1.train.1")

    assert processes.marked(found.ranks[0].folder) == ()


def test_what_a_program_leaves_behind_is_killed_even_in_a_session_of_its_own(bench: Bench):
    away = f"setsid sh -c 'echo > {bench.files}/away; sleep 300' & sleep 300 &"
    wait = f"until [ -e {bench.files}/away ]; do sleep 0.01; done"
    bench.executor.submit(an_order(a_task("train", f"{away} {wait}; exit 0")))

    end = bench.run("1.train.1")

    assert end.exit_code == 0
    assert processes.marked(bench.state.attempt(JobId(1), TaskName("train"), 1) / "0") == ()


def test_a_program_whose_folder_is_removed_is_killed_because_nobody_can_know_of_it(bench: Bench):
    found = running(bench, f"echo >> {bench.files}/up; {LOOP}")
    program = found.ranks[0].program
    assert program is not None

    shutil.rmtree(bench.folder / "jobs")

    until(lambda: not processes.alive(program))


def test_a_cancel_whose_scheduler_died_is_carried_out_by_the_next(bench: Bench):
    running(bench, f"echo >> {bench.files}/up; {LOOP}")
    cancel = {"at": clock().timestamp(), "grace_s": 5.0}
    files.write_once(bench.state.job(JobId(1)) / "cancel.json", cancel)

    bench.restart()
    end = bench.ended("1.train.1")

    assert end.exit_code == 143
    assert bench.gated() == []


def test_an_end_that_came_while_no_scheduler_ran_is_reported_by_the_next(bench: Bench):
    running(bench, f"echo >> {bench.files}/up; while [ ! -e {bench.files}/go ]; do sleep 0.01; done; exit 7")
    bench.state.unlock()
    (bench.files / "go").touch()
    until((bench.state.attempt(JobId(1), TaskName("train"), 1) / "0" / "exit.json").exists)

    bench.restart()

    assert bench.report("1.train.1").exit_code == 7


def test_a_withdrawn_attempt_stays_withdrawn_for_the_next_scheduler(bench: Bench):
    bench.executor.submit(an_order(a_task("train")))
    bench.take_back("1.train.1")

    bench.restart()

    assert bench.gated() == ["1.train.2"]


def test_a_job_that_has_ended_costs_the_next_scheduler_nothing(bench: Bench):
    bench.executor.submit(an_order(a_task("train")))
    bench.run("1.train.1")
    (bench.state.attempt(JobId(1), TaskName("train"), 1) / "placement.json").write_text("not read any more")

    bench.restart()

    assert bench.state.ledger.live() == {}


def test_an_orphan_is_given_its_whole_grace_by_the_clock_of_the_request(bench: Bench):
    found = running(bench, f"trap '' TERM; echo >> {bench.files}/up; {LOOP}")
    kill_shim(found)
    found.ask_to_stop(clock() - timedelta(hours=1), 60.0)

    assert bench.ended("1.train.1").exit_code is None


SCHEDULER = """
import sys
from pathlib import Path
from tests.local_bench import Bench
bench = Bench(Path(sys.argv[1]))
print("up", flush=True)
for uid in bench.gated():
    bench.release(uid, gpus=0)
    bench.reports()
"""


def test_a_scheduler_killed_at_any_instant_loses_no_run_and_doubles_none(bench: Bench):
    tasks = [a_task(f"t-{number}", f"echo {number} >> {bench.files}/ran", step="t", gpus=0) for number in range(24)]
    bench.executor.submit(an_order(*tasks))
    bench.state.unlock()

    for delay_ms in (1, 4, 9, 16, 25, 36):
        command = [sys.executable, "-c", SCHEDULER, str(bench.files.parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as scheduler:
            assert scheduler.stdout is not None
            scheduler.stdout.readline()
            with pytest.raises(subprocess.TimeoutExpired):
                scheduler.wait(delay_ms / 1000)
            scheduler.kill()
    bench.restart()
    for uid in bench.gated():
        bench.release(uid, gpus=0)
    until(lambda: all(report.phase is Phase.ENDED for report in bench.reports()))

    assert sorted(bench.said("ran"), key=int) == [str(number) for number in range(24)]
    assert [report.exit_code for report in bench.reports()] == [0] * 24


def test_the_end_is_on_disk_with_its_code_and_its_time(bench: Bench):
    bench.executor.submit(an_order(a_task("train", "kill -9 $$")))
    bench.run("1.train.1")

    end = json.loads((bench.state.attempt(JobId(1), TaskName("train"), 1) / "0" / "exit.json").read_text())

    assert (end["code"], end["message"], end["stopped"]) == (137, "ended by SIGKILL", False)
    assert bench.executor.reports({JobId(1): ()}, clock())[0].uid == Uid("1.train.1")
