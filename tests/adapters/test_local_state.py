from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.adapters.local.cluster import LocalCluster
from scheduler.adapters.local.executor import LocalExecutor
from scheduler.adapters.local.services import LocalReplica, LocalService
from scheduler.adapters.local.state import LocalState, parse_uid, uid_of
from scheduler.codec import to_plain
from scheduler.errors import BadInput, Unavailable
from scheduler.fleet.pool import HolderKind, ReplicaPhase
from scheduler.fleet.services import Mode
from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.jobs.reports import Phase
from tests.local_bench import Bench, a_task, an_order, clock


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.clear()


def observed(*replicas: LocalReplica, name: str = "chat", gpus: int = 1) -> LocalService:
    return LocalService(name=name, gpus_per_replica=gpus, mode=Mode.OBSERVE, replicas=replicas)


def test_two_schedulers_never_act_on_one_folder(bench: Bench):
    second = LocalState(bench.folder)

    with pytest.raises(Unavailable, match="another gpujob acts on"):
        second.lock()

    bench.state.unlock()
    second.lock()
    assert second.locked
    second.unlock()


def test_who_has_no_lock_may_look_but_not_act(bench: Bench):
    reader = LocalExecutor(LocalState(bench.folder), bench.nodes, clock)
    bench.executor.submit(an_order(a_task("train")))

    (seen,) = reader.reports({JobId(1): ()}, clock())

    assert (seen.uid, seen.phase) == ("1.train.1", Phase.GATED)
    acts: tuple[Callable[[], None], ...] = (
        lambda: reader.submit(an_order(a_task("train"), job=2)),
        lambda: reader.release(Uid("1.train.1"), {"node-1": 1}),
        lambda: reader.take_back(Uid("1.train.1"), 1.0),
        lambda: reader.cancel(JobId(1), 1.0),
    )
    for act in acts:
        with pytest.raises(Unavailable, match="only reads"):
            act()


def test_who_has_no_lock_sees_what_the_scheduler_does_meanwhile(bench: Bench):
    state = LocalState(bench.folder)
    reader = LocalExecutor(state, bench.nodes, clock)
    cluster = LocalCluster(state, bench.nodes, (), clock)
    bench.executor.submit(an_order(a_task("train", "sleep 30")))
    before = reader.reports({JobId(1): ()}, clock())[0].phase
    bench.release("1.train.1")
    bench.phase("1.train.1", Phase.RUNNING)

    assert before is Phase.GATED
    assert reader.reports({JobId(1): ()}, clock())[0].phase is Phase.RUNNING
    assert [hold.holder for hold in cluster.pool(clock()).holds] == ["1.train.1"]


def test_who_looked_first_and_acts_later_knows_what_happened_in_between(bench: Bench):
    state = LocalState(bench.folder)
    late = LocalExecutor(state, bench.nodes, clock)
    bench.executor.submit(an_order(a_task("train", f"echo ran >> {bench.files}/ran")))
    late.reports({JobId(1): ()}, clock())
    bench.run("1.train.1")
    bench.state.unlock()

    state.lock()
    late.release(Uid("1.train.1"), {"node-1": 1})
    (end,) = late.reports({JobId(1): ()}, clock())
    state.unlock()

    assert end.phase is Phase.ENDED
    assert bench.said("ran") == ["ran"]


def test_another_job_of_the_same_number_is_refused_and_the_first_is_kept(bench: Bench):
    bench.executor.submit(an_order(a_task("train")))
    other = replace(an_order(a_task("other")), spec_hash="another")

    with pytest.raises(Unavailable, match="holds another job of that number, job-1"):
        bench.executor.submit(other)

    assert bench.gated() == ["1.train.1"]


def test_a_program_sees_its_own_gpus_its_run_and_what_the_order_says(bench: Bench):
    shows = f"echo $CUDA_VISIBLE_DEVICES $GPUJOB_RUN $GPUJOB_PARAM_LR $PYTHONUNBUFFERED >> {bench.files}/env"
    bench.executor.submit(an_order(a_task("one", "sleep 30"), a_task("two", shows, env={"GPUJOB_PARAM_LR": "2e-5"})))
    bench.release("1.one.1")

    bench.run("1.two.1")

    assert bench.said("env") == ["1 1.two.1 2e-5 1"]


