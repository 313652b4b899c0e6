"""Where people are served: each command, click and form, from the question to the answer. Decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from bot import boards, cards, commands, modals, words
from bot.blocks import Act, Message
from bot.commands import Command, Group, Whose
from bot.desk import WATCH_S, Desk
from bot.outbound import Outbound, Refused, Sent
from bot.slack_text import escape
from bot.voice import Line, Voice
from scheduler.errors import Unavailable
from scheduler.jobs import jobfile, mail, usage
from scheduler.jobs.job import TERMINAL_JOB, JobId, JobState, job_id
from scheduler.jobs.mail import Answer, RequestId

log = logging.getLogger("gpujob.bot.counter")

PAGE = 10
AGAIN_S = 10.0  # the same command text within this is the same wish
_STATES = {
    Group.ANY: (),
    Group.WAITING: (JobState.SUBMITTED, JobState.AWAITING_APPROVAL, JobState.WAITING, JobState.PREEMPTED),
    Group.RUNNING: (JobState.RUNNING,),
    Group.DONE: tuple(sorted(TERMINAL_JOB)),
}
_LATE_TRIGGER = frozenset({"expired_trigger_id", "exchanged_trigger_id", "invalid_trigger_id", "trigger_expired"})

Show = Callable[[Answer], Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What a GPU-hour would cost elsewhere."""

    currency: str
    per_gpu_hour: float


