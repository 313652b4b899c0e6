"""`submit image=IMAGE gpus=2 name=NAME -- COMMAND ..`: a job of one step on one line."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

from scheduler.jobs.faults import HIDDEN, FileError, nearest, safe, shown_value, sounds_secret
from scheduler.jobs.jobfile import durations
from scheduler.jobs.jobfile.document import Document, plain_value
from scheduler.jobs.jobfile.reading import Parsed, judged

# Word on the line -> key of the job file.
KEYS = {
    "image": "image",
    "gpus": "gpus",
    "name": "name",
    "team": "team",
    "nodes": "nodes",
    "checkpoint": "checkpoint",
    "max": "max_hours",
    "estimate": "estimate_hours",
    "priority": "priority",
    "retries": "retries",
    "start_after": "start_after",
    "deadline": "deadline",
    "workdir": "workdir",
}
_GROUPS = {"param": "params", "output": "outputs", "secret": "secrets"}
_QUOTES = str.maketrans(dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"') | dict.fromkeys("\u2018\u2019\u201a", "'"))
_LONG_DASH = re.compile("(?<!\\S)[\u2013\u2014]")
_INTERPRETERS = re.compile(r"(python[\d.]*|bash|sh|zsh|env|uv|run|torchrun|accelerate|launch|node|perl|ruby)$")
_MAX_LINE = 20_000


def one_line(text: str) -> Parsed:
    """The spec that a line means; `submit` in front may be left out. Never raises; every error is on line 1.

    Curly quotes, long dashes and odd spaces, as phones and chats make them, count as the ASCII they stand for.
    """
    if len(text) > _MAX_LINE:
        message = f"the line has {len(text):,} characters, limit {_MAX_LINE:,}; send a job file instead"
        return Parsed(spec=None, errors=(_error("", "", message),))
    try:
        words = shlex.split(_ascii(text))
    except ValueError:
        message = "a quote is opened and never closed; close it, or put a \\ before it"
        return Parsed(spec=None, errors=(_error("", "", message),))
    options, command = _parted(words)
    plain, errors = _plain(options)
    plain["command"] = command
    if not command:
        del plain["command"]
        errors.append(_error("command", "", "is missing; it comes last, after --, like `-- python train.py`"))
    plain.setdefault("name", _default_name(plain.get("image"), command))
    parsed = judged(Document(root=plain))
    errors += [_renamed(error) for error in parsed.errors if command or error.key != "command"]
    return Parsed(spec=None, errors=tuple(errors)) if errors else parsed


def _ascii(text: str) -> str:
    spaced = "".join(" " if character.isspace() and not character.isascii() else character for character in text)
    return _LONG_DASH.sub("--", spaced.translate(_QUOTES))


def _parted(words: list[str]) -> tuple[list[str], list[str]]:
    """The options as KEY=VALUE, and the command. `--gpus 4` and `--gpus=4` are understood too."""
    if words[:1] == ["submit"]:
        words = words[1:]
    place = words.index("--") if "--" in words else len(words)
    options: list[str] = []
    for word in words[:place]:
        if options and options[-1].startswith("--") and "=" not in options[-1] and not word.startswith("--"):
            options[-1] += f"={word}"
        else:
            options.append(word)
    return [option.removeprefix("--") for option in options], words[place + 1 :]


def _plain(options: list[str]) -> tuple[dict[str, Any], list[FileError]]:
    plain: dict[str, Any] = {"gpujob": 1}
    errors: list[FileError] = []
    for option in options:
        word, mark, value = option.partition("=")
        group, dot, key = word.partition(".")
        if not mark:
            message = f"is not KEY=VALUE; the command comes after --. Keys: {', '.join(_known())}"
            errors.append(_error("", shown_value(option), message))
        elif dot and key and group in _GROUPS:
            members = plain.setdefault(_GROUPS[group], {})
            errors += _twice(word, key in members)
            members[key] = plain_value(value) if group == "param" else value
        elif word in KEYS:
            errors += _twice(word, KEYS[word] in plain)
            plain[KEYS[word]] = _value(word, value)
        else:
            message = f"is no known word; {nearest(word, _known())}"
            errors.append(_error(word, HIDDEN if sounds_secret(word) else shown_value(value), message))
    if isinstance(plain.get("gpus"), list):
        plain["elastic"] = {"gpus": plain.pop("gpus")}
    return plain, errors


def _known() -> list[str]:
    return [*KEYS, *(f"{group}.KEY" for group in _GROUPS)]


def _twice(word: str, known: bool) -> list[FileError]:
    return [_error(word, "", "stands twice; keep one")] if known else []


def _value(word: str, value: str) -> object:
    match word:
        case "checkpoint":
            return value if value == "none" else {"every": value}
        case "max" | "estimate":
            seconds = durations.seconds(value)
            return plain_value(value) if seconds is None else seconds / 3600
        case "gpus" if "," in value:
            return [plain_value(choice) for choice in value.split(",")]
        case "gpus" | "nodes" | "retries":
            return plain_value(value)
        case _:
            return value


def _default_name(image: object, command: list[str]) -> str:
    """The image's last part, else the program's name, in the letters that a name may have."""
    last = str(image or "").partition("@")[0].rpartition("/")[2].partition(":")[0]
    programs = [word for word in command if not word.startswith("-")] or ["job"]
    own = (word for word in programs if not _INTERPRETERS.match(word.rpartition("/")[2]))
    program = next(own, programs[0])
    source = last or program.rpartition("/")[2].partition(".")[0]
    name = re.sub(r"[^a-z0-9]+", "-", source.lower()).strip("-")
    return (name if name[:1].isalpha() else f"job-{name}")[:40].strip("-")


def _renamed(error: FileError) -> FileError:
    """The error with the words of the line in place of the keys of the file."""
    words = {key: word for word, key in KEYS.items()} | {"checkpoint.every": "checkpoint", "elastic.gpus": "gpus"}
    group, dot, rest = error.key.partition(".")
    prefixes = {key: word for word, key in _GROUPS.items()}
    key = f"{prefixes[group]}.{rest}" if dot and group in prefixes else words.get(error.key, error.key)
    return replace(error, line=1, key=key)


def _error(key: str, value: str, message: str) -> FileError:
    return FileError(line=1, key=safe(key, 200), value=safe(value, 60), message=safe(message, 1000))
