"""What a scenario may say, and what is said of one that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.errors import BadInput
from scheduler.sim.scenario import read

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "harvest").glob("*.toml"))
LEAST = 'demand = "d.csv.gz"\njobs = "j.csv.gz"\n[[service]]\nname = "chat"\n'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_every_example_is_a_scenario_whose_files_are_there(path: Path):
    scenario = read(path)

    assert (scenario.demand.exists(), scenario.jobs.exists()) == (True, True)
    assert sum(one.max_replicas * one.gpus_per_replica for one in scenario.services) == 152


def test_files_are_relative_to_the_scenario_and_the_rest_has_defaults(tmp_path: Path):
    scenario = read(written(tmp_path, LEAST))

    assert scenario.demand == tmp_path / "d.csv.gz"
    assert (scenario.nodes, scenario.end_s, scenario.preset) == (19, 604_800.0, "gpujob")


def test_knobs_of_the_command_line_win(tmp_path: Path):
    path = written(tmp_path, LEAST + '[policy]\nreserve_slots = 1\npreset = "fifo"\n')

    scenario = read(path, ["reserve_slots=2", "preset=night"])

    assert (scenario.policy.reserve_slots, scenario.preset) == (2, "night")


def test_the_grace_of_the_world_is_that_of_the_policy_unless_told(tmp_path: Path):
    text = "grace_s = 20\n" + LEAST

    assert read(written(tmp_path, text)).policy.grace_s == 20
    assert read(written(tmp_path, text), ["grace_s=5"]).policy.grace_s == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nods = 3\n" + LEAST, 'nods is no key of the settings; did you mean "nodes"?'),
        (LEAST + '[policy]\npreset = "nigth"\n', "preset = 'nigth' is no preset; did you mean \"night\"?"),
        (LEAST + "[policy]\nreserve_slot = 1\n", 'reserve_slot is no knob; did you mean "reserve_slots"?'),
        (LEAST + "[policy]\nreserve_slots = 1.5\n", "reserve_slots = 1.5: must be a whole number"),
        (LEAST + "[policy]\nlead_s = nan\n", "lead_s = nan: must be 0 or more"),
        ("end_s = 10\n" + LEAST, "measure_from_s = 86400 must lie between"),
        ('arrivals = "opn"\n' + LEAST, "arrivals"),
        (LEAST + '[[service]]\nname = "chat"\n', "two [[service]] have the same name"),
        (LEAST + "gpus_per_replica = 16\n", "gpus_per_replica may be 8 (gpus_per_node) at most"),
        ("nodes = 1\n" + LEAST, "all services together may want more GPUs than there are (1 nodes of 8)"),
        ("demand = ", "is no TOML"),
        ('jobs = "j"\n', "demand is missing"),
    ],
)
def test_what_cannot_be_is_named_with_the_way_out(tmp_path: Path, text: str, said: str):
    with pytest.raises(BadInput) as refused:
        read(written(tmp_path, text))

    assert said in " ".join(refused.value.faults)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(BadInput, match="does not exist"):
        read(tmp_path / "no.toml")
