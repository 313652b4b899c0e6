"""What happens to jobs on a cluster, told by raw calls with their guards; each story returns what could be seen.

The same stories are told on the fake plane and on the real one, and must be seen alike on both.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from scheduler.adapters.kube import names
from scheduler.adapters.kube.objects import Pod
from tests.cluster.stage import Stage, exits, polite, task
from tests.cluster.waiting import until

Seen = list[str]
Story = Callable[[Stage], Seen]


def a_pipeline_with_a_sweep_runs_when_its_gates_open(stage: Stage) -> Seen:
    sweep = [task(f"fit-{n}", needs=("prepare",), step="fit") for n in range(3)]
    job = stage.submit(1, task("prepare", gpus=0), *sweep, task("report", needs=("fit",)))
    stage.release(stage.gated(job, "prepare"))
    for n in range(3):
        stage.release(stage.gated(job, f"fit-{n}"), "gpu-0")
    stage.release(stage.gated(job, "report"), "gpu-1")
    stage.ends(job, "Succeeded")
    return stage.record.story(job)


def an_evicted_run_comes_back_gated(stage: Stage) -> Seen:
    """As another attempt, or, when Argo missed how it ended, sometimes as the same one: count runs by uid."""
    job = stage.submit(2, task("train", *polite()))
    first = stage.gated(job, "train")
    stage.release(first, "gpu-0")
    stage.evict(stage.running(job, "train"))
    # Another attempt, or the same one under its old name: as Argo saw the first one run or not.
    second = stage.gated(job, "train", but=(first.uid,))
    stage.release(second, "gpu-1", run_for="0.05")
    stage.ends(job, "Succeeded")
    return stage.record.story(job)


def a_run_that_ends_with_0_while_it_is_evicted_is_seen_to(stage: Stage) -> Seen:
    """Whether Argo runs it again is chance; what we saw of the pod is not."""
    job = stage.submit(3, task("train", *polite(0)))
    first = stage.gated(job, "train")
    stage.release(first, "gpu-0")
    stage.evict(stage.running(job, "train"))
    stage.seen(first.uid, lambda pod: pod.terminal)
    return [line for line in stage.record.story(job) if "ended" in line]


def a_gated_attempt_is_given_up_and_its_siblings_go_on(stage: Stage) -> Seen:
    sweep = [task(f"fit-{n}", step="fit") for n in range(2)]
    job = stage.submit(4, *sweep, task("report", needs=("fit",)))
    stage.settle(stage.gated(job, "fit-0"), "Failed", "gpujob-final: no more")
    stage.release(stage.gated(job, "fit-1"), "gpu-0")
    stage.ends(job, "Failed")
    return [*stage.record.story(job), *ended_nodes(stage, job)]


def a_gated_attempt_is_skipped_and_what_needs_it_goes_on(stage: Stage) -> Seen:
    job = stage.submit(5, task("prepare"), task("train", needs=("prepare",)))
    stage.settle(stage.gated(job, "prepare"), "Succeeded", "gpujob: done before")
    stage.release(stage.gated(job, "train"), "gpu-0")
    stage.ends(job, "Succeeded")
    return stage.record.story(job)


def a_gated_pod_that_is_deleted_comes_back_under_its_name(stage: Stage) -> Seen:
    job = stage.submit(6, task("train"))
    first = stage.gated(job, "train")
    stage.delete(first)
    second = stage.gated(job, "train", but=(first.uid,))
    assert second.name == first.name
    stage.release(second, "gpu-0")
    stage.ends(job, "Succeeded")
    return stage.record.story(job)


def a_released_pod_that_cannot_be_bound_is_taken_back(stage: Stage) -> Seen:
    job = stage.submit(7, task("train", gpus=8))
    first = stage.gated(job, "train")
    stage.release(first, "no-such-node")
    stage.seen(first.uid, lambda pod: pod.held_back == "Unschedulable")
    stage.delete(first)
    second = stage.gated(job, "train", but=(first.uid,))
    assert second.name == first.name
    stage.release(second, "gpu-0")
    stage.ends(job, "Succeeded")
    return stage.record.story(job)


def a_bound_pod_that_does_not_run_yet_is_taken_back(stage: Stage) -> Seen:
    """It may come back as the same attempt or as another one: that is chance."""
    job = stage.submit(8, task("train"))
    first = stage.gated(job, "train")
    stage.release(first, "gpu-0", start_delay="30")
    stage.seen(first.uid, lambda pod: pod.waiting == "PodInitializing")
    stage.evict(first)
    stage.release(stage.gated(job, "train", but=(first.uid,)), "gpu-0")
    stage.ends(job, "Succeeded")
    return [line.replace("PodInitializing: ", "") for line in stage.record.story(job)]


def serving_takes_its_gpus_by_itself(stage: Stage) -> Seen:
    """kube-scheduler preempts; the victim has its own grace; we told nobody anything."""
    job = stage.submit(9, *(task(f"fit-{n}", *polite(), step="fit", gpus=8) for n in range(2)))
    stage.release(stage.gated(job, "fit-0"), "gpu-0")
    stage.release(stage.gated(job, "fit-1"), "gpu-1")
    for n in range(2):
        stage.running(job, f"fit-{n}")
    stage.serve("chat", 1, 8)
    until(lambda: stage.ready_replicas("chat") == 1, 30.0)
    gated = stage.pod(job, "fit-0", held) if held_any(stage, job, "fit-0") else stage.pod(job, "fit-1", held)
    lines = [re.sub(r"^fit-\d", "fit", line) for line in stage.record.story(job)]
    assert gated.node == ""
    return sorted(lines)


def a_cancelled_job_leaves_nothing_gated(stage: Stage) -> Seen:
    job = stage.submit(10, *(task(f"fit-{n}", *polite(), step="fit") for n in range(3)))
    first = stage.gated(job, "fit-0")
    stage.release(first, "gpu-0")
    stage.running(job, "fit-0")
    stage.gated(job, "fit-1")
    stage.gated(job, "fit-2")
    stage.cancel(job)
    until(lambda: not [pod for pod in stage.record.pods() if held(pod) and pod.labels[names.JOB] == job], 30.0)
    # What runs is ours to end: Argo's exec may do nothing, and its Workflow then goes on for ever.
    stage.evict(first)
    stage.ends(job, "Failed")
    stage.seen(first.uid, lambda pod: pod.terminal)
    return stage.record.story(job)


def a_gang_that_does_not_fit_comes_back_as_a_whole(stage: Stage) -> Seen:
    job = stage.submit(11, task("train", *polite(), gpus=8, nodes=2))
    lead, other = stage.gated(job, "train", "0"), stage.gated(job, "train", "1")
    stage.release(lead, "gpu-0")
    stage.release(other, "no-such-node")
    stage.running(job, "train", "0")
    stage.seen(other.uid, lambda pod: pod.held_back == "Unschedulable")
    stage.delete(other)
    stage.evict(lead)
    for rank, old, node in (("0", lead, "gpu-0"), ("1", other, "gpu-1")):
        stage.release(stage.gated(job, "train", rank, but=(old.uid,)), node, run_for="0.1")
    stage.ends(job, "Succeeded")
    return stage.record.story(job)


def argo_is_killed_and_nothing_is_lost_or_doubled(stage: Stage) -> Seen:
    job = stage.submit(12, task("prepare"), task("train", needs=("prepare",)))
    first = stage.gated(job, "prepare")
    stage.plane.stop_argo()
    stage.release(first, "gpu-0")
    stage.seen(first.uid, lambda pod: pod.terminal)
    stage.plane.start_argo()
    stage.release(stage.gated(job, "train"), "gpu-0")
    stage.ends(job, "Succeeded")
    return stage.record.story(job)


def a_lost_node_keeps_its_run_until_somebody_forces_it(stage: Stage) -> Seen:
    job = stage.submit(13, task("train", *polite()))
    first = stage.gated(job, "train")
    stage.release(first, "gpu-1")
    stage.running(job, "train")
    stage.kubelet.die("gpu-1")
    stage.evict(first)
    left = stage.seen(first.uid, lambda pod: pod.leaving_at is not None)
    assert (left.phase, stage.phase(job)) == ("Running", "Running")
    stage.admin.delete(first.key, {"gracePeriodSeconds": 0, "preconditions": {"uid": first.uid}})
    second = stage.gated(job, "train", but=(first.uid,))
    stage.release(second, "gpu-0", run_for="0.05")
    stage.ends(job, "Succeeded")
    return stage.record.story(job)


def out_of_memory_fails_the_task(stage: Stage) -> Seen:
    job = stage.submit(14, task("train"))
    stage.release(stage.gated(job, "train"), "gpu-0", run_for="0.05", exit_code="137", reason="OOMKilled")
    stage.ends(job, "Failed")
    return [*stage.record.story(job), *ended_nodes(stage, job)]


def a_failure_fails_the_task_and_what_needs_it_is_never_tried(stage: Stage) -> Seen:
    job = stage.submit(15, task("prepare", *exits(3)), task("train", needs=("prepare",)))
    stage.release(stage.gated(job, "prepare"), "gpu-0")
    stage.ends(job, "Failed")
    return [*stage.record.story(job), *ended_nodes(stage, job)]


def a_kubelet_that_refuses_a_pod_costs_an_attempt(stage: Stage) -> Seen:
    job = stage.submit(16, task("train"))
    first = stage.gated(job, "train")
    why = "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu"
    stage.release(first, "gpu-0", reject=why)
    stage.release(stage.gated(job, "train", but=(first.uid,)), "gpu-1")
    stage.ends(job, "Succeeded")
    return stage.record.story(job)


def a_failure_is_tried_again_where_retries_are_allowed(stage: Stage) -> Seen:
    job = stage.submit(17, task("train", *exits(3)), retries=2)
    first = stage.gated(job, "train")
    stage.release(first, "gpu-0")
    second = stage.gated(job, "train", but=(first.uid,))
    stage.settle(second, "Failed", "gpujob-final: its retries are used up")
    stage.ends(job, "Failed")
    return [*stage.record.story(job), *ended_nodes(stage, job)]


def an_attempt_whose_end_was_never_reported_hangs_until_its_pod_is_deleted(stage: Stage) -> Seen:
    job = stage.submit(18, task("train"))
    first = stage.gated(job, "train")
    stage.release(first, "gpu-0", run_for="0.05", exit_code="143", task_result="never-complete")
    stage.seen(first.uid, lambda pod: pod.terminal)
    until(lambda: [line for line in ended_nodes(stage, job) if "143" in line], 15.0)
    stage.stays(lambda: len(stage.record.story(job)) == 1, 3.0 if stage.slow else 0.3)
    stage.delete(first)
    stage.release(stage.gated(job, "train", but=(first.uid,)), "gpu-1", run_for="0.05")
    stage.ends(job, "Succeeded")
    return stage.record.story(job)


def ended_nodes(stage: Stage, job: str) -> Seen:
    """How Argo tells the ends of attempts, in any order."""
    nodes = stage.workflow(job)["status"]["nodes"].values()
    rows = [(one["templateName"], one["phase"], one.get("message", "")) for one in nodes if one["type"] == "Pod"]
    return sorted(f"argo {template} {phase} {message}".strip() for template, phase, message in rows)


def held(pod: Pod) -> bool:
    return names.GATE in pod.gates


def held_any(stage: Stage, job: str, name: str) -> bool:
    def find() -> list[str]:
        pods = stage.record.pods()
        return [pod.labels[names.TASK] for pod in pods if pod.labels.get(names.JOB) == job and held(pod)]

    return name in until(find, 30.0)


STORIES: dict[str, tuple[Story, Seen]] = {
    story.__name__: (story, seen)
    for story, seen in (
        (
            a_pipeline_with_a_sweep_runs_when_its_gates_open,
            [
                "fit-0: gated, running, ended 0 Completed",
                "fit-1: gated, running, ended 0 Completed",
                "fit-2: gated, running, ended 0 Completed",
                "prepare: gated, running, ended 0 Completed",
                "report: gated, running, ended 0 Completed",
            ],
        ),
        (
            an_evicted_run_comes_back_gated,
            [
                "train: gated, running, EvictionByEvictionAPI, ended 143 Error",
                "train: gated, running, ended 0 Completed",
            ],
        ),
        (
            a_run_that_ends_with_0_while_it_is_evicted_is_seen_to,
            ["train: gated, running, EvictionByEvictionAPI, ended 0 Completed"],
        ),
        (
            a_gated_attempt_is_given_up_and_its_siblings_go_on,
            [
                "fit-0: gated, ended ? gpujob-final: no more",
                "fit-1: gated, running, ended 0 Completed",
                "argo fit Failed gpujob-final: no more",
                "argo fit Succeeded",
            ],
        ),
        (
            a_gated_attempt_is_skipped_and_what_needs_it_goes_on,
            ["prepare: gated, ended ? gpujob: done before", "train: gated, running, ended 0 Completed"],
        ),
        (
            a_gated_pod_that_is_deleted_comes_back_under_its_name,
            ["train: gated, gone", "train: gated, running, ended 0 Completed"],
        ),
        (
            a_released_pod_that_cannot_be_bound_is_taken_back,
            ["train: gated, gone", "train: gated, running, ended 0 Completed"],
        ),
        (
            a_bound_pod_that_does_not_run_yet_is_taken_back,
            ["train: gated, EvictionByEvictionAPI, ended ?", "train: gated, running, ended 0 Completed"],
        ),
        (
            serving_takes_its_gpus_by_itself,
            ["fit: gated", "fit: gated, running", "fit: gated, running, PreemptionByScheduler, ended 143 Error"],
        ),
        (
            a_cancelled_job_leaves_nothing_gated,
            [
                "fit-0: gated, running, EvictionByEvictionAPI, ended 143 Error",
                "fit-1: gated, gone",
                "fit-2: gated, gone",
            ],
        ),
        (
            a_gang_that_does_not_fit_comes_back_as_a_whole,
            [
                "train/0: gated, running, EvictionByEvictionAPI, ended 143 Error",
                "train/0: gated, running, ended 0 Completed",
                "train/1: gated, gone",
                "train/1: gated, running, ended 0 Completed",
            ],
        ),
        (
            argo_is_killed_and_nothing_is_lost_or_doubled,
            ["prepare: gated, running, ended 0 Completed", "train: gated, running, ended 0 Completed"],
        ),
        (
            a_lost_node_keeps_its_run_until_somebody_forces_it,
            ["train: gated, running, EvictionByEvictionAPI, gone", "train: gated, running, ended 0 Completed"],
        ),
        (
            out_of_memory_fails_the_task,
            [
                "train: gated, running, ended 137 OOMKilled",
                "argo train Failed main: OOMKilled (exit code 137)",
            ],
        ),
        (
            a_failure_fails_the_task_and_what_needs_it_is_never_tried,
            ["prepare: gated, running, ended 3 Error", "argo prepare Failed main: Error (exit code 3)"],
        ),
        (
            a_kubelet_that_refuses_a_pod_costs_an_attempt,
            [
                "train: gated, ended ? Allocate failed due to requested number of devices unavailab",
                "train: gated, running, ended 0 Completed",
            ],
        ),
        (
            a_failure_is_tried_again_where_retries_are_allowed,
            [
                "train: gated, running, ended 3 Error",
                "train: gated, ended ? gpujob-final: its retries are used up",
                "argo train Failed gpujob-final: its retries are used up",
                "argo train Failed main: Error (exit code 3)",
            ],
        ),
        (
            an_attempt_whose_end_was_never_reported_hangs_until_its_pod_is_deleted,
            ["train: gated, running, ended 143 Error", "train: gated, running, ended 0 Completed"],
        ),
    )
}
