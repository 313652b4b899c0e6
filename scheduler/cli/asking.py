"""Commands that ask the scheduler for something, through the same door as the bot; and those about job files."""

from __future__ import annotations

import argparse
import getpass
import json
import time
import uuid
from pathlib import Path

from scheduler.cli.say import NO, OUTSIDE, Say
from scheduler.errors import BadInput
from scheduler.jobs import flow, jobfile, templates
from scheduler.jobs.job import JobId, job_id
from scheduler.jobs.mail import Answer, Body, Cancel, Decide, Logs, Person, Rerun, Submit
from scheduler.settings import Settings
from scheduler.wiring import clock, mailbox, pause
from scheduler.wiring import render as workflows

_PATIENCE_S = 15.0
_LOOK_EVERY_S = 0.05


def check(options: argparse.Namespace, say: Say) -> int:
    """Whether a job file is good: `ok errors[{line, key, value, message}] warnings[]`."""
    parsed = jobfile.parse(_text(options.file))
    errors = [
        {"line": fault.line, "key": fault.key, "value": fault.value, "message": fault.message}
        for fault in parsed.errors
    ]
    plain = {"ok": not errors, "errors": errors, "warnings": list(parsed.warnings)}
    if errors:
        return say.answer(plain, jobfile.shown(parsed.errors).splitlines(), code=NO)
    tasks = len(flow.tasks_of(parsed.spec)) if parsed.spec else 0
    lines = [f"{options.file} is good: {tasks} {'task' if tasks == 1 else 'tasks'}."]
    return say.answer(plain, [*lines, *(f"warning: {warning}" for warning in parsed.warnings)])


def render(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """The Argo Workflows that a job file would become, as YAML; `errors` as in `check` if it is not good."""
    parsed = jobfile.parse(_text(options.file))
    if parsed.spec is None:
        return say.no(*jobfile.shown(parsed.errors).splitlines(), code=NO)
    root = settings.storage_root if settings.storage.root else "s3://BUCKET"
    text = workflows(templates.fill(parsed.spec, JobId(1), root), settings)
    return say.answer({"workflows": text}, text.splitlines())


def schema(_: argparse.Namespace, say: Say) -> int:
    """The JSON Schema of the job file; JSON with and without --json."""
    plain = jobfile.schema()
    return say.answer(plain, [json.dumps(plain, indent=2, ensure_ascii=False)])


def submit(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """Hands in a job file: `job`."""
    path: Path = options.file
    body = Submit(text=_text(path), folder=str(path.resolve().parent), source="file")
    answer = _ask(options, settings, body)
    return _show(say, answer, {"job": f"job-{answer.job}"} if answer and answer.job else {})


def cancel(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """Ends a job."""
    return _show(say, _ask(options, settings, Cancel(job=named_job(options.job))))


def approve(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """Lets a job run that needs approval."""
    return _show(say, _ask(options, settings, Decide(job=named_job(options.job), approve=True)))


def deny(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """Refuses a job that needs approval."""
    body = Decide(job=named_job(options.job), approve=False, reason=" ".join(options.reason))
    return _show(say, _ask(options, settings, body))


def logs(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """The last lines of a job's newest run: `log run task`."""
    answer = _ask(options, settings, Logs(job=named_job(options.job), step=options.step, lines=options.lines))
    return _show(say, answer, dict(answer.detail) if answer else {})


def rerun(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """A new job from an old one, all of it or from a step, with changed parameters: `job`."""
    step, words = ("", options.words)
    if words[:1] == ["from"] and len(words) > 1:
        step, words = words[1], words[2:]
    params = {}
    for word in words:
        key, mark, value = word.removeprefix("param.").partition("=")
        if not mark or not key:
            raise BadInput(f'"{word}" is no parameter; write param.KEY=VALUE, such as param.lr=1e-5')
        params[key] = value
    answer = _ask(options, settings, Rerun(job=named_job(options.job), from_step=step, params=params))
    return _show(say, answer, {"job": f"job-{answer.job}"} if answer and answer.job else {})


def named_job(text: str) -> JobId:
    """A job as people write it.

    Raises:
        BadInput: it is none.
    """
    found = job_id(text)
    if found is None:
        raise BadInput(f'"{text}" is no job; write job-41, 41 or #41')
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as text: {error}") from error


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # a container may run as a user that has no name
        raise BadInput("This user has no name here; say in whose name with --as USER") from error


def _ask(options: argparse.Namespace, settings: Settings, body: Body) -> Answer | None:
    """The scheduler's answer; None if it gives none in time. The request stays and is answered later."""
    person = Person(id=options.person or _own_name())
    door = mailbox(settings)
    try:
        request = door.send(f"cli:{uuid.uuid4()}", person, clock(), body)
        until = time.monotonic() + _PATIENCE_S
        while (answer := door.answer(request)) is None and time.monotonic() < until:
            pause(_LOOK_EVERY_S)
        return answer
    finally:
        door.close()


def _show(say: Say, answer: Answer | None, more: dict[str, object] | None = None) -> int:
    if answer is None:
        return say.no(
            "Your request is recorded, and the scheduler has not answered yet. Is `gpujob serve` running?",
            code=OUTSIDE,
        )
    if not answer.ok:
        return say.no(*answer.text.splitlines())
    log = (more or {}).get("log")
    return say.answer({"ok": True, "text": answer.text, **(more or {})}, [log if isinstance(log, str) else answer.text])
