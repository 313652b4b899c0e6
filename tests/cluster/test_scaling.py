"""Who scales services: the same stories on the fake plane and on the real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import manifests
from tests.cluster.control_plane import ControlPlane
from tests.cluster.plane import FakePlane
from tests.cluster.scaling_stories import STORIES
from tests.cluster.stage import Stage

NODES = {"gpu-0": 8, "gpu-1": 8}


@pytest.mark.parametrize("name", STORIES)
def test_services_are_scaled_by_one_writer(name: str, fake_plane: FakePlane, tmp_path: Path):
    with Stage(fake_plane, NODES, tmp_path) as stage:
        STORIES[name](stage)
        assert stage.kubelet.violations == []


@pytest.fixture
def managed(plane: ControlPlane) -> Iterator[ControlPlane]:
    """The real plane, with the RoleBinding that people add for a service that we scale."""
    given = list(manifests.documents(manifests.MANIFESTS / "examples" / "serving-manage.yaml"))
    plane.apply(given)
    yield plane
    for one in given:
        folder = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{one['metadata']['namespace']}/rolebindings"
        plane.api("admin").delete(f"{folder}/{one['metadata']['name']}")


@pytest.mark.cluster
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", STORIES)
def test_services_are_scaled_by_one_writer_on_the_real_plane(name: str, managed: ControlPlane, tmp_path: Path):
    with Stage(managed, NODES, tmp_path) as stage:
        STORIES[name](stage)
        assert stage.kubelet.violations == []
