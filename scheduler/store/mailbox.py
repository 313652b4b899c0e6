"""The bot's side of the database: a small door. It sends requests, reads jobs, and delivers notices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NewType

from sqlalchemy import ColumnElement, Connection, FromClause, Row, delete, exists, func, insert, select, update

from scheduler.codec import word_of
from scheduler.errors import Conflict
from scheduler.jobs.job import Job, JobId, JobState, Run, Task
from scheduler.jobs.mail import Answer, Board, Body, Notice, Person, Request, RequestId
from scheduler.store import rows, tables
from scheduler.store.database import Database

DeliveryId = NewType("DeliveryId", int)

_KEYS_KEPT = timedelta(days=2)
_THREADS = 64  # of the bot that may call at once


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job with all that people see of it."""

    job: Job
    tasks: tuple[Task, ...]  # in task order
    runs: tuple[Run, ...]  # oldest first


class DeliveryState(StrEnum):
    """Where a message is on its way to Slack."""

    OPEN = "open"
    TRIED = "tried"  # sent at least once, outcome unknown: look in Slack before sending again
    DONE = "done"
    GIVEN_UP = "given_up"  # Slack refuses it for good; `error` says why


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One notice to one place. A notice has one delivery a place, however often it is expanded."""

    id: DeliveryId
    notice: Notice
    place: str  # "card", "thread", or "dm:U123"
    state: DeliveryState
    channel: str = ""  # where it was posted
    ts: str = ""  # Slack's timestamp of the message; text, never a number
    tries: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The one message of a job in its channel."""

    job: JobId
    channel: str
    ts: str
    shown_version: int  # Job.version that it shows


