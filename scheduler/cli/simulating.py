"""`gpujob simulate`: what a policy would make of days of traffic and a file of jobs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import monotonic
from typing import Any

from scheduler.cli.say import Say, table
from scheduler.errors import BadInput
from scheduler.sim import events
from scheduler.sim.run import run
from scheduler.sim.scenario import Scenario, read

_STDOUT = "-"
# What people read: key, name, unit, and how it is written.
_ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("useful_gpu_hours", "work that was kept", lambda value: f"{value:,.0f} GPU-hours"),
    ("idle_gpu_hours", "GPUs that services left idle", lambda value: f"{value:,.0f} GPU-hours"),
    ("useful_over_oracle", "of what perfect foresight could keep", lambda value: f"{value:.1%}"),
    ("lost_share", "work lost by stops", lambda value: f"{value:.2%}"),
    ("restart_share", "time spent on starting again", lambda value: f"{value:.2%}"),
    ("held_share", "idle GPUs kept back for services", lambda value: f"{value:.1%}"),
    ("unfilled_share", "idle GPUs unused while a job waited", lambda value: f"{value:.1%}"),
    ("preemptions_per_1000_gpu_hours", "preemptions in 1,000 GPU-hours", lambda value: f"{value:.0f}"),
    ("scale_ups", "replicas that were asked for", lambda value: f"{value:,.0f}"),
    ("scale_ups_waited_share", "of them waited for GPUs", lambda value: f"{value:.2%}"),
    ("scale_up_wait_mean_s", "wait, mean of all", lambda value: f"{value:.2f} s"),
    ("scale_up_wait_max_s", "wait, longest", lambda value: f"{value:.0f} s"),
    ("jobs_done", "jobs done", lambda value: f"{value:,.0f}"),
    ("jct_mean_h", "from submission to the end, mean", lambda value: f"{value:.1f} h"),
    ("jct_p90_h", "and for nine of ten at most", lambda value: f"{value:.1f} h"),
)


def add_options(command: argparse.ArgumentParser) -> None:
    """What can be said on the command line."""
    command.add_argument("scenario", type=Path, metavar="SCENARIO.toml")
    command.add_argument(
        "--json", nargs="?", const=_STDOUT, default=None, metavar="FILE", help="the figures as JSON, there or on stdout"
    )
    command.add_argument("--events", type=Path, metavar="FILE.jsonl.gz", help="everything that happened, a line each")
    command.add_argument(
        "--policy", action="append", default=[], metavar="KEY=VALUE", help="turn a knob, such as reserve_slots=1"
    )


def simulate(options: argparse.Namespace, say: Say) -> int:
    """The figures of one run: keys in docs/simulator.md."""
    scenario = read(options.scenario, options.policy)
    began = monotonic()
    with _telling(options.events) as tell, _progress(scenario) as watch:
        figures = {**run(scenario, tell, watch)}
    figures["wall_s"] = round(monotonic() - began, 3)
    if options.json not in {None, _STDOUT}:
        _write(Path(options.json), figures)
        say = Say(json=False)  # the answer stands in the file
    return say.answer(figures, _lines(scenario, figures))


def _telling(path: Path | None) -> Any:
    return nullcontext() if path is None else events.writing(path)


def _write(path: Path, figures: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error


def _lines(scenario: Scenario, figures: Mapping[str, Any]) -> Iterator[str]:
    days = (scenario.end_s - scenario.measure_from_s) / 86_400
    gpus = scenario.nodes * scenario.gpus_per_node
    yield f"{scenario.preset} on {gpus} GPUs over {days:.3g} measured days, in {figures['wall_s']:.1f} s:"
    yield from table(("figure", "value"), [(name, written(figures[key])) for key, name, written in _ROWS])


@contextmanager
def _progress(scenario: Scenario) -> Iterator[Callable[[float, int], None] | None]:
    """A bar on a terminal, where the library for it is installed."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console  # noqa: PLC0415 - of the extra `sim`
        from rich.progress import Progress  # noqa: PLC0415
    except ImportError:
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=scenario.end_s - scenario.start_s)

        def watch(now: float, _: int) -> None:
            if now % 3600 == 0:
                progress.update(task, completed=now - scenario.start_s)

        yield watch
