"""A real Prometheus on the loopback, filled with seven days of ServeGen traffic by promtool."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from scheduler.adapters.vllm import PrometheusHistory
from tests.cluster.waiting import until
from tests.fake_prometheus import question
from tests.sim import servegen

RECORDED = Path(__file__).parents[1] / "data" / "whatif" / "answers.json.gz"
RECORDED_STEP_S, RECORDED_DAYS = 300.0, 1
PROGRAMS = ("prometheus", "promtool")


def missing() -> str:
    """Why there is none here; "" if there is."""
    gone = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{' and '.join(gone)} missing: apt-get install prometheus" if gone else ""


def fill(folder: Path, days: int) -> None:
    """Blocks of the first days of the traffic; a file a day, for promtool reads each file once for each block."""
    services = servegen.told(days)
    for day in range(days):
        text = folder / "day.om"
        with text.open("w") as file:
            servegen.openmetrics(file, services, day)
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", text, folder / "data"]
        subprocess.run(command, check=True, capture_output=True)
        text.unlink()


@contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    """Its URL; it scrapes nothing, and ends with the block."""
    (folder / "prometheus.yml").write_text("global: {scrape_interval: 1h}\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--storage.tsdb.retention.time=100y",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            until(lambda: _is_ready(url), 60, (folder / "prometheus.log").read_text)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=30)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def record(url: str) -> None:
    """Keep the real answers to all that whatif asks about the first day (tests/data/whatif)."""
    RECORDED.write_bytes(gzip.compress(json.dumps(asked(url)).encode(), 9, mtime=0))


def asked(url: str) -> Mapping[str, str]:
    """Question -> body of the answer."""
    answers: dict[str, str] = {}
    history = PrometheusHistory(url, "vllm:", lambda _: None)
    api = history._api
    ask = api._ask

    def keeping(path: str, form: Any) -> Any:
        body = ask(path, form)
        plain = {key: value if isinstance(value, str) else "\n".join(value) for key, value in (form or {}).items()}
        answers[question(f"/api/v1/{path}", plain)] = json.dumps(body, separators=(",", ":"))
        return body

    api._ask = keeping  # type: ignore[method-assign]
    end = float(servegen.MONDAY + RECORDED_DAYS * servegen.DAY_S)
    start = end - RECORDED_DAYS * servegen.DAY_S + RECORDED_STEP_S
    found = history.find(start, end)
    for _ in history.pieces(found, start, end, RECORDED_STEP_S):
        pass
    history.close()
    return answers