class Counter:
    """Serves one wish at a time; many at once. Everything here runs after the acknowledgement."""

    def __init__(self, desk: Desk, outbound: Outbound, voice: Voice, *, zone: ZoneInfo, money: Money) -> None:
        self.voice = voice
        self._desk = desk
        self._outbound = outbound
        self._zone = zone
        self._money = money
        self._watching: set[asyncio.Task[None]] = set()
        self._recent: dict[tuple[str, str], tuple[float, asyncio.Task[RequestId]]] = {}
        self._stopping = asyncio.Event()

    async def stop(self, grace_s: float) -> None:
        """Who still waits for an answer is told that the request is kept."""
        self._stopping.set()
        if self._watching:
            await asyncio.wait(set(self._watching), timeout=grace_s)

    async def serve(self, line: Line, command: Command, trigger: str, text: str) -> None:
        """A typed command."""
        match command:
            case commands.OpenForm():
                await self.open_form(line, trigger)
            case commands.SubmitText(text=job, is_file=is_file):
                await self._submit_text(line, f"command:{trigger}", job, text, is_file=is_file)
            case commands.CancelJob(job=job):
                await self.voice.say(line, await self._cancel_question(job))
            case commands.DecideJob(job=job, approve=approve, reason=reason):
                await self.decide(line, f"command:{trigger}", job, approve=approve, reason=reason)
            case commands.ShowLogs(job=job, step=step):
                await self._logs(line, f"command:{trigger}", job, step)
            case commands.RerunJob(job=job, from_step=from_step, params=params):
                body = mail.Rerun(job=job, from_step=from_step, params=params, channel=_home(line))
                await self._ask(line, f"command:{trigger}", body, _told)
            case _:
                await self.voice.say(line, await self._read(line, command))

    async def press(
        self, line: Line, act: Act, value: str, key: str, trigger: str, place: Line, *, replace: bool
    ) -> None:
        """A button; `place` is the message that it stands on."""
        job = job_id(value)
        if act is Act.PAGE:
            await self.voice.say(line, await self._read(line, commands.parse(f"list {value}")), replace=replace)
            return
        if job is None:
            await self.voice.say(line, Message(text=words.OLD_BUTTON))
            return
        match act:
            case Act.APPROVE:
                await self.decide(line, key, job, approve=True, replace=await self._is_private_copy(job, place))
            case Act.DENY:
                await self._open(line, trigger, modals.deny_form(job))
            case Act.CANCEL:
                await self._ask(line, key, mail.Cancel(job=job), _told, replace=replace)
            case Act.LOGS:
                await self._logs(line, key, job, "")
            case Act.RERUN:
                await self._ask(line, key, mail.Rerun(job=job, channel=_home(line)), _told)
            case _:
                await self.voice.say(line, await self._status(job))

    async def mention(self, line: Line, event: str, text: str) -> None:
        """The bot's name in a thread; an event that Slack sends again does nothing again."""
        if not await self._desk.read(self._desk.mailbox.first_time, f"event:{event}", self._desk.clock()):
            return
        verb = text.rpartition(">")[2].split()[:1]
        job = await self._desk.read(self._desk.mailbox.job_in_thread, line.channel, line.thread_ts)
        command = commands.mention(f"{' '.join(verb)} {job}" if verb else "")
        if not verb or verb[0].lower() not in {"status", "logs", "cancel"}:
            await self.voice.reply(line, Message(text=words.MENTION_ONLY))
        elif job is None:
            await self.voice.reply(line, Message(text=words.NOTHING_SHOWN))
        elif isinstance(command, commands.ShowLogs):
            rest = text.rpartition(">")[2].split()[1:]
            body = mail.Logs(job=job, step=rest[0] if rest else "")
            await self._ask(line, f"event:{event}", body, lambda answer: cards.log(f"job-{job}", answer))
        elif isinstance(command, commands.CancelJob):
            await self._say(line, await self._cancel_question(job))
        else:
            await self._say(line, await self._status(job))

    async def open_form(self, line: Line, trigger: str) -> None:
        """The submit form: a loading view within the trigger's three seconds, the fields when the GPUs are known."""
        view = await self._open(line, trigger, modals.loading())
        if not view:
            return
        try:
            board = await self._desk.read(self._desk.mailbox.board)
        except Unavailable as error:
            log.warning("board_unavailable why=%s", error)
            board = None
        form = modals.submit_form(board, _home(line), self._zone)
        outcome = await self._outbound.call("views.update", {"view_id": view, "view": form})
        # not_found: the person has closed it meanwhile, and knows.
        if not isinstance(outcome, Sent) and not (isinstance(outcome, Refused) and outcome.error == "not_found"):
            log.error("form_failed outcome=%s", outcome)
            await self.voice.say(line, Message(text=words.FORM_FAILED))

    async def submit_file(self, line: Line, key: str, text: str, source: str) -> None:
        """A whole job file."""
        await self._ask(line, key, mail.Submit(text=text, channel=_home(line), source=source), _told)

    async def decide(
        self, line: Line, key: str, job: JobId, *, approve: bool, reason: str = "", replace: bool = False
    ) -> None:
        """Approve or deny; whether this person may is the scheduler's to say, at this moment."""
        body = mail.Decide(job=job, approve=approve, reason=reason)
        await self._ask(line, key, body, _told, replace=replace)

    async def _submit_text(self, line: Line, key: str, job: str, typed: str, *, is_file: bool) -> None:
        parsed = jobfile.parse(job) if is_file else jobfile.one_line(job)
        if parsed.spec is None or parsed.errors:
            await self.voice.say(line, Message(text=escape(jobfile.shown(parsed.errors))))
            return
        now = asyncio.get_running_loop().time()
        self._recent = {wish: kept for wish, kept in self._recent.items() if now - kept[0] < AGAIN_S}
        before = self._recent.get((line.user, typed))
        if before is not None:
            await self._await(line, await before[1], _again)
            return
        file = job if is_file else jobfile.dump(parsed.spec)
        body = mail.Submit(text=file, channel=_home(line), source="file" if is_file else "one-liner")
        sending = asyncio.create_task(self._desk.ask(key, line.user, body))
        self._recent[line.user, typed] = (now, sending)
        try:
            request = await sending
        except Unavailable:
            # Nothing was taken in, so the same text again is a new wish.
            self._recent.pop((line.user, typed), None)
            raise
        await self._await(line, request, _told)

    async def _logs(self, line: Line, key: str, job: JobId, step: str) -> None:
        await self._ask(line, key, mail.Logs(job=job, step=step), lambda answer: cards.log(f"job-{job}", answer))

    async def _ask(self, line: Line, key: str, body: mail.Body, show: Show, *, replace: bool = False) -> None:
        await self._await(line, await self._desk.ask(key, line.user, body), show, replace=replace)

    async def _await(self, line: Line, request: RequestId, show: Show, *, replace: bool = False) -> None:
        """The answer now, or the promise of one."""
        answer = await self._desk.answer(request)
        if answer is not None:
            await self._say(line, show(answer), replace=replace)
            return
        self._watch(self._later(line, request, show))
        await self._say(line, Message(text=words.TAKEN))

    async def _later(self, line: Line, request: RequestId, show: Show) -> None:
        waiting = asyncio.ensure_future(self._desk.answer(request, WATCH_S))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not waiting.done():
            waiting.cancel()
            await self._say(line, Message(text=words.RESTARTING))
            return
        try:
            answer = waiting.result()
        except Unavailable as error:
            log.warning("answer_unreadable request=%s why=%s", request, error)
            answer = None
        await self._say(line, Message(text=words.LATE) if answer is None else show(answer))

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _say(self, line: Line, message: Message, *, replace: bool = False) -> None:
        if line.thread_ts:
            await self.voice.reply(line, message)
        else:
            await self.voice.say(line, message, replace=replace)

    async def _open(self, line: Line, trigger: str, view: Any) -> str:
        """Opens a modal; its id, or "" after the person was told why not."""
        outcome = await self._outbound.call("views.open", {"trigger_id": trigger, "view": view})
        if isinstance(outcome, Sent):
            return str(outcome.data["view"]["id"])
        late = isinstance(outcome, Refused) and (outcome.error in _LATE_TRIGGER or "trigger" in outcome.details)
        if not late:
            log.error("form_failed outcome=%s", outcome)
        await self.voice.say(line, Message(text=words.TRY_AGAIN if late else words.FORM_FAILED))
        return ""

    async def _read(self, line: Line, command: Command) -> Message:
        """Commands that only show something."""
        match command:
            case commands.Status(job=job):
                return await self._status(job)
            case commands.ListJobs():
                return await self._list(line, command)
            case commands.ShowPool():
                return boards.pool(await self._desk.read(self._desk.mailbox.board), self._zone)
            case commands.ShowReport(month=month):
                return await self._report(month)
            case commands.ShowSettings():
                return Message(text=words.SETTINGS)
            case commands.Help(topic=topic):
                return Message(text=words.help_text(topic))
            case commands.Wrong(sentence=sentence):
                return Message(text=escape(sentence))
            case _:
                return Message(text=words.help_text(""))

    async def _status(self, job: JobId) -> Message:
        view = await self._desk.read(self._desk.mailbox.job, job)
        return cards.job_card(view, self._zone) if view else Message(text=words.no_such_job(f"job-{job}"))

    async def _cancel_question(self, job: JobId) -> Message:
        view = await self._desk.read(self._desk.mailbox.job, job)
        return cards.cancel_question(view) if view else Message(text=words.no_such_job(f"job-{job}"))

    async def _list(self, line: Line, asked: commands.ListJobs) -> Message:
        team = ""
        if asked.whose is Whose.TEAM:
            own = await self._desk.read(self._desk.mailbox.jobs, owner=line.user, limit=50)
            team = next((job.spec.team for job in own if job.spec.team), "")
            if not team:
                return Message(text=words.NO_TEAM)
        found = await self._desk.read(
            self._desk.mailbox.jobs,
            owner=line.user if asked.whose is Whose.MINE else "",
            team=team,
            states=_STATES[asked.group],
            limit=PAGE + 1,
            offset=(asked.page - 1) * PAGE,
        )
        what = f"{asked.whose.value} {asked.group.value}"
        return cards.job_list(found[:PAGE], asked.page, len(found) > PAGE, what, self._zone)

    async def _report(self, month: str) -> Message:
        now = self._desk.clock()
        local = now.astimezone(self._zone)
        name = month or local.strftime("%Y-%m")
        year, number = int(name[:4]), int(name[5:])
        # From the month before it, which the trend compares with.
        since = usage.month_start(local.replace(year=year, month=number, day=1), self._zone) - timedelta(days=32)
        runs = await self._desk.read(self._desk.mailbox.runs, since)
        months = usage.months(
            runs,
            now=now,
            timezone=self._zone,
            price_per_gpu_hour=self._money.per_gpu_hour,
            currency=self._money.currency,
        )
        return boards.report(next((found for found in months if found.month == name), None), name)

    async def _is_private_copy(self, job: JobId, place: Line) -> bool:
        """A copy of the question in an approver's DM; the card itself is redrawn by the courier."""
        if not place.channel.startswith("D"):
            return False
        card = await self._desk.read(self._desk.mailbox.card, job)
        return card is None or card.ts != place.thread_ts


def _home(line: Line) -> str:
    """The channel of a job that is submitted here; in somebody's DM there is none, the settings name one."""
    return line.channel if line.channel.startswith(("C", "G")) else ""


def _told(answer: Answer) -> Message:
    return Message(text=escape(answer.text))


def _again(answer: Answer) -> Message:
    return _told(answer) if answer.job is None else Message(text=words.already_submitted(f"job-{answer.job}"))
