"""A few rounds of hand_backs.py; the whole of it is run by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.hand_backs import HandBacks, Terms, broken

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.mark.parametrize("alive", [True, False], ids=["gpujob-alive", "gpujob-killed"])
def test_a_serving_pod_waits_no_longer_than_the_grace_of_a_job(
    alive: bool, plane: ControlPlane, tmp_path: Path
) -> None:
    numbers = HandBacks(plane, tmp_path, Terms(rounds=4, alive=alive, grace_s=3.0)).run()
    assert not broken(numbers), numbers
    assert numbers["pending_to_bound_s"]["n"] >= 4
    assert sum(numbers["ended_by"].values()) >= 4, "somebody had to go"
