from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = EXAMPLES / "data" / "digits.csv.gz"
QUICK = ("--data", str(SOURCE), "--epochs", "6", "--save-every", "20", "--log-every", "5")
STEPS = 135  # of 6 epochs


def program(name: str, *words: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / name), *words]


def finished(name: str, *words: str) -> list[str]:
    return subprocess.run(program(name, *words), check=True, capture_output=True, text=True).stdout.splitlines()


def places(folder: Path) -> tuple[str, ...]:
    return "--ckpt", f"file://{folder}/checkpoints", "--out", f"file://{folder}/model"


def progress(lines: list[str]) -> list[dict[str, float]]:
    said = [line.split()[1:] for line in lines if line.startswith("GPUJOB_PROGRESS ")]
    return [
        {"fraction": float(first)} | {k: float(v) for k, v in (w.split("=") for w in rest)} for first, *rest in said
    ]


def stopped_at(folder: Path, step: int) -> tuple[int, list[str]]:
    """Ends a run by SIGTERM once it has said that it reached `step`."""
    words = program("train_digits.py", *QUICK, *places(folder), "--pace", "0.02")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines, asked = [], False
        for line in process.stdout:
            lines.append(line.rstrip())
            if f" step={step} " in line and not asked:
                process.send_signal(signal.SIGTERM)
                asked = True
    return process.returncode, lines


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    finished("train_digits.py", *QUICK, *places(folder))
    return folder


def result(folder: Path) -> tuple[dict[str, object], bytes]:
    return json.loads((folder / "model/metrics.json").read_text()), (folder / "model/weights.npz").read_bytes()


def test_it_learns(undisturbed):
    metrics, _ = result(undisturbed)

    assert metrics["steps"] == STEPS
    assert metrics["accuracy"] > 0.8


def test_stopped_and_resumed_equals_never_stopped_to_the_bit(undisturbed, tmp_path):
    ends = [stopped_at(tmp_path, step)[0] for step in (25, 70)]

    last = progress(finished("train_digits.py", *QUICK, *places(tmp_path)))

    assert ends == [143, 143]
    assert result(tmp_path) == result(undisturbed)
    assert {line["from_step"] for line in last} == {last[0]["step"]}
    assert last[0]["step"] >= 70


def test_a_stop_saves_the_step_it_is_in(tmp_path):
    code, lines = stopped_at(tmp_path, 25)

    last = progress(lines)[-1]
    assert code == 143
    assert last["saved_step"] == last["step"] >= 25
    assert (tmp_path / "checkpoints" / f"step-{last['step']:09.0f}.npz").exists()
    assert not (tmp_path / "model").exists()


def test_a_kill_goes_on_from_the_newest_checkpoint_that_is_whole(undisturbed, tmp_path):
    stopped_at(tmp_path, 45)
    (tmp_path / "checkpoints/step-000000099.npz").write_bytes(b"PK\x03\x04 half a file")
    (tmp_path / "checkpoints/unfinished-1").write_bytes(b"nothing")

    last = progress(finished("train_digits.py", *QUICK, *places(tmp_path)))

    assert 45 <= last[0]["from_step"] < 99
    assert result(tmp_path) == result(undisturbed)


def test_a_finished_run_that_is_started_again_writes_the_same(undisturbed):
    before = result(undisturbed)

    (only,) = progress(finished("train_digits.py", *QUICK, *places(undisturbed)))

    assert only["fraction"] == 1.0
    assert result(undisturbed) == before


def test_progress_grows_and_tells_what_is_saved(tmp_path):
    lines = progress(finished("train_digits.py", *QUICK, *places(tmp_path)))

    steps = [line["step"] for line in lines]
    assert steps == [*range(0, STEPS + 1, 5)]
    assert all(line["fraction"] == pytest.approx(line["step"] / STEPS, abs=1e-4) for line in lines)
    assert [line["saved_step"] for line in lines if line["step"] == 95] == [80.0]
    assert all("from_step" not in line for line in lines)


def test_another_seed_gives_other_weights(undisturbed, tmp_path):
    finished("train_digits.py", *QUICK, *places(tmp_path), "--seed", "1")

    assert result(tmp_path)[0]["sha256"] != result(undisturbed)[0]["sha256"]


def test_a_pipeline_of_the_three_programs_names_the_best_model(undisturbed, tmp_path):
    data, out = f"file://{tmp_path}/prepared%20data", f"file://{tmp_path}/best"
    finished("prepare_digits.py", "--source", str(SOURCE), "--out", data)
    finished("train_digits.py", *QUICK, *places(tmp_path), "--data", data, "--lr", "0.0001")
    models = [f"file://{tmp_path}/model", f"file://{undisturbed}/model", f"file://{tmp_path}/never-trained"]

    finished("evaluate_digits.py", "--data", data, "--models", json.dumps(models), "--out", out)

    assert json.loads((tmp_path / "best/best.json").read_text())["model"] == models[1]
    with (tmp_path / "best/accuracies.csv").open() as file:
        assert [row["model"] for row in csv.DictReader(file)] == [models[1], models[0]]


def test_storage_that_it_cannot_read_is_named():
    url = "gs://bucket/model"
    ended = subprocess.run(
        program("prepare_digits.py", "--source", str(SOURCE), "--out", url), capture_output=True, text=True
    )

    assert ended.returncode == 1
    assert ended.stderr == f"{url}: only file:// and s3:// are read here\n"