def test_a_program_does_not_see_the_rest_of_the_schedulers_environment(bench: Bench):
    bench.executor.submit(an_order(a_task("train", f"env | cut -d= -f1 | sort > {bench.files}/names")))

    bench.run("1.train.1")

    ours = {"HOME", "LANG", "TZ", "PATH", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES", "GPUJOB_RUN", "GPUJOB_LEASE"}
    assert set(bench.said("names")) - ours <= {"PWD", "OLDPWD", "SHLVL", "_"}


def test_a_program_starts_with_no_signal_blocked_and_with_broken_pipes_as_usual(bench: Bench):
    # No shell between: it would clear what it inherits.
    task = a_task("train", command=["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"])
    bench.executor.submit(an_order(task))

    bench.run("1.train.1")

    said = bench.logs.tail(Uid("1.train.1"), 2).splitlines()
    blocked, ignored = (int(line.split()[1], 16) for line in said)
    assert blocked == 0
    assert not ignored & 1 << (signal.SIGPIPE - 1)


def test_a_secret_reaches_the_program_and_no_file_of_ours(bench: Bench):
    name, value = "PYTEST_CURRENT_TEST", os.environ["PYTEST_CURRENT_TEST"]
    told = f'[ "${name}" = "{value}" ] && echo same > {bench.files}/told'
    bench.executor.submit(an_order(a_task("train", command=["sh", f"{bench.files}/run"]), secrets={name: "a/b"}))
    (bench.files / "run").write_text(told)

    bench.run("1.train.1")

    assert bench.said("told") == ["same"]
    assert not [path for path in bench.folder.rglob("*") if path.is_file() and value in path.read_text()]


def test_a_program_that_cannot_be_found_is_a_failure_that_names_it(bench: Bench):
    bench.executor.submit(an_order(a_task("train", command=["no-such-program", "--fast"])))

    end = bench.run("1.train.1")

    assert (end.exit_code, bench.gated()) == (127, [])
    assert end.message == "cannot start no-such-program: no-such-program: No such file or directory"


def test_a_workdir_that_is_missing_is_a_failure_that_names_it(bench: Bench):
    bench.executor.submit(an_order(a_task("train"), workdir=f"{bench.files}/nowhere"))

    end = bench.run("1.train.1")

    assert end.exit_code == 127
    assert f"{bench.files}/nowhere" in end.message


def test_programs_run_in_the_workdir_or_else_in_a_folder_of_their_own(bench: Bench):
    says = f"pwd >> {bench.files}/where"
    bench.executor.submit(an_order(a_task("given", says), workdir=str(bench.files)))
    bench.executor.submit(an_order(a_task("own", says), job=2))

    bench.run("1.given.1")
    bench.run("2.own.1")

    assert bench.said("where") == [str(bench.files), str(bench.folder / "jobs/2/own/1/work")]


def test_folders_of_outputs_and_checkpoints_are_there_before_the_program_starts(bench: Bench):
    urls = [f"file://{bench.files}/a%20b/out", f"file://{bench.files}/ckpt/train"]
    task = a_task(
        "train",
        f"echo > '{bench.files}/a b/out'; echo > {bench.files}/ckpt/train",
        outputs={"model": urls[0], "far": "s3://bucket/key"},
        env={"GPUJOB_CHECKPOINT": urls[1]},
    )
    bench.executor.submit(an_order(task))

    bench.run("1.train.1")

    assert (bench.files / "a b" / "out").exists()
    assert (bench.files / "ckpt" / "train").exists()


def test_python_is_the_interpreter_of_the_folder_that_comes_first(bench: Bench):
    bench.executor = LocalExecutor(bench.state, bench.nodes, clock, path_first=Path(sys.executable).parent)
    bench.executor.submit(an_order(a_task("train", f"command -v python > {bench.files}/which")))

    bench.run("1.train.1")

    assert bench.said("which") == [f"{Path(sys.executable).parent}/python"]


def test_lines_that_only_look_like_progress_are_output(bench: Bench):
    lines = (
        "GPUJOB_PROGRESS 0.3\\nGPUJOB_PROGRESS 2.0\\nGPUJOB_PROGRESS nan\\nxGPUJOB_PROGRESS 0.9\\nGPUJOB_PROGRESS\\n"
    )
    bench.executor.submit(an_order(a_task("train", f"printf '{lines}'")))

    progress = bench.run("1.train.1").progress

    assert progress is not None
    assert progress.fraction == 0.3


def test_a_checkpoint_that_is_told_again_is_not_newer(bench: Bench):
    line = "echo GPUJOB_PROGRESS 0.{n} saved_step={step}"
    script = "; sleep 0.3; ".join(line.format(n=n, step=step) for n, step in ((1, 5), (2, 5), (3, 4)))
    bench.executor.submit(an_order(a_task("train", script)))

    progress = bench.run("1.train.1").progress

    assert progress is not None
    assert progress.fraction == 0.3
    assert progress.saved_at == progress.first_at


def test_observed_replicas_hold_their_gpus_for_good_and_no_run_gets_them(bench: Bench):
    service = observed(
        LocalReplica(url="http://10.0.0.1/metrics", node="node-1", slots=(1,)),
        LocalReplica(url="http://10.0.0.2/metrics", node="node-2"),
    )
    cluster = LocalCluster(bench.state, bench.nodes, [service], clock)
    bench.executor.submit(an_order(a_task("train", f"echo $CUDA_VISIBLE_DEVICES > {bench.files}/gpus")))
    bench.run("1.train.1")

    pool = cluster.pool(clock())

    assert bench.said("gpus") == ["0"]
    assert pool.idle() == {"node-1": 1, "node-2": 1}
    assert [(hold.kind, hold.holder) for hold in pool.holds] == [
        (HolderKind.REPLICA, "chat-1"),
        (HolderKind.REPLICA, "chat-2"),
    ]
    assert [(one.phase, one.url) for one in pool.replicas] == [
        (ReplicaPhase.READY, "http://10.0.0.1/metrics"),
        (ReplicaPhase.READY, "http://10.0.0.2/metrics"),
    ]


def test_observed_replicas_cannot_be_scaled(bench: Bench):
    cluster = LocalCluster(bench.state, bench.nodes, [observed()], clock)

    with pytest.raises(Unavailable, match='set mode = "manage"'):
        cluster.scale("chat", 1, (), ())


@pytest.mark.parametrize(
    "replicas",
    [
        [LocalReplica(url="", node="node-9")],
        [LocalReplica(url="", node="node-1", slots=(7,))],
        [LocalReplica(url="", node="node-1")] * 3,
        [LocalReplica(url="", node="node-1", slots=(0,))] * 2,
    ],
    ids=["no such node", "no such GPU", "too many", "one GPU twice"],
)
def test_settings_that_give_gpus_twice_or_that_are_not_there_are_refused(bench: Bench, replicas: list[LocalReplica]):
    with pytest.raises(BadInput, match=r"cannot have 1 GPUs of node-"):
        LocalCluster(bench.state, bench.nodes, [observed(*replicas)], clock)


def test_a_node_that_became_smaller_than_what_runs_on_it_makes_the_pool_unavailable(bench: Bench):
    bench.executor.submit(an_order(a_task("train", "sleep 30")))
    bench.release("1.train.1", gpus=2)

    with pytest.raises(Unavailable, match="2 GPUs of node-1 are held, it has 1"):
        LocalCluster(bench.state, {"node-1": 1, "node-2": 2}, [], clock).pool(clock())


def test_a_thousand_waiting_jobs_are_reported_in_a_moment(tmp_path: Path):
    bench = Bench(tmp_path)
    for job in range(1, 1001):
        order = an_order(a_task("prep"), a_task("train", needs=["prep"]), job=job)
        bench.state.job(JobId(job)).mkdir(parents=True)
        (bench.state.job(JobId(job)) / "order.json").write_text(json.dumps(to_plain(order)))
    jobs = {JobId(job): () for job in range(1, 1001)}
    first = bench.executor.reports(jobs, clock())

    began = time.perf_counter()
    again = bench.executor.reports(jobs, clock())
    took_s = time.perf_counter() - began

    assert again == first
    assert len(first) == 1000
    assert took_s < 0.3


@given(st.integers(1, 10**9), st.from_regex(r"[a-z][a-z0-9-]{0,40}", fullmatch=True), st.integers(1, 10**6))
def test_the_name_of_an_attempt_says_which_it_is(job: int, task: str, number: int):
    assert parse_uid(uid_of(JobId(job), TaskName(task), number)) == (job, task, number)


@given(st.text(max_size=20))
def test_any_other_name_is_nobody_or_stays_inside_the_folder(text: str):
    named = parse_uid(Uid(text))

    assert named is None or ("/" not in named[1] and not named[1].startswith("."))
