"""A whole day of the benchmark, counted again by somebody who has never seen the simulator."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from scheduler.cli.main import main
from tests.sim.recount import Broken, differences, recount

EXAMPLES = Path(__file__).parents[2] / "examples" / "harvest"


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A scenario of one day, its events, its figures."""
    folder = tmp_path_factory.mktemp("day")
    data = Path(__file__).parents[1] / "data" / "harvest"
    text = (EXAMPLES / "base-itp.toml").read_text().replace("../../tests/data/harvest", str(data))
    scenario = folder / "day.toml"
    scenario.write_text("measure_from_s = 21600\nend_s = 86400\n" + text)
    events, figures = folder / "events.jsonl.gz", folder / "figures.json"
    assert main(["simulate", str(scenario), "--events", str(events), "--json", str(figures)]) == 0
    return scenario, events, figures


def test_the_figures_are_those_that_the_events_tell(day: tuple[Path, Path, Path]):
    scenario, events, figures = day

    assert differences(recount(scenario, events), json.loads(figures.read_text())) == []


def test_the_same_scenario_gives_the_same_bytes(day: tuple[Path, Path, Path], tmp_path: Path):
    scenario, events, figures = day
    again = tmp_path / "again.jsonl.gz", tmp_path / "again.json"

    main(["simulate", str(scenario), "--events", str(again[0]), "--json", str(again[1])])

    first, second = (json.loads(path.read_text()) for path in (figures, again[1]))
    assert again[0].read_bytes() == events.read_bytes()
    assert {key: value for key, value in first.items() if key != "wall_s"} == {
        key: value for key, value in second.items() if key != "wall_s"
    }


@pytest.mark.parametrize("left_out", ["job_gone", "job_stop", "replica_gone", "replica_start"])
def test_a_log_that_breaks_the_rules_is_found_out(day: tuple[Path, Path, Path], tmp_path: Path, left_out: str):
    scenario, events, figures = day
    lines = gzip.decompress(events.read_bytes()).splitlines()
    number = next(i for i, line in enumerate(lines) if json.loads(line)["what"] == left_out)
    holed = tmp_path / "holed.jsonl.gz"
    holed.write_bytes(gzip.compress(b"\n".join(lines[:number] + lines[number + 1 :])))

    assert not is_believed(scenario, holed, figures)


def is_believed(scenario: Path, events: Path, figures: Path) -> bool:
    try:
        return differences(recount(scenario, events), json.loads(figures.read_text())) == []
    except (Broken, KeyError, IndexError, TypeError):
        return False
