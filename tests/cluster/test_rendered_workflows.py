"""What `gpujob render` prints is taken by the API server as it is, and nothing of it is dropped."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from scheduler.adapters.kube.api import Refused
from scheduler.cli.main import main
from tests.cluster.control_plane import ControlPlane
from tests.cluster.manifests import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
SETTINGS = """
[cluster]
kind = "kubernetes"
[storage]
root = "s3://runs"
endpoint = "https://s3.example.com"
secret = "gpujob-storage"
"""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture(scope="module", params=["minimal", "full"])
def strict(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A plane with these CRDs; "full" ones check every field of a Workflow."""
    with ControlPlane(tmp_path_factory.mktemp(f"crds-{request.param}"), crds=request.param) as plane:
        plane.stop_argo()  # what is posted here is looked at, not run
        yield plane


def rendered(file: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    settings = folder / "gpujob.toml"
    settings.write_text(SETTINGS)
    assert main(["render", str(file), "--config", str(settings)]) == 0
    return list(YAML(typ="safe", pure=True).load_all(io.StringIO(capsys.readouterr().out)))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_renders_to_workflows_that_are_taken_strictly(
    strict: ControlPlane, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = rendered(file, tmp_path, capsys)
    path = f"/apis/argoproj.io/v1alpha1/namespaces/{strict.namespace}/workflows"
    assert bodies
    for body in bodies:
        made = strict.api("gpujob").create(path, body, fieldValidation="Strict", dryRun="All")
        assert made["spec"] == body["spec"]


def test_a_field_that_nobody_knows_is_not_taken(
    strict: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (body, *_) = rendered(EXAMPLES[0], tmp_path, capsys)
    path = f"/apis/argoproj.io/v1alpha1/namespaces/{strict.namespace}/workflows"
    body["spec"] = [body["spec"]] if strict.crds == "minimal" else body["spec"] | {"entryPoint": "dag"}
    with pytest.raises(Refused) as refused:
        strict.api("gpujob").create(path, body, fieldValidation="Strict", dryRun="All")
    assert refused.value.status in {400, 422}
