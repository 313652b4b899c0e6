"""What is made of the statuses of pods and of Workflows: ends, attempts, words of Argo, progress."""

from __future__ import annotations

import base64
import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler.adapters.argo import nodes
from scheduler.adapters.argo.attempts import attempts
from scheduler.adapters.argo.endings import end_of
from scheduler.adapters.argo.logs import Page, turned
from scheduler.adapters.argo.memory import Memory, Sighting
from scheduler.adapters.kube import names, objects
from scheduler.adapters.kube.objects import Pod
from scheduler.jobs.job import JobId, TaskName
from scheduler.jobs.reports import Phase

NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
BEGAN, ENDED = "2026-03-01T12:00:00Z", "2026-03-01T12:00:10Z"
NODE = {"type": "Pod", "templateName": "train", "phase": "Failed", "message": "main: Error (exit code 143)"}


def a_pod(uid: str = "u1", *, version: int = 1, rank: int | None = None, gated: bool = False, **status: Any) -> Pod:
    labels = {names.JOB: "job-1", names.TASK: "train", **({} if rank is None else {names.RANK: str(rank)})}
    meta = status.pop("meta", {})
    notes = {names.NODES: "2"} if rank is not None else {}
    return objects.pod(
        {
            "metadata": {
                "uid": uid,
                "name": f"job-1-train-{uid}",
                "namespace": "gpujobs",
                "resourceVersion": str(version),
                "creationTimestamp": BEGAN,
                "labels": labels,
                "annotations": notes | status.pop("notes", {}),
            }
            | meta,
            "spec": {
                "containers": [{"name": "main"}, {"name": "wait"}],
                "nodeName": "" if gated else "gpu-0",
                "schedulingGates": [{"name": names.GATE}] if gated else [],
            },
            "status": status,
        }
    )


def ended(code: int, reason: str = "Error", name: str = "main", **more: Any) -> dict[str, Any]:
    done = {"exitCode": code, "reason": reason, "startedAt": BEGAN, "finishedAt": ENDED} | more
    return {"name": name, "state": {"terminated": done}}


def seen(*versions: Pod) -> Sighting:
    sighting = Sighting(pod=versions[0])
    for pod in versions:
        sighting = sighting.seen(pod, NOW)
    return sighting


MAIN_0, MAIN_143 = ended(0, "Completed"), ended(143)


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ({"phase": "Succeeded", "containerStatuses": [MAIN_0]}, 0, ""),
        ({"phase": "Failed", "containerStatuses": [ended(3)]}, 3, ""),
        ({"phase": "Failed", "containerStatuses": [MAIN_143]}, 143, ""),
        ({"phase": "Failed", "containerStatuses": [ended(137, "OOMKilled")]}, 137, "OOMKilled"),
        (
            {"phase": "Failed", "containerStatuses": [ended(128, "StartError", message="no such file: train.py")]},
            128,
            "main: StartError: no such file: train.py",
        ),
        ({"phase": "Failed", "containerStatuses": [ended(3, message="gpujob-final: says the program")]}, 3, ""),
        (
            {"phase": "Failed", "message": "Pod was active on the node longer", "containerStatuses": [MAIN_143]},
            143,
            "Pod was active on the node longer",
        ),
        (
            {"phase": "Failed", "containerStatuses": [MAIN_0, ended(64, name="wait", message="no artifact")]},
            64,
            "its helper container ended with exit code 64 (no artifact)",
        ),
        (
            {"phase": "Failed", "initContainerStatuses": [ended(1, name="init")]},
            1,
            "its helper container ended with exit code 1 (Error)",
        ),
        ({"phase": "Failed", "message": "gpujob-final: over"}, None, "gpujob-final: over"),
        ({"phase": "Failed", "reason": "OutOfnvidia.com/gpu"}, None, "was never started: OutOfnvidia.com/gpu"),
        ({"phase": "Succeeded", "message": "done already"}, 0, "done already"),
    ],
)
def test_the_end_of_a_pod_has_a_code_and_the_words_that_explain_it(
    status: dict[str, Any], code: int | None, message: str
):
    end = end_of(seen(a_pod(**status)))

    assert end is not None
    assert (end.code, end.message) == (code, message)


def test_a_pod_that_vanished_while_it_ran_does_not_tell_its_end():
    assert end_of(seen(a_pod(phase="Running"))) is None


def test_argo_r32_an_end_that_the_kubelet_made_up_is_no_exit_code():
    made_up = ended(137, "ContainerStatusUnknown", finishedAt="0001-01-01T00:00:00Z", startedAt=None)

    end = end_of(seen(a_pod(phase="Failed", containerStatuses=[made_up])))

    assert end is not None
    assert (end.code, "nobody saw it end" in end.message) == (None, True)


