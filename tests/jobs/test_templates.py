from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import BadInput
from scheduler.jobs import flow, templates
from scheduler.jobs.job import JobId, TaskName
from scheduler.jobs.spec import JobSpec, spec_hash
from tests.jobs.building import a_spec, a_step
from tests.jobs.specs import texts, values

ROOT = "s3://gpujob"
SWEPT = a_step("sft", sweep=({"lr": 1e-5}, {"lr": 2e-5}), outputs={"model": "s3://b/{{ job.id }}/{{ task }}"})


def filled(text: str, **said: object) -> str:
    order = templates.fill(a_spec(a_step("main", command=("x", text)), **said), JobId(41), ROOT)
    return order.tasks[0].command[1]


def faults(spec: JobSpec) -> list[str]:
    return [fault.message for fault in templates.check(spec)]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ params.lr }}", "2e-05"),
        ("{{params.lr}}", "2e-05"),
        ("{{\t params.lr\n }}", "2e-05"),
        ("--lr={{ params.lr }},{{ params.epochs }}", "--lr=2e-05,3"),
        ("{{ params.fast }}", "true"),
        ("{{ params.base }}", "s3://m/x"),
        ("{{ params.lr | json }}", "2e-05"),
        ("{{ params.fast|json }}", "true"),
        ("{{ params.base | json }}", '"s3://m/x"'),
        ('{"lr": {{ params.lr }}}', '{"lr": 2e-05}'),
        ("{{ job.id }}/{{ job.name }}/{{ task }}", "job-41/solar-sft/main"),
        ("{{ checkpoint }}", "s3://gpujob/job-41/checkpoints/main"),
        ("no template }}", "no template }}"),
    ],
)
def test_a_template_stands_for_its_value(template, text):
    params = {"lr": 2e-5, "epochs": 3, "fast": True, "base": "s3://m/x"}

    assert filled(template, params=params) == text


def test_an_order_has_every_task_filled_and_named():
    spec = a_spec(
        a_step("prep", command=("prep", "{{ outputs.data }}"), outputs={"data": "s3://b/{{ job.id }}/data"}, gpus=(0,)),
        a_step(
            "sft",
            needs=("prep",),
            sweep=({"lr": 1e-5}, {"lr": 2e-5}),
            gpus=(8, 4),
            nodes=2,
            image="sft:2",
            command=("sft", "{{ steps.prep.outputs.data }}", "{{ params.lr }}"),
            outputs={"model": "s3://b/{{ task }}"},
        ),
        image="train:1",
        params={"base-less": "no", "seed": 7},
        secrets={"HF_TOKEN": "nlp/hf"},
        retries=2,
        workdir="/w",
    )

    order = templates.fill(spec, JobId(41), "s3://gpujob/", digests={"sft:2": "sft@sha256:ab"})

    assert (order.job, order.name, order.retries, order.workdir) == (41, "solar-sft", 2, "/w")
    assert order.secrets == {"HF_TOKEN": "nlp/hf"}
    assert order.spec_hash == spec_hash(spec, {"sft:2": "sft@sha256:ab"})
    assert [task.name for task in order.tasks] == ["prep", "sft-0", "sft-1"]
    task = order.tasks[2]
    assert (task.step, task.needs, task.any, task.gpus, task.nodes) == ("sft", ("prep",), False, (8, 4), 2)
    assert task.image == "sft@sha256:ab"
    assert order.tasks[0].image == "train:1"
    assert task.command == ("sft", "s3://b/job-41/data", "2e-05")
    assert task.outputs == {"model": "s3://b/sft-1"}
    assert task.env == {
        "GPUJOB_JOB": "job-41",
        "GPUJOB_TASK": "sft-1",
        "GPUJOB_CHECKPOINT": "s3://gpujob/job-41/checkpoints/sft-1",
        "GPUJOB_PARAM_BASE-LESS": "no",
        "GPUJOB_PARAM_SEED": "7",
        "GPUJOB_PARAM_LR": "2e-05",
        "GPUJOB_OUTPUT_MODEL": "s3://b/sft-1",
    }


def test_an_output_of_a_swept_step_is_a_list_in_task_order():
    spec = a_spec(SWEPT, a_step("eval", needs=("sft",), command=("e", "{{ steps.sft.outputs.model | json }}")))

    command = templates.fill(spec, JobId(41), ROOT).tasks[-1].command

    assert json.loads(command[1]) == ["s3://b/job-41/sft-0", "s3://b/job-41/sft-1"]


def test_a_step_may_name_what_it_needs_over_another_step():
    last = a_step("last", needs=("mid",), command=("e", "{{ steps.sft.outputs.model | json }}"))

    assert faults(a_spec(SWEPT, a_step("mid", needs=("sft",)), last)) == []


