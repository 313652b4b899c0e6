"""A training on a real node: containerd, runc, kubelet and argoexec; its storage is S3. Run it by `make test-node`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.jobs.job import JobId, JobState, Uid
from tests.cluster.build import CannotBuild
from tests.cluster.control_plane import ControlPlane
from tests.node.bench import GRACE_S, Bench
from tests.node.images import DIGITS, EXAMPLES
from tests.node.night import Night
from tests.node.node import Node, what_is_missing
from tests.node.programs import node_programs
from tests.object_storage import moto

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

EPOCHS, PACE = "12", "0.05"
PIPELINE = f"""
gpujob: 1
name: digits
image: {DIGITS}
checkpoint: {{every: 10s, save: 1s}}
steps:
  - name: prepare
    gpus: 0
    command: [python, prepare_digits.py, --out, "{{{{ outputs.data }}}}"]
    outputs: {{data: "ROOT/{{{{ job.id }}}}/data"}}
  - name: train
    needs: [prepare]
    gpus: 4
    command: [python, train_digits.py, --data, "{{{{ steps.prepare.outputs.data }}}}", --ckpt, "{{{{ checkpoint }}}}",
              --out, "{{{{ outputs.model }}}}", --epochs, "{EPOCHS}", --save-every, "20", --pace, "{PACE}"]
    outputs: {{model: "ROOT/{{{{ job.id }}}}/model"}}
  - name: evaluate
    needs: [prepare, train]
    gpus: 1
    command: [python, evaluate_digits.py, --data, "{{{{ steps.prepare.outputs.data }}}}",
              --models, '["{{{{ steps.train.outputs.model }}}}"]', --out, "{{{{ outputs.best }}}}"]
    outputs: {{best: "ROOT/{{{{ job.id }}}}/best"}}
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    if missing := what_is_missing():
        pytest.skip(missing)
    try:
        programs = node_programs()
    except CannotBuild as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("node")
    with ControlPlane(folder / "plane") as plane, Node(plane, folder / "node", programs) as node, moto() as storage:
        print(f"\nnode: seconds of its start {node.timings}")
        with Bench(plane, node, storage) as bench:
            yield bench


def training(bench: Bench) -> tuple[JobId, Uid]:
    """A pipeline whose training runs and has saved once."""
    job = bench.submit(PIPELINE.replace("ROOT", bench.storage.root))
    assert bench.ended(job, bench.start(job, "prepare")).exit_code == 0
    uid = bench.start(job, "train")
    bench.until(lambda: bench.storage.names(f"{bench.storage.root}/job-{job}/checkpoints/train"), 60)
    return job, uid


