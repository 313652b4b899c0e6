from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from scheduler.errors import BadInput, Unavailable
from scheduler.store.database import Database
from scheduler.store.migrations import clear, current, differences, migrate
from scheduler.store.sql import SqlStore
from tests.store.building import NOW, added


def test_the_schema_of_the_migrations_is_that_of_the_tables_up_and_down_and_up(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/deep/in/gpujob.sqlite3"

    migrate(url)
    assert (current(url), differences(url)) == ("0004", ())

    clear(url)
    assert current(url) == ""
    assert any("jobs" in missing for missing in differences(url))

    migrate(url)
    assert (current(url), differences(url)) == ("0004", ())


def test_migrating_again_keeps_what_is_there(url: str, store: SqlStore):
    store.hold("a", NOW, 30)
    store.record([added(1)], token=1)

    migrate(url)

    assert [job.id for job in store.live().jobs] == [1]
    assert store.hold("b", NOW, 30) is None


def test_a_schema_that_lacks_a_column_is_noticed(url: str):
    database = Database(url)
    with database.writing() as connection:
        connection.execute(text("ALTER TABLE jobs DROP COLUMN why"))
    database.close()

    assert any("why" in missing for missing in differences(url))


@pytest.mark.parametrize(("pragma", "value"), [("journal_mode", "wal"), ("foreign_keys", 1), ("busy_timeout", 10_000)])
def test_sqlite_is_opened_so_that_two_processes_may_share_it(url: str, pragma: str, value: object):
    database = Database(url)
    with database.reading() as connection:
        found = connection.execute(text(f"PRAGMA {pragma}")).scalar()
    database.close()

    assert found == value


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("gpujob.sqlite3", "write sqlite:///PATH"),
        ("sqlite://", "names no file"),
        ("mysql+nothere://gpujob:hunter2@host/gpujob", "write sqlite:///PATH"),
        ("postgresql+psycopg://gpujob:hunter2@host/gpujob", "Python package psycopg"),
    ],
)
def test_a_url_that_cannot_be_used_says_why_and_keeps_its_password(url: str, says: str):
    with pytest.raises(BadInput, match=says) as refused:
        Database(url)

    assert "hunter2" not in str(refused.value)


def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path: Path):
    store = SqlStore(f"sqlite:///{tmp_path}/not/there/gpujob.sqlite3")

    with pytest.raises(Unavailable, match="unable to open"):
        store.live()
    store.close()
