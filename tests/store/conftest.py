from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.store.mailbox import Mailbox
from scheduler.store.migrations import migrate
from scheduler.store.sql import SqlStore


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("schema") / "gpujob.sqlite3"
    migrate(f"sqlite:///{file}")
    return file


@pytest.fixture
def url(migrated: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated, tmp_path / 'gpujob.sqlite3')}"


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    store = SqlStore(url)
    yield store
    store.close()


@pytest.fixture
def mailbox(url: str) -> Iterator[Mailbox]:
    mailbox = Mailbox(url)
    yield mailbox
    mailbox.close()
