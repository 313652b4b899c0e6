"""Our executor's reports on the fake plane and on the real one: the same stories, the same lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.argo_bench import ArgoBench
from tests.cluster.control_plane import ControlPlane
from tests.cluster.executor_stories import STORIES
from tests.cluster.plane import FakePlane


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("blind", [0.0, 1.0], ids=["argo-sees-the-end", "argo-misses-the-end"])
def test_the_reports_of_a_story_on_the_fake_plane(name: str, blind: float, tmp_path: Path) -> None:
    story, seen = STORIES[name]
    with FakePlane(tmp_path, blind=blind) as plane, ArgoBench(plane, tmp_path) as bench:
        assert story(bench) == seen
        assert bench.kubelet.violations == []
    assert plane.bugs == []


@pytest.mark.cluster
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", STORIES)
def test_the_reports_of_a_story_on_the_real_plane(name: str, plane: ControlPlane, tmp_path: Path) -> None:
    story, seen = STORIES[name]
    with ArgoBench(plane, tmp_path) as bench:
        assert story(bench) == seen
        assert bench.kubelet.violations == []
