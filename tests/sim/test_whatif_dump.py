"""A history from files."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.adapters.vllm.names import GENERATION_TOKENS, RUNNING
from scheduler.errors import BadInput, NoAnswer
from scheduler.sim import whatif_dump
from scheduler.sim.whatif_demand import Replicas
from scheduler.sim.whatif_services import KnownService
from tests.sim.whatif_pieces import STEP, T0, pod


def written(path: Path, *series: tuple[str, list[float]], step: float = STEP) -> Path:
    """An answer of query_range."""
    result = [
        {
            "metric": {"__name__": name, **pod()},
            "values": [[T0 + i * step, "NaN" if math.isnan(value) else str(value)] for i, value in enumerate(values)],
        }
        for name, values in series
    ]
    body = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    text = json.dumps(body).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def table(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def read(*paths: Path) -> dict[str, Any]:
    strands = whatif_dump.answers(paths)
    start, end, step = whatif_dump.span(strands)
    values: dict[str, list[float]] = {}
    for piece in whatif_dump.pieces(strands, start, end, step):
        for name, lines in piece.lines.items():
            values.setdefault(name, []).extend(value for line in lines for _, value in line.values)
    return {"start": start, "end": end, "step": step, **values}


@pytest.mark.parametrize("name", ["running.json", "running.json.gz"])
def test_an_answer_is_read_as_it_came(tmp_path: Path, name: str):
    got = read(written(tmp_path / name, ("vllm:num_requests_running", [1, 2, 3])))

    assert (got["start"], got["end"], got["step"], got[RUNNING]) == (T0, T0 + 2 * STEP, STEP, [1, 2, 3])


def test_files_of_several_metrics_and_days_are_one_history(tmp_path: Path):
    points = int(2 * 86_400 / STEP)
    got = read(
        written(tmp_path / "a.json", ("vllm:num_requests_running", [1] * points)),
        written(tmp_path / "b.json", ("vllm:generation_tokens_total", [60.0 * i for i in range(points)])),
    )

    assert len(got[RUNNING]) == points
    assert set(got[GENERATION_TOKENS]) == {1.0}


def test_a_counter_that_fell_began_anew_at_zero(tmp_path: Path):
    got = read(
        written(
            tmp_path / "a.json",
            ("vllm:num_requests_running", [1, 1, 1, 1]),
            ("vllm:generation_tokens_total", [600, 1200, 300, 900]),
        )
    )

    assert got[GENERATION_TOKENS] == [10.0, 5.0, 10.0]


def test_other_metrics_are_left_out(tmp_path: Path):
    got = read(written(tmp_path / "a.json", ("vllm:num_requests_running", [1]), ("node_load1", [5])))

    assert set(got) == {"start", "end", "step", RUNNING}


def test_without_series_of_vllm_what_there_is_is_named(tmp_path: Path):
    with pytest.raises(NoAnswer, match=r"No series of vllm:num_requests_running in .*: it has node_load1"):
        read(written(tmp_path / "a.json", ("node_load1", [5])))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "is no JSON"),
        ("{}", "is no answer of query_range"),
        ('{"data": {"result": [{"metric": {}, "value": [0, "1"]}]}}', "is no answer of query_range"),
        ('{"data": {"result": [{"metric": {"__name__": "up"}, "values": [["x", "1"]]}]}}', "no pairs of a time"),
    ],
)
def test_what_is_no_answer_is_refused_with_the_way_out(tmp_path: Path, text: str, words: str):
    with pytest.raises(BadInput, match=words):
        read(table(tmp_path / "a.json", text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(BadInput, match=r"gone\.json cannot be read"):
        read(tmp_path / "gone.json")


def test_a_table_gives_load_and_wanted_each_ten_seconds(tmp_path: Path):
    path = table(tmp_path / "d.csv", "t_s,chat:load,chat:wanted\n0,0.5,1\n60,1.5,2\n120,2.5,3\n")

    got = whatif_dump.table(path, T0, (KnownService(name="chat", gpus_per_replica=4),), 1)

    (chat,) = got.services
    assert chat.wanted.tolist() == [1] * 6 + [2] * 6 + [3] * 6
    assert (chat.gpus_per_replica, chat.max_replicas, chat.replicas) == (4, 3, Replicas.THERE)
    assert (got.start, got.ticks) == (T0, 18)


def test_a_table_without_wanted_plays_the_autoscaler(tmp_path: Path):
    rows = "".join(f"{second},3.5\n" for second in range(0, 3600, 60))

    got = whatif_dump.table(table(tmp_path / "d.csv", "t_s,chat:load\n" + rows), T0, (), 2)

    assert (got.services[0].replicas, set(got.services[0].wanted.tolist())) == (Replicas.NEEDED, {4})
    assert np.allclose(got.services[0].load, 3.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n3,4\n", "its first line must be t_s"),
        ("t_s,chat:load\n0,x\n", "no table of numbers"),
        ("t_s,chat:load\n0,1\n", "two lines or more"),
        ("t_s,chat:load\n0,1\n7,1\n", "multiple of 10 s"),
        ("t_s,chat:load\n0,1\n10,1\n40,1\n", "must grow evenly"),
        ("t_s,chat:load\n0,nan\n10,1\n", "2 numbers"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(tmp_path: Path, text: str, words: str):
    with pytest.raises(BadInput, match=words):
        whatif_dump.table(table(tmp_path / "d.csv", text), T0, (), 1)
