"""A notice as people read it: the reply in its job's thread, or the direct message. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from zoneinfo import ZoneInfo

from bot import blocks, words
from bot.blocks import Act, Block, Message
from bot.slack_text import clean, cut, escape, moment, named, tail
from scheduler.jobs.mail import Json, Notice, NoticeKind

EVENT_TYPE = "gpujob_notice"
REASON = 700  # characters of one untrusted sentence; the whole of it is in the card or the log
_NEXT = "as soon as enough GPUs are idle"
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
    return blocks.message(said, [blocks.section(said), *_log(notice, words.log_follows)])


def in_dm(notice: Notice, name: str, zone: ZoneInfo) -> Message:
    """The direct message; it names the job, and carries the buttons of a decision that is asked for."""
    said = f"*job-{notice.job}* {escape(name)}: {_SAY[notice.kind](_Letter(notice.payload, zone))}"
    return blocks.message(said, [blocks.section(said), *_log(notice, words.log_is_in), *_decision(notice)])


def long_log(notice: Notice) -> str:
    """The log that it carries, if that does not fit into a message; else ""."""
    lines = notice.payload.get("log")
    written = clean(lines) if isinstance(lines, str) else ""
    return written if len(written) > blocks.SECTION else ""


def log_file(notice: Notice) -> str:
    """The name of the file with its log."""
    return words.log_file(f"job-{notice.job}", str(notice.payload.get("task") or ""))


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

    def where(self) -> str:
        """`runs on node-1 with 4 GPUs`."""
        value = self._payload.get("nodes")
        nodes = escape(cut(", ".join(value), REASON)) if isinstance(value, Mapping) and value else "a node"
        gpus = int(self.number("gpus"))
        return f"runs on {nodes} {f'with {words.gpus(gpus)}' if gpus else 'without GPUs'}"

    def when(self, key: str) -> str:
        value = self._payload.get(key)
        try:
            return moment(datetime.fromisoformat(value), self._zone) if isinstance(value, str) else ""
        except ValueError:
            return escape(cut(str(value), 80))

    def until(self) -> str:
        at = self.when("window_until")
        return f" Its GPUs are free until about {at}." if at else ""

    def said(self, key: str, start: str = "") -> str:
        """A sentence of somebody else; "" if there is none."""
        value = self.text(key)
        return f" {start}{words.ended(value)}" if value else ""

    def sentences(self, key: str) -> str:
        value = self._payload.get(key)
        entries = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
        told = " ".join(words.ended(str(entry)) for entry in entries if str(entry).strip())
        return named(escape(cut(told, REASON)))

    def used(self) -> str:
        """What it cost, and what of that was lost."""
        used, lost = self.number("used_gpu_hours"), self.number("lost_gpu_hours")
        if not used:
            return "It used no GPU-hours."
        rest = f", of which {words.gpu_hours(lost)} went into work that was lost" if lost else "; no work was lost"
        return f"It used {words.gpu_hours(used)}{rest}."


def _submitted(letter: _Letter) -> str:
    hours = f", about {words.gpu_hours(letter.number('gpu_hours'))}" if letter.number("gpu_hours") else ""
    warnings = letter.sentences("warnings")
    return f"Submitted: {words.gpus(int(letter.number('gpus')))}{hours}.{f' Note: {warnings}' if warnings else ''}"


def _approval_needed(letter: _Letter) -> str:
    return f"Needs approval. {letter.sentences('why') or 'The rules ask for it.'}"


def _approved(letter: _Letter) -> str:
    return f"Approved by {letter.people('by') or 'the rules'}."


def _denied(letter: _Letter) -> str:
    return f"Denied by {letter.people('by') or 'the rules'}.{letter.said('reason', 'Reason: ')}"


def _waiting(letter: _Letter) -> str:
    at = letter.when("earliest")
    start = f"It starts at {at} at the earliest." if at else "Nobody can say yet when it starts."
    return f"Not started yet: it {words.ended(letter.text('reason') or 'lets others go first')} {start}"


def _started(letter: _Letter) -> str:
    warnings = letter.sentences("warnings")
    note = f" Note: {warnings}" if warnings else ""
    return f"Started: {letter.text('task') or 'it'} {letter.where()}.{letter.until()}{note}"


def _preempted(letter: _Letter) -> str:
    service, gpus = letter.text("service"), int(letter.number("gpus"))
    if service:
        who = f"{service} needed GPUs back{f', and this job gave up {words.gpus(gpus)}' if gpus else ''}."
    else:
        who = words.ended(letter.text("reason") or "its GPUs were needed")
    step, goes_on = letter.text("saved_step"), letter.when("earliest")
    kept = words.duration(letter.number("kept_s")) if letter.number("kept_s") else ""
    lost = words.duration(letter.number("lost_s")) if letter.number("lost_s") else ""
    work = f"{f'{kept} of work kept' if kept else 'No new work kept'}, {lost or 'none'} lost."
    where = f" from step {step}" if step else ""
    return f"Preempted: {who} {work} It goes on by itself{where}, {f'probably at {goes_on}' if goes_on else _NEXT}."


def _resumed(letter: _Letter) -> str:
    step = letter.text("from_step")
    start = f"Resumed from step {step}" if step else "Resumed"
    return f"{start}: {letter.text('task') or 'it'} {letter.where()}.{letter.until()}"


def _step_done(letter: _Letter) -> str:
    return f"Step {letter.text('step')} is done after {words.duration(letter.number('seconds'))} of running."


def _deadline_at_risk(letter: _Letter) -> str:
    at, deadline = letter.when("earliest_end"), letter.when("deadline")
    ends = f"it ends at {at} at the earliest" if at else "nobody can say when it ends"
    return f"Its deadline{f' {deadline}' if deadline else ''} is at risk: {ends}."


def _node_lost(letter: _Letter) -> str:
    node = letter.text("node")
    tasks = letter.list("tasks") or "what ran there"
    return f"{f'Node {node}' if node else 'A node'} was lost. To be run again elsewhere: {tasks}."


def _completed(letter: _Letter) -> str:
    money, queue_s = letter.number("money"), letter.number("queue_s")
    saved = f" Renting such GPUs would have cost about {money:,.2f} {letter.text('currency')}." if money else ""
    times = int(letter.number("preemptions"))
    waited = f"It waited {words.duration(queue_s)} for its start" if queue_s >= 1 else "It started at once"
    stopped = f"preempted {words.times(times)}" if times else "never preempted"
    outputs = letter.pairs("outputs")
    return f"Completed. {letter.used()} {waited} and was {stopped}.{saved}{f' Outputs: {outputs}' if outputs else ''}"


def _failed(letter: _Letter) -> str:
    task = letter.text("task") or letter.text("step") or "the job"
    why, code = letter.text("why"), letter.text("exit_code")
    if why.startswith(f"{task}: "):
        ended = f"{task} {why.removeprefix(f'{task}: ')}"
    else:
        ended = f"{task} ended{f' with exit code {code}' if code else ''}{f': {why}' if why else ''}"
    return f"Failed: {words.ended(ended)} {letter.used()}"


def _cancelled(letter: _Letter) -> str:
    return f"Cancelled by {letter.people('by') or 'the scheduler'}. {letter.used()}"


def _expired(letter: _Letter) -> str:
    return f"Expired: {words.ended(letter.text('why') or 'its time ran out')} Submit it again if you still need it."


def _log(notice: Notice, rest: Callable[[str], str]) -> list[Block]:
    lines = notice.payload.get("log")
    if not isinstance(lines, str) or not lines.strip():
        return []
    shown = [blocks.preformatted(tail(lines, blocks.SECTION))]
    return [*shown, blocks.context(rest(log_file(notice)))] if long_log(notice) else shown


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
