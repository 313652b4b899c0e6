from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from demo import replica

RECORDING = replica.read()
FAMILIES = replica.FAMILIES.read_text()
LABELS = '{engine="0",model_name="tiny-llama"}'
GENERATED = "vllm:generation_tokens_total" + LABELS
STEPS = "vllm:iteration_tokens_total_count" + LABELS
WAITING = replica.WAITING + LABELS
RUNNING = replica.RUNNING + LABELS


def test_the_recording_has_a_settled_phase_for_each_load():
    waiting = {clients: {s.gauges[WAITING] for s in phase} for clients, phase in RECORDING.phases.items()}

    assert sorted(waiting) == [0, 2, 6, 30]
    assert waiting[0] == waiting[2] == waiting[6] == {0.0}
    assert waiting[30] == {20.0, 21.0, 22.0}


@pytest.mark.parametrize(
    ("clients", "phase"),
    [(0, 0), (0.5, 0), (1, 0), (1.5, 2), (2, 2), (4, 2), (5, 6), (6, 6), (18, 6), (19, 30), (30, 30), (500, 30)],
)
def test_the_nearest_phase_is_played(clients, phase):
    assert RECORDING.nearest(clients) == phase


def test_a_minute_of_a_phase_grows_as_much_as_it_once_did():
    playback = replica.Playback(RECORDING, started=1000.0)
    phase = RECORDING.phases[30]
    seconds = sum(stretch.seconds for stretch in phase)
    playback.samples(1000.0, clients=30)

    samples = playback.samples(1000.0 + 3 * seconds, clients=30)

    assert samples[GENERATED] == pytest.approx(3 * sum(stretch.growth[GENERATED] for stretch in phase), abs=1)
    assert samples[WAITING] == phase[0].gauges[WAITING]


def test_without_clients_nothing_moves():
    playback = replica.Playback(RECORDING, started=0.0)

    samples = playback.samples(3600.0, clients=0)

    assert samples[STEPS] == samples[RUNNING] == samples[WAITING] == 0.0


def test_a_rise_of_load_shows_in_the_next_answer():
    playback = replica.Playback(RECORDING, started=0.0)
    quiet = playback.samples(10.0, clients=0)

    loaded = playback.samples(10.5, clients=30)

    assert (quiet[WAITING], loaded[WAITING], loaded[RUNNING]) == (0.0, 22.0, 8.0)


@given(st.lists(st.tuples(st.floats(-5.0, 400.0), st.floats(0.0, 100.0)), max_size=12))
def test_counters_never_fall_and_buckets_stay_cumulative(scrapes):
    playback, now, before = replica.Playback(RECORDING, started=0.0), 0.0, {}
    for seconds, clients in scrapes:
        now += seconds
        samples = playback.samples(now, clients)
        assert all(samples[series] >= value for series, value in before.items() if replica.counts(series))
        assert {series for series in samples if replica.counts(series)} == set(RECORDING.phases[0][0].growth)
        buckets = [value for series, value in samples.items() if "time_to_first_token_seconds_bucket" in series]
        assert buckets == sorted(buckets)
        before = samples


def parsed(text: str):
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_an_answer_is_valid_exposition_of_every_recorded_series():
    playback = replica.Playback(RECORDING, started=1000.0)
    playback.samples(1000.0, clients=30)
    samples = playback.samples(1060.0, clients=30)

    families = parsed(replica.exposition(samples, FAMILIES))
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }

    assert len(found) >= len(samples)
    assert found["vllm:num_requests_waiting", ("engine", "0"), ("model_name", "tiny-llama")] == 22.0
    assert found["vllm:generation_tokens_total", ("engine", "0"), ("model_name", "tiny-llama")] == samples[GENERATED]
    assert found["process_start_time_seconds",] == 1000.0
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"
    assert families["vllm:generation_tokens"].type == "counter"
    assert families["vllm:num_requests_running"].documentation == "Number of requests in model execution batches."


