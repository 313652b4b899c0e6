"""The stories of test_stories.py, told on the real control plane: what the fake plane shows is what happens there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.stage import Stage
from tests.cluster.stories import STORIES

NODES = {"gpu-0": 8, "gpu-1": 8}

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_seen_on_the_real_plane_as_it_is_written_down(
    name: str, plane: ControlPlane, tmp_path: Path
) -> None:
    story, seen = STORIES[name]
    with Stage(plane, NODES, tmp_path) as stage:
        assert story(stage) == seen
        assert stage.kubelet.violations == []
