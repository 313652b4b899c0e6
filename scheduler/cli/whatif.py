"""`gpujob whatif`: what would have been harvested from what the services really did."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from scheduler.adapters.vllm import PrometheusHistory
from scheduler.adapters.vllm.prometheus_api import shown
from scheduler.cli.say import Say
from scheduler.cli.whatif_text import lines
from scheduler.errors import BadInput, NoAnswer
from scheduler.settings import Settings
from scheduler.sim import whatif as asking
from scheduler.sim import whatif_dump
from scheduler.sim.whatif_demand import Demand, Replicas, demand
from scheduler.sim.whatif_observed import Observations, Observed
from scheduler.sim.whatif_replay import MIXES, mix, replay
from scheduler.sim.whatif_services import Directory
from scheduler.wiring import clock
from scheduler.wiring.history import TOKEN_VARIABLE, history, known_services

MOST_DAYS = 90
_LEAST_DAYS = 1
_ANY = ""  # --gpus-per-replica 4 is for every service that says nothing itself


def add_options(command: argparse.ArgumentParser) -> None:
    """What can be said on the command line."""
    source = command.add_mutually_exclusive_group()
    source.add_argument("--prometheus", metavar="URL", help="default: metrics.url of the settings")
    source.add_argument(
        "--file",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="answers of query_range (JSON), or a table with t_s, NAME:load and NAME:wanted (CSV)",
    )
    command.add_argument("--days", type=_days, default=7, metavar="N", help=f"{_LEAST_DAYS} to {MOST_DAYS}; default: 7")
    command.add_argument("--until", metavar="TIME", help="the end, such as 2026-12-01T00:00+09:00; default: now")
    command.add_argument("--step", type=_step, default=60.0, metavar="60s", help="between two points; default: 60s")
    command.add_argument("--jobs", default=MIXES[0], metavar="MIX|FILE", help=f"{', '.join(MIXES)}, or a job file")
    command.add_argument("--html", type=Path, metavar="FILE", help="also as a page with pictures")
    command.add_argument("--nodes", type=_whole, metavar="N", help="default: as many as the services need at most")
    command.add_argument("--gpus-per-node", type=_whole, default=None, metavar="N", help="default: 8")
    command.add_argument(
        "--gpus-per-replica", type=_sized, action="append", default=[], metavar="[SERVICE=]N", help="default: 1"
    )
    command.add_argument("--max-num-seqs", type=_sized, action="append", default=[], metavar="[SERVICE=]N")
    command.add_argument(
        "--replicas",
        type=Replicas,
        choices=tuple(Replicas),
        default=Replicas.AUTO,
        help="what counts as serving: the replicas that were there, or those that the load needed",
    )
    command.add_argument("--selector", default="", metavar="MATCHERS", help='of the series, such as namespace="llm"')
    command.add_argument("--token-file", type=Path, metavar="FILE", help=f"a bearer token; else ${TOKEN_VARIABLE}")
    command.add_argument("--ca-file", type=Path, metavar="FILE", help="the authority of the certificate")


def whatif(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """What would have been harvested; keys of `--json` in docs/simulator.md."""
    try:
        told = _answered(options, settings)
    except NoAnswer as error:
        return say.no(str(error))
    return say.answer(told.plain, lines(told.plain))


def _answered(options: argparse.Namespace, settings: Settings) -> asking.Answer:
    draw = None if options.html is None else _drawing()
    asking.check_step(options.step)
    jobs = mix(options.jobs)
    zone = ZoneInfo(settings.calendar.timezone)
    seen = _demand(options, settings, zone)
    pool = asking.pool_for(seen, *_nodes(options, settings))
    replayed = replay(seen, pool, jobs, settings.policy, zone, _progress())
    price = asking.Price(per_gpu_hour=settings.money.per_gpu_hour, currency=settings.money.currency)
    told = asking.answer(seen, pool, replayed, str(options.jobs), price, zone)
    if draw is not None:
        try:
            options.html.write_text(draw(told), encoding="utf-8")
        except OSError as error:
            raise BadInput(f"--html {options.html} cannot be written: {error.strerror}") from error
    return told


def _drawing() -> Callable[[asking.Answer], str]:
    try:
        from scheduler.sim.whatif_page import page  # noqa: PLC0415  matplotlib takes a second, and is an extra
    except ImportError as error:
        raise BadInput(f"--html needs {error.name}, which is not installed: pip install 'gpujob[sim]'") from error
    return page


# -- What the services did


def _demand(options: argparse.Namespace, settings: Settings, zone: ZoneInfo) -> Demand:
    gpus, seqs = dict(options.gpus_per_replica), dict(options.max_num_seqs)
    known = known_services(settings, gpus, seqs)
    default_gpus = gpus.get(_ANY, 1)
    until = _until(options.until)
    if options.file and whatif_dump.is_table(options.file[0]):
        if len(options.file) > 1:
            raise BadInput("--file takes one table; several files are answers of query_range (JSON)")
        # Such a table has no dates: its first day is the Monday before.
        monday = (until.astimezone(zone) - timedelta(days=7 + until.astimezone(zone).weekday())).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        seen = whatif_dump.table(options.file[0], monday.timestamp(), known, default_gpus)
    else:
        directory = Directory(known=known, gpus=gpus, seqs=seqs)
        read = _from_files if options.file else _from_prometheus
        observed, source, notes = read(options, settings, directory, until)
        if not observed.seen:
            raise NoAnswer(_no_service(observed))
        seen = demand(observed, options.replicas, default_gpus, source, notes)
    return asking.trimmed(seen, options.days)


def _no_service(observed: Observed) -> str:
    return (
        f"None of the {len(observed.strangers)} replicas that were found belongs to a [[service]] of the settings; "
        f"they are {', '.join(observed.strangers[:3])} and so on. Check its namespace and deployment, or give settings "
        "without any [[service]] with --config: then each workload is one."
    )


Read = tuple[Observed, str, tuple[str, ...]]


def _from_prometheus(options: argparse.Namespace, settings: Settings, directory: Directory, until: datetime) -> Read:
    url = options.prometheus or settings.metrics.url
    if not url:
        raise BadInput("Say which Prometheus with --prometheus URL, or which files with --file FILE")
    reader = history(settings, url, selector=options.selector, token_file=options.token_file, ca_file=options.ca_file)
    try:
        return _read(reader, shown(url), options, settings, directory, until)
    finally:
        reader.close()


def _read(
    reader: PrometheusHistory,
    source: str,
    options: argparse.Namespace,
    settings: Settings,
    directory: Directory,
    until: datetime,
) -> Read:
    step = options.step
    end = until.timestamp() // step * step
    points = round(options.days * 86_400 / step)
    start = end - (points - 1) * step
    found = reader.find(start, end)
    if not found.prefixes:
        near = f"The nearest that it has: {', '.join(found.nearest)}" if found.nearest else "It has nothing like it"
        raise NoAnswer(
            f"{source} has no series of vLLM in these {options.days:g} days. "
            f"Looked for: {', '.join(found.looked_for)}. {near}. "
            "Check that Prometheus scrapes the replicas, and [metrics] prefix."
        )
    observations = Observations(start, step, points, directory, settings.policy)
    progress = _progress("reading")
    for piece in reader.pieces(found, start, end, step):
        observations.take(piece)
        progress((piece.end - start) / max(end - start, step))
    notes = [f"Prometheus warned: {warning}; what it left out counts as not idle." for warning in reader.warnings]
    if found.scrape_s > step:
        notes.append(f"Replicas are scraped every {found.scrape_s:.0f} s, less often than --step {step:g}s.")
    return observations.observed(), source, tuple(sorted(notes))


def _from_files(options: argparse.Namespace, settings: Settings, directory: Directory, _: datetime) -> Read:
    strands = whatif_dump.answers(options.file)
    start, end, step = whatif_dump.span(strands)
    step = max(10.0, math.ceil(step / 10) * 10.0)
    asking.check_step(step)
    points = round((end - start) / step) + 1
    observations = Observations(start, step, points, directory, settings.policy)
    for piece in whatif_dump.pieces(strands, start, end, step):
        observations.take(piece)
    return observations.observed(), ", ".join(str(path) for path in options.file[:3]), ()


def _until(text: str | None) -> datetime:
    if text is None:
        return clock()
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f'--until "{text}": write a time such as 2026-12-01T00:00+09:00') from error
    if at.tzinfo is None:
        raise BadInput(f'--until "{text}" has no time zone; write it such as {text}+09:00')
    return at.astimezone(UTC)


def _nodes(options: argparse.Namespace, settings: Settings) -> tuple[int | None, int]:
    """Nodes, None if nobody says; GPUs of each."""
    nodes, size = options.nodes, options.gpus_per_node
    sizes = {node.gpus for node in settings.nodes}
    if size is None:
        size = max(sizes, default=8)
    if nodes is None and settings.nodes:
        nodes = sum(node.gpus for node in settings.nodes) // size
    return nodes, size


def _progress(what: str = "replaying") -> Callable[[float], None]:
    """On a terminal, one line that grows; else nothing."""
    if not sys.stderr.isatty():
        return lambda _: None

    def told(share: float) -> None:
        print(f"\r{what} {share:4.0%} ", end="\n" if share >= 1 else "", file=sys.stderr, flush=True)

    return told


# -- Words of the command line


def _days(text: str) -> float:
    number = _number(text.removesuffix("d"))
    if number is None or not _LEAST_DAYS <= number <= MOST_DAYS:
        raise argparse.ArgumentTypeError(f'"{text}" is no number of days from {_LEAST_DAYS} to {MOST_DAYS}')
    return number


def _step(text: str) -> float:
    units = {"s": 1, "m": 60, "h": 3600}
    number = _number(text.rstrip("smh"))
    if number is None or len(text) - len(text.rstrip("smh")) > 1:
        raise argparse.ArgumentTypeError(f'"{text}" is no time; write it such as 60s or 5m')
    return number * units.get(text[-1], 1)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _whole(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is no whole number from 1 to 99999')
    return number


def _sized(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    return name, _whole(number)
