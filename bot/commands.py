"""What stands after /gpujob, read into a command; grammar only, nothing is decided or looked up here."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bot import words
from bot.slack_text import typed
from scheduler.jobs.job import JobId, job_id


class Whose(StrEnum):
    """Whose jobs a list shows."""

    MINE = "mine"
    TEAM = "team"
    ALL = "all"


class Group(StrEnum):
    """Which states a list shows."""

    ANY = "any"
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenForm:
    """`submit` alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitText:
    """`submit` with a one-liner or a whole job file behind it."""

    text: str
    is_file: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """`status JOB`."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class ListJobs:
    """`list`; `page` starts at 1."""

    whose: Whose = Whose.MINE
    group: Group = Group.ANY
    page: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    """`cancel JOB`; a question comes first."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowLogs:
    """`logs JOB [STEP]`."""

    job: JobId
    step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunJob:
    """`rerun JOB [from STEP] [param.KEY=VALUE ..]`."""

    job: JobId
    from_step: str = ""
    params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideJob:
    """`approve JOB` or `deny JOB [reason]`."""

    job: JobId
    approve: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowPool:
    """`pool`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowReport:
    """`report [YYYY-MM]`; "" is the month of today."""

    month: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowSettings:
    """`settings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """`help [topic]`."""

    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """It cannot be read; `sentence` says why and what to type, unescaped."""

    sentence: str


Command = (
    OpenForm
    | SubmitText
    | Status
    | ListJobs
    | CancelJob
    | ShowLogs
    | RerunJob
    | DecideJob
    | ShowPool
    | ShowReport
    | ShowSettings
    | Help
    | Wrong
)

_WHOSE = frozenset(whose.value for whose in Whose)
_GROUPS = frozenset(group.value for group in Group)
_MONTH = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])")
_FILE = re.compile(r"\s*(?:\{|gpujob\s*:|[a-z_]+\s*:\s.*\n)", re.DOTALL)


def parse(text: str) -> Command:
    """The command that a person meant, however their keyboard dressed it up."""
    plain = typed(text)
    verb, _, rest = plain.partition(" ") if not plain.startswith("submit\n") else ("submit", "", plain[7:])
    verb = verb.lower()
    rest = rest.strip()
    if not verb:
        return Help()
    reader = _READERS.get(verb)
    if reader is not None:
        return reader(rest)
    found = job_id(verb)
    if found is not None and not rest:
        return Status(job=found)
    close = difflib.get_close_matches(verb, words.COMMANDS, n=1, cutoff=0.5)
    return Wrong(sentence=words.unknown_command(verb, close[0] if close else ""))


def mention(text: str) -> Command:
    """A mention of the bot: the words after its name."""
    return parse(re.sub(r"^\s*<@[^>]+>[:,]?\s*", "", text))


def _submit(rest: str) -> Command:
    text = _unfenced(rest)
    if not text:
        return OpenForm()
    return SubmitText(text=text, is_file=bool(_FILE.match(text)))


def _unfenced(text: str) -> str:
    if text.startswith("```") and text.endswith("```") and len(text) >= 6:
        return text[3:-3].strip()
    return text


def _status(rest: str) -> Command:
    if not rest:
        return ListJobs()
    return _of_job("status", rest, lambda job, _: Status(job=job))


def _list(rest: str) -> Command:
    whose, group, page = Whose.MINE, Group.ANY, 1
    parts = rest.lower().split()
    while parts:
        part = parts.pop(0)
        if part in _WHOSE:
            whose = Whose(part)
        elif part in _GROUPS:
            group = Group(part)
        elif part == "page" and parts and parts[0].isdecimal() and 0 < int(parts[0]) < 10_000:
            page = int(parts.pop(0))
        else:
            return Wrong(sentence=words.wrong_list(part))
    return ListJobs(whose=whose, group=group, page=page)


def _logs(rest: str) -> Command:
    return _of_job("logs", rest, lambda job, step: ShowLogs(job=job, step=step))


def _cancel(rest: str) -> Command:
    return _of_job("cancel", rest, lambda job, _: CancelJob(job=job))


def _approve(rest: str) -> Command:
    return _of_job("approve", rest, lambda job, _: DecideJob(job=job, approve=True))


def _deny(rest: str) -> Command:
    return _of_job("deny", rest, lambda job, reason: DecideJob(job=job, approve=False, reason=reason))


def _rerun(rest: str) -> Command:
    return _of_job("rerun", rest, _rerun_of)


def _rerun_of(job: JobId, rest: str) -> Command:
    try:
        parts = shlex.split(rest)
    except ValueError:
        return Wrong(sentence=words.UNCLOSED_QUOTE)
    from_step, params = "", {}
    while parts:
        part = parts.pop(0)
        key, mark, value = part.partition("=")
        if part == "from" and parts:
            from_step = parts.pop(0)
        elif mark and key.startswith("param.") and len(key) > len("param."):
            params[key.removeprefix("param.")] = value
        else:
            return Wrong(sentence=words.wrong_rerun(part))
    return RerunJob(job=job, from_step=from_step, params=params)


def _report(rest: str) -> Command:
    if rest and not _MONTH.fullmatch(rest):
        return Wrong(sentence=words.wrong_month(rest))
    return ShowReport(month=rest)


def _of_job(verb: str, rest: str, make: Callable[[JobId, str], Command]) -> Command:
    name, _, more = rest.partition(" ")
    found = job_id(name)
    return Wrong(sentence=words.no_job_id(verb, name)) if found is None else make(found, more.strip())


_READERS: Mapping[str, Callable[[str], Command]] = {
    "submit": _submit,
    "status": _status,
    "list": _list,
    "cancel": _cancel,
    "logs": _logs,
    "rerun": _rerun,
    "approve": _approve,
    "deny": _deny,
    "pool": lambda _: ShowPool(),
    "report": _report,
    "settings": lambda _: ShowSettings(),
    "help": lambda rest: Help(topic=rest.lower()),
}
