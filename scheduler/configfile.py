"""The one settings file: found, read, overlaid with the environment; each process checks its own sections.

Order: `--config`, else GPUJOB_CONFIG, else gpujob.toml. Each key is also GPUJOB__SECTION__KEY, for lists
GPUJOB__SERVICE__0__NAME. Secrets come from the environment, or as `file:PATH`, never from the file itself.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scheduler.errors import BadInput

PREFIX = "GPUJOB__"
LISTS = frozenset({"node", "service", "team"})
SECTIONS = LISTS | {
    "database",
    "slack",
    "cluster",
    "metrics",
    "calendar",
    "policy",
    "approval",
    "money",
    "storage",
    "images",
}
SECRETS = (("slack", "bot_token"), ("slack", "app_token"), ("slack", "signing_secret"))
PLAYGROUND = frozenset({"xoxb-playground", "xapp-playground", ""})  # open secrets of the local Slack


class Section(BaseModel):
    """A section of the file: its keys are known, or refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Database(Section):
    """Section `[database]`."""

    url: str = "sqlite:///.gpujob/gpujob.sqlite3"


class ApprovalRules(Section):
    """`[approval.rules]`: what needs an approver."""

    over_gpu_hours: float | None = Field(default=None, gt=0)
    high_priority: bool = True
    own_jobs: bool = False  # may approvers approve their own jobs?


class Approval(Section):
    """Section `[approval]`."""

    approvers: tuple[str, ...] = ()  # Slack user ids, user group ids, or names used with `--as`
    rules: ApprovalRules = ApprovalRules()


class Money(Section):
    """`[money]`: what a GPU-hour would cost elsewhere."""

    currency: str = "USD"
    per_gpu_hour: float = Field(default=0.0, ge=0)


class Storage(Section):
    """Section `[storage]`."""

    root: str = ""  # s3://bucket/prefix or file:///folder; "" = a folder beside the local cluster's state
    endpoint: str = ""  # of an S3 that is not Amazon's, such as "https://s3.example.com"
    region: str = ""
    secret: str = ""  # a Secret in the namespace of the jobs, with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY


class CalendarHours(Section):
    """`[calendar]`: when lending is allowed; no windows = always."""

    timezone: str = "UTC"
    windows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings as plain values, with where they came from."""

    path: Path | None
    data: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """Relative paths of the file start here."""
        return self.path.parent if self.path else Path()


def load(path: Path | None, environment: Mapping[str, str]) -> Loaded:
    """The file (if there is one) with the environment laid over it.

    Raises:
        BadInput: no such file, no TOML, an unknown section, or a secret that stands in the file.
    """
    named = path or (Path(environment["GPUJOB_CONFIG"]) if environment.get("GPUJOB_CONFIG") else None)
    found = named or Path("gpujob.toml")
    data: dict[str, Any] = {}
    if named is not None or found.exists():
        data = _read(found)
    _refuse_literal_secrets(found, data)
    _overlay(data, environment)
    unknown = [name for name in data if name not in SECTIONS]
    if unknown:
        raise BadInput(*(f"[{name}] is no section of the settings{nearest(name, SECTIONS)}" for name in unknown))
    _resolve_secrets(data)
    return Loaded(found.resolve() if found.exists() else None, data)


def database_url(loaded: Loaded) -> str:
    """`[database] url`; a relative SQLite file lies beside the settings file.

    Raises:
        BadInput: a fault of the section.
    """
    url = section(loaded, "database", Database).url
    start = "sqlite:///"
    if url.startswith(start) and not url.startswith(start + "/") and ":memory:" not in url:
        return f"{start}{(loaded.folder / url.removeprefix(start)).resolve()}"
    return url


def nearest(word: str, known: frozenset[str] | set[str]) -> str:
    """`; did you mean "x"?`, or the list of what there is."""
    close = difflib.get_close_matches(word, sorted(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else f"; there are: {', '.join(sorted(known))}"


S = TypeVar("S", bound=BaseModel)


def section(loaded: Loaded, name: str, kind: type[S]) -> S:
    """One section, checked.

    Raises:
        BadInput: one sentence for each fault, with the nearest key.
    """
    return checked(loaded.data.get(name, {}), f"[{name}]", kind)


def sections(loaded: Loaded, name: str, kind: type[S]) -> tuple[S, ...]:
    """A list of sections, such as `[[service]]`.

    Raises:
        BadInput: one sentence for each fault, with the nearest key.
    """
    rows = loaded.data.get(name, [])
    if not isinstance(rows, list):
        raise BadInput(f"[{name}] must be a list: write [[{name}]]")
    return tuple(checked(row, f"[[{name}]] {index + 1}", kind) for index, row in enumerate(rows))


def checked(plain: object, where: str, kind: type[S]) -> S:
    """A model from plain values.

    Raises:
        BadInput: one sentence for each fault.
    """
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise BadInput(*(_sentence(fault, where, kind) for fault in error.errors())) from error


def _sentence(fault: Any, where: str, kind: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        owner: Any = kind
        for part in fault["loc"][:-1]:
            field = owner.model_fields.get(str(part))
            owner = field.annotation if field else kind
        keys = set(getattr(owner, "model_fields", kind.model_fields))
        return f"{where} {key} is no key of the settings{nearest(str(fault['loc'][-1]), keys)}"
    if fault["type"] == "missing":
        return f"{where} {key} is missing"
    return f"{where} {key} = {fault['input']!r}: {fault['msg'].removeprefix('Value error, ')}"


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist; give another file with --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is no TOML: {error}") from error
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error


def _overlay(data: MutableMapping[str, Any], environment: Mapping[str, str]) -> None:
    for name in sorted(environment):
        if not name.startswith(PREFIX):
            continue
        keys = [part.lower() for part in name.removeprefix(PREFIX).split("__")]
        _put(data, keys, environment[name], name)


def _put(data: MutableMapping[str, Any], keys: list[str], text: str, name: str) -> None:
    place: Any = data
    for index, key in enumerate(keys):
        last = index == len(keys) - 1
        if isinstance(place, list):
            if not key.isdecimal() or int(key) > len(place):
                raise BadInput(f"{name}: {key} is no place in the list; it has {len(place)} entries, from 0")
            if int(key) == len(place):
                place.append({})
            if last:
                raise BadInput(f"{name} names a list entry, not a key of it")
            place = place[int(key)]
        elif last:
            place[key] = _value(text)
        else:
            empty: Any = [] if index == 0 and key in LISTS else {}
            place = place.setdefault(key, empty)
        if not isinstance(place, dict | list):
            raise BadInput(f"{name} goes through {key}, which is a value and no section")


def _value(text: str) -> object:
    """Numbers, booleans and lists as TOML writes them; anything else is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _refuse_literal_secrets(path: Path, data: Mapping[str, Any]) -> None:
    for part, key in SECRETS:
        value = data.get(part, {}).get(key, "") if isinstance(data.get(part, {}), dict) else ""
        if isinstance(value, str) and value not in PLAYGROUND and not value.startswith("file:"):
            raise BadInput(
                f"[{part}] {key} holds a secret in {path.name}; give it as {PREFIX}{part.upper()}__{key.upper()} "
                f'in the environment, or write {key} = "file:PATH"'
            )


def _resolve_secrets(data: MutableMapping[str, Any]) -> None:
    for part, key in SECRETS:
        value = data.get(part, {}).get(key)
        if isinstance(value, str) and value.startswith("file:"):
            path = Path(value.removeprefix("file:"))
            try:
                data[part][key] = path.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise BadInput(f"[{part}] {key}: {path} cannot be read ({error.strerror})") from error