def test_a_job_without_checkpoints_has_no_such_variable_and_no_such_template():
    spec = a_spec(a_step("main"), checkpoint=None)

    assert "GPUJOB_CHECKPOINT" not in templates.fill(spec, JobId(1), ROOT).tasks[0].env
    assert faults(a_spec(a_step("main", command=("x", "{{ checkpoint }}")), checkpoint=None)) == [
        "the job says `checkpoint: none`, so it has no such URL"
    ]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ params.lrr }}", "`params.lrr` is not known in task main; did you mean `lr`?"),
        ("{{ outputs.x }}", "this step has no output `x`; there are none"),
        ("{{ steps.main.outputs.x }}", "a step names its own outputs as {{ outputs.x }}"),
        ("{{ steps.sft.outputs.model }}", "step sft is not needed by this step; add it: `needs: [sft]`"),
        ("{{ steps.sff.outputs.model }}", "there is no step `sff`; did you mean `sft`?"),
        ("{{ params.lr | upper }}", "`| upper` is unknown; the only filter is `| json`"),
        ("{{ params.lr | json | json }}", "`| json | json` is unknown"),
        ("{{ params['lr'] }}", "is no name that a template knows"),
        ("{{ 1 + 1 }}", "is no name that a template knows"),
        ("{{ }}", "is no name that a template knows"),
        ("{{ job }}", "is no name that a template knows"),
        ("{{ workflow.uid }}", "is no name that a template knows"),
        ("{{ params.lr.real }}", "is no name that a template knows"),
        ("{{ params.lr", "has a {{ that is no template"),
        ("{{ params.{{ task }} }}", "has a {{ that is no template"),
        ("{{=workflow.name}}", "is no name that a template knows"),
    ],
)
def test_what_cannot_be_filled_is_found_before_anything_runs(template, words):
    (message,) = faults(a_spec(a_step("main", command=("x", template)), SWEPT, params={"lr": 1}))

    assert words in message


def test_a_fault_of_all_tasks_of_a_sweep_is_told_once():
    spec = a_spec(a_step("sft", sweep=({"a": 1}, {"a": 2}), command=("x", "{{ params.b | upper }}")))

    assert len(faults(spec)) == 1


def test_a_parameter_that_one_point_of_a_sweep_lacks_is_told_with_its_task():
    spec = a_spec(a_step("sft", sweep=({"lr": 1}, {"seed": 2}), command=("x", "{{ params.lr }}")))

    assert faults(spec) == ["`params.lr` is not known in task sft-1; known: seed"]


def test_braces_that_only_come_together_when_filled_are_found():
    spec = a_spec(a_step("main", command=("x", "{{ params.a }}{{ params.b }}")), params={"a": "{", "b": "{job.id}}"})

    assert "has a {{ that is no template" in faults(spec)[0]


def test_an_argument_longer_than_linux_takes_is_found():
    spec = a_spec(a_step("main", command=("x", "{{ params.a }}{{ params.a }}")), params={"a": "x" * 60_000})

    assert faults(spec) == ["is 120,000 characters long when filled, limit 100,000; name fewer or shorter values"]


def test_filling_what_the_check_refuses_raises_all_of_it():
    spec = a_spec(a_step("main", command=("x", "{{ nope }}", "{{ params.x }}")))

    with pytest.raises(BadInput) as raised:
        templates.fill(spec, JobId(1), ROOT)

    assert [fault.partition(":")[0] for fault in raised.value.faults] == ["steps[0].command[1]", "steps[0].command[2]"]


def test_kept_tasks_are_no_part_of_the_order_and_their_recorded_outputs_are_used():
    spec = a_spec(SWEPT, a_step("eval", needs=("sft",), command=("e", "{{ steps.sft.outputs.model | json }}")))
    kept = {TaskName(f"sft-{place}"): {"model": f"s3://old/{place}"} for place in range(2)}

    order = templates.fill(spec, JobId(42), ROOT, kept=kept)

    (task,) = order.tasks
    assert (task.name, task.needs) == ("eval", ())
    assert json.loads(task.command[1]) == ["s3://old/0", "s3://old/1"]


def test_a_checkpoint_is_the_same_for_every_filling_and_differs_between_tasks():
    spec = a_spec(SWEPT)

    first, again = (templates.fill(spec, JobId(7), ROOT) for _ in range(2))
    urls = [task.env["GPUJOB_CHECKPOINT"] for task in first.tasks]

    assert urls == [task.env["GPUJOB_CHECKPOINT"] for task in again.tasks]
    assert urls == ["s3://gpujob/job-7/checkpoints/sft-0", "s3://gpujob/job-7/checkpoints/sft-1"]


NAMES = [
    "params.a",
    "params.b",
    "job.id",
    "job.name",
    "task",
    "checkpoint",
    "outputs.o",
    "steps.sft.outputs.model",
    "x.y",
]
PIECES = st.one_of(
    st.sampled_from(["{{", "}}", "{", "}", " ", "|", "json"]),
    st.sampled_from([f"{{{{ {name}{pipe} }}}}" for name in NAMES for pipe in ("", " | json", "|json")]),
    texts,
)


@given(st.lists(PIECES, max_size=8).map("".join), values, values)
def test_no_template_is_ever_left_and_what_is_checked_can_be_filled(text, a, b):
    spec = a_spec(
        SWEPT,
        a_step("main", needs=("sft",), command=("x", text), outputs={"o": "s3://b/o"}),
        params={"a": a, "b": b},
    )

    if templates.check(spec):
        with pytest.raises(BadInput):
            templates.fill(spec, JobId(1), ROOT)
    else:
        order = templates.fill(spec, JobId(1), ROOT)
        assert not any("{{" in argument for task in order.tasks for argument in task.command)
        assert [task.name for task in order.tasks] == [task.name for task in flow.tasks_of(spec)]
