from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import jsonschema
import pytest

from scheduler.adapters.argo.items import hostname
from scheduler.adapters.argo.split import Limits
from scheduler.adapters.argo.workflow import Part, Shape, part_without, workflows
from scheduler.adapters.kube.names import ANY, DONE, GATE, JOB, NODES, SPEC
from scheduler.errors import BadInput
from scheduler.jobs.job import TaskName
from scheduler.jobs.order import JobOrder
from tests.adapters.argo_jobs import (
    DATA,
    FULL_SHAPE,
    HEAD,
    JOBS,
    SHAPE,
    an_order,
    documents,
    the_golden,
    the_workflows,
)
from tests.adapters.argo_played import pods_of

GOLDEN = list(the_golden())
WORKFLOWS = list(the_workflows())
each_workflow = pytest.mark.parametrize(
    "body", [body for _, body in WORKFLOWS], ids=[f"{name}:{body['metadata']['name']}" for name, body in WORKFLOWS]
)
PIPELINE = an_order(HEAD + JOBS["pipeline"][0])
WIDE = """
steps:
  - {name: prep, gpus: 0, command: [prep]}
  - {name: sft, needs: [prep], gpus: 1, sweep: {lr: [LRS]}, command: [sft, "{{ params.lr }}"]}
  - {name: judge, needs: [sft], gpus: 1, command: [judge]}
"""
ANY_WIDE = WIDE.replace("{name: judge, ", "{name: judge, any: true, ")


def wide(tasks: int, text: str = WIDE) -> JobOrder:
    return an_order(HEAD + text.replace("LRS", ", ".join(map(str, range(tasks)))))


def names(*given: str) -> frozenset[TaskName]:
    return frozenset(map(TaskName, given))


def ended(**given: bool) -> dict[TaskName, bool]:
    return {TaskName(name.replace("_", "-")): done for name, done in given.items()}


def one(order: JobOrder, shape: Shape = SHAPE) -> dict[str, Any]:
    (part,) = workflows(order, shape)
    return part.body


