"""The forms: the submit form and the reason of a denial, and what people filled in. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from bot import blocks, words
from bot.blocks import Act, Block
from bot.slack_text import clean, cut, plain_moment
from scheduler.jobs import jobfile
from scheduler.jobs.job import JobId, job_id
from scheduler.jobs.mail import Board

UPLOAD = "upload"  # the block with the uploaded file
FACTORS = (1, 2, 4, 8, 16)  # GPUs of a node that people ask for
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A form that can be sent: a whole job file, and the channel in which it was opened."""

    text: str
    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """A form whose job file is still in Slack: `file` is Slack's word for it."""

    file: Mapping[str, Any]
    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """A form that cannot: a sentence for each block; what was typed stays."""

    by_block: Mapping[str, str] = field(default_factory=dict)


def loading() -> Block:
    """Shown at once, while the free GPUs are read."""
    return _modal(Act.SUBMIT_FORM, "Submit a job", [blocks.section(words.LOADING)])


def submit_form(board: Board | None, channel: str, zone: ZoneInfo) -> Block:
    """The form. Without a single GPU in the pool it is a sentence: Slack allows no empty select."""
    if board is not None and board.gpus == 0:
        return _modal(Act.SUBMIT_FORM, "Submit a job", [blocks.section(words.NO_GPUS)])
    parts = [
        blocks.context("Fill in the fields, or give a whole job file at the end; then the other fields do not count."),
        _input("name", "Name", hint="a-z, 0-9 and -, at most 40, starts with a letter", empty="solar-sft"),
        _input("image", "Docker image", empty="registry.example.com/nlp/train:1.4"),
        _input("command", "Command", hint="Program and arguments; quotes as in a shell", empty="python train.py"),
        _gpus(board, zone),
        _input("nodes", "Nodes", hint="More than 1: a gang; the GPUs are on each node", initial="1"),
        _input("params", "Parameters", hint="One KEY=VALUE a line", lines=True, empty="lr=2e-5"),
        _input("estimate_hours", "Estimated hours", hint="Running time; helps its place in the queue", empty="6"),
        _input("max_hours", "Maximum hours", hint="It is ended after so many hours of running", empty="12"),
        _input("checkpoint", "Saves its work every", hint="30m, 1h, or none", initial="30m"),
        _select("priority", "Priority", (("low", "low"), ("normal", "normal"), ("high", "high: needs approval")), 1),
        _input("team", "Team", empty="nlp"),
        _upload(),
        _input("job_file", "Job file, pasted", hint="YAML; a job of several steps or a sweep", lines=True),
    ]
    return _modal(Act.SUBMIT_FORM, "Submit a job", parts, submit="Submit", metadata=channel)


def deny_form(job: JobId) -> Block:
    """Asks why; the reason is told to the owner."""
    parts = [_input("reason", "Reason", hint="The owner reads this", lines=True)]
    return _modal(Act.DENY_FORM, f"Deny job-{job}", parts, submit="Deny", metadata=str(job))


def read_submit(view: Mapping[str, Any]) -> Filled | Uploaded | Faults:
    """The job file that a submitted form stands for, checked; or what is wrong, at the field that it is wrong in."""
    typed = {block: _value(view, block) for block in view["state"]["values"]}
    channel = str(view.get("private_metadata", ""))
    file = _file_of(view)
    if file is not None:
        both = Faults(by_block={UPLOAD: words.TWO_JOB_FILES})
        return both if typed.get("job_file") else Uploaded(file=file, channel=channel)
    if typed.get("job_file"):
        text = typed["job_file"]
    else:
        faults = {block: sentence for block, sentence in _faults(typed) if sentence}
        if faults:
            return Faults(by_block=faults)
        text = _file(typed)
    return checked(text, channel, "job_file" if typed.get("job_file") else "")


def checked(text: str, channel: str, block: str = "") -> Filled | Faults:
    """A job file, if it has no faults; else they stand at `block`, or each at the field that it speaks of."""
    errors = jobfile.parse(text).errors
    return Faults(by_block=_blame(errors, block)) if errors else Filled(text=text, channel=channel)


