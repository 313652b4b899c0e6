"""What every executor promises. Only the fixture knows which one it is."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread

import pytest

from scheduler.errors import Unavailable
from scheduler.jobs.job import JobId, Uid
from scheduler.jobs.reports import Phase
from tests.local_bench import Bench, a_task, an_order, until

SAVES = "trap 'exit 143' TERM; echo up >> {f}/up; while :; do sleep 0.02; done"
IGNORES = "trap '' TERM; echo up >> {f}/up; while :; do sleep 0.02; done"
FINISHES = "trap 'exit 0' TERM; echo up >> {f}/up; while :; do sleep 0.02; done"


@pytest.fixture(params=["local"])
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.clear()


def test_the_first_tasks_of_a_job_appear_gated_and_the_others_not_at_all(bench: Bench):
    bench.executor.submit(an_order(a_task("prep"), a_task("train", needs=["prep"])))

    (only,) = bench.reports()

    assert (only.task, only.phase, only.placement, only.job) == ("prep", Phase.GATED, {}, 1)


def test_a_job_submitted_twice_is_there_once(bench: Bench):
    order = an_order(a_task("prep"))
    bench.executor.submit(order)
    bench.executor.submit(order)

    assert len(bench.reports()) == 1


def test_a_job_that_is_not_known_has_no_reports(bench: Bench):
    assert bench.reports(99) == ()


def test_a_gated_attempt_starts_nothing(bench: Bench):
    bench.executor.submit(an_order(a_task("prep", f"echo x > {bench.files}/ran"), a_task("other")))
    bench.run("1.other.1")

    assert not (bench.files / "ran").exists()


def test_a_task_that_is_given_up_is_not_tried_again_and_its_dag_goes_on(bench: Bench):
    order = an_order(a_task("train"), a_task("after", needs=["train"]), a_task("any", needs=["train"]))
    bench.executor.submit(order)
    (gated,) = bench.reports()

    bench.executor.give_up(gated.uid, "used up its time")
    bench.executor.give_up(gated.uid, "said twice")

    assert bench.reports() == ()
    bench.restart()
    assert bench.reports() == ()


def test_a_released_attempt_runs_on_the_named_node_and_ends_with_its_code(bench: Bench):
    bench.executor.submit(an_order(a_task("prep")))

    end = bench.run("1.prep.1")

    assert (end.exit_code, end.placement, end.stop_asked_at) == (0, {"node-1": 1}, None)
    assert end.started_at is not None
    assert end.ended_at is not None
    assert end.started_at <= end.ended_at


def test_a_step_opens_when_all_tasks_of_the_steps_it_needs_are_done(bench: Bench):
    sweep = [a_task(f"sft-{number}", step="sft") for number in range(2)]
    bench.executor.submit(an_order(*sweep, a_task("eval", needs=["sft"])))

    bench.run("1.sft-0.1")
    after_one = bench.gated()
    bench.run("1.sft-1.1")

    assert after_one == ["1.sft-1.1"]
    assert bench.gated() == ["1.eval.1"]


def test_a_real_failure_is_final_and_steps_that_need_it_never_appear(bench: Bench):
    bench.executor.submit(an_order(a_task("prep", "echo oh no; exit 3"), a_task("train", needs=["prep"])))

    end = bench.run("1.prep.1")

    assert (end.exit_code, end.tail) == (3, "oh no")
    assert [report.uid for report in bench.reports()] == ["1.prep.1"]


def test_an_any_step_starts_with_those_that_succeeded_when_none_is_left(bench: Bench):
    sweep = [a_task(f"sft-{number}", f"exit {number % 2}", step="sft") for number in range(3)]
    told = f"echo $GPUJOB_STEPS_SFT_SUCCEEDED >> {bench.files}/told"
    bench.executor.submit(an_order(*sweep, a_task("eval", told, needs=["sft"], after_any=True)))

    bench.run("1.sft-0.1")
    bench.run("1.sft-1.1")
    before = bench.gated()
    bench.run("1.sft-2.1")
    bench.run("1.eval.1")

    assert before == ["1.sft-2.1"]
    assert bench.said("told") == ["sft-0,sft-2"]


def test_an_any_step_never_starts_when_nothing_succeeded(bench: Bench):
    bench.executor.submit(an_order(a_task("sft", "exit 1"), a_task("eval", needs=["sft"], after_any=True)))

    bench.run("1.sft.1")

    assert bench.gated() == []


def test_a_real_failure_is_tried_again_as_often_as_the_job_allows(bench: Bench):
    bench.executor.submit(an_order(a_task("train", "exit 1"), retries=1))

    bench.run("1.train.1")
    after_one = bench.gated()
    bench.run("1.train.2")

    assert after_one == ["1.train.2"]
    assert bench.gated() == []


@pytest.mark.parametrize("code", [143, 75])
def test_a_program_that_saved_gets_a_new_gated_attempt_whatever_retries_says(bench: Bench, code: int):
    bench.executor.submit(an_order(a_task("train", f"exit {code}")))

    assert bench.run("1.train.1").exit_code == code
    assert bench.gated() == ["1.train.2"]


def test_preemptions_use_up_no_retries(bench: Bench):
    codes = (
        f"n=$(cat {bench.files}/n 2>/dev/null || echo 0); echo $((n+1)) > {bench.files}/n; exit $((n == 1 ? 1 : 143))"
    )
    bench.executor.submit(an_order(a_task("train", codes), retries=1))

    ends = [bench.run(f"1.train.{number}").exit_code for number in (1, 2, 3)]

    assert ends == [143, 1, 143]
    assert bench.gated() == ["1.train.4"]


def test_taking_back_sends_sigterm_and_a_new_gated_attempt_follows(bench: Bench):
    bench.executor.submit(an_order(a_task("train", SAVES.format(f=bench.files))))
    bench.release("1.train.1")
    bench.said("up")

    bench.take_back("1.train.1")
    end = bench.ended("1.train.1")

    assert end.exit_code == 143
    assert end.stop_asked_at is not None
    assert bench.gated() == ["1.train.2"]


def test_an_attempt_that_was_asked_to_end_is_stopping_and_holds_its_node(bench: Bench):
    bench.executor.submit(an_order(a_task("train", IGNORES.format(f=bench.files))))
    bench.release("1.train.1")
    bench.said("up")

    bench.take_back("1.train.1", grace_s=30)
    report = bench.report("1.train.1")

    assert (report.phase, report.placement) == (Phase.STOPPING, {"node-1": 1})
    assert bench.gated() == []


def test_a_program_that_ignores_sigterm_is_killed_when_the_grace_is_over(bench: Bench):
    bench.executor.submit(an_order(a_task("train", IGNORES.format(f=bench.files))))
    bench.release("1.train.1")
    bench.said("up")

    bench.take_back("1.train.1", grace_s=0.3)
    end = bench.ended("1.train.1")

    assert end.exit_code == 128 + signal.SIGKILL
    assert end.ended_at is not None
    assert end.stop_asked_at is not None
    assert (end.ended_at - end.stop_asked_at).total_seconds() >= 0.3


def test_ending_with_0_after_sigterm_is_reported_with_the_request_and_is_not_tried_again(bench: Bench):
    bench.executor.submit(an_order(a_task("train", FINISHES.format(f=bench.files))))
    bench.release("1.train.1")
    bench.said("up")

    bench.take_back("1.train.1")
    end = bench.ended("1.train.1")

    assert end.exit_code == 0
    assert end.stop_asked_at is not None
    assert bench.gated() == []


@pytest.mark.parametrize("graces", [(0.3, 600), (600, 0.3)])
def test_of_two_graces_the_earlier_end_stands(bench: Bench, graces: tuple[float, float]):
    bench.executor.submit(an_order(a_task("train", IGNORES.format(f=bench.files))))
    bench.release("1.train.1")
    bench.said("up")

    for grace_s in graces:
        bench.take_back("1.train.1", grace_s=grace_s)

    assert bench.ended("1.train.1").exit_code == 137


def test_a_gated_attempt_that_is_taken_back_is_replaced(bench: Bench):
    bench.executor.submit(an_order(a_task("train")))

    bench.take_back("1.train.1")

    assert [report.uid for report in bench.reports()] == ["1.train.2"]


def test_releasing_what_was_taken_back_has_ended_or_is_unknown_does_nothing(bench: Bench):
    bench.executor.submit(an_order(a_task("train", f"echo ran >> {bench.files}/ran")))
    bench.take_back("1.train.1")

    for uid in ("1.train.1", "1.train.7", "1.no-such.1", "9.train.1", "1.train.0", "not ours", "../1.1"):
        bench.release(uid)
        bench.take_back(uid)
    bench.run("1.train.2")
    bench.release("1.train.2")

    assert bench.said("ran") == ["ran"]
    assert len(bench.reports()) == 1


def test_an_attempt_released_again_and_again_starts_once(bench: Bench):
    bench.executor.submit(an_order(a_task("train", f"echo ran >> {bench.files}/ran; sleep 0.2")))
    start = Barrier(8)

    def release() -> None:
        start.wait()
        bench.release("1.train.1")

    threads = [Thread(target=release) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.restart()
    bench.release("1.train.1")
    bench.ended("1.train.1")

    assert bench.said("ran") == ["ran"]


def test_a_run_goes_on_while_schedulers_come_and_go(bench: Bench):
    bench.executor.submit(an_order(a_task("train", SAVES.format(f=bench.files)), a_task("next", needs=["train"])))
    bench.release("1.train.1")
    bench.said("up")

    bench.restart()
    running = bench.report("1.train.1")
    bench.take_back("1.train.1")
    bench.restart()

    assert running.phase is Phase.RUNNING
    assert bench.ended("1.train.1").exit_code == 143
    assert bench.said("up") == ["up"]


def test_a_node_without_room_refuses_and_the_attempt_stays_gated(bench: Bench):
    bench.executor.submit(an_order(a_task("big", SAVES.format(f=bench.files)), a_task("late")))
    bench.release("1.big.1", gpus=2)

    with pytest.raises(Unavailable, match=r"1\.late\.1 wants 1 GPUs of node-1, 0 are free"):
        bench.release("1.late.1")

    assert bench.gated() == ["1.late.1"]
    bench.release("1.late.1", node="node-2")
    assert bench.ended("1.late.1").exit_code == 0


def test_a_node_that_does_not_exist_refuses(bench: Bench):
    bench.executor.submit(an_order(a_task("train")))

    with pytest.raises(Unavailable, match="node-9"):
        bench.release("1.train.1", node="node-9")

    assert bench.gated() == ["1.train.1"]


def test_a_cancelled_job_loses_its_gated_attempts_and_its_runs_are_stopped(bench: Bench):
    bench.executor.submit(an_order(a_task("train", SAVES.format(f=bench.files)), a_task("other")))
    bench.release("1.train.1")
    bench.said("up")

    bench.executor.cancel(JobId(1), 10.0)
    bench.executor.cancel(JobId(1), 10.0)
    end = bench.ended("1.train.1")

    assert (end.exit_code, end.stop_asked_at is not None) == (143, True)
    assert bench.gated() == []
    bench.release("1.other.1")
    assert [report.uid for report in bench.reports()] == ["1.train.1"]


def test_cancelling_an_unknown_job_does_nothing(bench: Bench):
    bench.executor.cancel(JobId(5), 1.0)

    assert bench.reports(5) == ()


def test_progress_is_reported_with_its_times_and_what_was_saved_is_not_forgotten(bench: Bench):
    lines = "echo GPUJOB_PROGRESS 0.2 from_step=5 saved_step=7; echo noise; echo GPUJOB_PROGRESS 0.4 loss=1.3"
    bench.executor.submit(an_order(a_task("train", lines)))

    progress = bench.run("1.train.1").progress

    assert progress is not None
    assert progress.fraction == 0.4
    assert progress.values == {"from_step": "5", "saved_step": "7", "loss": "1.3"}
    assert progress.first_at is not None
    assert progress.saved_at is not None


def test_progress_is_seen_while_the_program_runs(bench: Bench):
    bench.executor.submit(an_order(a_task("train", "echo GPUJOB_PROGRESS 0.5; " + SAVES.format(f=bench.files))))
    bench.release("1.train.1")

    progress = until(lambda: bench.report("1.train.1").progress)

    assert (progress.fraction, progress.saved_at) == (0.5, None)


def test_the_last_lines_of_the_output_can_be_read(bench: Bench):
    bench.executor.submit(an_order(a_task("train", "seq 1 30000; echo wrong >&2")))
    bench.run("1.train.1")

    assert bench.logs.tail(Uid("1.train.1"), 2) == "30000\nwrong"
    assert len(bench.logs.tail(Uid("1.train.1"), 99_999)) <= 65_536
    assert bench.logs.tail(Uid("1.train.2"), 5) == ""


def test_a_gang_runs_one_program_a_node_and_each_knows_its_place(bench: Bench):
    says = f"echo $GPUJOB_NODE_RANK of $GPUJOB_NODES >> {bench.files}/said; echo $GPUJOB_MASTER >> {bench.files}/master"
    bench.executor.submit(an_order(a_task("train", says, gpus=2, nodes=2)))

    bench.executor.release(Uid("1.train.1"), {"node-1": 2, "node-2": 2})
    end = bench.ended("1.train.1")

    assert (end.exit_code, end.placement) == (0, {"node-1": 2, "node-2": 2})
    assert sorted(bench.said("said", 2)) == ["0 of 2", "1 of 2"]
    assert len(set(bench.said("master", 2))) == 1


def test_a_gang_ends_as_a_whole_when_one_program_fails(bench: Bench):
    script = 'if [ "$GPUJOB_NODE_RANK" = 1 ]; then echo bad luck; exit 9; fi; while :; do sleep 0.02; done'
    bench.executor.submit(an_order(a_task("train", script, gpus=1, nodes=2)))

    bench.executor.release(Uid("1.train.1"), {"node-1": 1, "node-2": 1})
    end = bench.ended("1.train.1")

    assert (end.exit_code, end.stop_asked_at, end.tail) == (9, None, "bad luck")


def test_a_gated_attempt_that_is_skipped_ends_as_done_and_its_dag_goes_on(bench: Bench):
    bench.executor.submit(an_order(a_task("train"), a_task("after", needs=["train"])))
    (gated,) = bench.reports()

    bench.executor.skip(gated.uid, "done already")
    bench.executor.skip(gated.uid, "said twice")

    assert bench.gated() == ["1.after.1"]
    bench.restart()
    assert bench.gated() == ["1.after.1"]
