"""A notice as people read it: the reply in its job's thread, or the direct message. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from zoneinfo import ZoneInfo

from bot import blocks, words
from bot.blocks import Act, Block, Message
from bot.slack_text import cut, escape, moment, tail
from scheduler.jobs.mail import Json, Notice, NoticeKind

EVENT_TYPE = "gpujob_notice"
REASON = 700  # characters of one untrusted sentence; the whole of it is in the card or the log
_TOLD = ("reason", "saved_step", "from_step")  # repeated in the metadata, so that a reader of the history sees them


def metadata(notice: Notice, place: str) -> Mapping[str, object]:
    """What makes a message findable: the notice and the place it was meant for."""
    told = {key: notice.payload[key] for key in _TOLD if notice.payload.get(key) is not None}
    if isinstance(told.get("reason"), str):
        told["reason"] = cut(str(told["reason"]), REASON)
    payload = {"id": int(notice.id), "job": f"job-{notice.job}", "kind": notice.kind.value, "place": place, **told}
    return {"event_type": EVENT_TYPE, "event_payload": payload}


def in_thread(notice: Notice, zone: ZoneInfo) -> Message:
    """The reply in the job's thread."""
    said = _SAY[notice.kind](_Letter(notice.payload, zone))
    return blocks.message(said, [blocks.section(said), *_log(notice)])


def in_dm(notice: Notice, name: str, zone: ZoneInfo) -> Message:
    """The direct message; it names the job, and carries the buttons of a decision that is asked for."""
    said = f"*job-{notice.job}* {escape(name)}: {_SAY[notice.kind](_Letter(notice.payload, zone))}"
    return blocks.message(said, [blocks.section(said), *_log(notice), *_decision(notice)])


class _Letter:
    """A payload, read with care: what a notice lacks is not said."""

    def __init__(self, payload: Mapping[str, Json], zone: ZoneInfo) -> None:
        self._payload = payload
        self._zone = zone

    def text(self, key: str, limit: int = REASON) -> str:
        value = self._payload.get(key)
        return "" if value is None else escape(cut(str(value), limit))

    def number(self, key: str) -> float:
        value = self._payload.get(key)
        return float(value) if isinstance(value, int | float) else 0.0

    def list(self, key: str) -> str:
        value = self._payload.get(key)
        entries = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
        return escape(cut(", ".join(str(entry) for entry in entries), REASON))

    def pairs(self, key: str) -> str:
        value = self._payload.get(key)
        entries = value.items() if isinstance(value, Mapping) else ()
        return escape(cut(", ".join(f"{name}: {entry}" for name, entry in entries), REASON))

    def people(self, key: str) -> str:
        value = self._payload.get(key)
        name = "" if value is None else str(value)
        return f"<@{name}>" if name[:1] in {"U", "W"} and name.isupper() else escape(cut(name, 80))

    def nodes(self) -> str:
        value = self._payload.get("nodes")
        return escape(cut(", ".join(value), REASON)) if isinstance(value, Mapping) and value else "a node"

    def when(self, key: str) -> str:
        value = self._payload.get(key)
        try:
            return moment(datetime.fromisoformat(value), self._zone) if isinstance(value, str) else ""
        except ValueError:
            return escape(cut(str(value), 80))

    def then(self, start: str, key: str, end: str = ".") -> str:
        """A sentence that is said only if its key has a value."""
        value = self.when(key) if key in {"earliest", "window_until", "earliest_end", "deadline"} else self.text(key)
        return f" {start}{value}{end}" if value else ""


def _submitted(letter: _Letter) -> str:
    asked = f"{words.gpus(int(letter.number('gpus')))}"
    hours = f", about {words.gpu_hours(letter.number('gpu_hours'))}" if letter.number("gpu_hours") else ""
    warnings = letter.list("warnings")
    return f"Submitted: {asked}{hours}.{f' Note: {warnings}' if warnings else ''}"


def _approval_needed(letter: _Letter) -> str:
    return f"Needs approval: {letter.list('why') or 'the rules ask for it'}."


def _approved(letter: _Letter) -> str:
    return f"Approved by {letter.people('by') or 'the rules'}."


def _denied(letter: _Letter) -> str:
    return f"Denied by {letter.people('by') or 'the rules'}.{letter.then('Reason: ', 'reason', '')}"


def _waiting(letter: _Letter) -> str:
    earliest = letter.then("Earliest start: ", "earliest") or " Nobody can say yet when it starts."
    return f"Waits: {letter.text('reason') or 'others go first'}.{earliest}"


def _started(letter: _Letter) -> str:
    return (
        f"Started: {letter.text('task')} on {letter.nodes()}, {words.gpus(int(letter.number('gpus')))}."
        f"{letter.then('The window lasts until ', 'window_until')}"
    )