def test_every_histogram_has_the_bucket_that_holds_everything():
    samples = replica.Playback(RECORDING, started=0.0).samples(0.0, clients=30)

    families = parsed(replica.exposition(samples, FAMILIES))

    histograms = [family for family in families.values() if family.type == "histogram"]
    assert len(histograms) > 8
    for family in histograms:
        ends = [s.value for s in family.samples if s.name.endswith("_bucket") and s.labels["le"] == "+Inf"]
        assert ends == [s.value for s in family.samples if s.name.endswith("_count")]


def test_an_alarm_is_written_once_at_each_rise(tmp_path):
    alarm = replica.Alarm(tmp_path / "signals", "chat", "chat-0")
    low, full, queue = ({RUNNING: r, WAITING: w} for r, w in [(7.0, 0.0), (8.0, 0.0), (8.0, 3.0)])

    for now, samples in enumerate([low, full, queue, low, low, queue]):
        alarm.see(samples, float(now))

    said = [json.loads(line) for line in (tmp_path / "signals").read_text().splitlines()]
    assert said == [
        {"at": 1.0, "service": "chat", "replica": "chat-0", "running": 8.0, "waiting": 0.0},
        {"at": 5.0, "service": "chat", "replica": "chat-0", "running": 8.0, "waiting": 3.0},
    ]


def test_only_replicas_that_live_are_counted(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "chat-1").write_text(str(ended.pid))
    (tmp_path / "chat-2").write_text("no number")
    registry = replica.Registry(tmp_path, "chat-0")

    before = registry.live()
    registry.join()
    joined = registry.live()
    registry.leave()

    assert (before, joined, registry.live()) == (0, 1, 0)


@pytest.mark.parametrize("text", ["", "many", None])
def test_a_load_file_that_cannot_be_read_changes_nothing(tmp_path, text):
    file = tmp_path / "load"
    file.write_text("12\n")
    load = replica.Load(file)
    assert load.clients() == 12.0

    file.unlink() if text is None else file.write_text(text)

    assert load.clients() == 12.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answer(port: int, path: str) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as reply:
            return reply.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return None


@pytest.fixture
def started(tmp_path: Path):
    processes = []

    def start(name: str, *more: str) -> tuple[int, subprocess.Popen[str]]:
        port = free_port()
        words = ["--port", str(port), "--name", name, "--registry", str(tmp_path / "replicas")]
        words += [
            "--load-file",
            str(tmp_path / "load"),
            "--signals",
            str(tmp_path / "signals"),
            "--drain-s",
            "0",
            *more,
        ]
        program = [sys.executable, replica.__file__, *words]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"{name} loads for")
        return port, process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def until_it_answers(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert " answers on port " in process.stdout.readline()


def waiting(port: int) -> float:
    (sample,) = parsed(answer(port, "/metrics") or "")["vllm:num_requests_waiting"].samples
    return sample.value


def test_replicas_share_the_clients_and_leave_cleanly(started, tmp_path):
    (tmp_path / "load").write_text("30")
    one, first = started("chat-0", "--loading-s", "0.3")
    loading = answer(one, "/health")
    until_it_answers(first)
    alone = waiting(one)
    (tmp_path / "load").write_text("12")
    two, second = started("chat-1", "--loading-s", "0")
    until_it_answers(second)

    shared = [waiting(one), waiting(two)]
    first.send_signal(signal.SIGTERM)
    code = first.wait(timeout=5)

    assert (loading, alone, shared) == (None, 22.0, [0.0, 0.0])
    assert (code, answer(one, "/health"), answer(two, "/health")) == (0, None, "")
    assert os.listdir(tmp_path / "replicas") == ["chat-1"]
    (line,) = (tmp_path / "signals").read_text().splitlines()
    assert json.loads(line)["service"] == "chat"


def test_a_replica_that_is_stopped_while_it_loads_just_ends(started, tmp_path):
    port, process = started("chat-0", "--loading-s", "30")

    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=5) == 0
    assert not (tmp_path / "replicas").exists()
    assert answer(port, "/health") is None
