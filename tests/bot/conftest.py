from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from bot.app import Bot, running
from bot.playground.server import Playground
from bot.settings import BotSettings, Slack
from scheduler.store.mailbox import Mailbox
from scheduler.store.migrations import migrate
from scheduler.store.sql import SqlStore
from tests.bot.answering import Answering, now

T = TypeVar("T")


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("schema") / "gpujob.sqlite3"
    migrate(f"sqlite:///{file}")
    return file


@pytest.fixture
def url(migrated: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated, tmp_path / 'gpujob.sqlite3')}"


@pytest.fixture
def mailbox(url: str) -> Iterator[Mailbox]:
    mailbox = Mailbox(url)
    yield mailbox
    mailbox.close()


@pytest.fixture
async def scheduler(url: str) -> AsyncIterator[Answering]:
    store = SqlStore(url)
    answering = Answering(store, approvers=("U0BO", "U0CY"))
    task = asyncio.create_task(answering.run())
    yield answering
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    store.close()


@pytest.fixture
async def slack() -> AsyncIterator[Playground]:
    async with Playground(port=0, speed=50) as slack:
        yield slack


async def eventually(found: Callable[[], T], timeout_s: float = 5.0) -> T:
    """Waits until `found` finds something; time runs on, so only what never comes costs the whole of it."""
    async with asyncio.timeout(timeout_s):
        while not (value := found()):
            await asyncio.sleep(0.01)
        return value


def settings(slack: Playground, url: str, approvers: tuple[str, ...] = ("U0BO", "U0CY"), **more: object) -> BotSettings:
    chosen = {
        "bot_token": slack.bot_token,
        "app_token": slack.app_token,
        "base_url": slack.base_url,
        "channel": slack.C_GPU,
        "posts_per_second": 50,
        **more,
    }
    return BotSettings(
        slack=Slack.model_validate(chosen),
        database_url=url,
        approvers=approvers,
        currency="USD",
        per_gpu_hour=2.0,
        timezone="Asia/Seoul",
    )


@dataclass
class Office:
    """The bot, the people's Slack, and the scheduler behind it."""

    slack: Playground
    scheduler: Answering
    mailbox: Mailbox
    url: str
    bot: Bot

    async def said(self, user: str, text: str, words: str, channel: str = "C0GPU") -> str:
        """Types a command and waits for an answer with these words in it."""
        result = await self.slack.command(user, channel, text)
        assert result.acked_s is not None
        return await self.heard(result, words)

    async def heard(self, result: object, words: str) -> str:
        def found() -> str:
            texts = [str(message["text"]) for message in result.responses]  # type: ignore[attr-defined]
            return next((text for text in texts if words in text), "")

        try:
            return await eventually(found)
        except TimeoutError:
            texts = [message["text"] for message in result.responses]  # type: ignore[attr-defined]
            pytest.fail(f"nobody said {words!r}, but: {texts}")

    def notices(self, channel: str, ts: str = "") -> list[dict[str, object]]:
        """The metadata of the notices in a channel, or in a thread."""
        messages = self.slack.thread(channel, ts) if ts else self.slack.messages(channel)
        return [message["metadata"]["event_payload"] for message in messages if message.get("metadata")]

    async def card(self, number: int = 1, channel: str = "C0GPU", timeout_s: float = 5.0) -> dict[str, object]:
        """The card of a job, once it stands in the channel and is recorded."""

        def found() -> dict[str, object] | None:
            cards = [
                message
                for message in self.slack.messages(channel)
                if (message.get("metadata") or {}).get("event_payload", {}).get("place") == "card"
                and message["metadata"]["event_payload"]["job"] == f"job-{number}"
            ]
            return cards[-1] if cards else None

        card = await eventually(found, timeout_s)
        assert card is not None
        return card


@asynccontextmanager
async def opened(
    slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str, **more: object
) -> AsyncIterator[Office]:
    chosen = settings(slack, url, **more)  # type: ignore[arg-type]
    async with running(chosen, mailbox, now) as bot:
        yield Office(slack=slack, scheduler=scheduler, mailbox=mailbox, url=url, bot=bot)


@pytest.fixture
async def office(slack: Playground, scheduler: Answering, mailbox: Mailbox, url: str) -> AsyncIterator[Office]:
    async with opened(slack, scheduler, mailbox, url) as office:
        yield office