def test_argo_r32_a_real_end_is_not_unsaid_by_one_that_was_made_up():
    made_up = ended(137, "ContainerStatusUnknown", finishedAt=None)
    versions = [a_pod(phase="Failed", containerStatuses=[one]) for one in (ended(0), made_up)]

    end = end_of(seen(*versions))

    assert end is not None
    assert end.code == 0


@pytest.mark.parametrize(
    ("before", "last", "asked"),
    [
        ({"phase": "Running"}, {"phase": "Running"}, None),
        # 12:00:40 minus a grace of 30 s
        ({"phase": "Running", "meta": {"deletionTimestamp": "2026-03-01T12:00:40Z", "deletionGracePeriodSeconds": 30}},
         {"phase": "Failed", "containerStatuses": [MAIN_143]}, "2026-03-01T12:00:10+00:00"),
        # deleted by the janitor, after its end
        ({"phase": "Running"}, {"phase": "Failed", "containerStatuses": [MAIN_143],
          "meta": {"deletionTimestamp": "2026-03-01T12:00:20Z", "deletionGracePeriodSeconds": 0}}, None),
        # preempted by kube-scheduler while we were away
        ({"phase": "Failed", "containerStatuses": [MAIN_143],
          "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
         {"phase": "Failed", "containerStatuses": [MAIN_143]}, "2026-03-01T12:00:10+00:00"),
    ],
)  # fmt: skip
def test_argo_r09_who_ends_by_itself_is_told_from_who_was_asked(
    before: dict[str, Any], last: dict[str, Any], asked: str | None
):
    sighting = seen(a_pod(**before), a_pod(**last))

    assert (sighting.stop_at.isoformat() if sighting.stop_at else None) == asked


def test_preemption_by_kube_scheduler_is_named():
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]

    end = end_of(seen(a_pod(phase="Failed", conditions=conditions, containerStatuses=[MAIN_143])))

    assert end is not None
    assert "PreemptionByScheduler" in end.message


def test_an_answer_that_is_older_than_what_is_known_is_no_news():
    memory = Memory("gpujobs", lambda: NOW)
    memory.saw(a_pod(version=9, phase="Running"))
    memory.saw(a_pod(version=8, phase="Pending"))

    assert [one.pod.phase for one in memory.of(JobId(1))] == ["Running"]


def test_pods_of_other_namespaces_and_without_a_job_are_not_ours():
    memory = Memory("elsewhere", lambda: NOW)
    memory.saw(a_pod())

    assert memory.of(JobId(1)) == ()


def test_what_is_gone_is_forgotten_once_nobody_has_asked_for_its_job():
    clock = [NOW]
    memory = Memory("gpujobs", lambda: clock[0])
    pod = a_pod(phase="Running")
    memory.saw(pod)
    memory.vanished(pod)
    memory.forget([JobId(1)])
    kept = len(memory.of(JobId(1)))
    clock[0] += timedelta(minutes=11)
    memory.forget([])

    assert (kept, memory.of(JobId(1)), memory.find("u1")) == (1, (), None)


def test_a_pod_whose_label_somebody_changed_stays_with_its_job():
    memory = Memory("gpujobs", lambda: NOW)
    memory.saw(a_pod(phase="Running"))
    memory.saw(a_pod(version=2, phase="Running", meta={"labels": {names.JOB: "job-2", names.TASK: "train"}}))
    memory.vanished(a_pod(version=3, meta={"labels": {names.JOB: "job-2", names.TASK: "train"}}))

    assert [one.gone for one in memory.of(JobId(1))] == [True]
    assert memory.of(JobId(2)) == ()


def test_a_size_that_nobody_of_us_wrote_is_not_believed():
    odd = a_pod("u1", rank=0, gated=True, notes={names.NODES: "9" * 5000})

    (alone,) = attempts([seen(odd)])

    assert alone.phase is Phase.GATED


def test_nothing_is_kept_of_jobs_that_never_had_a_pod():
    clock = [NOW]
    memory = Memory("gpujobs", lambda: clock[0])
    memory.forget([JobId(number) for number in range(1000)])
    clock[0] += timedelta(hours=1)
    memory.forget([])

    assert not memory._asked_for


def test_a_gang_waits_until_all_its_ranks_are_gated():
    first, second = a_pod("u1", rank=0, gated=True), a_pod("u2", rank=1, gated=True)

    (half,) = attempts([seen(first)])
    (whole,) = attempts([seen(first), seen(second)])

    assert (half.phase, whole.phase, whole.uid) == (None, Phase.GATED, "job-1-train-u1/u1")


def test_a_gang_of_which_one_release_failed_is_still_gated():
    first = a_pod("u1", rank=0, phase="Pending", notes={names.RUN: "job-1-train-u1/u1"})
    second = a_pod("u2", rank=1, gated=True)

    (half,) = attempts([seen(first), seen(second)])

    assert half.phase is Phase.GATED


