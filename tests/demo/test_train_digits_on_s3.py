"""The example programs keep their work in object storage: moto's server everywhere, SeaweedFS where Go is."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.go_programs import SEAWEEDFS
from tests.object_storage import ObjectStorage, moto, weed

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = EXAMPLES / "data" / "digits.csv.gz"
QUICK = ("--epochs", "6", "--save-every", "20", "--log-every", "5")


class Programs:
    """The example programs, and the storage that they are given by their environment."""

    def __init__(self, storage: ObjectStorage) -> None:
        self.storage = storage
        self.environment = os.environ | dict(storage.environment)

    def finished(self, name: str, *words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name), *words],
            capture_output=True,
            text=True,
            env=self.environment,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def stopped_at(self, step: int, *words: str) -> int:
        """Ends a training by SIGTERM once it has said that it reached `step`; its exit code."""
        command = [sys.executable, str(EXAMPLES / "train_digits.py"), *words, "--pace", "0.02"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environment) as process:
            assert process.stdout is not None
            asked = False
            for line in process.stdout:
                if f" step={step} " in line and not asked:
                    process.send_signal(signal.SIGTERM)
                    asked = True
        return process.returncode


@pytest.fixture(scope="module", params=["moto", pytest.param("seaweedfs", marks=pytest.mark.cluster)])
def programs(request: pytest.FixtureRequest) -> Iterator[Programs]:
    with moto() if request.param == "moto" else weed(SEAWEEDFS.built()) as storage:
        yield Programs(storage)


def test_stopped_and_resumed_on_s3_equals_never_stopped_on_disk_to_the_bit(programs: Programs, tmp_path: Path):
    storage, root = programs.storage, f"{programs.storage.root}/resumed"
    storage.write(f"{root}/digits.csv.gz", SOURCE.read_bytes())
    words = ("--data", f"{root}/digits.csv.gz", *QUICK, "--ckpt", f"{root}/checkpoints", "--out", f"{root}/model")
    undisturbed = (*QUICK, "--ckpt", f"{tmp_path}/checkpoints", "--out", f"{tmp_path}/model")

    ends = [programs.stopped_at(step, *words) for step in (25, 70)]
    lines = programs.finished("train_digits.py", *words)
    programs.finished("train_digits.py", "--data", str(SOURCE), *undisturbed)

    assert ends == [143, 143]
    assert "from_step=" in lines[0]
    assert storage.read(f"{root}/model/weights.npz") == (tmp_path / "model/weights.npz").read_bytes()
    assert storage.read(f"{root}/model/metrics.json") == (tmp_path / "model/metrics.json").read_bytes()
    assert len(storage.names(f"{root}/checkpoints")) == 2


def test_a_checkpoint_that_is_no_whole_one_is_passed_over(programs: Programs):
    root = f"{programs.storage.root}/broken"
    words = ("--data", str(SOURCE), *QUICK, "--ckpt", f"{root}/checkpoints", "--out", f"{root}/model")
    programs.stopped_at(45, *words)
    programs.storage.write(f"{root}/checkpoints/step-000000099.npz", b"PK\x03\x04 half a file")

    first = programs.finished("train_digits.py", *words)[0]

    assert 45 <= int(first.rpartition("from_step=")[2].split()[0]) < 99


def test_outputs_pass_between_steps_through_s3(programs: Programs):
    root = f"{programs.storage.root}/pipeline"
    models = [f"{root}/model-{seed}" for seed in (1, 2)]
    programs.finished("prepare_digits.py", "--source", str(SOURCE), "--out", f"{root}/data")
    for seed, model in zip((1, 2), models, strict=True):
        words = ("--data", f"{root}/data", "--ckpt", f"{root}/ckpt-{seed}", "--out", model, "--seed", str(seed))
        programs.finished("train_digits.py", *QUICK, *words)
    given = json.dumps([*models, f"{root}/never-trained"])
    programs.finished("evaluate_digits.py", "--data", f"{root}/data", "--models", given, "--out", f"{root}/best")

    rows = list(csv.DictReader(io.StringIO(programs.storage.read(f"{root}/best/accuracies.csv").decode())))
    assert {row["model"] for row in rows} == set(models)
    assert json.loads(programs.storage.read(f"{root}/best/best.json"))["model"] == rows[0]["model"]
