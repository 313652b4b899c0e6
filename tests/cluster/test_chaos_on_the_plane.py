"""A short chaos.py; the whole of it is run by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.chaos import API, ARGO, ETCD, SCHEDULER, chaos
from tests.cluster.control_plane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]


async def test_nothing_is_lost_or_doubled_when_every_part_is_killed(plane: ControlPlane, tmp_path: Path) -> None:
    found = await chaos(plane, tmp_path, {SCHEDULER: 4, ARGO: 2, API: 1, ETCD: 1}, seed=1)
    assert not found["broken"], found
    assert found["jobs"] >= 4
