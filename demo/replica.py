"""One replica of a service for the demo: answers /health and /metrics as a real vLLM server did under the same load.

    python demo/replica.py --port 8001 --name chat-0 --service chat --load-file load --registry replicas --loading-s 3

The load file holds the number of clients of the whole service. Replicas share them; each plays back, from a recording
of vLLM's own metrics, the phase in which the server had about as many clients. Nothing is invented but the arithmetic
that puts the recorded increments one behind the other.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from math import floor
from pathlib import Path

DATA = Path(__file__).parent / "data"
RECORDING = DATA / "load-up-down-5min.jsonl.gz"
FAMILIES = DATA / "families.prom"
SETTLING = 2  # scrapes after a change of load that still show the load before it
FULL = 8  # requests at once: the --max-num-seqs of the recorded server
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
STARTED = "process_start_time_seconds"
COUNTING = ("_total", "_count", "_sum", "_bucket")
ENDS = {signal.SIGTERM, signal.SIGINT}

Samples = Mapping[str, float]  # "name{labels}" -> value


def name_of(series: str) -> str:
    return series.partition("{")[0]


def counts(series: str) -> bool:
    return name_of(series).endswith(COUNTING)


@dataclass(frozen=True)
class Stretch:
    """What lies between two scrapes of the recording."""

    seconds: float
    growth: Samples  # of counters
    gauges: Samples  # at its end


@dataclass(frozen=True)
class Recording:
    """The stretches in which the server had a number of clients, and had settled."""

    phases: Mapping[int, Sequence[Stretch]]

    def nearest(self, clients: float) -> int:
        """The recorded number of clients that comes nearest, the smaller of two."""
        return min(sorted(self.phases), key=lambda phase: abs(phase - clients))


def read(path: Path = RECORDING) -> Recording:
    with gzip.open(path, "rt") as lines:
        scrapes = [json.loads(line) for line in lines]
    phases: dict[int, list[Stretch]] = {}
    settled = 0
    for before, after in pairwise(scrapes):
        settled = settled + 1 if before["clients"] == after["clients"] else 0
        if settled > SETTLING:
            phases.setdefault(after["clients"], []).append(_stretch(before, after))
    return Recording(phases=phases)


def _stretch(before: Mapping[str, float], after: Mapping[str, float]) -> Stretch:
    old: Samples = before["samples"]  # type: ignore[assignment]
    new: Samples = after["samples"]  # type: ignore[assignment]
    return Stretch(
        seconds=after["t"] - before["t"],
        growth={series: value - old[series] for series, value in new.items() if counts(series)},
        gauges={series: value for series, value in new.items() if not counts(series)},
    )


class Playback:
    """A server that started with zeros and does what the recorded one did."""

    def __init__(self, recording: Recording, started: float) -> None:
        self._recording = recording
        self._at = started
        self._started = started
        self._phase = recording.nearest(0)
        self._place = 0  # of the stretch within its phase
        self._played = 0.0  # seconds of that stretch
        self._counters = dict.fromkeys(self._stretch.growth, 0.0)

    @property
    def _stretch(self) -> Stretch:
        return self._recording.phases[self._phase][self._place]

    def samples(self, now: float, clients: float) -> dict[str, float]:
        """All samples at `now`; the load since the last call was the one of then, from now on it is `clients`."""
        self._play(max(0.0, now - self._at))
        self._at = max(now, self._at)
        phase = self._recording.nearest(clients)
        if phase != self._phase:
            self._phase, self._place, self._played = phase, 0, 0.0
        counters = {series: _shown(series, value) for series, value in self._counters.items()}
        return {**self._stretch.gauges, STARTED: self._started, **counters}

    def _play(self, seconds: float) -> None:
        while seconds > 0.0:
            stretch = self._stretch
            part = min(seconds, stretch.seconds - self._played)
            for series, growth in stretch.growth.items():
                self._counters[series] += growth * part / stretch.seconds
            seconds -= part
            self._played += part
            if self._played >= stretch.seconds:
                self._place = (self._place + 1) % len(self._recording.phases[self._phase])
                self._played = 0.0


def _shown(series: str, value: float) -> float:
    """Whole requests and tokens; seconds as they are."""
    return value if name_of(series).endswith("_seconds_sum") else float(floor(value))


def exposition(samples: Samples, families: str) -> str:
    """The text format of Prometheus, family by family; `families` has their help, type and constants."""
    rest: dict[str, list[str]] = {}
    for series, value in samples.items():
        rest.setdefault(name_of(series), []).append(f"{series} {value!r}")
    lines: list[str] = []
    for line in families.splitlines():
        lines.append(line)
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split()
            if kind == "histogram" and f"{family}_bucket" not in rest:
                lines += [_infinite(row) for row in rest.get(f"{family}_count", ())]
            for ending in ("", "_bucket", "_count", "_sum"):
                lines += rest.pop(family + ending, ())
    return "\n".join(lines) + "\n"


def _infinite(row: str) -> str:
    """The bucket that holds everything, from the count: a histogram without buckets is not valid."""
    name, labels = row.split("_count{", 1)
    return f'{name}_bucket{{le="+Inf",{labels}'


class Registry:
    """The replicas of a service that answer now; each is a file with its process id."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._own = folder / name

    def join(self) -> None:
        """This replica answers from now on."""
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._folder / f".{self._own.name}"
        unfinished.write_text(str(os.getpid()))
        unfinished.replace(self._own)

    def leave(self) -> None:
        """The others take over its clients."""
        self._own.unlink(missing_ok=True)

    def live(self) -> int:
        """How many there are, those that were killed left out."""
        return sum(_lives(path) for path in self._folder.glob("[!.]*"))


