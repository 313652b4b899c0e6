"""What people want changed: kept in the mailbox first, then answered. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from bot import blocks, commands, words
from bot.blocks import Act, Message
from bot.commands import Command
from bot.desk import WATCH_S, Desk
from bot.slack_text import escape, named
from bot.voice import Line, Voice
from scheduler.jobs import jobfile, mail
from scheduler.jobs.job import job_id
from scheduler.jobs.mail import Answer, RequestId

KEEP_S = 0.7  # an acknowledgement waits so long for the row; see docs/decisions/0002-kept-before-the-ack.md
AGAIN_S = 10.0  # the same command text within this is the same wish

T = TypeVar("T")
Show = Callable[[Answer], Awaitable[Message]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Something that a person asks of the scheduler."""

    key: str  # of the delivery: the same key twice is the same wish
    body: mail.Body
    typed: str = ""  # the same text again within seconds is the same wish; "" is never the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A wish on its way into the mailbox."""

    row: asyncio.Task[RequestId]
    again: bool = False  # the same person typed the same a moment ago, and this is that wish

    async def settle(self) -> None:
        """Until the row is there, but not for long; whether it is, `row` knows."""
        await asyncio.wait({self.row}, timeout=KEEP_S)


def of_command(command: Command, line: Line, key: str, typed: str) -> Wish | None:
    """What a typed command wants changed; None if it only asks, or cannot be read."""
    match command:
        case commands.SubmitText(text=text, is_file=is_file):
            parsed = read_job(command)
            if parsed.spec is None or parsed.errors:
                return None
            file = text if is_file else jobfile.dump(parsed.spec)
            body = mail.Submit(text=file, channel=line.home, source="file" if is_file else "one-liner")
            return Wish(key=key, body=body, typed=typed)
        case commands.DecideJob(job=job, approve=approve, reason=reason):
            return Wish(key=key, body=mail.Decide(job=job, approve=approve, reason=reason))
        case commands.RerunJob(job=job, from_step=from_step, params=params):
            return Wish(key=key, body=mail.Rerun(job=job, from_step=from_step, params=params, channel=line.home))
        case _:
            return None


def read_job(command: commands.SubmitText) -> jobfile.Parsed:
    """The job behind `submit`, or what is wrong with it."""
    return jobfile.parse(command.text) if command.is_file else jobfile.one_line(command.text)


def of_click(act: Act, value: str, line: Line, key: str) -> Wish | None:
    """What a button wants changed; None if it only asks, or is from an older version of us."""
    job = job_id(value)
    if job is None:
        return None
    match act:
        case Act.APPROVE:
            return Wish(key=key, body=mail.Decide(job=job, approve=True))
        case Act.CANCEL:
            return Wish(key=key, body=mail.Cancel(job=job))
        case Act.RERUN:
            return Wish(key=key, body=mail.Rerun(job=job, channel=line.home))
        case _:
            return None


class Wishes:
    """Keeps wishes, and follows each until its person has an answer."""

    def __init__(self, desk: Desk, voice: Voice) -> None:
        self._desk = desk
        self._voice = voice
        self._under_way: set[asyncio.Task[Any]] = set()
        self._recent: dict[tuple[str, str], tuple[float, asyncio.Task[RequestId]]] = {}
        self._stopping = asyncio.Event()

    async def stop(self, grace_s: float) -> None:
        """Who still waits for an answer is told that the request is kept."""
        self._stopping.set()
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=grace_s)

    def keep(self, user: str, wish: Wish) -> Kept:
        """Starts to write the wish down."""
        now = asyncio.get_running_loop().time()
        self._recent = {same: first for same, first in self._recent.items() if now - first[0] < AGAIN_S}
        same = (user, wish.typed)
        if wish.typed and same in self._recent:
            return Kept(row=self._recent[same][1], again=True)
        row = self._start(self._desk.ask(wish.key, user, wish.body))
        if wish.typed:
            self._recent[same] = (now, row)
            row.add_done_callback(lambda ended: self._forget_failed(same, ended))
        return Kept(row=row)

    async def follow(self, line: Line, kept: Kept, show: Show | None = None, *, replace: bool = False) -> None:
        """The answer now, or the promise of one.

        Raises:
            Unavailable: the database did not answer; nothing is kept.
        """
        request = await asyncio.shield(kept.row)
        show = show or (_again if kept.again else _told)
        answer = await self._desk.answer(request)
        if answer is not None:
            await self._voice.say(line, await show(answer), replace=replace)
            return
        self._start(self._later(line, request, show))
        await self._voice.say(line, Message(text=words.TAKEN))

    async def _later(self, line: Line, request: RequestId, show: Show) -> None:
        waiting = asyncio.ensure_future(self._desk.answer(request, WATCH_S))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not waiting.done():
            waiting.cancel()
            await self._voice.say(line, Message(text=words.RESTARTING))
            return
        answer = waiting.result()
        await self._voice.say(line, Message(text=words.LATE) if answer is None else await show(answer))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    def _forget_failed(self, same: tuple[str, str], row: asyncio.Task[RequestId]) -> None:
        # Nothing was taken in, so the same text again is a new wish.
        if row.cancelled() or row.exception() is not None:
            self._recent.pop(same, None)


async def _told(answer: Answer) -> Message:
    text = escape(answer.text)
    shown = named(text)
    return Message(text=text) if shown == text else blocks.message(shown, [blocks.section(shown)])


async def _again(answer: Answer) -> Message:
    return await _told(answer) if answer.job is None else Message(text=words.already_submitted(f"job-{answer.job}"))
