"""What is wrong with something that a person wrote: where it stands, what it says, what is allowed."""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

Path = tuple[str | int, ...]

# Tokens of well-known makers, private keys, and passwords inside URLs. Nobody types these by accident.
_SECRET = re.compile(
    r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{20,}|nvapi-[\w-]{20,}|xox[abeprs]-[\w-]{10,}|xapp-[\w-]{10,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,})|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]+:[^/\s@]+@"
)
_SOUNDS_SECRET = re.compile(r"secret|token|passw|api_?key|credential", re.IGNORECASE)
HIDDEN = "(not shown)"
MAX_FAULTS = 300  # told of; a file with more is not a job file
_COMPARED = 200  # words; each takes microseconds, and a hostile file has thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong, at a place in the file or in a spec."""

    path: Path  # ("steps", 1, "needs", 0)
    value: str  # as it is shown; "" when there is none
    message: str  # goes on after the key: "must be ..", "is missing; .."


@dataclass(frozen=True, slots=True, kw_only=True)
class FileError:
    """One thing that is wrong, at a line of the text."""

    line: int  # from 1
    key: str  # "steps[1].needs[0]"; "" when it concerns no key
    value: str
    message: str


def dotted(path: Path) -> str:
    """`steps[1].needs` for ("steps", 1, "needs")."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def shown(errors: Iterable[FileError]) -> str:
    """One error a line: `line 7, steps[0].gpus = "two": must be a whole number of 0 or more`."""
    return "\n".join(_sentence(error) for error in errors)


def safe(text: str, limit: int) -> str:
    """Text that may be shown on one line: no secret, no character that a terminal or a database stumbles over."""
    clean = _SECRET.sub(HIDDEN, text)
    clean = "".join(character if character.isprintable() else "?" for character in clean[: limit + 1])
    return clean if len(clean) <= limit else f"{clean[: limit - 3]}..."


def shown_value(value: object) -> str:
    """A value as JSON on one line, shortened; never a secret."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if looks_secret(text):
        return HIDDEN
    return safe(text, 60)


def looks_secret(text: str) -> bool:
    """Whether a token, a private key or a password can be seen in it."""
    return _SECRET.search(text) is not None


def sounds_secret(text: str) -> bool:
    """Whether it speaks of secrets, so that what stands beside it is better not shown."""
    return _SOUNDS_SECRET.search(text) is not None


def nearest(word: str, known: Iterable[str]) -> str:
    """How a sentence about an unknown word ends: the nearest known one, or all of them."""
    words = list(itertools.islice(known, _COMPARED))
    close = difflib.get_close_matches(word[:100].lower(), words, n=1, cutoff=0.5)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"known: {', '.join(words[:30])}" if words else "there are none"


def _sentence(error: FileError) -> str:
    place = f", {error.key}" if error.key else ""
    value = f" = {error.value}" if error.value else ""
    return f"line {error.line}{place}{value}: {error.message}"
