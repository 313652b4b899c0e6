"""`gpujob whatif` as a person and a script use it; the Prometheus gives recorded answers of a real one."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.cli.main import main
from tests.fake_prometheus import FakePrometheus
from tests.sim import servegen
from tests.sim.real_prometheus import RECORDED, RECORDED_DAYS, RECORDED_STEP_S
from tests.vllm_data import START, after

KEYS = {
    "source", "from", "until", "timezone", "days", "step_s", "nodes", "gpus_per_node", "gpus", "jobs",
    "idle_gpu_hours", "useful_gpu_hours", "lent_gpu_hours", "oracle_gpu_hours", "useful_over_oracle",
    "useful_over_idle", "held_share", "lost_share", "restart_share", "unfilled_share", "preemptions",
    "preemptions_per_1000_gpu_hours", "jobs_done", "scale_ups", "scale_ups_waited_share", "scale_up_wait_mean_s",
    "scale_up_wait_p99_s", "scale_up_wait_max_s", "missing_hours", "blind_hours", "missing_gpu_hours", "currency",
    "per_gpu_hour", "idle_money", "useful_money", "useful_money_30_days", "useful_gpu_hours_30_days", "hours", "heat",
    "pool", "services", "notes",
}  # fmt: skip
RECORDED_DAY = ("--days", "1", "--step", "300s", "--until", "2026-03-03T00:00+00:00", "--nodes", "19")
Asked = Callable[..., tuple[int, str]]


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    (tmp_path / "gpujob.toml").write_text(servegen.SETTINGS)
    (tmp_path / "empty.toml").write_text("")

    def run(*words: str, settings: str = "gpujob.toml") -> tuple[int, str]:
        code = main(["whatif", "--config", str(tmp_path / settings), *words])
        return code, capsys.readouterr().out

    return run


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    with FakePrometheus() as fake:
        yield fake


@pytest.fixture
def recorded(prometheus: FakePrometheus) -> FakePrometheus:
    prometheus.recorded = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return prometheus


def plain(answer: tuple[int, str]) -> Any:
    code, text = answer
    assert code == 0, text
    return json.loads(text)


def a_day_of(fake: FakePrometheus, hours: int = 25, each: int = 300) -> None:
    """Two replicas at two thirds of their target, one of them only in the second half."""
    for second in range(0, hours * 3600 + 1, each):
        for number in range(2 if second > hours * 1800 else 1):
            text = 'vllm:num_requests_running{engine="0"} 136\nvllm:num_requests_waiting{engine="0"} 0\n'
            fake.scrape(after(second), text, pod=f"chat-{number}", namespace="llm", job="vllm")


def test_recorded_answers_of_a_real_prometheus_give_the_figures_of_the_csv(recorded: FakePrometheus, asked: Asked):
    told = plain(asked("--prometheus", recorded.url, *RECORDED_DAY, "--json"))

    services = servegen.told(RECORDED_DAYS)
    idle = servegen.idle_gpus(services)
    hours = idle.reshape(24, -1).mean(axis=1)
    assert set(told) == KEYS
    assert told["step_s"] == RECORDED_STEP_S
    # With points five minutes apart, a replica that came or went in between counts for all of them.
    assert told["idle_gpu_hours"] == pytest.approx(idle.mean() * 24, rel=0.02)
    assert [row["idle_gpus"] for row in told["hours"]] == pytest.approx(hours.tolist(), abs=4)
    load = {row["name"]: row["load_mean"] for row in told["services"]}
    assert load == pytest.approx({one.name: float(np.mean(one.load)) for one in services}, rel=0.03)
    assert told["missing_hours"] == 0


def test_the_text_says_hours_money_wait_and_when(recorded: FakePrometheus, asked: Asked, tmp_path: Path):
    code, text = asked("--prometheus", recorded.url, *RECORDED_DAY, "--html", str(tmp_path / "page.html"))

    assert code == 0
    for words in (
        "Idle",
        "Harvestable",
        "GPU-hours",
        "USD",
        "Service wait:",
        "04:00",
        "large-api",
        "Nothing was missing",
    ):
        assert words in text
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_services_are_found_without_settings(prometheus: FakePrometheus, asked: Asked):
    a_day_of(prometheus)

    told = plain(
        asked(
            *("--prometheus", prometheus.url, "--days", "1", "--until", after(25 * 3600).isoformat(), "--json"),
            *("--step", "300s", "--gpus-per-replica", "2", "--max-num-seqs", "chat=170", "--gpus-per-node", "4"),
            settings="empty.toml",
        )
    )

    (chat,) = told["services"]
    assert (chat["name"], chat["gpus_per_replica"], chat["replicas"], chat["max_replicas"]) == ("chat", 2, "there", 2)
    assert (told["gpus"], told["timezone"]) == (4, "UTC")
    assert told["idle_gpu_hours"] == pytest.approx(2 * 11.5, abs=0.2)
    assert chat["load_mean"] == pytest.approx((11.5 + 2 * 12.5) / 24, abs=0.05)
    assert told["useful_money"] == 0


def test_a_dump_of_query_range_gives_nearly_what_prometheus_itself_does(
    recorded: FakePrometheus, asked: Asked, tmp_path: Path
):
    metrics = {"num_requests_running": "vllm:num_requests_running", "num_requests_waiting": "vllm:num_requests_waiting"}
    files = []
    for key, body in recorded.recorded.items():
        name = next((full for bare, full in metrics.items() if f"({full}{{" in key and "avg_over_time" in key), None)
        if name is not None:
            answer = json.loads(body)
            for line in answer["data"]["result"]:
                line["metric"]["__name__"] = name
            files.append(tmp_path / f"{len(files)}.json")
            files[-1].write_text(json.dumps(answer))

    told = plain(asked("--file", *map(str, files), "--nodes", "19", "--json"))
    same = plain(asked("--prometheus", recorded.url, *RECORDED_DAY, "--json"))

    assert len(files) == 2
    assert [row["name"] for row in told["services"]] == [row["name"] for row in same["services"]]
    # Nothing in a dump tells for how much of a point a replica was there; it counts for all of it.
    loads = [[row["load_mean"] for row in one["services"]] for one in (told, same)]
    assert loads[0] == pytest.approx(loads[1], rel=0.03)
    assert told["idle_gpu_hours"] == pytest.approx(same["idle_gpu_hours"], rel=0.02)


def test_a_table_of_the_benchmarks_form_is_replayed(asked: Asked, tmp_path: Path):
    rows = "".join(f"{t},1.5,{2 if t % 86_400 < 43_200 else 4}\n" for t in range(0, 86_400, 600))
    (tmp_path / "demand.csv").write_text("t_s,small-app:load,small-app:wanted\n" + rows)

    told = plain(asked("--file", str(tmp_path / "demand.csv"), "--nodes", "2", "--jobs", "philly", "--json"))

    assert told["idle_gpu_hours"] == 12 * 8
    assert 0 < told["useful_gpu_hours"] < 12 * 8
    assert [row["idle_gpus"] for row in told["hours"]] == [8.0] * 12 + [0.0] * 12


# -- What cannot be answered


def test_without_series_of_vllm_the_answer_is_no_and_names_the_nearest(prometheus: FakePrometheus, asked: Asked):
    prometheus.scrape(START, "vllm:num_requests_swapped 0\nnode_load1 1\n", pod="x")

    code, text = asked("--prometheus", prometheus.url, "--until", after(60).isoformat())

    assert code == 1
    assert f"{prometheus.url} has no series of vLLM in these 7 days. Looked for: vllm:num_requests_running" in text
    assert "The nearest that it has: vllm:num_requests_swapped" in text


def test_less_than_a_day_of_data_is_no_answer(prometheus: FakePrometheus, asked: Asked):
    a_day_of(prometheus, hours=3)

    code, text = asked("--prometheus", prometheus.url, "--until", after(3 * 3600).isoformat(), settings="empty.toml")

    assert code == 1
    assert "3.0 h of vLLM metrics in the 7 days asked for; at least 24 h are needed" in text


def test_replicas_of_no_service_of_the_settings_are_no_answer(prometheus: FakePrometheus, asked: Asked):
    a_day_of(prometheus, hours=1)

    code, text = asked("--prometheus", prometheus.url, "--until", after(3600).isoformat(), "--json")

    assert code == 1
    assert "None of the 2 replicas that were found belongs to a [[service]]" in json.loads(text)["errors"][0]
    assert "llm/chat-0" in text


@pytest.mark.parametrize(("status", "words"), [(401, "wants to know who asks (401"), (403, "does not let us ask (403")])
def test_a_prometheus_that_turns_us_away_did_not_answer(
    prometheus: FakePrometheus, asked: Asked, status: int, words: str
):
    prometheus.failures = [(status, "no")]

    code, text = asked("--prometheus", prometheus.url)

    assert code == 3
    assert words in text


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ((), "Say which Prometheus with --prometheus URL, or which files with --file FILE"),
        (("--prometheus", "http://x", "--days", "0"), "no number of days from 1 to 90"),
        (("--prometheus", "http://x", "--days", "nan"), "no number of days from 1 to 90"),
        (("--prometheus", "http://x", "--step", "1h"), "--step 3600s is too coarse"),
        (("--prometheus", "http://x", "--step", "fast"), "is no time; write it such as 60s"),
        (("--prometheus", "http://x", "--until", "yesterday"), "write a time such as"),
        (("--prometheus", "http://x", "--until", "2026-03-09T00:00"), "has no time zone"),
        (("--prometheus", "http://x", "--jobs", "imagenet"), "the mixes are itp, seed, philly"),
        (("--prometheus", "http://x", "--file", "x.json"), "not allowed with"),
        (("--prometheus", "http://x", "--token-file", "gone"), "--token-file gone cannot be read"),
        (("--prometheus", "http://x", "--gpus-per-replica", "chat=many"), "no whole number"),
        (("--file", "gone.json"), "gone.json cannot be read"),
    ],
)
def test_wrong_use_is_told_in_a_sentence(asked: Asked, words: tuple[str, ...], fault: str):
    code, text = asked(*words)

    assert code == 2
    assert fault in text


def test_a_token_comes_from_a_file(prometheus: FakePrometheus, asked: Asked, tmp_path: Path):
    prometheus.authorization = "Bearer s3cret"
    (tmp_path / "token").write_text("s3cret\n")
    prometheus.scrape(START, "node_load1 1\n", pod="x")

    code, text = asked("--prometheus", prometheus.url, "--token-file", str(tmp_path / "token"))

    assert (code, "s3cret" in text) == (1, False)


def test_without_matplotlib_only_the_page_is_missed_and_that_is_said_before_anything_is_read(tmp_path: Path):
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from scheduler.cli.main import main\n"
        f"sys.exit(main(['whatif', '--prometheus', 'http://127.0.0.1:9', '--html', {str(tmp_path / 'x.html')!r}]))"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=50)

    assert done.returncode == 2, done.stderr
    assert done.stdout == "--html needs matplotlib, which is not installed: pip install 'gpujob[sim]'\n"
