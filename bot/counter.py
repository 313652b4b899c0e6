"""Where people are served: each question, form and mention, until the answer. Decides nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from bot import boards, cards, commands, modals, wishes, words
from bot.blocks import Act, Message
from bot.commands import Command, Group, Whose
from bot.desk import Desk
from bot.files import Files, Unread
from bot.modals import Faults, Filled, Uploaded
from bot.outbound import Outbound, Refused, Sent
from bot.slack_text import escape
from bot.voice import Line, Voice
from bot.wishes import Wish, Wishes
from scheduler.errors import Unavailable
from scheduler.jobs import jobfile, mail, usage
from scheduler.jobs.job import TERMINAL_JOB, JobId, JobState, job_id
from scheduler.jobs.mail import Answer

log = logging.getLogger("gpujob.bot.counter")

PAGE = 10
LOG_LINES = 500  # what does not fit into the answer goes into a file
_STATES = {
    Group.ANY: (),
    Group.WAITING: (JobState.SUBMITTED, JobState.AWAITING_APPROVAL, JobState.WAITING, JobState.PREEMPTED),
    Group.RUNNING: (JobState.RUNNING,),
    Group.DONE: tuple(sorted(TERMINAL_JOB)),
}
_LATE_TRIGGER = frozenset({"expired_trigger_id", "exchanged_trigger_id", "invalid_trigger_id", "trigger_expired"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What a GPU-hour would cost elsewhere."""

    currency: str
    per_gpu_hour: float


class Counter:
    """Serves one question at a time; many at once. What changes something is a wish: see `wishes`."""

    def __init__(
        self,
        desk: Desk,
        outbound: Outbound,
        wishes: Wishes,
        files: Files,
        voice: Voice,
        *,
        zone: ZoneInfo,
        money: Money,
    ) -> None:
        self.voice = voice
        self.wishes = wishes
        self._desk = desk
        self._outbound = outbound
        self._files = files
        self._zone = zone
        self._money = money

    async def serve(self, line: Line, command: Command, trigger: str) -> None:
        """A typed command that changes nothing."""
        match command:
            case commands.OpenForm():
                await self.open_form(line, trigger)
            case commands.SubmitText():
                faults = wishes.read_job(command).errors
                await self.voice.say(line, Message(text=escape(jobfile.shown(faults))))
            case commands.CancelJob(job=job):
                await self.voice.say(line, await self._cancel_question(job))
            case commands.ShowLogs(job=job, step=step):
                await self._logs(line, f"command:{trigger}", job, step)
            case _:
                await self.voice.say(line, await self._read(line, command))

    async def press(self, line: Line, act: Act, value: str, key: str, trigger: str, *, replace: bool) -> None:
        """A button that changes nothing."""
        job = job_id(value)
        if act is Act.PAGE:
            await self.voice.say(line, await self._read(line, commands.parse(f"list {value}")), replace=replace)
        elif job is None:
            await self.voice.say(line, Message(text=words.OLD_BUTTON))
        elif act is Act.DENY:
            await self._open(line, trigger, modals.deny_form(job))
        elif act is Act.LOGS:
            await self._logs(line, key, job, "")
        else:
            await self.voice.say(line, await self._status(job))

    async def replaces(self, act: Act, value: str, place: Line, *, ephemeral: bool) -> bool:
        """Whether the answer to a click takes the place of the message with the button, which nobody needs any more."""
        if act is Act.CANCEL:
            return ephemeral
        job = job_id(value)
        if act is not Act.APPROVE or job is None or not place.channel.startswith("D"):
            return False
        try:
            card = await self._desk.read(self._desk.mailbox.card, job)
        except Unavailable as error:
            log.warning("card_unreadable job=%s why=%s", job, error)
            return False
        # A copy of the question in an approver's DM goes; the card itself is redrawn by the courier.
        return card is None or card.ts != place.thread_ts

    async def mention(self, line: Line, event: str, text: str) -> None:
        """The bot's name in a thread; an event that Slack sends again does nothing again."""
        if not await self._desk.read(self._desk.mailbox.first_time, f"event:{event}", self._desk.clock()):
            return
        verb = text.rpartition(">")[2].split()[:1]
        job = await self._desk.read(self._desk.mailbox.job_in_thread, line.channel, line.thread_ts)
        command = commands.mention(f"{' '.join(verb)} {job}" if verb else "")
        if not verb or verb[0].lower() not in {"status", "logs", "cancel"}:
            await self.voice.say(line, Message(text=words.MENTION_ONLY))
        elif job is None:
            await self.voice.say(line, Message(text=words.NOTHING_SHOWN))
        elif isinstance(command, commands.ShowLogs):
            rest = text.rpartition(">")[2].split()[1:]
            await self._logs(line, f"event:{event}", job, rest[0] if rest else "")
        elif isinstance(command, commands.CancelJob):
            await self.voice.say(line, await self._cancel_question(job))
        else:
            await self.voice.say(line, await self._status(job))

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
        form = modals.submit_form(board, line.home, self._zone)
        outcome = await self._outbound.call("views.update", {"view_id": view, "view": form})
        # not_found: the person has closed it meanwhile, and knows.
        if not isinstance(outcome, Sent) and not (isinstance(outcome, Refused) and outcome.error == "not_found"):
            log.error("form_failed outcome=%s", outcome)
            await self.voice.say(line, Message(text=words.FORM_FAILED))

    async def read_upload(self, uploaded: Uploaded) -> Filled | Faults:
        """The job file that a person uploaded in the form, checked."""
        text = await self._files.read(uploaded.file)
        if isinstance(text, Unread):
            return Faults(by_block={modals.UPLOAD: text.why})
        return modals.checked(text, uploaded.channel, modals.UPLOAD)

    async def _logs(self, line: Line, key: str, job: JobId, step: str) -> None:
        async def show(answer: Answer) -> Message:
            return await self._log(job, answer)

        wish = Wish(key=key, body=mail.Logs(job=job, step=step, lines=LOG_LINES))
        await self.wishes.follow(line, self.wishes.keep(line.user, wish), show)

    async def _log(self, job: JobId, answer: Answer) -> Message:
        """The end of a log; a long one is in a file in the job's thread too, or a sentence says why not."""
        written = cards.long_log(answer)
        if not written:
            return cards.log(f"job-{job}", answer)
        name = words.log_file(f"job-{job}", str(answer.detail.get("task") or ""))
        card = await self._desk.read(self._desk.mailbox.card, job)
        if card is None:
            return cards.log(f"job-{job}", answer, words.NO_THREAD_FOR_LOG)
        why = await self._files.share(card.channel, card.ts, name, written)
        return cards.log(f"job-{job}", answer, why or words.log_is_in(name))

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
