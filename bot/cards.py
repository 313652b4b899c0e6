"""A job and lists of jobs as people see them. Pure: values in, Block Kit out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from zoneinfo import ZoneInfo

from bot import blocks, words
from bot.blocks import Act, Block, Message
from bot.slack_text import clean, cut, escape, moment, named, tail
from scheduler.jobs import waits
from scheduler.jobs.job import TERMINAL_JOB, TERMINAL_RUN, Job, JobState, Run, Task, TaskState
from scheduler.jobs.mail import Answer
from scheduler.store.mailbox import JobView

STEPS_SHOWN = 12
RUNS_SHOWN = 6

_MARKS: Mapping[JobState, str] = {
    JobState.SUBMITTED: ":inbox_tray:",
    JobState.AWAITING_APPROVAL: ":raised_hand:",
    JobState.WAITING: ":hourglass_flowing_sand:",
    JobState.RUNNING: ":large_green_circle:",
    JobState.PREEMPTED: ":leftwards_arrow_with_hook:",
    JobState.COMPLETED: ":white_check_mark:",
    JobState.FAILED: ":x:",
    JobState.CANCELLED: ":no_entry_sign:",
    JobState.DENIED: ":no_entry:",
    JobState.EXPIRED: ":alarm_clock:",
}


def job_card(view: JobView, zone: ZoneInfo) -> Message:
    """The one message of a job: state, steps, why it waits or where it runs, kept and lost work, buttons."""
    job = view.job
    parts = [
        blocks.section(f"{_MARKS[job.state]} *{job.label}* {escape(job.spec.name)}: *{_state(job)}*"),
        blocks.context(_about(job, zone)),
        blocks.section(_steps(view)),
    ]
    told = "\n".join(
        line for line in (_ending(job, zone), _waiting(view, zone), _places(view.runs, zone), _warnings(job)) if line
    )
    if told:
        parts.append(blocks.section(told))
    parts.append(blocks.context(_work(view.runs, job)))
    parts.append(blocks.actions(_buttons(job)))
    return blocks.message(f"{job.label} {escape(job.spec.name)}: {_state(job)}", parts)


def job_list(jobs: Sequence[Job], page: int, more: bool, what: str, zone: ZoneInfo) -> Message:
    """A short table, newest first. `what` repeats the words of the list, for the button to the next page."""
    if not jobs:
        return Message(text=words.NO_JOBS)
    lines = [
        f"{_MARKS[job.state]} *{job.label}* {escape(job.spec.name)} · {_state(job)} · {words.gpus(most_gpus(job))}"
        f" · {person(job.owner)} · {moment(job.submitted_at, zone)}"
        for job in jobs
    ]
    turns = []
    if page > 1:
        turns.append(blocks.button(Act.PAGE, "Newer", f"{what} page {page - 1}"))
    if more:
        turns.append(blocks.button(Act.PAGE, "Older", f"{what} page {page + 1}"))
    # One action_id may stand once in a block, so each button has a row of its own.
    parts = [*(blocks.section(line) for line in lines), *(blocks.actions([turn]) for turn in turns)]
    return blocks.message(f"{words.count(len(jobs), 'job')}, page {page}:\n" + "\n".join(lines), parts)


def cancel_question(view: JobView) -> Message:
    """Asked before a job is cancelled by a typed command."""
    job = view.job
    if job.state in TERMINAL_JOB:
        return Message(text=f"{job.label} is {_state(job)} already; there is nothing to cancel.")
    text = f"Cancel {job.label} ({escape(job.spec.name)}, {_state(job)})? {_loss(view.runs)}"
    press = blocks.button(
        Act.CANCEL, f"Cancel {job.label}", str(job.id), style="danger", spoken=f"Cancel {job.label} for good"
    )
    return blocks.message(text, [blocks.section(text), blocks.actions([press])])


def log(label: str, answer: Answer, rest: str = "") -> Message:
    """The last lines of a run, shown as they are; `rest` says where more of a long log is."""
    written = str(answer.detail.get("log") or "")
    if not answer.ok or not written.strip():
        return Message(text=escape(answer.text) if answer.text else words.NO_LOG)
    task = escape(str(answer.detail.get("task") or ""))
    title = f"{label} {task}: last lines of its output"
    parts = [blocks.section(title), blocks.preformatted(tail(written, blocks.SECTION))]
    return blocks.message(f"{title} {rest}".strip(), [*parts, blocks.context(rest)] if rest else parts)


def long_log(answer: Answer) -> str:
    """The log, if it does not fit into a message; else ""."""
    written = clean(str(answer.detail.get("log") or ""))
    return written if answer.ok and len(written.strip()) > blocks.SECTION else ""


def person(owner: str) -> str:
    """A mention that shows a name; nobody is notified in a block. Names of the command line stay as they are."""
    return f"<@{owner}>" if is_slack_user(owner) else escape(owner)


def is_slack_user(owner: str) -> bool:
    """Slack's ids of people start with U or W and are upper case."""
    return len(owner) > 2 and owner[0] in "UW" and owner.replace("_", "").isalnum() and owner == owner.upper()


def most_gpus(job: Job) -> int:
    """GPUs of its largest step, over all nodes."""
    return max((max(step.gpus) * step.nodes for step in job.spec.steps), default=0)


def _state(job: Job) -> str:
    return job.state.value.replace("_", " ")


def _about(job: Job, zone: ZoneInfo) -> str:
    team = f" · team {escape(job.spec.team)}" if job.spec.team else ""
    return (
        f"by {person(job.owner)}{team} · {words.gpus(most_gpus(job))} · priority {job.spec.priority.value}"
        f" · submitted {moment(job.submitted_at, zone)}"
    )