class Mailbox:
    """Opened once by the bot; every call is one short transaction, safe from several threads."""

    def __init__(self, url: str, on_call: Callable[[str], None] | None = None) -> None:
        """`url` is SQLAlchemy's; the schema must be there (`gpujob migrate`).

        `on_call` hears the name of the method before each transaction.

        Raises:
            BadInput: the URL cannot be used.
        """
        self._database = Database(url, connections=_THREADS)
        self._on_call = on_call

    def close(self) -> None:
        """Ends its connections."""
        self._database.close()

    # Asking the scheduler
    def send(self, key: str, by: Person, at: datetime, body: Body) -> RequestId:
        """One request row; the same key again gives the first row's id and changes nothing."""
        asked = rows.REQUESTS.columns(Request(id=RequestId(0), key=key, by=by, at=at, body=body))
        del asked["id"]
        try:
            with self._writing("send") as connection:
                new = insert(tables.requests).values(**asked, kind=word_of(type(body)))
                return RequestId(connection.execute(new.returning(tables.requests.c.id)).scalar_one())
        except Conflict:
            with self._reading("send") as connection:
                first = select(tables.requests.c.id).where(tables.requests.c.key == key)
                return RequestId(connection.execute(first).scalar_one())

    def answer(self, request: RequestId) -> Answer | None:
        """The scheduler's answer, once there is one."""
        with self._reading("answer") as connection:
            return rows.answer(connection, request)

    def first_time(self, key: str, at: datetime) -> bool:
        """True once for each key (event ids, view ids, clicks); keys are kept for at least a day."""
        try:
            with self._writing("first_time") as connection:
                connection.execute(insert(tables.seen).values(key=key, at=at))
                connection.execute(delete(tables.seen).where(tables.seen.c.at < at - _KEYS_KEPT))
        except Conflict:
            return False
        return True

    # Reading
    def job(self, job: JobId) -> JobView | None:
        """One job; None if there is none with this id."""
        with self._reading("job") as connection:
            found = rows.job(connection, job)
            if found is None:
                return None
            return JobView(job=found, tasks=rows.job_tasks(connection, job), runs=rows.job_runs(connection, job))

    def jobs(
        self,
        *,
        owner: str = "",
        team: str = "",
        states: Sequence[JobState] = (),
        limit: int = 20,
        offset: int = 0,
    ) -> tuple[Job, ...]:
        """Newest first; empty arguments do not filter."""
        jobs = tables.jobs.c
        wanted = rows.JOBS.select
        if owner:
            wanted = wanted.where(jobs.owner == owner)
        if team:
            wanted = wanted.where(jobs.team == team)
        if states:
            wanted = wanted.where(jobs.state.in_([state.value for state in states]))
        with self._reading("jobs") as connection:
            return rows.JOBS.values(connection.execute(wanted.order_by(jobs.id.desc()).limit(limit).offset(offset)))

    def job_in_thread(self, channel: str, thread_ts: str) -> JobId | None:
        """The job whose card is the parent of this thread."""
        cards = tables.cards.c
        parent = select(cards.job).where(cards.channel == channel, cards.ts == thread_ts)
        with self._reading("job_in_thread") as connection:
            return connection.execute(parent).scalar()

    def board(self) -> Board | None:
        """What is free now; None before the scheduler's first turn."""
        with self._reading("board") as connection:
            return rows.board(connection)

    def runs(self, since: datetime) -> tuple[Run, ...]:
        """Runs that had not ended before `since`, for the report."""
        with self._reading("runs") as connection:
            return rows.runs_since(connection, since)

    # Delivering notices
    def unexpanded(self, limit: int = 100) -> tuple[Notice, ...]:
        """Notices without deliveries, oldest first."""
        notices = tables.notices.c
        fresh = rows.NOTICES.select.where(notices.expanded.is_(False)).order_by(notices.id).limit(limit)
        with self._reading("unexpanded") as connection:
            return rows.NOTICES.values(connection.execute(fresh))

    def expand(self, notice: Notice, places: Sequence[str]) -> None:
        """Makes the deliveries of a notice, once; an empty list marks it as needing none."""
        notices = tables.notices.c
        mark = update(tables.notices).where(notices.id == notice.id, notices.expanded.is_(False)).values(expanded=True)
        opened = [
            {"notice": notice.id, "place": place, "state": DeliveryState.OPEN.value} for place in dict.fromkeys(places)
        ]
        with self._writing("expand") as connection:
            if connection.execute(mark).rowcount and opened:
                connection.execute(insert(tables.deliveries), opened)

    def due(
        self, limit: int = 200, *, busy_jobs: Collection[JobId] = (), busy_places: Collection[str] = ()
    ) -> tuple[Delivery, ...]:
        """Deliveries that are open or tried, in the order of their notices.

        Without those to the card or thread of busy jobs, those to busy places, and those that wait for such a one.
        """
        deliveries, ours = tables.deliveries.c, ("card", "thread")
        before = tables.deliveries.alias()
        waits = exists().where(before.c.notice == deliveries.notice, before.c.place.in_(ours), _pending(before))
        busy = tables.notices.c.job.in_(busy_jobs) & (deliveries.place.in_(ours) | waits)
        pending = (
            rows.NOTICES.select.add_columns(*deliveries)
            .join(tables.deliveries, deliveries.notice == tables.notices.c.id)
            .where(_pending(), ~busy, deliveries.place.not_in(busy_places))
            .order_by(deliveries.notice, deliveries.id)
            .limit(limit)
        )
        with self._reading("due") as connection:
            return tuple(_delivery(row) for row in connection.execute(pending))

    def tried(self, delivery: DeliveryId) -> None:
        """Recorded before the message is sent."""
        tries = tables.deliveries.c.tries + 1
        self._deliver("tried", delivery, state=DeliveryState.TRIED.value, tries=tries)

    def delivered(self, delivery: DeliveryId, channel: str, ts: str) -> None:
        """Recorded after Slack took it, or when it was found in Slack."""
        self._deliver("delivered", delivery, state=DeliveryState.DONE.value, channel=channel, ts=ts)

    def gave_up(self, delivery: DeliveryId, error: str) -> None:
        """It will never arrive."""
        self._deliver("gave_up", delivery, state=DeliveryState.GIVEN_UP.value, error=error)

    # Cards
    def card(self, job: JobId) -> Card | None:
        """None before it is posted."""
        with self._reading("card") as connection:
            row = connection.execute(_CARDS.select.where(tables.cards.c.job == job)).first()
            return None if row is None else _CARDS.value(row)

    def card_posted(self, card: Card) -> None:
        """Posted, posted anew (another ts), or redrawn (another version)."""
        cards = tables.cards
        newest = select(func.coalesce(func.max(cards.c.drawn), 0) + 1).scalar_subquery()
        columns = {**_CARDS.columns(card), "drawn": newest}
        with self._writing("card_posted") as connection:
            if not connection.execute(update(cards).where(cards.c.job == card.job).values(columns)).rowcount:
                connection.execute(insert(cards).values(columns))

    def stale_cards(self, limit: int = 200, *, busy_jobs: Collection[JobId] = ()) -> tuple[Card, ...]:
        """Cards that show an older version than their job has, longest unseen first; without those of busy jobs."""
        cards, jobs = tables.cards.c, tables.jobs.c
        stale = (
            _CARDS.select.join(tables.jobs, jobs.id == cards.job)
            .where(jobs.version > cards.shown_version, cards.job.not_in(busy_jobs))
            .order_by(cards.drawn)
            .limit(limit)
        )
        with self._reading("stale_cards") as connection:
            return _CARDS.values(connection.execute(stale))

    def _deliver(self, call: str, delivery: DeliveryId, **columns: Any) -> None:
        # What arrived, or was given up, stays so: a late word of another try changes nothing.
        moved = update(tables.deliveries).where(tables.deliveries.c.id == delivery, _pending()).values(columns)
        with self._writing(call) as connection:
            connection.execute(moved)

    @contextmanager
    def _reading(self, call: str) -> Iterator[Connection]:
        self._tell(call)
        with self._database.reading() as connection:
            yield connection

    @contextmanager
    def _writing(self, call: str) -> Iterator[Connection]:
        self._tell(call)
        with self._database.writing() as connection:
            yield connection

    def _tell(self, call: str) -> None:
        if self._on_call is not None:
            self._on_call(call)


_CARDS = rows.Shape[Card](Card, tables.cards)


def _pending(deliveries: FromClause = tables.deliveries) -> ColumnElement[bool]:
    return deliveries.c.state.in_([DeliveryState.OPEN.value, DeliveryState.TRIED.value])


def _delivery(row: Row[Any]) -> Delivery:
    columns = row[-len(tables.deliveries.c) :]
    of = dict(zip(tables.deliveries.c.keys(), columns, strict=True))
    return Delivery(
        id=DeliveryId(of["id"]),
        notice=rows.NOTICES.value(row),
        place=of["place"],
        state=DeliveryState(of["state"]),
        channel=of["channel"],
        ts=of["ts"],
        tries=of["tries"],
        error=of["error"],
    )
