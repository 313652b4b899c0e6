"""`gpujob whatif` on a real Prometheus (`make test-prometheus`): its figures beside those of the CSV.

Prometheus is filled by promtool with seven days of ServeGen traffic as vLLM replicas would have shown it
(tests/sim/servegen.py). GPUJOB_RECORD=1 keeps its answers for the tests that need none (tests/data/whatif),
GPUJOB_SCREENSHOTS=1 the picture of the page.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import psutil
import pytest

from scheduler.policy import Policy
from scheduler.sim.whatif_demand import Demand, Replicas, Wanting
from scheduler.sim.whatif_replay import Pool, mix, replay
from tests.browser.person import IMAGES, NO_CHROMIUM, chromium
from tests.sim import real_prometheus, servegen

DAYS = 7
NEAR = 0.02
UNTIL = "2026-03-09T00:00+00:00"
POOL = Pool(nodes=servegen.NODES, gpus_per_node=8)
REPEATED = servegen.SYNC_S // 10

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(real_prometheus.missing()), reason=real_prometheus.missing()),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("prometheus")
    (made / "gpujob.toml").write_text(servegen.SETTINGS)
    return made


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    real_prometheus.fill(folder, DAYS)
    with real_prometheus.prometheus(folder) as url:
        if os.environ.get("GPUJOB_RECORD") == "1":
            real_prometheus.record(url)
        yield url


@pytest.fixture(scope="module")
def told(url: str, folder: Path) -> Any:
    """The answer, with `wall_s` and `peak_mb` of the process that gave it."""
    command = [Path(sys.executable).parent / "gpujob", "whatif", "--prometheus", url, "--days", str(DAYS)]
    options = ["--until", UNTIL, "--nodes", str(servegen.NODES), "--html", folder / "page.html", "--json"]
    began, peak = time.monotonic(), 0
    with subprocess.Popen([*command, *options], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        watched = psutil.Process(process.pid)
        answer = b""
        while process.poll() is None:
            peak = max(peak, _memory(watched))
            try:
                answer = process.communicate(timeout=0.2)[0]
            except subprocess.TimeoutExpired:
                continue
    assert process.returncode == 0, answer
    return {**json.loads(answer), "wall_s": time.monotonic() - began, "peak_mb": peak / 1e6}


@pytest.fixture(scope="module")
def services() -> list[servegen.Told]:
    return servegen.told(DAYS)


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def test_idle_gpu_hours_are_those_of_the_csv(told: Any, services: list[servegen.Told]):
    idle = float(servegen.idle_gpus(services).mean()) * 24 * DAYS

    print(f"\nidle GPU-hours: {told['idle_gpu_hours']:,.0f} by Prometheus, {idle:,.0f} by the CSV")
    assert told["idle_gpu_hours"] == pytest.approx(idle, rel=NEAR)
    assert told["missing_hours"] == 0


def test_each_service_has_the_load_and_the_replicas_of_the_csv(told: Any, services: list[servegen.Told]):
    found = {one["name"]: one for one in told["services"]}

    for one in services:
        here = found[one.name]
        print(f"{one.name}: load {here['load_mean']} / {one.load.mean():.3f}", end=", ")
        print(f"replicas {here['wanted_mean']} / {one.replicas.mean():.3f}")
        assert here["load_mean"] == pytest.approx(one.load.mean(), rel=NEAR)
        assert here["wanted_mean"] == pytest.approx(one.replicas.mean(), rel=NEAR)
        assert here["wanted_max"] == one.replicas.max()


def test_idle_gpus_of_each_hour_and_weekday_are_those_of_the_csv(told: Any, services: list[servegen.Told]):
    hours = servegen.idle_gpus(services).reshape(DAYS, 24, -1).mean(axis=2)  # day 0 is a Monday

    assert np.array(told["heat"]["idle_gpus"]) == pytest.approx(hours, abs=NEAR * servegen.GPUS)
    assert [row["idle_gpus"] for row in told["hours"]] == pytest.approx(hours.mean(axis=0).tolist(), rel=NEAR)


def test_what_is_harvestable_is_what_a_replay_of_the_csv_gives(told: Any, services: list[servegen.Told]):
    same = tuple(
        Wanting(
            name=one.name,
            gpus_per_replica=servegen.GPUS_PER_REPLICA,
            min_replicas=1,
            max_replicas=servegen.MOST[one.name],
            max_num_seqs=servegen.SEQS,
            replicas=Replicas.THERE,
            load=np.repeat(one.load, REPEATED),
            wanted=np.repeat(one.replicas, REPEATED),
            missing=np.zeros(len(one.load) * REPEATED, dtype=bool),
            there_mean=float(one.replicas.mean()),
        )
        for one in sorted(services, key=lambda one: one.name)
    )
    blind = np.zeros(len(same[0].wanted), dtype=bool)
    demand = Demand(start=servegen.MONDAY, services=same, blind=blind, source="the CSV", step_s=10)

    got = replay(demand, POOL, mix("itp"), Policy(), ZoneInfo("UTC"), lambda _: None)

    useful = got.figures["useful_gpu_hours"]
    print(f"\nharvestable GPU-hours: {told['useful_gpu_hours']:,.0f} by Prometheus, {useful:,.0f} by the CSV")
    print(f"scale-ups: {told['scale_ups']} / {len(got.waits)}", end=", ")
    print(f"that waited {told['scale_ups_waited_share']:.2%} / {(got.waits > 0).mean():.2%}")
    assert told["useful_gpu_hours"] == pytest.approx(useful, rel=NEAR)
    assert told["scale_ups"] == pytest.approx(len(got.waits), rel=NEAR)
    assert told["scale_ups_waited_share"] == pytest.approx((got.waits > 0).mean(), abs=NEAR)


def test_it_takes_little_time_and_memory(told: Any):
    print(f"\nreading and replaying {DAYS} days: {told['wall_s']:.0f} s, {told['peak_mb']:.0f} MB at most")
    assert told["peak_mb"] < 400


def test_what_was_recorded_is_what_it_still_answers(url: str, tmp_path: Path):
    kept = json.loads(gzip.decompress(real_prometheus.RECORDED.read_bytes()))

    answers = real_prometheus.asked(url)

    assert kept == answers


def test_the_page_is_readable_in_a_browser(told: Any, folder: Path):
    with chromium() as browser:
        if browser is None:
            pytest.skip(NO_CHROMIUM)
        page = browser.new_page(viewport={"width": 1180, "height": 900}, color_scheme="light")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((folder / "page.html").as_uri())
        assert "idle GPU-hours could have worked for jobs" in page.get_by_role("heading", level=1).inner_text()
        assert page.locator("svg").count() == 2
        page.get_by_text("The same as a table").first.click()
        assert page.get_by_role("cell").first.is_visible()
        page.get_by_text("The same as a table").first.click()
        if os.environ.get("GPUJOB_SCREENSHOTS") == "1":
            page.screenshot(path=IMAGES / "whatif.png", full_page=True)
        assert [url for url in asked if not url.startswith("file:")] == []
