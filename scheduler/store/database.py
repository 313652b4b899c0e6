"""One database: whole transactions or none, and its errors in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from scheduler.errors import BadInput, Conflict, Unavailable

_BUSY_MS = 10_000  # SQLite has one writer at a time; another waits so long for its turn
_KEPT_CONNECTIONS = 8
_WRITES = "gpujob_writes"


class Database:
    """A SQLite file or PostgreSQL, named by SQLAlchemy's URL; safe from several threads.

    Raises:
        BadInput: the URL cannot be used.
    """

    def __init__(self, url: str, *, connections: int = 16) -> None:
        engine = _engine(_checked(url), connections)
        self._engine = engine
        # Reads of one transaction belong together; SQLite's always do.
        self._reads = engine if _is_sqlite(engine) else engine.execution_options(isolation_level="REPEATABLE READ")
        self._writes = engine.execution_options(**{_WRITES: True})
        # SQLite lets writers try again after a nap, in no order; a queue of our own threads is fair, and twice as fast.
        self._turn: AbstractContextManager[Any] = Lock() if _is_sqlite(engine) else nullcontext()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One transaction that sees one instant.

        Raises:
            Unavailable: the database did not answer, or has another schema.
        """
        with _our_words(), self._reads.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction that ends whole, or leaves nothing when anything is raised inside.

        Raises:
            Conflict: a row is there already, or one that it needs is not.
            Unavailable: the database did not answer, or has another schema.
            ValueError: an instant without a zone.
        """
        with self._turn, _our_words(), self._writes.begin() as connection:
            yield connection

    def close(self) -> None:
        """Ends its connections."""
        self._engine.dispose()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Ends its connections at the end."""
        try:
            yield
        finally:
            self.close()


def _checked(url: str) -> URL:
    try:
        parsed = make_url(url)
        parsed.get_dialect().import_dbapi()
    except ArgumentError as error:
        # The URL itself may hold a password, so it is not shown.
        raise BadInput("[database] url is no database URL; write sqlite:///PATH or postgresql+psycopg://..") from error
    except ModuleNotFoundError as error:
        raise BadInput(f"[database] url needs the Python package {error.name}; install it beside gpujob") from error
    if parsed.get_backend_name() == "sqlite" and not parsed.database:
        raise BadInput("[database] url names no file; the scheduler and the bot must share one: sqlite:///PATH")
    return parsed


def _is_sqlite(engine: Engine) -> bool:
    return engine.dialect.name == "sqlite"


def _engine(url: URL, connections: int) -> Engine:
    kept = min(connections, _KEPT_CONNECTIONS)
    engine = create_engine(url, pool_size=kept, max_overflow=connections - kept, pool_pre_ping=True)
    if _is_sqlite(engine):
        event.listen(engine, "connect", _open_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _open_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # Python would begin late and by itself; we begin in `_begin_sqlite`
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later would fail at once, without waiting, if another wrote in between.
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def _our_words() -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        raise Conflict(f"the database refused a row: {error.orig}") from error
    except (OperationalError, InterfaceError, ProgrammingError) as error:
        if _refuses_a_row(error):
            raise Conflict(f"the database refused a row: {error.orig}") from error
        raise Unavailable(f"the database did not answer: {error.orig}{_way_out(str(error.orig))}") from error
    except (DataError, OverflowError) as error:
        raise ValueError(str(error)) from error
    except DatabaseError as error:
        # Among them: the file is damaged, or is none of a database.
        raise Unavailable(f"the database cannot be used: {error.orig}") from error
    except PoolTimeout as error:
        raise Unavailable("the database did not answer: all connections are in use") from error
    except StatementError as error:
        raise ValueError(str(error.orig)) from error


def _refuses_a_row(error: DBAPIError) -> bool:
    """PostgreSQL's class 23, which pg8000 reports as an error of the program."""
    said = error.orig.args[0] if error.orig is not None and error.orig.args else None
    return isinstance(said, dict) and str(said.get("C", "")).startswith("23")


def _way_out(said: str) -> str:
    missing = "no such table" in said or "no such column" in said or "does not exist" in said
    return "; run `gpujob migrate`" if missing else ""