def read_deny(view: Mapping[str, Any]) -> tuple[JobId | None, str]:
    """The job, and the reason."""
    return job_id(str(view.get("private_metadata", ""))), _value(view, "reason")


_FIELDS = ("name", "image", "nodes", "gpus", "params", "estimate_hours", "max_hours", "checkpoint", "priority", "team")


def _blame(errors: Sequence[jobfile.FileError], given: str) -> Mapping[str, str]:
    """Faults of the whole job file, each at the field that it speaks of; the rest at the file or the command."""
    by_block: dict[str, str] = {}
    for error in errors:
        named = next((block for block in _FIELDS if block in re.split(r"[.\[\]]", error.key)), "command")
        block, sentence = given or named, jobfile.shown((error,))
        by_block[block] = f"{by_block[block]}\n{sentence}" if block in by_block else sentence
    return {block: cut(sentence, 2000) for block, sentence in by_block.items()}


def _faults(typed: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    return (
        ("name", _name_fault(typed.get("name", ""))),
        ("image", "" if typed.get("image") else "Which image? Write one like registry.example.com/nlp/train:1.4"),
        ("command", _command_fault(typed.get("command", ""))),
        ("nodes", _number_fault("nodes", typed.get("nodes", ""), whole=True)),
        ("params", _params_fault(typed.get("params", ""))),
        ("estimate_hours", _number_fault("hours", typed.get("estimate_hours", ""))),
        ("max_hours", _number_fault("hours", typed.get("max_hours", ""))),
        ("checkpoint", _checkpoint_fault(typed.get("checkpoint", ""))),
    )


def _name_fault(name: str) -> str:
    if _NAME.fullmatch(name):
        return ""
    return f'"{name[:60]}" is no name: use a-z, 0-9 and -, at most 40, and start with a letter'


def _command_fault(command: str) -> str:
    try:
        return "" if shlex.split(command) else "What should run? Write a program and its arguments"
    except ValueError:
        return "A quote is opened and not closed"


def _number_fault(unit: str, text: str, *, whole: bool = False) -> str:
    shape = r"\d{1,5}" if whole else r"\d{1,5}(\.\d{1,4})?"
    if not text or (re.fullmatch(shape, text) and float(text) > 0):
        return ""
    return f'"{text[:60]}" is no number of {unit}: write a {"whole " if whole else ""}number above 0'


def _params_fault(text: str) -> str:
    for line in text.splitlines():
        if line.strip() and not re.match(r"\s*[A-Za-z_][A-Za-z0-9_]*\s*=", line):
            return f'"{line.strip()[:60]}" is no parameter: write one KEY=VALUE a line'
    return ""


def _checkpoint_fault(text: str) -> str:
    if not text or text == "none" or re.fullmatch(r"\d+(\.\d+)?[smh]", text):
        return ""
    return f'"{text[:60]}" is no time between saves: write 30m, 1h, or none'


def _file(typed: Mapping[str, str]) -> str:
    """The short form of a job file; every text of a person stands in JSON quotes, which YAML reads."""
    lines = ["gpujob: 1", f"name: {_quoted(typed['name'])}", f"image: {_quoted(typed['image'])}"]
    lines.append(f"command: [{', '.join(_quoted(word) for word in shlex.split(typed['command']))}]")
    lines.append(f"gpus: {typed.get('gpus') or 0}")
    lines += [f"{key}: {typed[key]}" for key in ("nodes", "estimate_hours", "max_hours") if typed.get(key)]
    lines += [f"{key}: {_quoted(typed[key])}" for key in ("team", "priority") if typed.get(key)]
    if typed.get("checkpoint"):
        none = typed["checkpoint"] == "none"
        lines.append("checkpoint: none" if none else f"checkpoint: {{every: {typed['checkpoint']}}}")
    params = [line.partition("=") for line in typed.get("params", "").splitlines() if line.strip()]
    if params:
        lines.append("params:")
        lines += [f"  {key.strip()}: {_scalar(value.strip())}" for key, _, value in params]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


def _scalar(text: str) -> str:
    """Numbers and booleans as they are, everything else quoted."""
    plain = re.fullmatch(r"true|false|[-+]?\d+(\.\d+)?([eE][-+]?\d+)?", text)
    return text if plain else _quoted(text)


def _gpus(board: Board | None, zone: ZoneInfo) -> Block:
    largest = board.gpus if board is not None else max(FACTORS)
    choices = [("0", "no GPU"), *((str(count), words.gpus(count)) for count in FACTORS if count <= largest)]
    notes = {"0": "starts at once"} | {str(count): _free(board, count, zone) for count in FACTORS}
    made = _select("gpus", "GPUs", choices, min(1, len(choices) - 1))
    options = [
        {**option, "description": blocks.plain(notes[option["value"]], 75)} if notes[option["value"]] else option
        for option in made["element"]["options"]
    ]
    return {**made, "element": {**made["element"], "options": options, "initial_option": options[1 % len(options)]}}


def _free(board: Board | None, count: int, zone: ZoneInfo) -> str:
    if board is None:
        return ""
    fitting = [window for window in board.windows if window.gpus >= count]
    if not fitting:
        return "none free on one node now; it waits"
    if any(window.until is None for window in fitting):
        return "free now"
    last = max(window.until for window in fitting if window.until is not None)
    return f"free now until {plain_moment(last, zone)}"


def _value(view: Mapping[str, Any], block: str) -> str:
    element: Mapping[str, Any] = next(iter(view["state"]["values"].get(block, {}).values()), {})
    option = element.get("selected_option")
    chosen = option.get("value") if isinstance(option, Mapping) else element.get("value")
    return clean(str(chosen)).strip() if chosen is not None else ""


def _file_of(view: Mapping[str, Any]) -> Mapping[str, Any] | None:
    element: Mapping[str, Any] = next(iter(view["state"]["values"].get(UPLOAD, {}).values()), {})
    return next(iter(element.get("files") or ()), None)


def _upload() -> Block:
    return {
        "type": "input",
        "block_id": UPLOAD,
        "label": blocks.plain("Job file, uploaded", 2000),
        "hint": blocks.plain("YAML or JSON, at most 256 kB", 2000),
        "element": {
            "type": "file_input",
            "action_id": UPLOAD,
            "filetypes": ["yaml", "yml", "json", "txt"],
            "max_files": 1,
        },
        "optional": True,
    }


def _input(block: str, label: str, *, hint: str = "", lines: bool = False, initial: str = "", empty: str = "") -> Block:
    element: dict[str, Any] = {"type": "plain_text_input", "action_id": block, "multiline": lines, "max_length": 3000}
    if initial:
        element["initial_value"] = initial
    if empty:
        element["placeholder"] = blocks.plain(empty, 150)
    made: dict[str, Any] = {
        "type": "input",
        "block_id": block,
        "label": blocks.plain(label, 2000),
        "element": element,
        # Nothing is required by Slack: a pasted job file fills in for every field, and we say what is missing.
        "optional": True,
    }
    if hint:
        made["hint"] = blocks.plain(hint, 2000)
    return made


def _select(block: str, label: str, choices: Sequence[tuple[str, str]], initial: int) -> dict[str, Any]:
    options = [{"text": blocks.plain(text, 75), "value": value} for value, text in choices]
    element: dict[str, Any] = {
        "type": "static_select",
        "action_id": block,
        "options": options,
        "initial_option": options[initial],
    }
    return {
        "type": "input",
        "block_id": block,
        "label": blocks.plain(label, 2000),
        "element": element,
        "optional": True,
    }


def _modal(callback: Act, title: str, parts: Sequence[Block], *, submit: str = "", metadata: str = "") -> Block:
    made: dict[str, Any] = {
        "type": "modal",
        "callback_id": callback.value,
        "title": blocks.plain(title, 24),
        "close": blocks.plain("Close", 24),
        "blocks": list(parts),
        "private_metadata": metadata,
    }
    if submit:
        made["submit"] = blocks.plain(submit, 24)
    return made
