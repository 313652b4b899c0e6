"""The executor against Kubernetes and Argo, in small and for real, each with Argo's finalizer on pods and without."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from scheduler.adapters.kube import names
from scheduler.errors import Unavailable
from scheduler.jobs.job import JobId, TaskName, Uid
from scheduler.jobs.reports import Phase
from tests.cluster.argo_bench import ArgoBench, a_task, an_order, runs
from tests.cluster.control_plane import ControlPlane
from tests.cluster.plane import FakePlane

NEEDS_FAULTS = {
    "test_a_release_that_meets_a_newer_version_is_tried_on_that": "conflicts are made by the fake API server",
}
_REAL = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture(
    params=[
        pytest.param(None, id="plain"),
        pytest.param(None, id="finalizer"),
        pytest.param("control_plane", id="real-plain", marks=_REAL),
        pytest.param("control_plane_with_finalizer", id="real-finalizer", marks=_REAL),
    ]
)
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ArgoBench]:
    if request.param is None:
        with (
            FakePlane(tmp_path, finalizer="[finalizer]" in request.node.name) as fake,
            ArgoBench(fake, tmp_path) as made,
        ):
            yield made
        return
    if (why := NEEDS_FAULTS.get(request.function.__name__)) is not None:
        pytest.skip(why)
    plane: ControlPlane = request.getfixturevalue(request.param)
    plane.sweep()
    with ArgoBench(plane, tmp_path) as made:
        yield made
    plane.sweep()


def test_the_first_tasks_appear_gated_and_the_others_not_at_all(bench: ArgoBench):
    bench.submit(a_task("prep", gpus=2), a_task("train", needs=["prep"]))

    report = bench.gated("prep")

    assert (report.placement, report.gpus, [one.task for one in bench.reports()]) == ({}, 2, ["prep"])


def test_a_job_submitted_twice_is_there_once(bench: ArgoBench):
    for _ in range(2):
        bench.submit(a_task())

    assert len(bench.admin.get(bench.workflows())["items"]) == 1


def test_a_workflow_of_somebody_else_is_left_alone_and_named(bench: ArgoBench):
    bench.submit(a_task())
    other = an_order(a_task(), spec_hash="other")

    with pytest.raises(Unavailable, match=r"gpujobs/job-1 is there and is not this job's; delete it, or"):
        bench.executor.submit(other)


def test_a_cancelled_workflow_of_an_older_database_is_named_and_not_waited_for(bench: ArgoBench):
    bench.submit(a_task())
    bench.executor.cancel(JobId(1), 1.0)
    bench.until(lambda: all(one.phase is Phase.ENDED for one in bench.reports()))
    bench.restart()

    with pytest.raises(Unavailable, match=r"gpujobs/job-1 is there and was cancelled; once it is deleted"):
        bench.submit(a_task())


def test_a_released_attempt_runs_on_its_node_and_ends_with_its_code(bench: ArgoBench):
    bench.submit(a_task("train", *runs("print('oh no'); raise SystemExit(3)"), gpus=4))
    uid = bench.gated().uid

    bench.executor.release(uid, {"gpu-1": 4})
    end = bench.see("train", Phase.ENDED, live=[uid])

    assert (end.uid, end.exit_code, end.placement, end.stop_asked_at) == (uid, 3, {"gpu-1": 4}, None)
    assert end.started_at is not None
    assert end.ended_at is not None
    assert end.ended_at >= end.started_at
    bench.until(lambda: bench.see("train", Phase.ENDED).tail == "oh no")


def test_a_released_pod_carries_the_uid_of_its_attempt(bench: ArgoBench):
    bench.submit(a_task())
    running = bench.start(mode="script")

    assert bench.pod(running.uid).annotations[names.RUN] == running.uid


def test_a_task_without_gpus_is_pinned_to_no_node(bench: ArgoBench):
    bench.submit(a_task(gpus=0))
    uid = bench.gated().uid
    bench.script(uid, mode="script")
    bench.executor.release(uid, {"no-such-node": 0})

    running = bench.see("train", Phase.RUNNING, live=[uid])

    assert list(running.placement.values()) == [0]


def test_argo_r01_an_evicted_attempt_is_seen_with_its_code_and_a_gated_one_follows(bench: ArgoBench):
    bench.submit(a_task())
    first = bench.start(mode="script")

    bench.executor.take_back(first.uid, 5.0)
    stopping = next(one for one in bench.reports([first.uid]) if one.uid == first.uid)
    again = bench.gated(but=[first.uid])
    end = next(one for one in bench.reports([first.uid]) if one.uid == first.uid)

    assert stopping.phase in {Phase.STOPPING, Phase.ENDED}
    assert (end.phase, end.exit_code, again.uid != first.uid) == (Phase.ENDED, 143, True)
    assert end.stop_asked_at is not None


def test_argo_r04_r05_a_cancelled_job_that_was_suspended_ends_with_all_its_pods(bench: ArgoBench):
    bench.submit(a_task(), a_task("other"))
    running = bench.start(mode="script")
    bench.admin.patch(f"{bench.workflows()}/job-1", {"spec": {"suspend": True}})

    bench.executor.cancel(JobId(1), 5.0)
    bench.executor.cancel(JobId(1), 5.0)
    bench.until(lambda: all(one.phase is Phase.ENDED for one in bench.reports([running.uid])))

    spec = bench.admin.get(f"{bench.workflows()}/job-1")["spec"]
    assert (spec["shutdown"], spec["suspend"]) == ("Terminate", False)
    assert [one.uid for one in bench.reports([running.uid])] == [running.uid]


def test_cancelling_a_job_without_a_workflow_does_nothing(bench: ArgoBench):
    bench.executor.cancel(JobId(7), 5.0)

    assert bench.reports(job=7) == ()


def test_argo_r09_r29_exit_0_after_sigterm_is_reported_with_the_request(bench: ArgoBench):
    bench.submit(a_task())
    first = bench.start(mode="script", term_exit_code="0")

    bench.executor.take_back(first.uid, 5.0)
    bench.until(lambda: any(one.uid == first.uid and one.phase is Phase.ENDED for one in bench.reports([first.uid])))
    end = next(one for one in bench.reports([first.uid]) if one.uid == first.uid)

    assert (end.exit_code, end.stop_asked_at is not None) == (0, True)


def test_argo_r10_a_gated_attempt_taken_back_is_replaced_under_its_name(bench: ArgoBench):
    bench.submit(a_task())
    first = bench.gated()

    bench.executor.take_back(first.uid, 5.0)
    second = bench.gated(but=[first.uid])

    assert second.uid.partition("/")[0] == first.uid.partition("/")[0]
    assert [one.uid for one in bench.reports()] == [second.uid]


def test_argo_r12_a_program_out_of_memory_says_so(bench: ArgoBench):
    bench.submit(a_task())
    uid = bench.start(mode="script", run_for="0.5", exit_code="137", reason="OOMKilled").uid

    end = bench.see("train", Phase.ENDED, live=[uid])

    assert (end.exit_code, end.message) == (137, "OOMKilled")


def test_argo_r25_a_pod_with_a_foreign_gate_is_no_candidate(bench: ArgoBench):
    bench.plane.stop_argo()
    bench.submit(a_task())
    bench.plane.start_argo()
    gated = bench.gated()
    foreign = "other.example/wait"
    pod = bench.pod(gated.uid)
    raw = bench.admin.get(pod.key)
    body = {key: raw[key] for key in ("spec",)} | {
        "metadata": {"name": "twin", "labels": raw["metadata"]["labels"], "annotations": raw["metadata"]["annotations"]}
    }
    body["spec"]["schedulingGates"] = [{"name": names.GATE}, {"name": foreign}]
    twin = bench.admin.create(f"/api/v1/namespaces/{bench.plane.namespace}/pods", body)
    uid = Uid(f"twin/{twin['metadata']['uid']}")
    bench.until(lambda: bench.executor._memory.find(twin["metadata"]["uid"]))

    bench.executor.release(uid, {"gpu-0": 1})

    assert uid not in {one.uid for one in bench.reports()}
    assert bench.pod(uid).gates == (names.GATE, foreign)


def test_argo_r26_nothing_is_released_once_its_workflow_is_ending(bench: ArgoBench):
    bench.submit(a_task())
    gated = bench.gated()
    bench.plane.stop_argo()
    bench.admin.patch(f"{bench.workflows()}/job-1", {"spec": {"shutdown": "Stop"}})

    bench.executor.release(gated.uid, {"gpu-0": 1})
    bench.reports()
    held = bench.pod(gated.uid)
    bench.plane.start_argo()

    assert held.gates == (names.GATE,)


def test_argo_r27_a_released_pod_without_room_is_taken_back_and_comes_again(bench: ArgoBench):
    bench.submit(a_task(gpus=8), a_task("big", gpus=8))
    bench.start("train", mode="script")
    stuck = bench.gated("big")
    bench.executor.release(stuck.uid, {"gpu-0": 8})
    starting = bench.see("big", Phase.STARTING, live=[stuck.uid])
    bench.until(lambda: bench.see("big", Phase.STARTING, live=[stuck.uid]).message.startswith("Unschedulable"))

    bench.reports([stuck.uid])
    bench.later += timedelta(seconds=21)
    again = bench.gated("big", but=[stuck.uid])

    assert starting.uid == stuck.uid != again.uid


def test_argo_r31_a_refusal_of_the_kubelet_is_told_in_its_words_and_without_a_code(bench: ArgoBench):
    bench.submit(a_task())
    uid = bench.gated().uid
    bench.script(uid, mode="script", reject="UnexpectedAdmissionError: Allocate failed due to no such device")
    bench.executor.release(uid, {"gpu-0": 1})

    bench.until(lambda: any(one.uid == uid and one.phase is Phase.ENDED for one in bench.reports([uid])))
    end = next(one for one in bench.reports([uid]) if one.uid == uid)

    assert (end.exit_code, end.message.startswith("was never started: Allocate failed due to")) == (None, True)


def test_giving_up_ends_a_task_for_good_and_its_dag_goes_on(bench: ArgoBench):
    bench.submit(a_task(), a_task("other", *runs("pass")))
    gated = bench.gated()

    bench.executor.give_up(gated.uid, "used up its time")
    bench.executor.give_up(gated.uid, "said twice")
    other = bench.gated("other")
    bench.executor.release(other.uid, {"gpu-0": 1})

    workflow = f"{bench.workflows()}/job-1"

    def over() -> bool:
        # What a turn meant is asked again by the next one: a request may have met Argo's own write.
        bench.executor.give_up(gated.uid, "used up its time")
        bench.executor.release(other.uid, {"gpu-0": 1})
        return bool(bench.admin.get(workflow).get("status", {}).get("phase") == "Failed")

    bench.until(over)
    nodes = bench.admin.get(workflow)["status"]["nodes"].values()
    assert "gpujob-final: used up its time" in {node.get("message") for node in nodes}
    assert [one.task for one in bench.reports()] == ["other"]


def test_skipping_ends_a_task_as_done_and_the_next_one_appears(bench: ArgoBench):
    bench.submit(a_task(), a_task("after", needs=["train"]))

    bench.executor.skip(bench.gated().uid, "done already")

    assert bench.gated("after").phase is Phase.GATED


def test_an_any_step_is_told_who_succeeded(bench: ArgoBench):
    sweep = [a_task(f"sft-{number}", *runs(f"raise SystemExit({number % 2})"), step="sft") for number in range(3)]
    bench.submit(*sweep, a_task("eval", needs=["sft"], any=True))
    for number in range(3):
        uid = bench.gated(f"sft-{number}").uid
        bench.executor.release(uid, {"gpu-0": 1})

    gated = bench.gated("eval")
    bench.executor.release(gated.uid, {"gpu-0": 1})
    bench.reports()

    assert bench.pod(gated.uid).annotations[f"{names.SUCCEEDED}.sft"] == "sft-0,sft-2"


def test_a_gang_is_gated_as_a_whole_and_runs_one_pod_a_node(bench: ArgoBench):
    bench.submit(a_task(nodes=2, gpus=2))
    gated = bench.gated()
    bench.executor.release(gated.uid, {"gpu-0": 2, "gpu-1": 2})

    end = bench.see("train", Phase.ENDED, live=[gated.uid])

    assert (end.uid, end.exit_code, end.placement) == (gated.uid, 0, {"gpu-0": 2, "gpu-1": 2})


def test_a_gang_ends_as_a_whole_when_one_rank_fails(bench: ArgoBench):
    script = "import os,time\nif os.environ['GPUJOB_NODE_RANK']=='1': raise SystemExit(9)\ntime.sleep(60)"
    bench.submit(a_task("train", *runs(script), nodes=2))
    gated = bench.gated()
    bench.executor.release(gated.uid, {"gpu-0": 1, "gpu-1": 1})

    end = bench.see("train", Phase.ENDED, live=[gated.uid])

    assert (end.exit_code, end.message, end.stop_asked_at) == (9, "rank 1", None)


def test_an_end_that_nobody_saw_is_asked_of_argo(bench: ArgoBench):
    bench.submit(a_task(), a_task("after", needs=["train"]))
    uid = bench.start(mode="script", run_for="0.5").uid
    bench.gated("after")
    bench.admin.delete(bench.pod(uid).key)
    bench.until(lambda: not any(one.uid == uid for one in bench.pods.items().values()) and _gone(bench, uid))
    bench.restart()

    bench.until(lambda: any(one.uid == uid and one.exit_code == 0 for one in bench.reports([uid])))


def test_argo_r06_a_vanished_pod_is_told_from_memory_whatever_argo_says(bench: ArgoBench):
    bench.submit(a_task())
    uid = bench.start(mode="script", run_for="0.5", exit_code="3").uid
    bench.see("train", Phase.ENDED, live=[uid])
    bench.admin.delete(bench.pod(uid).key)

    bench.until(lambda: _gone(bench, uid))

    assert bench.see("train", Phase.ENDED, live=[uid]).exit_code == 3


def test_a_workflow_that_somebody_deleted_is_made_again_without_what_ended(bench: ArgoBench):
    tasks = (a_task("prep"), a_task("train", needs=["prep"]))
    bench.submit(*tasks)
    bench.admin.delete(f"{bench.workflows()}/job-1")
    bench.until(lambda: not bench.admin.get(bench.workflows())["items"])

    bench.submit(*tasks, ended={TaskName("prep"): True})

    assert bench.gated("train").task == "train"
    assert bench.admin.get(f"{bench.workflows()}/job-1")["metadata"]["annotations"][names.DONE] == "prep"


def test_progress_and_last_lines_are_read_while_and_after_a_program_runs(bench: ArgoBench):
    says = "import time\nprint('GPUJOB_PROGRESS 0.5 saved_step=7', flush=True)\ntime.sleep(60)"
    bench.submit(a_task("train", *runs(says)))
    uid = bench.start().uid
    bench.until(lambda: "GPUJOB" in bench.executor.logs.tail(uid, 5))
    bench.reports([uid])
    bench.later += timedelta(seconds=16)

    bench.until(lambda: bench.see("train", Phase.RUNNING, live=[uid]).progress)
    progress = bench.see("train", Phase.RUNNING, live=[uid]).progress

    assert progress is not None
    assert (progress.fraction, progress.values) == (0.5, {"saved_step": "7"})
    assert progress.saved_at is not None


def _gone(bench: ArgoBench, uid: Uid) -> bool:
    return uid.rpartition("/")[2] not in {
        one["metadata"]["uid"] for one in bench.admin.get(f"/api/v1/namespaces/{bench.plane.namespace}/pods")["items"]
    }


def test_argo_r07_an_ended_pod_that_argo_does_not_go_on_from_is_removed(bench: ArgoBench):
    bench.submit(a_task())
    uid = bench.start(mode="script", run_for="0.3", exit_code="143").uid
    bench.plane.stop_argo()
    bench.see("train", Phase.ENDED, live=[uid])
    early = _gone(bench, uid)
    bench.later += timedelta(seconds=31)

    bench.until(lambda: bench.reports([uid]) and _gone(bench, uid))

    bench.plane.start_argo()
    assert (early, bench.gated(but=[uid]).uid != uid) == (False, True)


def test_argo_r13_a_program_that_is_deaf_to_sigterm_does_not_outlive_its_cancelled_job(bench: ArgoBench):
    bench.submit(a_task())
    uid = bench.start(mode="script", ignore_term="true").uid

    bench.executor.cancel(JobId(1), 1.0)

    assert bench.see("train", Phase.ENDED, live=[uid]).exit_code == 137


def test_argo_r17_a_pod_on_a_lost_node_is_stopping_and_is_never_forced(bench: ArgoBench):
    bench.submit(a_task())
    uid = bench.start(mode="script").uid
    bench.kubelet.lose("gpu-0")

    for _ in range(3):
        bench.executor.take_back(uid, 1.0)
        stopping = bench.see("train", Phase.STOPPING, live=[uid])

    assert (stopping.placement, bench.pod(uid).grace_s) == ({"gpu-0": 1}, 1)
    bench.kubelet.find("gpu-0")


def test_a_pod_that_is_asked_again_ends_when_it_was_told_to_first(bench: ArgoBench):
    bench.submit(a_task())
    uid = bench.start(mode="script", ignore_term="true").uid

    for grace_s in (30.0, 40.0, 29.0):
        bench.executor.take_back(uid, grace_s)
        bench.see("train", Phase.STOPPING, live=[uid])

    assert bench.pod(uid).grace_s == 30


def test_a_pod_that_may_save_at_leisure_ends_sooner_once_somebody_is_in_a_hurry(bench: ArgoBench):
    bench.submit(a_task())
    uid = bench.start(mode="script", ignore_term="true").uid

    for grace_s in (60.0, 2.0):
        bench.executor.take_back(uid, grace_s)
        bench.reports([uid])

    bench.until(lambda: any(one.uid == uid and one.phase is Phase.ENDED for one in bench.reports([uid])))


def test_the_second_request_counts_also_before_the_watch_has_told_of_the_first(bench: ArgoBench):
    bench.submit(a_task())
    uid = bench.start(mode="script", ignore_term="true").uid
    bench.pods.stop()

    for grace_s in (30.0, 30.0, 5.0):
        bench.executor.take_back(uid, grace_s)
        bench.reports([uid])

    assert bench.pod(uid).grace_s == 5


def test_a_pod_with_the_label_of_a_job_and_of_no_task_is_no_attempt(bench: ArgoBench):
    body = {
        "metadata": {"name": "strange", "labels": {names.JOB: "job-1"}},
        "spec": {"containers": [{"name": "main", "image": "x"}], "schedulingGates": [{"name": "other.example/wait"}]},
    }
    strange = bench.admin.create(f"/api/v1/namespaces/{bench.plane.namespace}/pods", body)
    bench.until(lambda: strange["metadata"]["uid"] in bench.pods.items())

    bench.submit(a_task())

    assert bench.gated().task == "train"
    assert [one.task for one in bench.reports()] == ["train"]


def test_a_disruption_budget_holds_an_eviction_up_for_a_while_only(bench: ArgoBench):
    bench.submit(a_task())
    uid = bench.start(mode="script").uid
    budget = {
        "metadata": {"name": "all"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {names.TASK: "train"}}},
    }
    bench.admin.create(f"/apis/policy/v1/namespaces/{bench.plane.namespace}/poddisruptionbudgets", budget)

    bench.executor.take_back(uid, 5.0)
    held = bench.see("train", Phase.RUNNING, live=[uid])
    bench.later += timedelta(seconds=6)
    bench.executor.take_back(uid, 5.0)

    assert held.stop_asked_at is None
    bench.until(lambda: any(one.uid == uid and one.phase is Phase.ENDED for one in bench.reports([uid])))


def test_a_release_that_meets_a_newer_version_is_tried_on_that(bench: ArgoBench):
    bench.submit(a_task())
    uid = bench.gated().uid
    bench.script(uid, mode="script")
    assert isinstance(bench.plane, FakePlane)
    bench.plane.fake.refuse("PATCH", f"/pods/{uid.partition('/')[0]}$", 409, 3)

    bench.executor.release(uid, {"gpu-0": 1})

    assert bench.see("train", Phase.RUNNING, live=[uid]).placement == {"gpu-0": 1}


def test_a_task_that_argo_ended_unseen_is_told_as_a_whole(bench: ArgoBench):
    bench.submit(a_task(), a_task("other"))
    uid = bench.start(mode="script", run_for="0.5", exit_code="3").uid
    bench.see("train", Phase.ENDED, live=[uid])
    # What Argo has not taken in by then is taken for hanging.
    bench.until(lambda: "Failed" in {node["phase"] for node in bench.argo_nodes().values()})
    bench.later += timedelta(seconds=40)
    for _ in range(4):
        bench.submit(a_task(), a_task("other"))
        bench.later += timedelta(seconds=10)

    bench.until(lambda: any(one.whole_task for one in bench.reports()))
    (whole,) = (one for one in bench.reports() if one.whole_task)

    assert (whole.task, whole.exit_code, whole.message.startswith("gpujob-final: ")) == ("train", 3, True)