def _steps(view: JobView) -> str:
    lines = [_step(step.name, [task for task in view.tasks if task.step == step.name]) for step in view.job.spec.steps]
    if len(lines) > STEPS_SHOWN:
        lines = [*lines[:STEPS_SHOWN], f"… and {words.count(len(lines) - STEPS_SHOWN, 'more step')}"]
    return "\n".join(lines) or "no steps"


def _step(name: str, tasks: Sequence[Task]) -> str:
    counts = Counter(task.state for task in tasks)
    if len(tasks) == 1:
        said = tasks[0].state.value
    else:
        said = ", ".join(f"{counts[state]} {state.value}" for state in TaskState if counts[state]) or "not begun"
    return f"• *{escape(name)}*: {said}{_progress(tasks)}"


_STEPS = frozenset({"step", "saved_step", "from_step"})


def _progress(tasks: Sequence[Task]) -> str:
    known = [task.progress for task in tasks if task.progress is not None]
    if not known:
        return ""
    share = sum(progress.fraction for progress in known) / len(tasks)
    values = known[0].values if len(known) == 1 else {}
    # Steps are told in the thread when they matter; the card shows what the program adds: a loss, an epoch.
    more = " ".join(f"{key}={value}" for key, value in values.items() if key not in _STEPS)
    return f" · {share:.0%} {escape(cut(more, 80))}".rstrip()


def _ending(job: Job, zone: ZoneInfo) -> str:
    if job.state is JobState.AWAITING_APPROVAL:
        return "Waits for an approver. " + named(escape(cut(" ".join(map(words.ended, job.approval_why)), 600)))
    said = []
    if job.decided_by and job.decided_at is not None:
        verb = "Denied" if job.state is JobState.DENIED else "Approved"
        said.append(f"{verb} by {person(job.decided_by)} {moment(job.decided_at, zone)}.")
    if job.cancelled_by and job.state is JobState.CANCELLED:
        said.append(f"Cancelled by {person(job.cancelled_by)}.")
    elif job.cancelled_by and job.state not in TERMINAL_JOB:
        said.append(f"{person(job.cancelled_by)} cancels it; what it runs is being ended.")
    elif job.state in TERMINAL_JOB and job.why:
        said.append(escape(words.ended(cut(job.why, 900))))
    return " ".join(said)


def _warnings(job: Job) -> str:
    return escape(cut(" ".join(job.warnings), 600)) if job.state not in TERMINAL_JOB else ""


def _waiting(view: JobView, zone: ZoneInfo) -> str:
    waiting = [task for task in view.tasks if task.wait is not None and task.state is not TaskState.BLOCKED]
    if not waiting or view.job.state in TERMINAL_JOB:
        return ""
    first = waiting[0]
    assert first.wait is not None
    when = f" Earliest start: {moment(first.wait.earliest, zone)}." if first.wait.earliest else ""
    others = f" {words.count(len(waiting) - 1, 'more task waits', 'more tasks wait')}." if len(waiting) > 1 else ""
    return f"*{escape(first.name)}* {escape(words.ended(cut(waits.sentence(first.wait), 600)))}{when}{others}"


def _places(runs: Sequence[Run], zone: ZoneInfo) -> str:
    live = [run for run in runs if run.state not in TERMINAL_RUN]
    lines = [_place(run, zone) for run in live[:RUNS_SHOWN]]
    if len(live) > RUNS_SHOWN:
        lines.append(f"… and {words.count(len(live) - RUNS_SHOWN, 'more run')}")
    return "\n".join(lines)


def _place(run: Run, zone: ZoneInfo) -> str:
    nodes = ", ".join(f"{escape(node)} ({words.gpus(gpus)})" for node, gpus in run.placement.items())
    until = f", its GPUs are free until about {moment(run.window_until, zone)}" if run.window_until else ""
    return f"*{escape(run.task)}* runs on {nodes} since {moment(run.since, zone)}{until}."


def _work(runs: Sequence[Run], job: Job) -> str:
    kept = sum(run.kept_s * run.gpus for run in runs) / 3600
    lost = sum(run.lost_s * run.gpus for run in runs) / 3600
    times = f" · preempted {words.times(job.preemptions)}" if job.preemptions else ""
    return f"kept {words.gpu_hours(kept)} · lost {words.gpu_hours(lost)}{times}"


def _loss(runs: Sequence[Run]) -> str:
    live = sum(1 for run in runs if run.state not in TERMINAL_RUN)
    ends = f"{words.count(live, 'running task ends', 'running tasks end')}. " if live else ""
    return f"{ends}This cannot be undone."


def _buttons(job: Job) -> list[Block]:
    value = str(job.id)
    made: list[Block] = []
    if job.state is JobState.AWAITING_APPROVAL:
        made.append(
            blocks.button(Act.APPROVE, "Approve", value, style="primary", spoken=f"Approve {job.label}"),
        )
        made.append(blocks.button(Act.DENY, "Deny", value, style="danger", spoken=f"Deny {job.label}"))
    made.append(blocks.button(Act.STATUS, "Status", value, spoken=f"Status of {job.label}"))
    if job.state is not JobState.AWAITING_APPROVAL:
        made.append(blocks.button(Act.LOGS, "Logs", value, spoken=f"Last output of {job.label}"))
    if job.state in TERMINAL_JOB:
        ask = blocks.confirm(f"Run {job.label} again?", "A new job with the same file is made.", "Run again", "No")
        made.append(blocks.button(Act.RERUN, "Run again", value, ask=ask, spoken=f"Run {job.label} again"))
    else:
        ask = blocks.confirm(
            f"Cancel {job.label}?", "Everything it runs is ended. This cannot be undone.", "Cancel the job", "Keep it"
        )
        made.append(blocks.button(Act.CANCEL, "Cancel", value, ask=ask, spoken=f"Cancel {job.label}"))
    return made
