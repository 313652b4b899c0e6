"""The same stories on the fake plane and on the real one; what was written down was seen on the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.plane import FakePlane
from tests.cluster.stage import Stage
from tests.cluster.stories import STORIES

NODES = {"gpu-0": 8, "gpu-1": 8}


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("blind", [0.0, 1.0], ids=["argo-sees-the-end", "argo-misses-the-end"])
def test_a_story_is_seen_on_the_fake_plane_as_on_the_real_one(name: str, blind: float, tmp_path: Path) -> None:
    story, seen = STORIES[name]
    with FakePlane(tmp_path, blind=blind) as plane, Stage(plane, NODES, tmp_path) as stage:
        assert story(stage) == seen
        assert stage.kubelet.violations == []
    assert plane.bugs == []
