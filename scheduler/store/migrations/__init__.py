"""The schema's history, and the way to its newest state."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection
from sqlalchemy.engine import make_url

from scheduler.store import tables
from scheduler.store.database import Database


def migrate(url: str) -> None:
    """Brings the schema to its newest revision; makes the folder of a SQLite file. Said twice, it is done once.

    Raises:
        BadInput: the URL cannot be used.
        Unavailable: the database did not answer.
    """
    database = Database(url)
    _make_folder(url)
    with database.closing(), database.writing() as connection:
        command.upgrade(_config(connection), "head")


def clear(url: str) -> None:
    """Takes the whole schema back, with all that is in it.

    Raises:
        BadInput: the URL cannot be used.
        Unavailable: the database did not answer.
    """
    database = Database(url)
    with database.closing(), database.writing() as connection:
        command.downgrade(_config(connection), "base")


def current(url: str) -> str:
    """The revision of the schema; "" for an empty database.

    Raises:
        BadInput: the URL cannot be used.
        Unavailable: the database did not answer.
    """
    database = Database(url)
    with database.closing(), database.reading() as connection:
        return MigrationContext.configure(connection).get_current_revision() or ""


def differences(url: str) -> tuple[str, ...]:
    """Where the database's schema is not that of the tables; none after `migrate`.

    Raises:
        BadInput: the URL cannot be used.
        Unavailable: the database did not answer.
    """
    database = Database(url)
    with database.closing(), database.reading() as connection:
        return tuple(str(found) for found in compare_metadata(MigrationContext.configure(connection), tables.metadata))


def _make_folder(url: str) -> None:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    return config
