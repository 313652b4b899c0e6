"""Rows of the tables as our values and back, for both sides of the database."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from types import UnionType
from typing import Any, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from sqlalchemy import Connection, Select, Table, or_, select

from scheduler.codec import from_plain, to_plain
from scheduler.jobs.job import Job, JobId, Run, Task
from scheduler.jobs.mail import Answer, Board, Notice, Request
from scheduler.jobs.spec import JobSpec
from scheduler.store import tables

T = TypeVar("T")
Columns = dict[str, Any]

_AS_IT_IS = frozenset({int, str, float, bool, datetime, type(None)})


class Shape(Generic[T]):
    """How a value lies in its table: each field in the column of its name, what is no plain column as JSON text.

    The table may have columns beyond the fields; whoever writes gives those.
    """

    def __init__(self, kind: type[Any], table: Table) -> None:
        hints = get_type_hints(kind)
        self.table = table
        self._kind = kind
        self._names = tuple(field.name for field in fields(kind))
        self._readers = tuple(_reader(hints[name]) for name in self._names)
        self._json = {name: hints[name] for name in self._names if _reader(hints[name]) and not _is_word(hints[name])}
        self.select: Select[Any] = select(*(table.c[name] for name in self._names))

    def columns(self, value: T) -> Columns:
        """The columns that its fields are stored in."""
        columns = {name: getattr(value, name) for name in self._names}
        for name, kind in self._json.items():
            if columns[name] is not None:
                columns[name] = as_json(columns[name], kind)
        return {name: _storable(column) if isinstance(column, str) else column for name, column in columns.items()}

    def value(self, row: Sequence[Any]) -> T:
        """A row of `select`; columns after it are left alone."""
        pairs = zip(self._names, self._readers, row, strict=False)
        return cast(
            "T",
            self._kind(
                **{name: column if read is None or column is None else read(column) for name, read, column in pairs}
            ),
        )

    def values(self, rows: Iterable[Sequence[Any]]) -> tuple[T, ...]:
        """All rows, in their order."""
        return tuple(self.value(row) for row in rows)


def as_json(value: object, kind: Any = None) -> str:
    """Our values as text. What people write may hold any character; JSON escapes those that a database refuses."""
    return json.dumps(to_plain(value, kind), separators=(",", ":"))


def of_json(text: str, kind: type[T]) -> T:
    """The value again."""
    return from_plain(json.loads(text), kind)


def _storable(text: str) -> str:
    if isinstance(text, StrEnum):
        return text.value
    if text.isascii() and "\0" not in text:
        return text
    # A program's last words may hold what no database takes as text; a mark in its place must not stop a turn.
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _reader(kind: Any) -> Callable[[Any], Any] | None:
    if kind is JobSpec:
        return _spec
    if _is_word(kind):
        return cast("type[StrEnum]", kind)
    members = get_args(kind) if get_origin(kind) in {Union, UnionType} else (kind,)
    if all(getattr(member, "__supertype__", member) in _AS_IT_IS for member in members):  # a NewType is as its base
        return None
    return lambda text: of_json(text, kind)


def _is_word(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, StrEnum)


@lru_cache(maxsize=4096)
def _spec(text: str) -> JobSpec:
    # A spec never changes; reading a thousand of them anew in each turn would cost more than the query.
    return of_json(text, JobSpec)


JOBS = Shape[Job](Job, tables.jobs)
TASKS = Shape[Task](Task, tables.tasks)
RUNS = Shape[Run](Run, tables.runs)
REQUESTS = Shape[Request](Request, tables.requests)
NOTICES = Shape[Notice](Notice, tables.notices)

_OLDEST_RUN_FIRST = (tables.runs.c.since, tables.runs.c.job, tables.runs.c.task, tables.runs.c.attempt)


def job(connection: Connection, job: JobId) -> Job | None:
    """One job, ended or not."""
    row = connection.execute(JOBS.select.where(tables.jobs.c.id == job)).first()
    return None if row is None else JOBS.value(row)


def job_tasks(connection: Connection, job: JobId) -> tuple[Task, ...]:
    """The tasks of one job, in task order."""
    of_job = TASKS.select.where(tables.tasks.c.job == job)
    return TASKS.values(connection.execute(of_job.order_by(tables.tasks.c.position)))


def job_runs(connection: Connection, job: JobId) -> tuple[Run, ...]:
    """All runs of one job, oldest first."""
    return RUNS.values(connection.execute(RUNS.select.where(tables.runs.c.job == job).order_by(*_OLDEST_RUN_FIRST)))


def runs_since(connection: Connection, since: datetime) -> tuple[Run, ...]:
    """Runs that had not ended before `since`, oldest first."""
    ended_at = tables.runs.c.ended_at
    held = RUNS.select.where(or_(ended_at.is_(None), ended_at >= since))
    return RUNS.values(connection.execute(held.order_by(*_OLDEST_RUN_FIRST)))


def board(connection: Connection) -> Board | None:
    """The newest; None before the first."""
    text = connection.execute(select(tables.boards.c.board)).scalar()
    return None if text is None else of_json(text, Board)


def answer(connection: Connection, request: int) -> Answer | None:
    """The answer to a request, once there is one."""
    text = connection.execute(select(tables.requests.c.answer).where(tables.requests.c.id == request)).scalar()
    return None if text is None else of_json(text, Answer)
