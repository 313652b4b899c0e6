"""Seven days of real traffic as a fleet of vLLM replicas would have shown it to Prometheus.

Load and replicas are worked out here from the CSV alone, without the product's code: what `gpujob whatif` finds in
Prometheus is compared with it. The fleet is the benchmark's (tests/data/harvest/README.md).
"""

from __future__ import annotations

import csv
import gzip
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO

import numpy as np
from numpy.typing import NDArray

CSV = Path(__file__).parents[1] / "data" / "servegen" / "servegen_services_10min.csv.gz"
MOST = {"small-app": 8, "small-office": 4, "mid-office": 8, "mid-app": 6, "large-office": 7, "large-api": 5}
GPUS, NODES, GPUS_PER_REPLICA = 152, 19, 4
DAY_S, WINDOW_S, SYNC_S = 86_400, 600, 30
NOISE = 0.02
SEQS, FILL = 64, 0.8  # a replica at its target has 51.2 requests at once
MONDAY = 1_772_409_600  # 2026-03-02 00:00 UTC
SETTINGS = """
[calendar]
timezone = "UTC"
[money]
currency = "USD"
per_gpu_hour = 2.0
[cluster]
kind = "kubernetes"
[storage]
root = "s3://bucket/runs"
""" + "".join(
    f"""
[[service]]
name = "{name}"
namespace = "llm"
deployment = "{name}"
gpus_per_replica = {GPUS_PER_REPLICA}
max_num_seqs = {SEQS}
min_replicas = 1
max_replicas = {most}
"""
    for name, most in MOST.items()
)


@dataclass(frozen=True)
class Told:
    """One service, a value every SYNC_S seconds."""

    name: str
    now: NDArray[np.float64]  # load at the moment, in replicas at the target
    load: NDArray[np.float64]  # its mean over the last minute: what the autoscaler looks at
    replicas: NDArray[np.int64]
    prompt_rate: NDArray[np.float64]  # tokens a second, of all replicas
    output_rate: NDArray[np.float64]


def told(days: int = 7) -> list[Told]:
    """What the CSV says of each service, with an autoscaler of Kubernetes on top."""
    prompt, output = defaultdict(list), defaultdict(list)
    with gzip.open(CSV, "rt") as file:
        for row in csv.DictReader(file):
            prompt[row["service"]].append(float(row["prompt_tokens"]) / WINDOW_S)
            output[row["service"]].append(float(row["output_tokens"]) / WINDOW_S)
    centres = (np.arange(len(prompt["small-app"])) + 0.5) * WINDOW_S
    times = np.arange(0, days * DAY_S, SYNC_S)
    services = []
    for name, most in MOST.items():
        work = np.array(prompt[name]) / 24_000 + np.array(output[name]) / 4_000  # replica-seconds a second
        scale = 0.97 * most / np.quantile(work, 0.995)
        # Below ten minutes the CSV tells only how rough the counts are: a few per cent for so many requests.
        chance = Random(f"noise of {name}")
        now = np.interp(times, centres, work * scale) * [chance.gauss(1, NOISE) for _ in times]
        load = (now + np.concatenate((now[:1], now[:-1]))) / 2
        services.append(
            Told(
                name=name,
                now=now,
                load=load,
                replicas=_scaled(load, most),
                prompt_rate=np.interp(times, centres, np.array(prompt[name]) * scale),
                output_rate=np.interp(times, centres, np.array(output[name]) * scale),
            )
        )
    return services


def idle_gpus(services: Sequence[Told]) -> NDArray[np.float64]:
    """GPUs that no replica holds, every SYNC_S seconds."""
    return GPUS - GPUS_PER_REPLICA * sum(one.replicas.astype(float) for one in services)


