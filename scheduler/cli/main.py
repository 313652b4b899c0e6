"""`gpujob`: the scheduler, and the operator's tool."""

from __future__ import annotations

import argparse
import io
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from scheduler.cli import asking, idle, serving, showing, simulating, whatif
from scheduler.cli.say import OUTSIDE, WRONG_USE, Say
from scheduler.configfile import load
from scheduler.errors import BadInput, Unavailable
from scheduler.settings import read
from scheduler.wiring import environment

Add = Callable[..., argparse.ArgumentParser]  # name, function, help text; settings=False: needs none

INTERRUPTED = 130  # by Ctrl-C, as shells say it
MOST_ROWS = 10_000
_SIMULATE = "what a policy would make of days of traffic and a file of jobs"
EPILOG = "Exit codes: 0 done, 1 the answer is no, 2 wrong use, 3 the outside did not answer."


class _Parser(argparse.ArgumentParser):
    """One that leaves the last word to `main`."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; `{self.prog} --help` says more")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    say = Say(json="--json" in words)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    for chatty in ("apscheduler", "httpx", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        return _run(parser().parse_args(words), say)
    except BadInput as error:
        return say.no(*error.faults, code=WRONG_USE)
    except Unavailable as error:
        return say.no(f"The outside did not answer: {error}", code=OUTSIDE)


def run() -> None:
    """The entry point."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may hold what the terminal cannot show
    try:
        code = main()
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0
    if not 1 <= number <= MOST_ROWS:
        raise argparse.ArgumentTypeError(f'"{text}" is no number from 1 to {MOST_ROWS:,}')
    return number


def _port(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 65_536
    if number > 65_535:
        raise argparse.ArgumentTypeError(f'"{text}" is no port from 0 to 65535')
    return number


def _word(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise argparse.ArgumentTypeError(f"{text!a} is no text in the encoding of this terminal")
    return text


def _run(options: argparse.Namespace, say: Say) -> int:
    command: Callable[..., int] = options.run
    if options.needs_settings:
        return command(options, say, read(load(options.config, environment())))
    return command(options, say)


def parser() -> argparse.ArgumentParser:
    """All commands with their help."""
    top = _Parser(prog="gpujob", description=__doc__, epilog=EPILOG)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[..., int], text: str, *, settings: bool = True) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, epilog=EPILOG)
        command.set_defaults(run=run, needs_settings=settings)
        command.add_argument("--json", action="store_true", help="one JSON object on stdout")
        command.add_argument("--config", type=Path, help="the settings file (default: $GPUJOB_CONFIG, gpujob.toml)")
        return command

    simulate = commands.add_parser("simulate", help=_SIMULATE, description=_SIMULATE, epilog=EPILOG)
    simulate.set_defaults(run=simulating.simulate, needs_settings=False)
    simulating.add_options(simulate)
    _add_serving(add)
    _add_showing(add)
    _add_asking(add)
    return top


def _add_serving(add: Add) -> None:
    serve = add("serve", serving.serve, "run the scheduler until it is told to stop")
    serve.add_argument("--observe-only", action="store_true", help="write plans down, act on nothing")
    serve.add_argument(
        "--health-port", type=_port, metavar="PORT", help="answer /healthz, /readyz and /metrics there (0: any)"
    )
    add("migrate", serving.migrate, "bring the database's schema up to date")
    add("doctor", serving.doctor, "check everything outside, and say what to do")


def _add_showing(add: Add) -> None:
    plan = add("plan", showing.plan, "what would be done now, and why")
    plan.add_argument("--snapshot", type=Path, help="plan on a kept snapshot instead of the world")
    plan.add_argument("--at", metavar="TIME", help="plan again on what a turn saw then, such as 2026-12-01T03:00+09:00")
    plan.add_argument("--keep", type=Path, metavar="FILE", help="write the snapshot that was planned on")
    plan.add_argument("--explain", action="store_true", help="in sentences")
    windows = add("windows", idle.windows, "which GPUs are idle, until when, and how sure")
    windows.add_argument("--calibration", action="store_true", help="how much of what was said came true")
    add("scale", showing.scale, "what each service needs, by which signals")
    add("hand-backs", showing.hand_backs, "how long hand-backs took")
    report = add("report", showing.report, "jobs, GPU-hours and money by month")
    report.add_argument("--month", metavar="YYYY-MM", help="one month only")
    report.add_argument("--csv", type=Path, metavar="FILE", help="also as CSV")
    whatif.add_options(add("whatif", whatif.whatif, "what would have been harvested from what the services really did"))
    audit = add("audit", showing.audit, "who decided what")
    audit.add_argument("--limit", type=_count, default=50)
    listing = add("list", showing.jobs, "jobs, newest first")
    listing.add_argument("--owner", type=_word, default="", help="only this person's")
    listing.add_argument("--state", choices=("waiting", "running", "done"), help="only these")
    listing.add_argument("--limit", type=_count, default=20)
    status = add("status", showing.status, "one job: steps, runs, why it waits")
    status.add_argument("job", help="job-41, 41 or #41")


def _add_asking(add: Add) -> None:
    check = add("check", asking.check, "whether a job file is good; every fault with its line", settings=False)
    check.add_argument("file", type=Path)
    render = add("render", asking.render, "the Argo Workflows that a job file would become, as YAML")
    render.add_argument("file", type=Path)
    add("schema", asking.schema, "the JSON Schema of the job file", settings=False)
    submit = add("submit", asking.submit, "hand in a job file")
    submit.add_argument("file", type=Path)
    cancel = add("cancel", asking.cancel, "end a job")
    cancel.add_argument("job")
    approve = add("approve", asking.approve, "let a job run that needs approval")
    approve.add_argument("job")
    deny = add("deny", asking.deny, "refuse a job that needs approval")
    deny.add_argument("job")
    deny.add_argument("reason", nargs="*", type=_word)
    logs = add("logs", asking.logs, "the last lines that a job wrote")
    logs.add_argument("job")
    logs.add_argument("step", nargs="?", default="", type=_word)
    logs.add_argument("--lines", type=_count, default=40)
    rerun = add("rerun", asking.rerun, "a new job from an old one, or from one of its steps")
    rerun.add_argument("job")
    rerun.add_argument("words", nargs="*", type=_word, metavar="[from STEP] param.KEY=VALUE", help="as in Slack")
    for command in (submit, cancel, approve, deny, logs, rerun):
        command.add_argument(
            "--as", dest="person", type=_word, default="", metavar="USER", help="in whose name (default: yours)"
        )
