"""Notices to Slack: each to its places, in order, exactly once; and the card of each job, as new as the job."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from bot import cards, news
from bot.blocks import Message
from bot.desk import Desk
from bot.files import Files
from bot.history import History
from bot.outbound import Arguments, NotSent, Outbound, Outcome, Refused, Sent, Unsure
from scheduler.errors import Unavailable
from scheduler.jobs.job import JobId
from scheduler.jobs.mail import TERMINAL_NOTICES, Notice, NoticeKind
from scheduler.store.mailbox import Card, Delivery, DeliveryState, JobView

log = logging.getLogger("gpujob.bot.courier")

ROUND_S = 0.2  # between two looks into the outbox
LOOK = 500  # deliveries of one look
AGAIN_S = 1.0  # before a line that got stuck is tried again
JOB_LINE, CARD_LINE = "job-", "card of job-"
CHANNEL_ERRORS = frozenset(
    {
        "channel_not_found",
        "is_archived",
        "not_in_channel",
        "restricted_action",
        "restricted_action_read_only_channel",
        "restricted_action_thread_only_channel",
        "restricted_action_non_threadable_channel",
        "restricted_action_thread_locked",
    }
)
TOKEN_ERRORS = frozenset({"account_inactive", "invalid_auth", "not_authed", "token_revoked", "token_expired"})
LAYOUT_ERRORS = frozenset({"invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long"})
UNREADABLE = (LookupError, TypeError, ValueError, AttributeError)  # what a row or a payload of another version raises


def places(notice: Notice, owner: str) -> tuple[str, ...]:
    """Where a notice must be read: the job's card or thread, and the direct messages it asks for."""
    first = "card" if notice.kind is NoticeKind.SUBMITTED else "thread"
    nth = notice.payload.get("nth")
    again = notice.kind is NoticeKind.PREEMPTED and isinstance(nth, int) and nth >= 2
    readers: list[str] = []
    if notice.kind in TERMINAL_NOTICES or again:
        readers.append(owner)
    approvers = notice.payload.get("approvers")
    if notice.kind is NoticeKind.APPROVAL_NEEDED and isinstance(approvers, list | tuple):
        readers += [str(person) for person in approvers]
    found = dict.fromkeys(f"dm:{reader}" for reader in readers if cards.is_slack_user(reader))
    return (first, *found)


