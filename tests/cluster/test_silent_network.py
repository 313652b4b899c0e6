"""tests/bench/kube.py on a small cluster: its promises about the network; sizes are measured by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.kube import Size, bench

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_a_network_that_falls_silent_is_noticed_and_nothing_is_released_meanwhile(tmp_path: Path) -> None:
    told = bench(tmp_path, Size(nodes=14, pods=60, jobs=1, tasks=20, events=2, stale_s=5.0))
    silence = told["silence"]
    assert silence["noticed_after_s"] <= silence["most_allowed_s"]
    assert silence["released_meanwhile"] == 0
    assert silence["back_after_s"] < 30
    assert told["watches_frozen"]["seen_after_s"] < 90
    assert not told["gpus_in_two_hands"]
