"""The tables. Instants are aware UTC; mappings, lists and letters are JSON text; Slack's timestamps are text."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKeyConstraint, Index, Table, Text, UniqueConstraint, text
from sqlmodel import Field, SQLModel

_UNANSWERED = text("answer IS NULL")
_TERMINAL = text("terminal")


class RequestRow(SQLModel, table=True):
    """What a person asked; `answer` is empty until the scheduler has one."""

    __tablename__ = "requests"
    __table_args__ = (Index("requests_open", "id", sqlite_where=_UNANSWERED, postgresql_where=_UNANSWERED),)

    id: int | None = Field(default=None, primary_key=True)
    key: str = Field(unique=True)
    by: str = Field(sa_type=Text)
    at: datetime
    kind: str
    body: str = Field(sa_type=Text)
    answer: str | None = Field(default=None, sa_type=Text)


class JobRow(SQLModel, table=True):
    """A job; `team` repeats what its spec says, to search by."""

    __tablename__ = "jobs"

    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    spec: str = Field(sa_type=Text)
    spec_hash: str
    owner: str = Field(index=True)
    team: str = Field(index=True)
    channel: str
    state: str = Field(index=True)
    submitted_at: datetime
    decided_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    approval_why: str = Field(sa_type=Text)
    decided_by: str
    why: str = Field(sa_type=Text)
    cancelled_by: str
    handed_over: bool
    told_wait: str
    told_deadline: bool
    preemptions: int
    used_gpu_s: float
    kept_gpu_s: float
    lost_gpu_s: float
    kept: str = Field(sa_type=Text, sa_column_kwargs={"server_default": "{}"})
    rerun_of: int | None
    digests: str = Field(sa_type=Text, sa_column_kwargs={"server_default": "{}"})
    unresolved: str = Field(sa_type=Text, sa_column_kwargs={"server_default": "{}"})
    version: int


class TaskRow(SQLModel, table=True):
    """A task; `position` is its place among all tasks of its job."""

    __tablename__ = "tasks"

    job: int = Field(primary_key=True, foreign_key="jobs.id")
    name: str = Field(primary_key=True)
    position: int
    step: str
    index: int
    state: str
    since: datetime
    wait: str | None = Field(sa_type=Text)
    failures: int
    unseen: int
    ran_s: float
    progress: str | None = Field(sa_type=Text)


class RunRow(SQLModel, table=True):
    """One attempt of a task; `gpus` repeats the sum of its placement, to add up by."""

    __tablename__ = "runs"
    __table_args__ = (
        ForeignKeyConstraint(["job", "task"], ["tasks.job", "tasks.name"]),
        Index("runs_of_task", "job", "task"),
    )

    uid: str = Field(primary_key=True)
    job: int
    task: str
    attempt: int
    placement: str = Field(sa_type=Text)
    gpus: int
    state: str = Field(index=True)
    since: datetime
    window_until: datetime | None
    started_at: datetime | None
    intent: str
    intent_at: datetime | None
    kill_at: datetime | None
    intent_why: str = Field(sa_type=Text)
    for_service: str
    ended_at: datetime | None = Field(index=True)
    exit_code: int | None
    message: str = Field(sa_type=Text)
    progress: str | None = Field(sa_type=Text)
    kept_s: float
    lost_s: float
    restart_s: float
    ending_s: float
    told: bool


class NoticeRow(SQLModel, table=True):
    """The outbox. The partial index is the guard: a job ends once, so it is told once."""

    __tablename__ = "notices"
    __table_args__ = (
        Index("notices_one_terminal", "job", unique=True, sqlite_where=_TERMINAL, postgresql_where=_TERMINAL),
        Index("notices_by_expanded", "expanded", "id"),
    )

    id: int | None = Field(default=None, primary_key=True)
    job: int = Field(foreign_key="jobs.id", index=True)
    kind: str
    terminal: bool
    at: datetime
    payload: str = Field(sa_type=Text)
    expanded: bool = False


class DeliveryRow(SQLModel, table=True):
    """One notice on its way to one place."""

    __tablename__ = "deliveries"
    __table_args__ = (UniqueConstraint("notice", "place", name="deliveries_one_a_place"),)

    id: int | None = Field(default=None, primary_key=True)
    notice: int = Field(foreign_key="notices.id")
    place: str
    state: str = Field(index=True)
    channel: str = ""
    ts: str = ""
    tries: int = 0
    error: str = Field(default="", sa_type=Text)


class CardRow(SQLModel, table=True):
    """The card of a job; `drawn` counts all drawings, so the smallest was drawn longest ago."""

    __tablename__ = "cards"
    __table_args__ = (Index("cards_by_message", "channel", "ts"),)

    job: int = Field(primary_key=True, foreign_key="jobs.id")
    channel: str
    ts: str
    shown_version: int
    drawn: int


class SeenRow(SQLModel, table=True):
    """Keys of deliveries from Slack that were taken in already."""

    __tablename__ = "seen"

    key: str = Field(primary_key=True)
    at: datetime = Field(index=True)


class BoardRow(SQLModel, table=True):
    """One row: what is free now."""

    __tablename__ = "boards"

    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    board: str = Field(sa_type=Text)


class TurnRow(SQLModel, table=True):
    """Snapshot and plan of a turn, compressed."""

    __tablename__ = "turns"

    id: int | None = Field(default=None, primary_key=True)
    at: datetime = Field(index=True)
    acted: bool
    snapshot: bytes
    plan: bytes


class ObservedRow(SQLModel, table=True):
    """What one service had and wanted."""

    __tablename__ = "observations"

    id: int | None = Field(default=None, primary_key=True)
    at: datetime = Field(index=True)
    service: str
    have: int
    want: int


class HandBackRow(SQLModel, table=True):
    """One hand-back, from the first sign of need to the new replica."""

    __tablename__ = "hand_backs"

    service: str = Field(primary_key=True)
    decided_at: datetime = Field(primary_key=True)
    signal_at: datetime
    freed_at: datetime | None
    ready_at: datetime | None
    gpus: int


class AuditRow(SQLModel, table=True):
    """Who decided what; `job` may be one that never came to be."""

    __tablename__ = "audits"

    id: int | None = Field(default=None, primary_key=True)
    at: datetime
    who: str
    what: str
    job: int | None
    detail: str = Field(sa_type=Text)


class LeaderRow(SQLModel, table=True):
    """One row, made with the schema: who leads until when, and the newest fencing token."""

    __tablename__ = "leader"

    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    owner: str
    token: int
    until: datetime


def _table(row: type[SQLModel]) -> Table:
    return SQLModel.metadata.tables[str(row.__tablename__)]


requests = _table(RequestRow)
jobs = _table(JobRow)
tasks = _table(TaskRow)
runs = _table(RunRow)
notices = _table(NoticeRow)
deliveries = _table(DeliveryRow)
cards = _table(CardRow)
seen = _table(SeenRow)
boards = _table(BoardRow)
turns = _table(TurnRow)
observations = _table(ObservedRow)
hand_backs = _table(HandBackRow)
audits = _table(AuditRow)
leader = _table(LeaderRow)
metadata = SQLModel.metadata