class Courier:
    """Carries what is in the outbox. A line (one job's thread, one person's DM) keeps its order; lines are apart.

    Only a DM waits for another line: what it speaks of stands in the job's card or thread first.
    """

    def __init__(self, desk: Desk, outbound: Outbound, files: Files, *, channel: str, zone: ZoneInfo) -> None:
        self._desk = desk
        self._outbound = outbound
        self._files = files
        self._history = History(outbound)
        self._channel = channel
        self._zone = zone
        self._lines: dict[str, asyncio.Task[None]] = {}
        self._stuck_until: dict[str, float] = {}
        self._cards: defaultdict[JobId, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._metadata: dict[JobId, Arguments] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Rounds until told to stop."""
        while not self._stopping.is_set():
            try:
                pause = ROUND_S if await self.round() else AGAIN_S
            except Unavailable as error:
                log.warning("database_unavailable why=%s", error)
                pause = ROUND_S
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                continue

    async def stop(self, grace_s: float) -> None:
        """Starts nothing new; what is on its way gets `grace_s`."""
        self._stopping.set()
        if self._lines:
            _, late = await asyncio.wait(list(self._lines.values()), timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def round(self) -> bool:
        """One look into the outbox: new notices get their places, due lines and old cards get under way.

        False if something in it cannot be read.
        """
        readable = True
        for look in (self._expand, self._start_lines, self._start_redraws):
            try:
                await look()
            except UNREADABLE:
                # A row of another version of the scheduler must not end the carrying, nor stop what it does not touch.
                log.exception("outbox_unreadable look=%s", look.__name__)
                readable = False
        return readable

    async def _expand(self) -> None:
        mailbox = self._desk.mailbox
        for notice in await self._desk.read(mailbox.unexpanded):
            view = await self._desk.read(mailbox.job, notice.job)
            await self._desk.read(mailbox.expand, notice, places(notice, view.job.owner if view else ""))

    async def _start_lines(self) -> None:
        # Read before `due`: a line that ends in between would be walked again with what it has just delivered. Left
        # out of it: what a slow channel holds up must not fill the look and hide what is due elsewhere.
        busy = self._busy()
        lines: defaultdict[str, list[Delivery]] = defaultdict(list)
        due = await self._desk.read(
            self._desk.mailbox.due,
            LOOK,
            busy_jobs=_jobs(busy, JOB_LINE),
            busy_places=[name for name in busy if name.startswith("dm:")],
        )
        for delivery in _in_turn(due):
            lines[_line(delivery)].append(delivery)
        for name, deliveries in lines.items():
            self._start(name, busy, lambda deliveries=deliveries: self._walk(deliveries))  # type: ignore[misc]

    async def _start_redraws(self) -> None:
        busy = self._busy()
        stale = await self._desk.read(self._desk.mailbox.stale_cards, busy_jobs=_jobs(busy, CARD_LINE))
        for card in stale:
            self._start(f"{CARD_LINE}{card.job}", busy, lambda card=card: self._redraw(card))  # type: ignore[misc]

    def _busy(self) -> frozenset[str]:
        """Lines that are under way, or wait after they got stuck."""
        now = asyncio.get_running_loop().time()
        self._stuck_until = {name: until for name, until in self._stuck_until.items() if until > now}
        return frozenset((*self._lines, *self._stuck_until))

    def _start(self, name: str, busy: frozenset[str], walk: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        if name in busy:
            return
        task = asyncio.create_task(self._carry(name, walk))
        self._lines[name] = task

    async def _carry(self, name: str, walk: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        moved = False
        try:
            moved = await walk()
        except Unavailable as error:
            log.warning("database_unavailable line=%s why=%s", name, error)
        except UNREADABLE:
            # One message that cannot be drawn must not stop the others; it stays due and the log names it.
            log.exception("line_broken line=%s", name)
        finally:
            self._lines.pop(name, None)
            if moved:
                self._stuck_until.pop(name, None)
            else:
                self._stuck_until[name] = asyncio.get_running_loop().time() + AGAIN_S

    async def _walk(self, deliveries: Sequence[Delivery]) -> bool:
        for delivery in deliveries:
            if self._stopping.is_set() or not await self._deliver(delivery):
                return False
        return True

    async def _deliver(self, delivery: Delivery) -> bool:
        """True when it is settled: delivered, or given up for good."""
        view = await self._desk.read(self._desk.mailbox.job, delivery.notice.job)
        if view is None:
            return await self._give_up(delivery, "its job does not exist")
        if delivery.place == "card":
            return await self._deliver_card(delivery, view)
        if delivery.place == "thread":
            return await self._deliver_reply(delivery, view)
        return await self._deliver_dm(delivery, view)

    async def _deliver_card(self, delivery: Delivery, view: JobView) -> bool:
        metadata = news.metadata(delivery.notice, "card")
        known = await self._desk.read(self._desk.mailbox.card, view.job.id)
        if known is not None:
            return await self._done(delivery, known.channel, known.ts)
        await self._desk.read(self._desk.mailbox.tried, delivery.id)
        card = await self._place_card(view, metadata, look=delivery.state is DeliveryState.TRIED)
        if isinstance(card, Card):
            return await self._done(delivery, card.channel, card.ts)
        return await self._settle(delivery, card)

    async def _deliver_reply(self, delivery: Delivery, view: JobView) -> bool:
        card = await self._desk.read(self._desk.mailbox.card, view.job.id)
        if card is None:
            return await self._give_up(delivery, "its job has no card: Slack refused to take one")
        notice = delivery.notice
        if delivery.state is DeliveryState.TRIED:
            found = await self._history.reply(card.channel, card.ts, int(notice.id), "thread", notice.at)
            if isinstance(found, str) and found:
                return await self._done(delivery, card.channel, found)
            if not isinstance(found, str):
                return await self._settle(delivery, found)
        await self._desk.read(self._desk.mailbox.tried, delivery.id)
        message, metadata = news.in_thread(notice, self._zone), news.metadata(notice, "thread")
        outcome = await self._post(card.channel, message, metadata, thread_ts=card.ts)
        if _lost_its_parent(outcome) or (isinstance(outcome, Refused) and outcome.error in CHANNEL_ERRORS):
            moved = await self._another_card(card, view, outcome)
            if not isinstance(moved, Card):
                return await self._settle(delivery, moved)
            card = moved
            outcome = await self._post(card.channel, message, metadata, thread_ts=card.ts)
        settled = await self._settle(delivery, outcome)
        if isinstance(outcome, Sent) and news.long_log(notice):
            await self._share_log(card, notice)
        return settled

    async def _share_log(self, card: Card, notice: Notice) -> None:
        why = await self._files.share(card.channel, card.ts, news.log_file(notice), news.long_log(notice))
        if why:
            said = {"channel": card.channel, "thread_ts": card.ts, "text": why}
            await self._outbound.call("chat.postMessage", said, channel=card.channel)

    async def _deliver_dm(self, delivery: Delivery, view: JobView) -> bool:
        channel = await self._history.dm(delivery.place.removeprefix("dm:"))
        if not isinstance(channel, str):
            return await self._settle(delivery, channel)
        if delivery.state is DeliveryState.TRIED:
            found = await self._history.message(channel, int(delivery.notice.id), delivery.place, delivery.notice.at)
            if isinstance(found, str) and found:
                return await self._done(delivery, channel, found)
            if not isinstance(found, str):
                return await self._settle(delivery, found)
        await self._desk.read(self._desk.mailbox.tried, delivery.id)
        message = news.in_dm(delivery.notice, view.job.spec.name, self._zone)
        outcome = await self._post(channel, message, news.metadata(delivery.notice, delivery.place))
        return await self._settle(delivery, outcome)

    async def _place_card(
        self, view: JobView, metadata: Arguments, *, look: bool, instead_of: Card | None = None, avoid: str = ""
    ) -> Card | Outcome:
        """The card in the first channel that takes it: the job's, ours, or the DM of its owner."""
        homes = await self._homes(view, avoid)
        job = view.job
        if look:
            for home in homes:
                found = await self._history.card(home, job.label, job.submitted_at, instead_of.ts if instead_of else "")
                if not isinstance(found, str):
                    return found
                if found:
                    return await self._keep(Card(job=job.id, channel=home, ts=found, shown_version=-1), metadata)
        outcome: Outcome = Refused(error="no_channel", details="the job names no channel, and neither do the settings")
        for home in homes:
            outcome = await self._post(home, cards.job_card(view, self._zone), metadata)
            if isinstance(outcome, Sent):
                ts = str(outcome.data["ts"])
                where = str(outcome.data.get("channel") or home)
                return await self._keep(Card(job=job.id, channel=where, ts=ts, shown_version=job.version), metadata)
            if not isinstance(outcome, Refused) or outcome.error in TOKEN_ERRORS:
                return outcome
            log.warning("card_refused job=%s channel=%s error=%s", job.label, home, outcome.error)
        return outcome

    async def _homes(self, view: JobView, avoid: str) -> list[str]:
        homes = [view.job.channel or self._channel]
        if cards.is_slack_user(view.job.owner):
            dm = await self._history.dm(view.job.owner)
            if isinstance(dm, str):
                homes.append(dm)
        return [home for home in dict.fromkeys(homes) if home and home != avoid]

    async def _another_card(self, old: Card, view: JobView, outcome: Outcome) -> Card | Outcome:
        """A new card for one that is gone or cannot be reached; made once, whoever notices first."""
        async with self._cards[old.job]:
            if isinstance(outcome, Sent):
                # Slack put the reply into the channel itself; there it tells nobody what it belongs to.
                stray = {"channel": old.channel, "ts": str(outcome.data["ts"])}
                await self._outbound.call("chat.delete", stray, channel=old.channel)
            now = await self._desk.read(self._desk.mailbox.card, old.job)
            if now is not None and now.ts != old.ts:
                return now
            metadata = await self._card_metadata(old)
            avoid = old.channel if isinstance(outcome, Refused) and outcome.error in CHANNEL_ERRORS else ""
            return await self._place_card(view, metadata, look=True, instead_of=old, avoid=avoid)

    async def _keep(self, card: Card, metadata: Arguments) -> Card:
        self._metadata[card.job] = metadata
        await self._desk.read(self._desk.mailbox.card_posted, card)
        return card

    async def _redraw(self, old: Card) -> bool:
        """The card shows the newest state; the state is read when the update leaves, not when it was asked for."""
        metadata = await self._card_metadata(old)
        drawn: list[Card] = []

        async def newest() -> Arguments | None:
            card = await self._desk.read(self._desk.mailbox.card, old.job)
            view = await self._desk.read(self._desk.mailbox.job, old.job)
            if card is None or view is None:
                return None
            drawn[:] = [Card(job=card.job, channel=card.channel, ts=card.ts, shown_version=view.job.version)]
            shown = _shown(cards.job_card(view, self._zone))
            return {"channel": card.channel, "ts": card.ts, "metadata": metadata, **shown}

        outcome = await self._outbound.call("chat.update", newest, channel=old.channel)
        if not drawn:
            return isinstance(outcome, Sent)
        if isinstance(outcome, Refused) and outcome.error not in TOKEN_ERRORS:
            return await self._card_is_gone(drawn[0], outcome)
        if isinstance(outcome, Sent):
            current = await self._desk.read(self._desk.mailbox.card, old.job)
            if current is not None and current.ts == drawn[0].ts:
                await self._desk.read(self._desk.mailbox.card_posted, drawn[0])
            return True
        return False

    async def _card_is_gone(self, card: Card, outcome: Refused) -> bool:
        view = await self._desk.read(self._desk.mailbox.job, card.job)
        if view is None:
            return True
        moved = await self._another_card(card, view, outcome)
        if isinstance(moved, Refused):
            # Nobody takes it: what it would have shown counts as shown, or we would ask again for ever.
            log.error("card_lost job=job-%s error=%s", card.job, moved.error)
            await self._desk.read(self._desk.mailbox.card_posted, card)
            return True
        return isinstance(moved, Card)

    async def _card_metadata(self, card: Card) -> Arguments:
        """As it was posted: chat.update drops metadata that is not said again."""
        if card.job not in self._metadata:
            payload = {"job": f"job-{card.job}", "kind": NoticeKind.SUBMITTED.value, "place": "card"}
            found = await self._history.metadata(card.channel, card.ts)
            self._metadata[card.job] = found or {"event_type": news.EVENT_TYPE, "event_payload": payload}
        return self._metadata[card.job]

    async def _post(self, channel: str, message: Message, metadata: Arguments, thread_ts: str = "") -> Outcome:
        base: dict[str, Any] = {"channel": channel, "metadata": metadata, "unfurl_links": False, "unfurl_media": False}
        if thread_ts:
            base["thread_ts"] = thread_ts
        outcome = await self._outbound.call("chat.postMessage", {**base, **_shown(message)}, channel=channel)
        if isinstance(outcome, Refused) and outcome.error in LAYOUT_ERRORS:
            log.error("blocks_refused channel=%s details=%s", channel, outcome.details)
            outcome = await self._outbound.call("chat.postMessage", {**base, "text": message.text}, channel=channel)
        return outcome

    async def _settle(self, delivery: Delivery, outcome: Outcome) -> bool:
        match outcome:
            case Sent(data=data):
                return await self._done(delivery, str(data.get("channel", "")), str(data.get("ts", "")))
            case Refused(error=error) if error not in TOKEN_ERRORS:
                return await self._give_up(delivery, error)
            case Refused(error=error):
                log.error("token_refused error=%s effect=nothing is posted until the app is installed again", error)
            case Unsure(why=why) | NotSent(why=why):
                log.warning("post_unsettled notice=%s place=%s why=%s", delivery.notice.id, delivery.place, why)
        return False

    async def _done(self, delivery: Delivery, channel: str, ts: str) -> bool:
        await self._desk.read(self._desk.mailbox.delivered, delivery.id, channel, ts)
        return True

    async def _give_up(self, delivery: Delivery, error: str) -> bool:
        log.error("gave_up notice=%s place=%s error=%s", delivery.notice.id, delivery.place, error)
        await self._desk.read(self._desk.mailbox.gave_up, delivery.id, error)
        return True


def _in_turn(due: Sequence[Delivery]) -> list[Delivery]:
    """Without direct messages about what does not stand in its job's card or thread yet."""
    first = {delivery.notice.id for delivery in due if not delivery.place.startswith("dm:")}
    return [delivery for delivery in due if not delivery.place.startswith("dm:") or delivery.notice.id not in first]


def _line(delivery: Delivery) -> str:
    return delivery.place if delivery.place.startswith("dm:") else f"{JOB_LINE}{delivery.notice.job}"


def _jobs(lines: Iterable[str], kind: str) -> list[JobId]:
    return [JobId(int(name.removeprefix(kind))) for name in lines if name.startswith(kind)]


def _shown(message: Message) -> dict[str, Any]:
    return {"text": message.text, "blocks": list(message.blocks)} if message.blocks else {"text": message.text}


def _lost_its_parent(outcome: Outcome) -> bool:
    return isinstance(outcome, Sent) and not outcome.data.get("message", {}).get("thread_ts")