def test_a_new_rank_does_not_join_mates_that_lost_theirs():
    run = {names.RUN: "job-1-train-u1/u1"}
    first = a_pod("u1", rank=0, phase="Running", notes=run)
    failed = a_pod("u2", rank=1, phase="Failed", containerStatuses=[ended(9)], notes=run)
    again = a_pod("u3", rank=1, gated=True)

    (broken,) = attempts([seen(first), seen(failed), seen(again)])

    assert (broken.phase, broken.broken, [one.pod.uid for one in broken.live]) == (Phase.STOPPING, True, ["u1"])


def test_a_rank_that_is_done_before_the_others_breaks_no_gang():
    run = {names.RUN: "job-1-train-u1/u1"}
    running = {"containerStatuses": [{"name": "main", "state": {"running": {"startedAt": BEGAN}}}]}
    first = a_pod("u1", rank=0, phase="Succeeded", containerStatuses=[MAIN_0], notes=run)
    second = a_pod("u2", rank=1, phase="Running", notes=run, **running)

    (gang,) = attempts([seen(first), seen(second)])

    assert (gang.phase, gang.broken) == (Phase.RUNNING, False)


def a_workflow(**status: Any) -> nodes.WorkflowSeen:
    return nodes.workflow({"metadata": {"name": "job-1", "annotations": {names.SPEC: "abc"}}, "status": status})


def test_argo_r15_compressed_nodes_are_read():
    packed = base64.b64encode(gzip.compress(json.dumps({"job-1-7": NODE}).encode())).decode()

    node = a_workflow(compressedNodes=packed).attempt("job-1-train-7")

    assert node is not None
    assert node.end is not None
    assert (node.task, node.end.message) == ("train", "Error (exit code 143)")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"offloadNodeStatusVersion": "fnv:1"}, "set persistence.nodeStatusOffLoad to false"),
        ({"compressedNodes": "KLUv/SQ="}, "it reads gzip"),
    ],
)
def test_argo_r15_what_cannot_be_read_is_refused_with_a_way_out(status: dict[str, Any], words: str):
    assert words in a_workflow(**status).untold


def test_tasks_of_a_sweep_have_their_names_as_a_parameter_and_the_last_attempt_has_the_word():
    inputs = {"parameters": [{"name": "task", "value": "sft-3"}]}
    retry = {"type": "Retry", "templateName": "sft", "inputs": inputs, "phase": "Failed", "children": ["a", "b"]}
    attempt = NODE | {"templateName": "sft", "inputs": inputs}
    workflow = a_workflow(nodes={"r": retry, "a": attempt, "b": attempt | {"message": "pod deleted"}})

    assert workflow.last_word(workflow.tasks()["sft-3"][0]).message == "pod deleted"  # type: ignore[index]


def test_a_task_of_a_gang_has_succeeded_when_all_ranks_have():
    retry = {"type": "Retry", "templateName": "train", "phase": "Succeeded"}
    others = retry | {"templateName": "1-train", "phase": "Running"}

    assert a_workflow(nodes={"a": retry, "b": others}).succeeded() == frozenset()
    assert a_workflow(nodes={"a": retry, "b": others | {"phase": "Succeeded"}}).succeeded() == {"train"}


def test_lines_of_progress_have_the_times_at_which_they_were_written():
    page = turned(
        Page(read_at=NOW),
        "2026-03-01T12:00:01.123456789Z GPUJOB_PROGRESS 0.2 saved_step=7 from_step=5\n"
        "2026-03-01T12:00:02Z noise\n"
        "2026-03-01T12:00:03Z GPUJOB_PROGRESS 0.4 loss=1.3\n",
        NOW,
    )

    assert page.progress is not None
    assert (page.progress.fraction, page.progress.values) == (
        0.4, {"saved_step": "7", "from_step": "5", "loss": "1.3"},
    )  # fmt: skip
    assert page.progress.saved_at == datetime(2026, 3, 1, 12, 0, 1, 123456, tzinfo=UTC) == page.progress.first_at
    assert page.tail.splitlines()[1] == "noise"


def test_lines_that_were_read_before_count_once():
    text = "2026-03-01T12:00:01Z GPUJOB_PROGRESS 0.2 saved_step=7\n"
    once = turned(Page(read_at=NOW), text, NOW)

    assert turned(once, text, NOW + timedelta(seconds=9)).progress == once.progress


def test_the_nodes_of_a_real_workflow_are_told_by_task():
    seen = nodes.workflow(json.loads(Path("tests/data/argo/workflow-v4.0.5.json").read_text()))

    told = {task: [(node.phase, node.exit_code) for node in found] for task, found in seen.tasks().items()}
    (failed,) = seen.tasks()[TaskName("prep")]

    assert told == {
        "prep": [("Failed", 3)],
        "gang": [("Succeeded", 0)] * 2,
        "sft-0": [("Succeeded", 0)],
        "sft-1": [("Running", None)],
    }
    assert seen.succeeded() == {"gang", "sft-0"}
    assert (seen.last_word(failed).message, seen.last_word(failed).exit_code) == ("main: Error (exit code 3)", 3)
