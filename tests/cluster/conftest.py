"""Planes for tests of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.build import can_build
from tests.cluster.control_plane import ControlPlane
from tests.cluster.plane import FakePlane


@pytest.fixture
def fake_plane(tmp_path: Path) -> Iterator[FakePlane]:
    """In this process, with the timing of Argo left to chance (seeded); it has no bugs of its own."""
    with FakePlane(tmp_path / "plane") as plane:
        yield plane
    assert plane.bugs == []


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The real one; started once, in about 8 s, and shared. Use `plane`."""
    if not can_build():
        pytest.skip("the control plane is built with Go, which is not here")
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture(scope="session")
def control_plane_with_finalizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The real one, whose Argo holds every pod with a finalizer until it has read how it ended."""
    if not can_build():
        pytest.skip("the control plane is built with Go, which is not here")
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), finalizer=True) as plane:
        yield plane


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The real control plane, without a node or a pod."""
    control_plane.sweep()
    yield control_plane
    control_plane.sweep()
