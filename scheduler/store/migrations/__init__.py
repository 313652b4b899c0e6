"""The schema's history, and the way to its newest state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection
from sqlalchemy.engine import make_url

from scheduler.errors import BadInput
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
        found = compare_metadata(MigrationContext.configure(connection), tables.metadata)
        return tuple(_named(difference) for difference in found)


def _named(difference: Any) -> str:
    """`add_table jobs` from Alembic's tuples; of a changed column it makes a list of them."""
    what, *about = difference[0] if isinstance(difference, list) else difference
    return " ".join([what, *(str(getattr(part, "name", part)) for part in about if part is not None)])


def _make_folder(url: str) -> None:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        folder = Path(parsed.database).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"[database] url: the folder {folder} cannot be made: {error.strerror}") from error


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    return config
