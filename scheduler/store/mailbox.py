"""The bot's side of the database: a small door. It sends requests, reads jobs, and delivers notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType

from scheduler.jobs.job import Job, JobId, JobState, Run, Task
from scheduler.jobs.mail import Answer, Board, Body, Notice, Person, RequestId

DeliveryId = NewType("DeliveryId", int)


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

    def __init__(self, url: str) -> None:
        """`url` is SQLAlchemy's; the schema must be there (`gpujob migrate`)."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends its connections."""
        raise NotImplementedError

    # Asking the scheduler
    def send(self, key: str, by: Person, at: datetime, body: Body) -> RequestId:
        """One request row; the same key again gives the first row's id and changes nothing."""
        raise NotImplementedError

    def answer(self, request: RequestId) -> Answer | None:
        """The scheduler's answer, once there is one."""
        raise NotImplementedError

    def first_time(self, key: str, at: datetime) -> bool:
        """True once for each key (event ids, view ids, clicks); keys are kept for at least a day."""
        raise NotImplementedError

    # Reading
    def job(self, job: JobId) -> JobView | None:
        """One job; None if there is none with this id."""
        raise NotImplementedError

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
        raise NotImplementedError

    def job_in_thread(self, channel: str, thread_ts: str) -> JobId | None:
        """The job whose card is the parent of this thread."""
        raise NotImplementedError

    def board(self) -> Board | None:
        """What is free now; None before the scheduler's first turn."""
        raise NotImplementedError

    def runs(self, since: datetime) -> tuple[Run, ...]:
        """Runs that had not ended before `since`, for the report."""
        raise NotImplementedError

    # Delivering notices
    def unexpanded(self, limit: int = 100) -> tuple[Notice, ...]:
        """Notices without deliveries, oldest first."""
        raise NotImplementedError

    def expand(self, notice: Notice, places: Sequence[str]) -> None:
        """Makes the deliveries of a notice, once; an empty list marks it as needing none."""
        raise NotImplementedError

    def due(self, limit: int = 200) -> tuple[Delivery, ...]:
        """Deliveries that are open or tried, in the order of their notices."""
        raise NotImplementedError

    def tried(self, delivery: DeliveryId) -> None:
        """Recorded before the message is sent."""
        raise NotImplementedError

    def delivered(self, delivery: DeliveryId, channel: str, ts: str) -> None:
        """Recorded after Slack took it, or when it was found in Slack."""
        raise NotImplementedError

    def gave_up(self, delivery: DeliveryId, error: str) -> None:
        """It will never arrive."""
        raise NotImplementedError

    # Cards
    def card(self, job: JobId) -> Card | None:
        """None before it is posted."""
        raise NotImplementedError

    def card_posted(self, card: Card) -> None:
        """Posted, posted anew (another ts), or redrawn (another version)."""
        raise NotImplementedError

    def stale_cards(self, limit: int = 200) -> tuple[Card, ...]:
        """Cards that show an older version than their job has, longest unseen first."""
        raise NotImplementedError