def _lives(path: Path) -> bool:
    try:
        os.kill(int(path.read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


class Alarm:
    """Writes one line whenever an answer is above the threshold after one that was not."""

    def __init__(self, file: Path | None, service: str, name: str) -> None:
        self._file = file
        self._said = {"service": service, "replica": name}
        self._above = False

    def see(self, samples: Samples, now: float) -> None:
        """One answer, just before it is sent."""
        load = {"running": _sum(samples, RUNNING), "waiting": _sum(samples, WAITING)}
        above = load["waiting"] > 0 or load["running"] >= FULL
        if above and not self._above and self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as lines:
                lines.write(json.dumps({"at": now, **self._said, **load}) + "\n")
        self._above = above


def _sum(samples: Samples, name: str) -> float:
    return sum(value for series, value in samples.items() if name_of(series) == name)


class Load:
    """Clients of the service, as the file says; what cannot be read leaves it as it was."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._clients = 0.0

    def clients(self) -> float:
        """Their number now."""
        with suppress(OSError, ValueError):
            self._clients = float(self._file.read_text())
        return self._clients


class Answers(BaseHTTPRequestHandler):
    """GET /health and GET /metrics."""

    protocol_version = "HTTP/1.1"
    timeout = 10

    def __init__(self, metrics: Callable[[], str], *rest: object) -> None:
        self._metrics = metrics
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Both paths; 404 for any other."""
        if self.path == "/metrics":
            self._send(200, self._metrics())
        else:
            self._send(200 if self.path == "/health" else 404, "")

    def _send(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads a line for each scrape."""


def answering(load: Load, registry: Registry, alarm: Alarm, playback: Playback) -> Callable[[], str]:
    """What /metrics answers; one scrape at a time."""
    families = FAMILIES.read_text()
    one = threading.Lock()

    def metrics() -> str:
        with one:
            now = time.time()
            samples = playback.samples(now, load.clients() / max(1, registry.live()))
            alarm.see(samples, now)
            return exposition(samples, families)

    return metrics


def serve(args: argparse.Namespace) -> None:
    started = time.time()
    print(f"{args.name} loads for {args.loading_s:g} s", flush=True)
    if signal.sigtimedwait(ENDS, args.loading_s):  # nothing listens before the model is loaded
        return
    service = args.service or args.name.rpartition("-")[0] or args.name
    registry = Registry(args.registry, args.name)
    alarm = Alarm(args.signals, service, args.name)
    metrics = answering(Load(args.load_file), registry, alarm, Playback(read(), started))
    with ThreadingHTTPServer(("127.0.0.1", args.port), partial(Answers, metrics)) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        registry.join()
        print(f"{args.name} answers on port {args.port}", flush=True)
        try:
            signal.sigwait(ENDS)
        finally:
            registry.leave()
        time.sleep(args.drain_s)
        server.shutdown()


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", required=True, help="of this replica")
    parser.add_argument("--service", default="", help="without it: the name up to its last -")
    parser.add_argument("--load-file", type=Path, required=True, help="holds the number of clients of the service")
    parser.add_argument("--registry", type=Path, required=True, help="folder that the replicas of the service share")
    parser.add_argument("--signals", type=Path, help="file for one line at each rise above the threshold")
    parser.add_argument("--loading-s", type=float, default=3.0, help="before it answers at all")
    parser.add_argument("--drain-s", type=float, default=0.5, help="after SIGTERM, for answers under way")
    return parser.parse_args()


def main() -> None:
    args = options()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # waited for, in one place; threads inherit it
    serve(args)


if __name__ == "__main__":
    main()