def finished(bench: Bench, job: JobId) -> dict[str, object]:
    """The rest of the pipeline runs, and names the model; what the training measured."""
    again = bench.start(job, "train")
    end = bench.ended(job, again)
    assert end.exit_code == 0
    assert end.progress is not None
    assert int(end.progress.values["from_step"]) > 0
    assert bench.ended(job, bench.start(job, "evaluate")).exit_code == 0
    root = f"{bench.storage.root}/job-{job}"
    assert json.loads(bench.storage.read(f"{root}/best/best.json"))["model"] == f"{root}/model"
    measured: dict[str, object] = json.loads(bench.storage.read(f"{root}/model/metrics.json"))
    return measured


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the same training measures on this computer when nobody stops it."""
    folder: Path = tmp_path_factory.mktemp("undisturbed")
    # They choose other arithmetic, and no pod has them.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS")}
    prepare = [sys.executable, str(EXAMPLES / "prepare_digits.py"), "--out", f"{folder}/data"]
    subprocess.run(prepare, cwd=EXAMPLES, env=environment, check=True, capture_output=True)
    words = ["--data", f"{folder}/data", "--ckpt", f"{folder}/ckpt", "--out", f"{folder}/model", "--epochs", EPOCHS]
    train = [sys.executable, str(EXAMPLES / "train_digits.py"), *words]
    subprocess.run(train, env=environment, check=True, capture_output=True)
    measured: dict[str, object] = json.loads((folder / "model/metrics.json").read_text())
    return measured


def test_a_training_that_is_evicted_saves_on_sigterm_resumes_and_ends_as_if_never_stopped(
    bench: Bench, undisturbed: dict[str, object]
):
    job, uid = training(bench)

    asked = time.monotonic()
    bench.executor.take_back(uid, GRACE_S)
    end = bench.ended(job, uid)
    seen = time.monotonic() - asked
    bench.gated_again(job, "train")
    gated = time.monotonic() - asked
    measured = finished(bench, job)

    assert (end.exit_code, end.stop_asked_at is not None) == (143, True)
    assert end.started_at is not None
    assert end.ended_at is not None
    print(f"\nevicted: program ended with 143 and seen after {seen:.1f} s, next gated attempt after {gated:.1f} s")
    assert seen < GRACE_S
    assert measured == undisturbed


def test_a_serving_pod_gets_its_gpus_from_kubernetes_alone_and_the_training_goes_on_later(
    bench: Bench, undisturbed: dict[str, object]
):
    job, uid = training(bench)

    asked = time.monotonic()
    bench.serve("chat-1", 8)
    bench.until(lambda: bench.served("chat-1")["spec"].get("nodeName"), GRACE_S + 5)
    bound = time.monotonic() - asked
    end = bench.ended(job, uid)
    bench.leave("chat-1")
    measured = finished(bench, job)

    print(f"\npreempted by kube-scheduler: serving pod bound after {bound:.1f} s, program ended with {end.exit_code}")
    assert end.exit_code == 143
    assert measured == undisturbed


def test_a_program_that_ignores_sigterm_is_killed_when_its_grace_is_over(bench: Bench):
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    job = bench.submit(f'gpujob: 1\nname: deaf\nimage: {DIGITS}\ngpus: 1\ncommand: [python, -c, "{deaf}"]\n')
    uid = bench.start(job, "main")
    bench.until(lambda: "deaf" in bench.executor.logs.tail(uid, 5), 60)

    asked = time.monotonic()
    bench.executor.take_back(uid, 3.0)
    end = bench.ended(job, uid)
    seen = time.monotonic() - asked

    print(f"\ndeaf: killed and seen after {seen:.1f} s with a grace of 3 s")
    assert end.exit_code == 137
    assert 3.0 <= seen < 15.0


def test_the_output_of_a_program_can_be_read_while_it_runs(bench: Bench):
    talks = "import time; print('hello from a container', flush=True); time.sleep(600)"
    job = bench.submit(f'gpujob: 1\nname: talks\nimage: {DIGITS}\ngpus: 1\ncommand: [python, -c, "{talks}"]\n')
    uid = bench.start(job, "main")

    bench.until(lambda: "hello from a container" in bench.executor.logs.tail(uid, 5), 60)
    bench.executor.cancel(job, 2.0)
    assert bench.ended(job, uid).exit_code in {137, 143}


def test_the_cycle_hands_gpus_back_to_a_deployment_and_ends_the_pipeline_by_itself(
    bench: Bench, undisturbed: dict[str, object]
):
    with Night(bench) as night:
        job = night.submit(PIPELINE.replace("ROOT", f"{bench.storage.root}/night"))
        checkpoints = f"{bench.storage.root}/job-{job}/checkpoints/train"
        before = set(bench.storage.names(checkpoints))
        bench.until(lambda: set(bench.storage.names(checkpoints)) - before, 120)

        asked = time.monotonic()
        night.serving.scale(2)
        bench.until(lambda: bench.bound("chat") == 2, GRACE_S + 5)
        bound = time.monotonic() - asked
        bench.until(lambda: night.job(job).state is JobState.PREEMPTED, 30)
        night.serving.scale(0)
        bench.until(lambda: night.job(job).state is JobState.COMPLETED, 180)
        runs = night.store.job_runs(job)

    ended = [run for run in runs if run.task == "train"]
    measured = json.loads(bench.storage.read(f"{bench.storage.root}/night/job-{job}/model/metrics.json"))
    print(f"\nhanded back: both serving pods bound after {bound:.1f} s; told {night.told()}")
    assert [(run.state.value, run.exit_code) for run in ended] == [("preempted", 143), ("done", 0)]
    assert night.told()[-1] == "completed"
    assert {"started", "preempted", "resumed"} <= set(night.told())
    assert measured == undisturbed
