"""What Slack sends us: kept if it changes something, acknowledged, served; alone knows Bolt's decorators."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from slack_bolt.async_app import AsyncApp
from slack_bolt.response import BoltResponse

from bot import commands, modals, wishes, words
from bot.blocks import Act, Message
from bot.counter import Counter
from bot.modals import Faults, Filled, Uploaded
from bot.slack_text import escape
from bot.voice import Line, line_of
from bot.wishes import Wish
from scheduler.errors import Unavailable
from scheduler.jobs import mail

FETCH_S = 1.5  # a form waits so long for the file that was uploaded in it; Slack gives it three seconds in all

log = logging.getLogger("gpujob.bot.listeners")

T = TypeVar("T")
Body = Mapping[str, Any]
Ack = Callable[..., Awaitable[BoltResponse]]
Replaces = Callable[[], Awaitable[bool]]  # whether the answer takes the place of what was clicked


def register(app: AsyncApp, counter: Counter) -> Listeners:
    """Connects everything that Slack may send."""
    listeners = Listeners(counter)
    app.command("/gpujob")(listeners.command)
    for act in (Act.APPROVE, Act.DENY, Act.CANCEL, Act.STATUS, Act.LOGS, Act.RERUN, Act.PAGE):
        app.action(act.value)(listeners.click)
    app.view(Act.SUBMIT_FORM.value)(listeners.submitted)
    app.view(Act.DENY_FORM.value)(listeners.denied)
    app.event("app_mention")(listeners.mention)
    # Last, so that only what nobody knows gets here.
    app.event(re.compile(".*"))(_ignored)
    app.action(re.compile(".*"))(listeners.old_button)
    app.view(re.compile(".*"))(listeners.old_form)
    app.error(listeners.broken)
    return listeners


async def _ignored() -> None:
    """Messages and other events that ask nothing of us."""


class Listeners:
    """Each listener acknowledges before it does anything that can wait or fail.

    Only what somebody wants changed is written down before, for as long as `wishes` allows: who reads that all is
    well types nothing again. See docs/decisions/0002-kept-before-the-ack.md.
    """

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._working: set[asyncio.Task[Any]] = set()

    async def stop(self, grace_s: float) -> None:
        """What was acknowledged is finished, or its person is told that it is kept."""
        await self._counter.wishes.stop(grace_s)
        if self._working:
            await asyncio.wait(set(self._working), timeout=grace_s)

    async def command(self, ack: Ack, body: Body) -> None:
        """`/gpujob ..`."""
        text, trigger = str(body.get("text") or ""), str(body["trigger_id"])
        line, command = line_of(body), commands.parse(text)
        wish = wishes.of_command(command, line, f"command:{trigger}", text)
        if wish is not None:
            await self._work(line, self._grant(ack, line, wish))
            return
        await ack()
        await self._work(line, self._counter.serve(line, command, trigger))

    async def click(self, ack: Ack, body: Body) -> None:
        """One of our buttons."""
        action, line = body["actions"][0], line_of(body)
        key = f"click:{action['action_ts']}:{line.user}:{action['action_id']}"
        act, value = Act(action["action_id"]), str(action.get("value") or "")
        container = body.get("container") or {}
        ephemeral = bool(container.get("is_ephemeral"))
        wish = wishes.of_click(act, value, line, key)
        if wish is not None:
            place = Line(user=line.user, channel=line.channel, thread_ts=str(container.get("message_ts") or ""))
            replaces = partial(self._counter.replaces, act, value, place, ephemeral=ephemeral)
            await self._work(line, self._grant(ack, line, wish, replaces))
            return
        await ack()
        await self._work(line, self._counter.press(line, act, value, key, body["trigger_id"], replace=ephemeral))

    async def submitted(self, ack: Ack, body: Body, view: Body) -> None:
        """The submit form; wrong values stay in it, each with a sentence."""
        person, key = line_of(body).user, f"view:{view['id']}"
        read = modals.read_submit(view)
        if isinstance(read, Uploaded):
            reading = self._keep(asyncio.create_task(self._counter.read_upload(read)))
            await asyncio.wait({reading}, timeout=FETCH_S)
            if not reading.done():
                await ack()
                line = Line(user=person, channel=read.channel)
                await self._work(line, self._grant_upload(line, key, reading))
                return
            read = reading.result()
        if isinstance(read, Faults):
            await ack(response_action="errors", errors=dict(read.by_block))
            return
        line = Line(user=person, channel=read.channel)
        await self._work(line, self._grant(ack, line, _submission(read, key)))

    async def denied(self, ack: Ack, body: Body, view: Body) -> None:
        """The reason of a denial."""
        job, reason = modals.read_deny(view)
        if job is None:
            await ack()
            return
        line = Line(user=line_of(body).user)
        wish = Wish(key=f"view:{view['id']}", body=mail.Decide(job=job, approve=False, reason=reason))
        await self._work(line, self._grant(ack, line, wish))

    async def mention(self, body: Body, event: Body) -> None:
        """The bot's name in a message; Slack repeats events until it is sure, and other bots speak too."""
        if event.get("bot_id") or event.get("subtype") == "bot_message" or not event.get("user"):
            return
        thread = str(event.get("thread_ts") or "")
        line = Line(user=str(event["user"]), channel=str(event["channel"]), thread_ts=thread or str(event["ts"]))
        await self._work(line, self._counter.mention(line, str(body["event_id"]), str(event.get("text") or "")))

    async def old_button(self, ack: Ack, body: Body) -> None:
        """A button of another version of us."""
        await ack()
        line = line_of(body)
        await self._work(line, self._counter.voice.say(line, Message(text=words.OLD_BUTTON)))

    async def old_form(self, ack: Ack, body: Body) -> None:
        """A form of another version of us."""
        await ack()
        line = line_of(body)
        await self._work(line, self._counter.voice.tell(line.user, Message(text=words.OLD_FORM)))

    async def broken(self, error: Exception, body: Body) -> BoltResponse:
        """A bug of ours: the person gets a number that stands in the log too, within Slack's three seconds."""
        error_id = uuid.uuid4().hex[:8]
        log.error("listener_broken error_id=%s", error_id, exc_info=error)
        line = line_of(body)
        if line.user:
            # Not awaited: the acknowledgement that this answer carries must not wait for it.
            self._keep(asyncio.create_task(self._counter.voice.say(line, Message(text=words.broken(error_id)))))
        return BoltResponse(status=200, body="")

    async def _grant(self, ack: Ack, line: Line, wish: Wish, replaces: Replaces | None = None) -> None:
        kept = self._counter.wishes.keep(line.user, wish)
        await kept.settle()
        await ack()
        replace = await replaces() if replaces else False
        await self._counter.wishes.follow(line, kept, replace=replace)

    async def _grant_upload(self, line: Line, key: str, reading: asyncio.Task[Filled | Faults]) -> None:
        """The form is closed already, so faults of its file are told beside it."""
        read = await reading
        if isinstance(read, Faults):
            await self._counter.voice.say(line, Message(text=escape("\n".join(read.by_block.values()))))
            return
        await self._counter.wishes.follow(line, self._counter.wishes.keep(line.user, _submission(read, key)))

    async def _work(self, line: Line, work: Coroutine[Any, Any, None]) -> None:
        task = self._keep(asyncio.create_task(work))
        try:
            await task
        except Unavailable as error:
            log.warning("database_unavailable why=%s", error)
            await self._counter.voice.say(line, Message(text=words.NO_DATABASE))

    def _keep(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return task


def _submission(filled: Filled, key: str) -> Wish:
    return Wish(key=key, body=mail.Submit(text=filled.text, channel=filled.channel, source="form"))
