from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.jobs import admission, jobfile, templates
from scheduler.jobs.admission import Admitted, NeedsApproval, Rules
from scheduler.jobs.job import JobId
from scheduler.jobs.mail import Person
from scheduler.jobs.order import JobOrder
from scheduler.jobs.spec import JobSpec

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(path.name for path in EXAMPLES.glob("*.yaml"))


def spec_of(name: str) -> JobSpec:
    parsed = jobfile.parse((EXAMPLES / name).read_text())
    assert parsed.errors == ()
    assert parsed.spec is not None
    return parsed.spec


def order_of(name: str) -> JobOrder:
    return templates.fill(spec_of(name), JobId(41), "file:///tmp/storage")


@pytest.mark.parametrize("name", FILES)
def test_every_example_file_is_filled_and_names_programs_that_are_there(name):
    for task in order_of(name).tasks:
        python, program, *_ = task.command
        assert python == "python"
        assert (EXAMPLES / program).is_file()
        assert not [word for word in (*task.command, *task.outputs.values()) if "{{" in word]


def test_the_pipeline_trains_six_models_and_evaluates_all_of_them():
    tasks = {task.name: task for task in order_of("digits-pipeline.yaml").tasks}

    models = [task.outputs["model"] for task in tasks.values() if task.step == "train"]
    assert len(tasks) == 8
    assert len(set(models)) == 6
    assert all(model in " ".join(tasks["evaluate"].command) for model in models)


def test_only_the_big_example_needs_approval_under_usual_rules():
    rules = Rules(approve_over_gpu_hours=100.0, approvers=("lead",))
    verdicts = {
        name: admission.admit(
            spec_of(name), Person(id="anna"), rules, running={}, month_gpu_hours={}, nodes={"node-1": 8}
        )
        for name in FILES
    }

    assert verdicts == {
        "big-pretrain.yaml": NeedsApproval(
            why=(
                "It asks for high priority.",
                "It is estimated at 192 GPU-hours; above 100 a job needs approval.",
            )
        ),
        "digits-one.yaml": Admitted(),
        "digits-pipeline.yaml": Admitted(),
    }
