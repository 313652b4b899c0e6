"""What each preset does that the others do not, on a world of a few nodes."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scheduler.policy import Policy
from scheduler.sim.run import run
from scheduler.sim.scenario import PRESETS, Scenario, SimService

HOUR = 3600
EVENING = 21 * HOUR


def a_scenario(folder: Path, wants: Mapping[int, int], jobs: Sequence[Mapping[str, Any]], **fields: Any) -> Scenario:
    """One service of 4-GPU replicas; `wants` from which second on; jobs as in the file, with defaults."""
    given = {"start_s": 0.0, "measure_from_s": 0.0, "end_s": 2.0 * HOUR, "nodes": 2} | fields
    with gzip.open(folder / "demand.csv.gz", "wt") as file:
        file.write("t_s,chat:load,chat:wanted\n")
        for t in range(0, int(given["end_s"]) + 10, 10):
            want = [want for since, want in wants.items() if since <= t][-1]
            file.write(f"{t},{want * 0.9},{want}\n")
    default = {"submit_s": 0, "work_s": 1e6, "checkpoint_s": 1800, "restart_s": 60, "save_s": 20, "saves_on_sigterm": 1}
    with gzip.open(folder / "jobs.csv.gz", "wt", newline="") as file:
        writer = csv.DictWriter(file, ["job", "gpus", *default, "estimate_s"])
        writer.writeheader()
        for number, job in enumerate(jobs):
            writer.writerow({"job": number, "gpus": 4, "estimate_s": 1e6} | default | dict(job))
    return Scenario(
        demand=folder / "demand.csv.gz",
        jobs=folder / "jobs.csv.gz",
        services=(SimService(name="chat", max_replicas=4, min_replicas=0),),
        **given,
    )


def told(scenario: Scenario, *whats: str) -> list[tuple[float, Mapping[str, Any]]]:
    found: list[tuple[float, Mapping[str, Any]]] = []
    run(scenario, lambda at, what, more: found.append((at, more)) if what in whats else None)
    return found


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_keeps_the_books(tmp_path: Path, preset: str):
    scenario = a_scenario(tmp_path, {0: 1, 1800: 3, 3600: 2}, [{}] * 3, preset=preset)

    figures = run(scenario)

    assert figures["scale_ups"] == 2
    assert 0 <= figures["useful_over_oracle"] <= 1
    assert json.dumps(figures)


def test_the_night_window_opens_at_eight_and_kills_everything_at_eight(tmp_path: Path):
    day = 24.0 * HOUR
    scenario = a_scenario(tmp_path, {0: 1}, [{}], preset="night", end_s=day)

    assert [at for at, _ in told(scenario, "job_start")] == [0.0, 20 * HOUR]
    assert [at for at, _ in told(scenario, "job_stop")] == [8 * HOUR]


def test_the_night_spreads_and_the_others_pack(tmp_path: Path):
    for preset, nodes in (("night", {0, 1}), ("fifo", {0})):
        scenario = a_scenario(tmp_path, {0: 2}, [], preset=preset, end_s=60.0)
        assert {more["node"] for _, more in told(scenario, "replica_start")} == nodes


def test_fifo_kills_the_newest_and_keeps_its_slot(tmp_path: Path):
    jobs = [{}, {}, {"submit_s": 600}]
    scenario = a_scenario(
        tmp_path, {0: 1, 1200: 2}, jobs, preset="fifo", arrivals="open", policy=Policy(reserve_slots=1), end_s=1800.0
    )

    started = [more["job"] for at, more in told(scenario, "job_start") if at < 1200]
    assert started == [0, 1]
    assert [(at, more["job"]) for at, more in told(scenario, "job_stop")] == [(1200, 1)]
    assert [at for at, _ in told(scenario, "replica_start")] == [0, 1200]


def test_kueue_fills_back_whoever_is_not_needed(tmp_path: Path):
    jobs = [
        {"gpus": 4},
        {"gpus": 2, "submit_s": 60},
        {"gpus": 4, "submit_s": 120},
        {"gpus": 2, "submit_s": 180},
    ]
    stopped = {}
    for preset in ("fifo", "kueue"):
        scenario = a_scenario(tmp_path, {0: 1, 600: 2}, jobs, preset=preset, arrivals="open", end_s=700.0)
        stopped[preset] = [more["job"] for at, more in told(scenario, "job_stop") if at == 600]

    assert stopped == {"fifo": [3, 2], "kueue": [2]}


def test_lyra_loans_whole_nodes_only(tmp_path: Path):
    scenario = a_scenario(tmp_path, {0: 1}, [{"gpus": 4}] * 3, preset="lyra", end_s=600.0)

    (replica,) = told(scenario, "replica_start")
    started = [more["gpus"] for _, more in told(scenario, "job_start")]
    assert len(started) == 2
    assert all(str(replica[1]["node"]) not in gpus for gpus in started)


def test_the_clairvoyant_lets_no_replica_wait(tmp_path: Path):
    scenario = a_scenario(tmp_path, {0: 1, 1800: 2, 3600: 3}, [{}] * 4, preset="clairvoyant")

    assert run(scenario)["scale_up_wait_max_s"] == 0
    assert {more["urgent"] for _, more in told(scenario, "job_stop")} == {False}