def _scaled(load: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Tolerance 10 %, five minutes of stabilisation before a replica goes, at most +4 or x2 at once."""
    have, wishes, replicas = max(1, math.ceil(load[0])), [], []
    for now in load:
        wish = have if 0.9 <= now / have <= 1.1 else max(1, math.ceil(now))
        wishes = [*wishes, min(wish, most)][-300 // SYNC_S :]
        have = min(wishes[-1], max(have + 4, 2 * have)) if wishes[-1] > have else min(have, max(wishes))
        replicas.append(have)
    return np.array(replicas)


# -- The series of the replicas


@dataclass
class _Pod:
    name: str
    instance: str
    late_ms: int  # its own place within the scrape interval
    prompt: float = 0.0
    output: float = 0.0


def openmetrics(file: IO[str], services: Sequence[Told], first_day: int, days: int = 1, start: int = MONDAY) -> None:
    """Some days as promtool reads them: a scrape every SYNC_S seconds, pods that come and go."""
    lines: dict[str, list[str]] = {name: [] for name in _TYPES}
    for service in services:
        _write_service(service, lines, first_day * DAY_S // SYNC_S, (first_day + days) * DAY_S // SYNC_S, start)
    for name, kind in _TYPES.items():
        file.write(f"# TYPE {name} {kind}\n")
        file.writelines(lines[name])
    file.write("# EOF\n")


_TYPES = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "up": "gauge",
}


def _write_service(service: Told, lines: dict[str, list[str]], first: int, last: int, start: int) -> None:
    """From the beginning, so that pods are the same on each day; only the days asked for are written."""
    chance = Random(service.name)
    names = _pod_names(service.name, chance)
    pods: list[_Pod] = []
    for tick in range(last):
        while len(pods) > service.replicas[tick]:
            pods.pop()
        while len(pods) < service.replicas[tick]:
            pods.append(next(names))
        running = _shared(service.now[tick] * SEQS * FILL, len(pods))
        for pod, requests in zip(pods, running, strict=True):
            pod.prompt += service.prompt_rate[tick] * SYNC_S / len(pods)
            pod.output += service.output_rate[tick] * SYNC_S / len(pods)
            if tick >= first:
                _write_scrape(service.name, pod, requests, start + tick * SYNC_S - pod.late_ms / 1000, lines)


def _write_scrape(service: str, pod: _Pod, requests: int, at: float, lines: dict[str, list[str]]) -> None:
    target = f'instance="{pod.instance}",job="llm/vllm",namespace="llm",pod="{pod.name}"'
    engine = f'{{engine="0",model_name="example/{service}",{target}}}'
    running = min(requests, SEQS)
    lines["vllm:num_requests_running"].append(f"vllm:num_requests_running{engine} {running} {at:.3f}\n")
    lines["vllm:num_requests_waiting"].append(f"vllm:num_requests_waiting{engine} {requests - running} {at:.3f}\n")
    lines["vllm:kv_cache_usage_perc"].append(f"vllm:kv_cache_usage_perc{engine} {running / SEQS:.3f} {at:.3f}\n")
    lines["vllm:prompt_tokens"].append(f"vllm:prompt_tokens_total{engine} {pod.prompt:.0f} {at:.3f}\n")
    lines["vllm:generation_tokens"].append(f"vllm:generation_tokens_total{engine} {pod.output:.0f} {at:.3f}\n")
    lines["up"].append(f"up{{{target}}} 1 {at:.3f}\n")


def _shared(requests: float, replicas: int) -> list[int]:
    whole, more = divmod(round(requests), replicas)
    return [whole + (number < more) for number in range(replicas)]


def _pod_names(service: str, chance: Random) -> Iterator[_Pod]:
    letters = "bcdfghjklmnpqrstvwxz2456789"
    replica_set = "".join(chance.choices(letters, k=10))
    while True:
        name = f"{service}-{replica_set}-{''.join(chance.choices(letters, k=5))}"
        address = f"10.{chance.randrange(256)}.{chance.randrange(256)}.{chance.randrange(1, 255)}:8000"
        yield _Pod(name, address, chance.randrange(1000, SYNC_S * 1000))
