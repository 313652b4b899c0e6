"""Each change that a turn records, as guarded statements of one transaction."""

from __future__ import annotations

import zlib
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import Connection, Table, Update, bindparam, delete, insert, or_, update

from scheduler.errors import Conflict
from scheduler.jobs.job import JobId
from scheduler.jobs.mail import TERMINAL_NOTICES, Board, Notice
from scheduler.ports import (
    AddJob,
    AddRun,
    Audit,
    Change,
    ChangeJob,
    ChangeRun,
    ChangeTask,
    HandBack,
    KeepHandBack,
    KeepTurn,
    Observed,
    Settle,
    ShowBoard,
    Tell,
)
from scheduler.store import rows, tables

TURNS_KEPT = timedelta(days=3)
MOST_TURNS = 20_000
OBSERVATIONS_KEPT = timedelta(days=60)

OBSERVATIONS = rows.Shape[Observed](Observed, tables.observations)
HAND_BACKS = rows.Shape[HandBack](HandBack, tables.hand_backs)
AUDITS = rows.Shape[Audit](Audit, tables.audits)


class Recording:
    """Changes of one transaction; `finish` belongs at its end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._touched: set[JobId] = set()

    def apply(self, change: Change) -> None:  # noqa: C901 - one line for each kind of change
        """Writes one change.

        Raises:
            Conflict: a row was not in the state that was expected.
        """
        match change:
            case AddJob():
                self._add_job(change)
            case ChangeJob():
                self._change_job(change)
            case ChangeTask():
                self._change_task(change)
            case AddRun():
                self._add_run(change)
            case ChangeRun():
                self._change_run(change)
            case Settle():
                self._settle(change)
            case Tell():
                self._tell(change.notice)
            case ShowBoard():
                self._show(change.board)
            case KeepTurn():
                self._keep_turn(change)
            case Observed():
                self._observe(change)
            case KeepHandBack():
                self._keep_hand_back(change.hand_back)
            case Audit():
                self._add(tables.audits, AUDITS.columns(change))

    def finish(self) -> None:
        """A visible change of a job, or several, is one new version of it."""
        jobs = tables.jobs
        if self._touched:
            newer = update(jobs).where(jobs.c.id.in_(sorted(self._touched))).values(version=jobs.c.version + 1)
            self._connection.execute(newer)

    def _add_job(self, change: AddJob) -> None:
        self._add(tables.jobs, rows.JOBS.columns(change.job) | {"team": change.job.spec.team})
        placed = [rows.TASKS.columns(task) | {"position": place} for place, task in enumerate(change.tasks)]
        if placed:
            self._connection.execute(insert(tables.tasks), placed)

    def _change_job(self, change: ChangeJob) -> None:
        columns = rows.JOBS.columns(change.now) | {"team": change.now.spec.team}
        del columns["version"]
        self._move(tables.jobs, columns, "id", was=change.was.value, name=change.now.label)
        self._touched.add(change.now.id)

    def _change_task(self, change: ChangeTask) -> None:
        task = change.now
        columns = rows.TASKS.columns(task)
        self._move(tables.tasks, columns, "job", "name", was=change.was.value, name=f"{task.name} of job-{task.job}")
        self._touched.add(task.job)

    def _add_run(self, change: AddRun) -> None:
        self._add(tables.runs, rows.RUNS.columns(change.run) | {"gpus": change.run.gpus})
        self._touched.add(change.run.job)

    def _change_run(self, change: ChangeRun) -> None:
        run = change.now
        columns = rows.RUNS.columns(run) | {"gpus": run.gpus}
        self._move(tables.runs, columns, "uid", was=change.was.value, name=f"run {run.uid} of job-{run.job}")
        self._touched.add(run.job)

    def _settle(self, change: Settle) -> None:
        requests = tables.requests
        open_one = update(requests).where(requests.c.id == change.request, requests.c.answer.is_(None))
        if not self._connection.execute(open_one.values(answer=rows.as_json(change.answer))).rowcount:
            raise Conflict(f"request {change.request} has an answer already, or is not there")

    def _tell(self, notice: Notice) -> None:
        columns = rows.NOTICES.columns(notice)
        del columns["id"]  # the database counts them
        self._add(tables.notices, columns | {"terminal": notice.kind in TERMINAL_NOTICES, "expanded": False})
        self._touched.add(notice.job)

    def _show(self, board: Board) -> None:
        self._put(tables.boards, {"id": 1, "board": rows.as_json(board)}, "id")

    def _keep_turn(self, change: KeepTurn) -> None:
        turns = tables.turns
        at = change.snapshot.now
        columns = {"at": at, "acted": change.acted, "snapshot": packed(change.snapshot), "plan": packed(change.plan)}
        newest = self._connection.execute(insert(turns).values(columns).returning(turns.c.id)).scalar_one()
        old = or_(turns.c.at < at - TURNS_KEPT, turns.c.id <= newest - MOST_TURNS)
        self._connection.execute(delete(turns).where(old))

    def _observe(self, change: Observed) -> None:
        observations = tables.observations
        self._add(observations, OBSERVATIONS.columns(change))
        self._connection.execute(delete(observations).where(observations.c.at < change.at - OBSERVATIONS_KEPT))

    def _keep_hand_back(self, hand_back: HandBack) -> None:
        self._put(tables.hand_backs, HAND_BACKS.columns(hand_back), "service", "decided_at")

    def _add(self, table: Table, columns: rows.Columns) -> None:
        self._connection.execute(insert(table).values(columns))

    def _put(self, table: Table, columns: rows.Columns, *keys: str) -> None:
        same = [table.c[key] == columns[key] for key in keys]
        if not self._connection.execute(update(table).where(*same).values(columns)).rowcount:
            self._add(table, columns)

    def _move(self, table: Table, columns: rows.Columns, *keys: str, was: str, name: str) -> None:
        found = {f"is_{key}": columns[key] for key in keys}
        if not self._connection.execute(_guarded(table, keys), columns | found | {"was": was}).rowcount:
            raise Conflict(f"{name} is no longer {was}")


@cache
def _guarded(table: Table, keys: tuple[str, ...]) -> Update:
    # Built once: of a turn that moves thousands of rows, most of the time would go into building.
    same = [table.c[key] == bindparam(f"is_{key}") for key in keys]
    return update(table).where(*same, table.c.state == bindparam("was"))


def packed(value: object) -> bytes:
    """A snapshot or a plan, compressed."""
    return zlib.compress(rows.as_json(value).encode())


def unpacked(stored: bytes, kind: type[Any]) -> Any:
    """It again."""
    return rows.of_json(zlib.decompress(stored).decode(), kind)
