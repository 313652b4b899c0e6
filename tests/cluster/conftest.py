"""Planes for tests of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.plane import FakePlane


@pytest.fixture
def fake_plane(tmp_path: Path) -> Iterator[FakePlane]:
    """In this process, with the timing of Argo left to chance (seeded); it has no bugs of its own."""
    with FakePlane(tmp_path / "plane") as plane:
        yield plane
    assert plane.bugs == []
