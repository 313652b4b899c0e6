"""YAML 1.2 text to plain values, with the line of each. The library only scans; nothing is built from what it reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from scheduler.jobs.faults import HIDDEN, Fault, Path, dotted, shown_value, sounds_secret
from scheduler.jobs.spec import Value

MAX_BYTES = 256_000
MAX_DEPTH = 12
# A file is read while everything else waits: the library takes some 15 microseconds for each word and bracket.
MAX_VALUES = 20_000  # after aliases are replaced by what they stand for
MAX_READ = 30_000  # keys and values as they are written

Plain = str | int | float | bool | None | list[Any] | dict[str, Any]

_STRING_TAG = "tag:yaml.org,2002:str"
WORDS_OF_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_SPECIAL_FLOAT = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TAB_INDENT = re.compile(r"[ ]*\t\s*\S")
_TEMPLATE = re.compile(r"\{\{.*?\}\}")

_QUOTE = 'a value with {{ must be quoted inside { } and [ ]: write "{{ NAME }}"'
_SYNTAX = {
    "mapping values are not allowed": "a colon cannot stand here; check the indentation, or quote text that has `: `",
    "could not find expected ':'": "this is no `key: value`; check the indentation, or quote text of several lines",
    "unexpected end of stream": "a quote is opened here and never closed",
    "expected ',' or ']'": "a list is not closed; separate its values with , and close it with ]",
    "expected ',' or '}'": "a mapping is not closed; separate its keys with , and close it with }",
    "expected <block end>": "the indentation does not fit the lines above; keys of one mapping stand in one column",
    "cannot start any token": "this character cannot start a value; put the value into quotes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What the text says. `root` is None when nothing could be read."""

    root: Plain
    lines: dict[Path, int] = field(default_factory=dict)  # from 1, of keys and of items
    faults: tuple[Fault, ...] = ()  # of values that could be passed over
    unreadable: tuple[tuple[int, str, str], ...] = ()  # line, value, message: the text is no YAML


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scalar:
    line: int
    text: str
    plain: bool  # not quoted: it may be a number, a boolean or null
    tag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sequence:
    line: int
    items: list[_Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mapping:
    line: int
    entries: list[tuple[_Scalar, _Node]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broken:
    """A value that cannot be meant; what is around it can still be read."""

    line: int
    value: str
    message: str


_Node = _Scalar | _Sequence | _Mapping | _Broken


class _Unreadable(Exception):
    def __init__(self, line: int, value: str, message: str) -> None:
        super().__init__(message)
        self.fault = (line, value, message)


def read(text: str) -> Document:
    """The one document of a text; never raises, whatever the text."""
    size = len(text.encode(errors="replace"))
    if size > MAX_BYTES:
        message = (
            f"the file has {size:,} bytes, limit {MAX_BYTES:,}; move long lists into a file that the program reads"
        )
        return Document(root=None, unreadable=((1, "", message),))
    if text.lstrip().startswith("{"):
        # JSON may be indented with tabs, and no string of JSON holds one.
        text = text.replace("\t", " ")
    lines = text.splitlines() or [""]
    try:
        return _Plainer().document(_Builder(lines).node_of(text))
    except _Unreadable as error:
        return Document(root=None, unreadable=(error.fault,))
    except MarkedYAMLError as error:
        return Document(root=None, unreadable=_syntax(error, lines))
    except (YAMLError, ValueError, OverflowError) as error:
        return Document(root=None, unreadable=(_odd_character(error, text),))


def plain_value(text: str) -> Value:
    """What an unquoted word means in YAML 1.2 (core schema): `1e-5` is a number, `yes` and `null` are strings here."""
    if text in _BOOL:
        return _BOOL[text]
    if len(text) > 400:
        return text
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


class _Builder:
    """Nodes from the library's events, one look ahead at a time, so that a hostile text stops early."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._anchors: dict[str, _Node] = {}
        self._read = 0

    def node_of(self, text: str) -> _Node:
        yaml = YAML(typ="safe", pure=True)
        events: Iterator[Any] = iter(yaml.parse(text))
        root: _Node | None = None
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    line = _line(event)
                    raise _Unreadable(line, "---", "a second document starts here; a job file is one document")
                root = self._node(next(events), events, 0)
        return root or _Scalar(line=1, text="", plain=True)

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> _Node:
        line = _line(event)
        if depth > MAX_DEPTH:
            raise _Unreadable(line, "", f"values are nested deeper than {MAX_DEPTH} levels; a job file needs 5")
        self._read += 1
        if self._read > MAX_READ:
            message = f"the file has more than {MAX_READ:,} keys and values; move long lists into a file of the program"
            raise _Unreadable(line, "", message)
        if isinstance(event, AliasEvent):
            if event.anchor not in self._anchors:
                message = "no anchor of this name stands before it; quote the value if it only starts with *"
                raise _Unreadable(line, f"*{event.anchor}", message)
            return self._anchors[event.anchor]
        node: _Node
        if isinstance(event, ScalarEvent):
            plain = bool(event.implicit[0]) and not event.style
            node = _Scalar(line=line, text=_whole(event.value), plain=plain, tag=str(event.tag or ""))
        elif isinstance(event, SequenceStartEvent):
            node = self._sequence(line, events, depth)
        else:
            node = self._mapping(line, events, depth)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _sequence(self, line: int, events: Iterator[Any], depth: int) -> _Sequence:
        items: list[_Node] = []
        while not isinstance(event := next(events), SequenceEndEvent):
            items.append(self._node(event, events, depth + 1))
        return _Sequence(line=line, items=items)

    def _mapping(self, line: int, events: Iterator[Any], depth: int) -> _Node:
        entries: list[tuple[_Scalar, _Node]] = []
        odd_key: Any = None
        while not isinstance(event := next(events), MappingEndEvent):
            key = self._node(event, events, depth + 1)
            value = self._node(next(events), events, depth + 1)
            if isinstance(key, _Scalar):
                entries.append((key, value))
            else:
                odd_key = odd_key or event.start_mark
        if odd_key is None:
            return _Mapping(line=line, entries=entries)
        source = self._lines[min(odd_key.line, len(self._lines) - 1)][max(odd_key.column - 1, 0) :]
        if template := _TEMPLATE.search(source):
            return _Broken(line=line, value=template[0][:60], message=_QUOTE)
        return _Broken(
            line=line, value=shown_value(source.strip()), message="a key must be a word, not a list or mapping"
        )


class _Plainer:
    """Plain values from nodes, with aliases written out up to a limit."""

    def __init__(self) -> None:
        self._lines: dict[Path, int] = {}
        self._faults: list[Fault] = []
        self._values = 0

    def document(self, root: _Node) -> Document:
        plain = self._plain(root, ())
        return Document(root=plain, lines=self._lines, faults=tuple(self._faults))

    def _plain(self, node: _Node, path: Path) -> Plain:
        self._values += 1
        self._lines.setdefault(path, node.line)
        if self._values > MAX_VALUES or len(path) > MAX_DEPTH:
            message = f"the file means more than {MAX_VALUES:,} values once its aliases are written out; use fewer"
            # Where it is used; the node itself stands at its anchor.
            raise _Unreadable(self._lines.get(path[:2], node.line), "", message)
        if isinstance(node, _Sequence):
            return [self._plain(item, (*path, place)) for place, item in enumerate(node.items)]
        if isinstance(node, _Mapping):
            return self._mapping(node, path)
        if isinstance(node, _Broken):
            self._faults.append(Fault(path=path, value=node.value, message=node.message))
            return None
        return self._scalar(node, path)

    def _mapping(self, node: _Mapping, path: Path) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, value in node.entries:
            inside = (*path, key.text)
            first = self._lines.get(inside) if key.text in plain else None
            self._lines[inside] = key.line
            plain[key.text] = self._plain(value, inside)
            if first is not None:
                shown = HIDDEN if sounds_secret(dotted(inside)) else shown_value(plain[key.text])
                message = f"stands twice, first on line {first}; keep one"
                self._faults.append(Fault(path=inside, value=shown, message=message))
        return plain

    def _scalar(self, node: _Scalar, path: Path) -> Plain:
        if node.tag and node.tag != _STRING_TAG:
            message = "a tag (a word with !) is not allowed; write the value without it"
            self._faults.append(Fault(path=path, value=f"!{node.tag.rpartition(':')[2]}"[:60], message=message))
            return None
        if not node.plain:
            return node.text
        value = None if node.text in WORDS_OF_NULL else plain_value(node.text)
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            message = "is larger than 64 bits; quote it if it is text"
            self._faults.append(Fault(path=path, value=node.text[:60], message=message))
            return None
        # `[--lr, 1e-5]`: a program gets a number as it was written.
        as_written = path[-2:-1] == ("command",) and value is not None
        return node.text if as_written else value


def _whole(text: str) -> str:
    """JSON writes a character beyond 16 bits as two escapes; together they are one character."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _syntax(error: MarkedYAMLError, lines: list[str]) -> tuple[tuple[int, str, str], ...]:
    tabs = [place for place, line in enumerate(lines, 1) if _TAB_INDENT.match(line)]
    if tabs:
        message = "a tab indents this line; YAML takes only spaces"
        return tuple((line, shown_value(lines[line - 1].strip()), message) for line in tabs[:20])
    problem = str(error.problem or "cannot be read")
    mark = error.problem_mark or error.context_mark
    if "unexpected end of stream" in problem or "<stream end>" in problem:
        mark = error.context_mark or mark
    line = min(int(mark.line) + 1 if mark else 1, len(lines))
    source = lines[line - 1].strip()
    known = (sentence for part, sentence in _SYNTAX.items() if part in problem)
    quote = (_QUOTE for _ in _TEMPLATE.findall(source))
    message = next(chain(quote, known), f"this is no YAML: {problem[:200]}")
    return ((line, HIDDEN if sounds_secret(source) else shown_value(source), message),)


def _odd_character(error: Exception, text: str) -> tuple[int, str, str]:
    place = int(getattr(error, "position", 0) or 0)
    line = text.count("\n", 0, place) + 1
    return (
        line,
        ascii(text[place : place + 1]),
        "a character that text cannot have; type it again, or leave it out",
    )
