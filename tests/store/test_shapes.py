"""Laws: whatever our values hold, they come back from JSON and from the database as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.codec import from_plain, to_plain
from scheduler.jobs.job import Job, JobId, Run, Task, Uid
from scheduler.jobs.mail import Board, Request
from scheduler.planning.plan import Plan
from scheduler.ports import AddJob, AddRun
from scheduler.store.migrations import migrate
from scheduler.store.sql import SqlStore

ZONES = st.sampled_from([UTC, timezone(timedelta(hours=9)), timezone(-timedelta(hours=3, minutes=30))])
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    datetime: st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=ZONES),  # noqa: DTZ001
    str: st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    int: st.integers(0, 2**31 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    type(None): st.none(),
}


@cache
def values_of(hint: Any) -> st.SearchStrategy[Any]:
    kind = getattr(hint, "__supertype__", hint)
    members = [member for member in get_args(kind) if member is not ...]
    if kind in PLAIN:
        return PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return st.sampled_from(kind)
    if get_origin(kind) is tuple:
        return st.lists(values_of(members[0]), max_size=3).map(tuple)
    if get_origin(kind) is Mapping:
        return st.dictionaries(*map(values_of, members), max_size=3)
    if members:
        return st.one_of(*map(values_of, members))
    hints = get_type_hints(kind)
    return st.builds(kind, **{field.name: values_of(hints[field.name]) for field in fields(kind)})


@given(st.one_of(*map(values_of, (Plan, Request, Board, Job, Task, Run))))
@settings(max_examples=100, deadline=None)
def test_a_value_comes_back_from_json(value):
    assert from_plain(json.loads(json.dumps(to_plain(value))), type(value)) == value


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SqlStore, count[int]]]:
    file: Path = tmp_path_factory.mktemp("shapes") / "gpujob.sqlite3"
    migrate(f"sqlite:///{file}")
    store = SqlStore(f"sqlite:///{file}")
    yield store, count(1)
    store.close()


@given(values_of(Job), values_of(Task), values_of(Run))
@settings(max_examples=50, deadline=None)
def test_every_field_of_a_job_comes_back_from_the_database(shared, job, task, run):
    store, numbers = shared
    number = JobId(next(numbers))
    job, task = replace(job, id=number), replace(task, job=number)
    run = replace(run, uid=Uid(f"pod-{number}"), job=number, task=task.name)

    store.record([AddJob(job=job, tasks=(task,)), AddRun(run=run)], token=0)

    assert store.job(number) == replace(job, version=job.version + 1)
    assert store.job_tasks(number) == (task,)
    assert store.job_runs(number) == (run,)
