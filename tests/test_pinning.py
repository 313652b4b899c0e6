"""Tags become digests beside the turns, and a job is handed over with what was found."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler.cycle.turn import Outside
from scheduler.fleet.services import Service
from scheduler.jobs.job import Job, JobId, JobState
from scheduler.jobs.mail import Decide, Submit
from scheduler.jobs.spec import spec_hash
from scheduler.ports import Unresolved
from tests.test_cycle import Lab
from tests.world import Killed

ONE = """
gpujob: 1
name: one
image: train:1
gpus: 4
estimate_hours: 1
command: [python, train.py]
"""
TWO = """
gpujob: 1
name: two
image: train:1
steps:
  - {name: prepare, gpus: 0, image: "prep:2", command: [python, prep.py]}
  - {name: train, needs: [prepare], gpus: 2, command: [python, train.py]}
"""
PINNED = f"train@sha256:{'9f' * 32}"
MOVED = f"train@sha256:{'a0' * 32}"


class Registries:
    """All registries of the world. A name that stands nowhere is being looked up for ever."""

    def __init__(self) -> None:
        self.images: dict[str, str | Unresolved] = {}
        self.asked: list[str] = []

    def digests(self, names: Collection[str]) -> Mapping[str, str | Unresolved]:
        self.asked += names
        return {name: self.images[name] for name in names if name in self.images}


class ImageLab(Lab):
    """A lab whose images are looked up."""

    def __init__(self, *services: Service, **terms: object) -> None:
        self.registries = Registries()
        super().__init__(*services, **terms)

    def outside(self) -> Outside:
        return replace(super().outside(), images=self.registries)

    def job(self, job: int = 1) -> Job:
        found = self.store.job(JobId(job))
        assert found is not None
        return found

    def ordered_images(self, job: int = 1) -> list[str]:
        return [task.image for task in self.world.orders[JobId(job)].tasks]


def test_a_job_is_handed_over_with_the_digest_of_its_image():
    lab = ImageLab()
    lab.registries.images["train:1"] = PINNED
    lab.ask(Submit(text=ONE))
    lab.turns(20)

    assert lab.ordered_images() == [PINNED]
    assert lab.job().digests == {"train:1": PINNED}
    assert lab.job().spec_hash == lab.world.orders[JobId(1)].spec_hash == spec_hash(lab.job().spec, {"train:1": PINNED})
    assert lab.told() == ["submitted", "started", "completed"]


def test_each_step_has_its_own_image():
    lab = ImageLab()
    lab.registries.images |= {"train:1": PINNED, "prep:2": "prep@sha256:1"}
    lab.ask(Submit(text=TWO))
    lab.turns(3)

    assert lab.ordered_images() == ["prep@sha256:1", PINNED]


def test_a_lookup_that_takes_its_time_holds_up_its_own_job_alone():
    lab = ImageLab()
    lab.registries.images["train:1"] = PINNED
    lab.ask(Submit(text=ONE.replace("train:1", "slow:1")))
    lab.ask(Submit(text=ONE))
    lab.turns(10)

    assert not lab.job(1).handed_over
    assert lab.job(2).state is JobState.RUNNING

    lab.registries.images["slow:1"] = "slow@sha256:1"
    lab.turns(1)
    assert lab.ordered_images(1) == ["slow@sha256:1"]


def test_taking_in_asks_no_registry():
    lab = ImageLab()

    lab.ask(Submit(text=ONE))

    assert lab.registries.asked == []


def test_without_a_digest_the_tag_is_used_and_people_are_told_why():
    lab = ImageLab()
    lab.registries.images["train:1"] = Unresolved(why="docker.io did not answer within 3 s")
    lab.ask(Submit(text=ONE))
    lab.turns(20)

    why = "docker.io did not answer within 3 s"
    says = f"Image train:1 could not be resolved to a digest: {why}; the tag is used as it is."
    started = next(notice for notice in lab.store.notices() if notice.kind == "started")
    assert lab.ordered_images() == ["train:1"]
    assert lab.job().spec_hash == spec_hash(lab.job().spec, {})
    assert lab.job().warnings == (says,)
    assert started.payload["warnings"] == [says]
    assert lab.told() == ["submitted", "started", "completed"]


def test_what_was_found_is_written_down_before_it_is_used():
    lab = ImageLab()
    lab.registries.images["train:1"] = PINNED
    lab.ask(Submit(text=ONE))
    lab.world.dies_after_submit = True
    with pytest.raises(Killed):
        lab.turns(1)
    lab.registries.images["train:1"] = MOVED
    lab.new_process()
    lab.turns(20)

    assert lab.job().digests == {"train:1": PINNED}
    assert lab.job().spec_hash == lab.world.orders[JobId(1)].spec_hash
    assert lab.state() is JobState.COMPLETED


def test_what_is_approved_is_what_runs():
    lab = ImageLab()
    lab.registries.images["train:1"] = PINNED
    lab.ask(Submit(text=ONE + "priority: high\n"))
    lab.turns(2)
    lab.registries.images["train:1"] = MOVED
    lab.ask(Decide(job=JobId(1), approve=True), by="U_BO")
    lab.turns(20)

    assert lab.ordered_images() == [PINNED]
    assert lab.state() is JobState.COMPLETED


def test_a_registry_that_is_away_while_a_job_waits_for_its_hour_is_asked_again():
    lab = ImageLab()
    lab.registries.images["train:1"] = Unresolved(why="docker.io failed (500)")
    lab.ask(Submit(text=ONE + f"start_after: {(lab.world.now + timedelta(seconds=30)).isoformat()}\n"))
    lab.turns(3)
    assert lab.job().warnings == ()
    lab.registries.images["train:1"] = PINNED
    lab.turns(20)

    assert lab.ordered_images() == [PINNED]
    assert lab.job().warnings == ()


def test_a_job_that_runs_is_never_looked_up_again():
    lab = ImageLab()
    lab.registries.images["train:1"] = PINNED
    lab.ask(Submit(text=ONE))
    lab.turns(2)
    asked = len(lab.registries.asked)
    lab.turns(5)

    assert len(lab.registries.asked) == asked == 1


def test_where_images_are_not_used_nothing_is_looked_up():
    lab = Lab()
    lab.ask(Submit(text=ONE))
    lab.turns(20)

    job = lab.store.job(JobId(1))
    assert job is not None
    assert (job.digests, job.unresolved, job.state) == ({}, {}, JobState.COMPLETED)
    assert lab.world.orders[JobId(1)].tasks[0].image == "train:1"