def _preempted(letter: _Letter) -> str:
    who = letter.text("service") or "a service"
    kept, lost = words.duration(letter.number("kept_s")), words.duration(letter.number("lost_s"))
    return (
        f"Preempted: {who} needed {words.gpus(int(letter.number('gpus')))}.{letter.then('', 'reason')}"
        f" Kept {kept} of work, lost {lost}.{letter.then('Saved at step ', 'saved_step')}"
        f"{letter.then('It probably goes on ', 'earliest') or ' It goes on in the next idle window.'}"
    )


def _resumed(letter: _Letter) -> str:
    return (
        f"Resumed: {letter.text('task')} on {letter.nodes()}, {words.gpus(int(letter.number('gpus')))}"
        f"{letter.then('from step ', 'from_step', '')}.{letter.then('The window lasts until ', 'window_until')}"
    )


def _step_done(letter: _Letter) -> str:
    return f"Step {letter.text('step')} is done after {words.duration(letter.number('seconds'))}."


def _deadline_at_risk(letter: _Letter) -> str:
    late = letter.when("earliest_end") or "an unknown time"
    return f"The deadline {letter.when('deadline')} is at risk: it ends at {late} at the earliest."


def _node_lost(letter: _Letter) -> str:
    return f"Node {letter.text('node')} was lost; {letter.list('tasks') or 'its tasks'} will run again elsewhere."


def _completed(letter: _Letter) -> str:
    money = letter.number("money")
    saved = f" Elsewhere this would have cost about {money:,.2f} {letter.text('currency')}." if money else ""
    times = int(letter.number("preemptions"))
    outputs = letter.pairs("outputs")
    return (
        f"Completed: used {words.gpu_hours(letter.number('used_gpu_hours'))}, of which"
        f" {words.gpu_hours(letter.number('lost_gpu_hours'))} were lost; {words.duration(letter.number('queue_s'))}"
        f" in the queue; preempted {times} times.{saved}{f' Outputs: {outputs}' if outputs else ''}"
    )


def _failed(letter: _Letter) -> str:
    code = letter.text("exit_code")
    return (
        f"Failed: {letter.text('task') or letter.text('step') or 'the job'}"
        f"{f' ended with exit code {code}' if code else ''}.{letter.then('', 'why')}"
        f" Used {words.gpu_hours(letter.number('used_gpu_hours'))},"
        f" lost {words.gpu_hours(letter.number('lost_gpu_hours'))}."
    )


def _cancelled(letter: _Letter) -> str:
    return (
        f"Cancelled by {letter.people('by') or 'the scheduler'}."
        f" Used {words.gpu_hours(letter.number('used_gpu_hours'))},"
        f" lost {words.gpu_hours(letter.number('lost_gpu_hours'))}."
    )


def _expired(letter: _Letter) -> str:
    return f"Expired: {letter.text('why') or 'its time ran out'}. Submit it again if you still need it."


def _log(notice: Notice) -> list[Block]:
    lines = notice.payload.get("log")
    return [blocks.preformatted(tail(lines, blocks.SECTION))] if isinstance(lines, str) and lines.strip() else []


def _decision(notice: Notice) -> list[Block]:
    if notice.kind is not NoticeKind.APPROVAL_NEEDED:
        return []
    value, label = str(notice.job), f"job-{notice.job}"
    return [
        blocks.actions(
            [
                blocks.button(Act.APPROVE, "Approve", value, style="primary", spoken=f"Approve {label}"),
                blocks.button(Act.DENY, "Deny", value, style="danger", spoken=f"Deny {label}"),
                blocks.button(Act.STATUS, "Status", value, spoken=f"Status of {label}"),
            ]
        )
    ]


_SAY: Mapping[NoticeKind, Callable[[_Letter], str]] = {
    NoticeKind.SUBMITTED: _submitted,
    NoticeKind.APPROVAL_NEEDED: _approval_needed,
    NoticeKind.APPROVED: _approved,
    NoticeKind.DENIED: _denied,
    NoticeKind.WAITING: _waiting,
    NoticeKind.STARTED: _started,
    NoticeKind.PREEMPTED: _preempted,
    NoticeKind.RESUMED: _resumed,
    NoticeKind.STEP_DONE: _step_done,
    NoticeKind.DEADLINE_AT_RISK: _deadline_at_risk,
    NoticeKind.NODE_LOST: _node_lost,
    NoticeKind.COMPLETED: _completed,
    NoticeKind.FAILED: _failed,
    NoticeKind.CANCELLED: _cancelled,
    NoticeKind.EXPIRED: _expired,
}