def templates_of(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {template["name"]: template for template in body["spec"]["templates"]}


def dag_of(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {task["name"]: task for task in templates_of(body)["DAG"]["dag"]["tasks"]}


@cache
def crd() -> jsonschema.Draft202012Validator:
    """The schema of the full CRD, as strict as fieldValidation=Strict makes it."""
    schema = json.loads(gzip.decompress((DATA / "workflow-crd-v4.0.5.json.gz").read_bytes()))
    return jsonschema.Draft202012Validator(_strict(schema) | {"properties": _strict(schema["properties"])})


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    strict = {key: _strict(inner) for key, inner in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict["additionalProperties"] = False
    return strict


def faults(body: dict[str, Any]) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in crd().iter_errors(body)]


@pytest.mark.parametrize(("name", "now", "was"), GOLDEN, ids=[name for name, *_ in GOLDEN])
def test_argo_r18_a_workflow_is_as_somebody_read_it(name, now, was):
    assert now == was, f"{name}: if that is meant, run `python -m tests.adapters.argo_jobs` and read the difference"


@each_workflow
def test_argo_r18_the_crd_takes_every_golden_workflow_and_every_example(body):
    assert faults(body) == []


def test_argo_r18_the_crd_would_refuse_what_it_does_not_know():
    wrong = copy.deepcopy(one(PIPELINE))
    wrong["spec"]["templates"][1]["schedulingGates"] = [{"name": GATE}]
    wrong["spec"]["templates"][1]["name"] = "with.dot"
    wrong["spec"]["templates"][1]["retryStrategy"]["limt"] = 1

    said = "\n".join(faults(wrong))

    assert all(word in said for word in ("schedulingGates", "with.dot", "limt"))


def test_a_rendered_job_reads_as_what_is_posted():
    for name, now, _ in GOLDEN:
        text, shape = JOBS[name]
        assert documents(now) == [part.body for part in workflows(an_order(HEAD + text), shape)]


def every(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All keys of a Workflow, with what they hold."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield (*path, str(key)), inner
        yield from every(inner, (*path, str(key)))


FORBIDDEN = {
    "timeout", "pendingTimeout", "activeDeadlineSeconds", "maxDuration", "synchronization", "podDisruptionBudget",
    "containerSet", "parallelism", "memoize", "artifacts", "outputs", "artifactRepositoryRef", "archiveLogs", "onExit",
    "hooks", "workflowTemplateRef", "templateRef", "script", "steps", "resource", "suspend", "daemon", "dependencies",
    "continueOn", "withParam", "withSequence", "args",
}  # fmt: skip


@each_workflow
def test_argo_r03_r08_no_workflow_has_a_field_that_ends_gated_or_preempted_work(body):
    found = [path for path, _ in every(body) if path[-1] in FORBIDDEN and "env" not in path]
    fail_fast = [(path[-2:], value) for path, value in every(body) if path[-1] == "failFast"]

    assert found == []
    assert fail_fast == [(("dag", "failFast"), False)]
    assert all("affinity" not in template.get("retryStrategy", {}) for template in body["spec"]["templates"])
    assert "podSpecPatch" not in body["spec"]


@each_workflow
def test_argo_r02_every_template_has_a_limit_and_a_flat_backoff(body):
    for template in body["spec"]["templates"]:
        if "container" in template:
            strategy = template["retryStrategy"]
            assert strategy["limit"] >= 500
            assert strategy["backoff"] == {"duration": "1s", "factor": 1, "cap": "1s"}
            assert strategy["retryPolicy"] == "Always"


@each_workflow
def test_argo_r11_the_patch_of_the_pod_is_constant_json_with_our_gate(body):
    for template in body["spec"]["templates"]:
        if "container" in template:
            patch = json.loads(template["podSpecPatch"])
            assert "{{" not in template["podSpecPatch"]
            assert patch["schedulingGates"] == [{"name": GATE}]
            assert patch["priorityClassName"]
            assert patch["terminationGracePeriodSeconds"] > 0
            assert patch.keys() <= {
                "schedulingGates", "priorityClassName", "terminationGracePeriodSeconds", "hostname", "subdomain",
                "affinity",
            }  # fmt: skip


@each_workflow
def test_only_our_own_two_kinds_of_templates_reach_argo(body):
    rest = json.dumps(body).replace("{{inputs.parameters.", "").replace("{{item.", "")

    assert "{{" not in rest


@pytest.mark.parametrize("name", JOBS)
def test_programs_get_the_words_of_the_job_file_through_argo_and_kubelet(name):
    order = an_order(HEAD + JOBS[name][0])
    tasks = {task.name: task for task in order.tasks}

    for pod in pods_of(one(order, JOBS[name][1])):
        assert pod.command == tasks[TaskName(pod.task)].command
        assert pod.env.items() >= tasks[TaskName(pod.task)].env.items()


def test_tasks_of_one_shape_share_a_template():
    task = dag_of(one(PIPELINE))["Sft"]

    assert [item["task"] for item in task["withItems"]] == ["sft-0", "sft-1", "sft-2", "sft-3"]
    # The name of the task is in the output's URL, which therefore needs no column of its own.
    assert set(task["withItems"][0]) == {"task", "param-lr", "param-seed"}
    assert task["depends"] == "Prep.Succeeded"


def test_texts_that_argo_would_change_get_a_template_of_their_own():
    body = one(an_order(HEAD + JOBS["odd-texts"][0]))

    assert set(dag_of(body)) == {"Sft", "Sft-2", "Sft-3", "Sft-8"}
    assert [item["param-text"] for item in dag_of(body)["Sft"]["withItems"]] == [
        "a b", "한국 <&>", "null", "1e5", "{sft-6}", "",
    ]  # fmt: skip


def test_a_long_text_does_not_go_into_an_item():
    order = an_order(
        f'{HEAD}gpus: 1\nsweep: {{text: ["a", "b", "{"x" * 3000}"]}}\ncommand: [x, "{{{{ params.text }}}}"]\n'
    )

    assert [len(task.get("withItems", ())) for task in dag_of(one(order)).values()] == [2, 0]


def test_programs_get_their_secrets_by_reference_and_their_run_from_the_release():
    order = an_order(HEAD + JOBS["any"][0])
    env = {entry["name"]: entry for entry in templates_of(one(order, FULL_SHAPE))["best-of"]["container"]["env"]}

    assert env["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "nlp", "key": "hf-token"}}
    assert env["AWS_ACCESS_KEY_ID"]["valueFrom"] == {"secretKeyRef": {"name": "storage", "key": "id"}}
    assert env["AWS_ENDPOINT_URL"]["value"] == "http://s3.storage:8333"
    assert env["GPUJOB_RUN"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.annotations['gpujob.io/run']"
    assert env["GPUJOB_STEPS_SFT_SUCCEEDED"]["valueFrom"]["fieldRef"]["fieldPath"] == (
        "metadata.annotations['gpujob.io/succeeded.sft']"
    )


def test_a_job_brings_its_own_credentials_instead_of_the_installations():
    order = an_order(f"{HEAD}secrets: {{AWS_REGION: mine/region, AWS_ACCESS_KEY_ID: mine/id}}\ncommand: [x]\n")
    env = templates_of(one(order, FULL_SHAPE))["main"]["container"]["env"]
    found = {entry["name"]: entry.get("valueFrom", entry.get("value")) for entry in env}

    assert len(found) == len(env)
    assert found["AWS_ACCESS_KEY_ID"] == {"secretKeyRef": {"name": "mine", "key": "id"}}
    assert found["AWS_REGION"] == {"secretKeyRef": {"name": "mine", "key": "region"}}


def test_a_step_without_gpus_is_gated_and_sees_no_gpu():
    template = templates_of(one(PIPELINE, FULL_SHAPE))["prep"]

    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in template["container"]["env"]
    assert "resources" not in template["container"]
    assert "tolerations" not in template
    assert "nodeAffinity" in json.loads(template["podSpecPatch"])["affinity"]


def test_a_step_with_gpus_asks_for_them_and_may_go_where_they_are():
    template = templates_of(one(PIPELINE, FULL_SHAPE))["sft"]

    assert template["container"]["resources"] == {
        "requests": {"nvidia.com/mig-1g.10gb": "4", "cpu": "16", "memory": "128Gi"},
        "limits": {"nvidia.com/mig-1g.10gb": "4"},
    }
    assert template["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "nlp"},
    ]
    assert "affinity" not in json.loads(template["podSpecPatch"])


def test_an_elastic_step_gets_its_smallest_choice():
    resources = templates_of(one(an_order(HEAD + JOBS["any"][0])))["sft"]["container"]["resources"]

    assert resources["limits"] == {"nvidia.com/gpu": "4"}


@each_workflow
def test_pods_may_run_under_the_restricted_pod_security_standard(body):
    for template in body["spec"]["templates"]:
        if "container" in template:
            inner = template["container"]["securityContext"]
            assert inner["allowPrivilegeEscalation"] is False
            assert inner["capabilities"] == {"drop": ["ALL"]}
            assert template["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_every_place_of_a_gang_knows_its_rank_and_finds_the_first():
    pods = pods_of(one(an_order(HEAD + JOBS["gang"][0])))
    gang = [pod for pod in pods if pod.task == "pretrain"]

    assert [pod.rank for pod in gang] == [0, 1, 2, 3]
    assert [pod.env["GPUJOB_NODE_RANK"] for pod in gang] == ["0", "1", "2", "3"]
    assert {(pod.env["GPUJOB_NODES"], pod.env["GPUJOB_MASTER"]) for pod in gang} == {
        ("4", "job-41-pretrain.gpujob-gang:29500")
    }
    assert [pod.patch.get("hostname") for pod in gang] == ["job-41-pretrain", None, None, None]
    assert {pod.patch["subdomain"] for pod in gang} == {"gpujob-gang"}


def test_the_pods_tell_a_new_scheduler_what_a_release_must_know():
    gang = templates_of(one(an_order(HEAD + JOBS["gang"][0])))["1-pretrain"]["metadata"]["annotations"]
    some = templates_of(one(an_order(HEAD + JOBS["any"][0])))["best-of"]["metadata"]["annotations"]

    assert gang[NODES] == "4"
    assert some[ANY] == "sft,prep"


def test_a_host_name_is_a_dns_label_however_long_the_task_is():
    long = hostname(replace(PIPELINE, job=10**11), TaskName("x" * 47))
    other = hostname(replace(PIPELINE, job=10**11), TaskName("x" * 48))

    assert len(long) <= 63
    assert long != other


def test_a_workflow_carries_its_job_and_the_hash_of_what_it_runs():
    meta = one(PIPELINE)["metadata"]

    assert (meta["name"], meta["labels"]) == ("job-41", {JOB: "job-41"})
    assert meta["annotations"] == {SPEC: PIPELINE.spec_hash}


def test_argo_r15_a_large_job_is_several_workflows():
    parts = workflows(wide(700), SHAPE)

    assert [(part.name, len(part.tasks)) for part in parts] == [
        ("job-41", 300), ("job-41-2", 300), ("job-41-3", 101), ("job-41-4", 1),
    ]  # fmt: skip
    assert [part.waits_for for part in parts[1:3]] == [names("prep")] * 2
    assert len(parts[3].waits_for) == 700
    assert all(len(json.dumps(part.body)) <= 512 * 1024 for part in parts)


def test_argo_r15_a_job_of_many_steps_is_several_workflows():
    steps = "".join(f"  - {{name: s{n}, gpus: 1, command: [x]}}\n" for n in range(200))
    parts = workflows(an_order(f"{HEAD}steps:\n{steps}"), SHAPE)

    assert [len(part.tasks) for part in parts] == [199, 1]
    assert [part.waits_for for part in parts] == [frozenset(), frozenset()]
    assert [faults(part.body) for part in parts] == [[], []]


def test_argo_r15_long_commands_make_more_workflows():
    tasks = tuple(replace(task, command=("x", "y" * 9000)) for task in wide(100).tasks[1:-1])
    varied = tuple(replace(task, command=("x", f"{n}{'y' * 9000}")) for n, task in enumerate(tasks))

    assert len(workflows(replace(PIPELINE, tasks=tasks), SHAPE)) == 1
    parts = workflows(replace(PIPELINE, tasks=varied), SHAPE)
    assert len(parts) == 3
    assert all(len(json.dumps(part.body)) <= 512 * 1024 for part in parts)


def test_a_gang_larger_than_a_workflow_stays_together():
    (part,) = workflows(an_order(f"{HEAD}gpus: 8\nnodes: 400\ncommand: [x]\n"), SHAPE)

    assert len(pods_of(part.body)) == 400


@pytest.mark.parametrize(
    ("text", "done", "opens"),
    [
        (WIDE, {}, False),
        (WIDE, ended(sft_0=True, sft_1=True), False),
        (WIDE, ended(sft_0=True, sft_1=True, sft_2=True), True),
        (WIDE, ended(sft_0=True, sft_1=False, sft_2=True), False),
        (ANY_WIDE, ended(sft_0=True, sft_1=False), False),
        (ANY_WIDE, ended(sft_0=False, sft_1=False, sft_2=True), True),
        (ANY_WIDE, ended(sft_0=False, sft_1=False, sft_2=False), False),
    ],
)
def test_a_later_part_opens_as_its_step_would(text, done, opens):
    parts = workflows(wide(3, text), SHAPE, Limits(pods=2))

    assert [part.tasks for part in parts] == [("prep", "sft-0"), ("sft-1", "sft-2"), ("judge",)]
    assert parts[0].opens({})
    assert parts[2].opens(done) is opens


def without(done: dict[TaskName, bool], text: str = WIDE) -> dict[str, Any] | None:
    (part,) = workflows(wide(3, text), SHAPE)
    return part_without(part, done)


def test_a_part_that_is_made_again_has_only_what_has_not_ended():
    again = without(ended(prep=True, sft_1=True))

    assert again is not None
    assert again["metadata"]["name"] == "job-41"
    assert {pod.task for pod in pods_of(again)} == {"sft-0", "sft-2", "judge"}
    assert "depends" not in dag_of(again)["Sft"]
    assert dag_of(again)["Judge"]["depends"] == "Sft.Succeeded"


def test_a_part_that_is_made_again_leaves_out_what_can_never_run():
    again = without(ended(prep=True, sft_1=False))

    assert again is not None
    assert {pod.task for pod in pods_of(again)} == {"sft-0", "sft-2"}
    assert without(ended(prep=False)) is None


def test_an_any_step_of_a_part_that_is_made_again_only_waits_for_the_rest():
    again = without(ended(prep=True, sft_0=True, sft_1=False), ANY_WIDE)

    assert again is not None
    assert dag_of(again)["Judge"]["depends"] == (
        "(Sft-2.Succeeded || Sft-2.Failed || Sft-2.Errored || Sft-2.Skipped || Sft-2.Omitted)"
    )
    assert again["metadata"]["annotations"][DONE] == "sft-0"


def test_nothing_is_left_of_a_part_that_has_ended():
    assert without(ended(prep=True, sft_0=True, sft_1=True, sft_2=True, judge=False)) is None


def test_a_step_without_an_image_is_refused():
    order = replace(PIPELINE, tasks=tuple(replace(task, image="") for task in PIPELINE.tasks))

    with pytest.raises(BadInput) as refused:
        workflows(order, SHAPE)

    assert refused.value.faults == tuple(
        f"step {step} has no image; on Kubernetes every step needs one" for step in ("prep", "sft", "judge")
    )


def test_a_text_that_argo_would_fill_is_refused():
    task = replace(PIPELINE.tasks[0], env={"GPUJOB_OUTPUT_X": "s3://{{workflow.name}}"})

    with pytest.raises(BadInput, match=r"task prep: 's3://\{\{workflow.name\}\}' has a \{\{"):
        workflows(replace(PIPELINE, tasks=(task,)), SHAPE)


def test_a_task_too_large_for_any_workflow_is_refused():
    task = replace(PIPELINE.tasks[0], command=("x", *["y" * 90_000] * 6))

    with pytest.raises(BadInput, match="task prep: its command and its environment are 54"):
        workflows(replace(PIPELINE, tasks=(task,)), SHAPE)


def test_the_parts_of_a_job_are_the_same_each_time():
    order = wide(700, ANY_WIDE)

    assert [_plain(part) for part in workflows(order, SHAPE)] == [_plain(part) for part in workflows(order, SHAPE)]


def _plain(part: Part) -> str:
    return json.dumps([part.name, part.tasks, sorted(part.waits_for), part.any, part.body])
