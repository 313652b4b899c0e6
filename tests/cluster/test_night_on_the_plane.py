"""A whole night: a pipeline from Slack, run by Argo on 32 GPUs, gives way to a service twice, goes on, and ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bot.playground import people
from bot.playground.server import Playground
from scheduler.jobs import usage
from scheduler.jobs.job import JobId, JobState, RunState
from scheduler.store.mailbox import JobView
from tests.chaos import notices_in_slack
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fakelet import Fakelet
from tests.cluster.house import PROGRAM, Eyes, House, Seen, Serving

NODES = {f"gpu-{number}": 8 for number in range(4)}
SECOND = timedelta(seconds=1)
PIPELINE = """gpujob: 1
name: night
image: registry.example.com/research/chaos:1
checkpoint: {{every: 10s, on_sigterm: true, save: 1s}}
steps:
  - name: preprocess
    gpus: 0
    command: [python, "{program}", --steps, "10", --diary, "{diary}"]
  - name: train
    needs: [preprocess]
    gpus: 4
    sweep: {{lr: [0.01, 0.05, 0.2], seed: [1, 2]}}
    command: [python, "{program}", --steps, "500", --diary, "{diary}", --save-s, "1"]
  - name: evaluate
    needs: [train]
    gpus: 1
    command: [python, "{program}", --steps, "10", --diary, "{diary}"]
"""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


async def test_a_pipeline_from_slack_gives_way_to_a_service_twice_and_completes(
    plane: ControlPlane, tmp_path: Path
) -> None:
    async with Playground(port=0, speed=100.0) as slack:
        house = House(plane, tmp_path, channel=people.C_GPU, base_url=slack.base_url, approver=people.U_BO)
        kubelet = Fakelet(plane.api("admin"), NODES, tmp_path / "kubelet", tls=plane.tls)
        with kubelet, house, Eyes(plane) as eyes:
            serving = Serving(plane, gpus=4, replicas=1)
            house.serve()
            house.speak()
            await slack.until(lambda: slack.sockets.connected, 30)
            text = PIPELINE.format(program=PROGRAM, diary=house.diary)
            answered = await slack.command(people.U_ANA, people.C_GPU, f"/gpujob submit {text}")
            assert answered.acked_s is not None
            await asyncio.to_thread(_night, house, eyes, serving)
            view = house.mailbox.job(JobId(1))
            assert view is not None
            await slack.until(lambda: "completed" in _thread(slack), 30)
            assert not kubelet.violations

    told = Counter(_thread(slack))
    assert _thread(slack)[0] == "started"
    assert _thread(slack)[-1] == "completed"
    assert told["completed"] == 1
    assert [m["kind"] for m in notices_in_slack(slack) if m["place"] == "card"] == ["submitted"]
    assert told["preempted"] >= 2
    assert told["resumed"] >= 1
    _agrees_with_the_pods(view, {f"{pod.name}/{uid}": pod for uid, pod in eyes.pods.items()})


def _night(house: House, eyes: Eyes, serving: Serving) -> None:
    """The service grows over the jobs, shrinks, and does it again."""
    for _ in range(2):
        eyes.until(lambda: _running(eyes) == 6, 90.0, house.tail)
        serving.scale(4)
        eyes.until(lambda: sum(1 for pod in eyes.serving() if pod.bound) == 4, 20.0, house.tail)
        assert _running(eyes) < 6
        serving.scale(1)
    eyes.until(lambda: _ended(house), 180.0, house.tail)
    view = house.mailbox.job(JobId(1))
    assert view is not None
    assert view.job.state is JobState.COMPLETED, view


def _running(eyes: Eyes) -> int:
    """Trainings that run and are not being ended."""
    return sum(
        1 for pod in eyes.pods.values() if pod.gated and pod.gpus == 4 and "running" in pod.main and not pod.leaving
    )


def _ended(house: House) -> bool:
    view = house.mailbox.job(JobId(1))
    return view is not None and view.job.ended_at is not None


def _thread(slack: Playground) -> list[str]:
    """Kinds of notices in the thread, in their order."""
    return [message["kind"] for message in notices_in_slack(slack) if message["place"] == "thread"]


def _agrees_with_the_pods(view: JobView, pods: dict[str, Seen]) -> None:
    """What is charged is what the pods say of themselves."""
    held = timedelta()
    for run in view.runs:
        pod = pods[str(run.uid)]
        begun, ended = _times(pod)
        assert run.started_at is not None
        assert abs(run.started_at - begun) <= SECOND, (run, pod)
        assert run.ended_at is not None
        assert abs(run.ended_at - ended) <= SECOND, (run, pod)
        assert pod.bound_at is not None
        assert abs(run.since - pod.bound_at) <= SECOND, (run, pod)
        assert pod.gpus == run.gpus
        held += (ended - pod.bound_at) * run.gpus
    assert Counter(run.state for run in view.runs) == {
        RunState.DONE: 8,
        RunState.PREEMPTED: view.job.preemptions,
    }
    used = timedelta(hours=usage.of_runs(view.runs).used)
    assert abs(used - held) <= SECOND * sum(run.gpus for run in view.runs)


def _times(pod: Seen) -> tuple[datetime, datetime]:
    ended = pod.main["terminated"]
    begun, over = (datetime.fromisoformat(ended[key]).astimezone(UTC) for key in ("startedAt", "finishedAt"))
    return begun, over
