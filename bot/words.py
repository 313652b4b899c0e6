"""Every sentence that the bot itself says, in one place; arguments are escaped by the caller unless said."""

from __future__ import annotations

from collections.abc import Mapping

COMMANDS = (
    "submit",
    "status",
    "list",
    "cancel",
    "logs",
    "rerun",
    "approve",
    "deny",
    "pool",
    "report",
    "settings",
    "help",
)

# topic -> (how it is typed, what it does)
TOPICS: Mapping[str, tuple[str, str]] = {
    "submit": (
        "submit [image=IMAGE gpus=2 name=NAME param.KEY=VALUE team=TEAM checkpoint=30m max=12h -- COMMAND ..]",
        "Alone it opens a form, which takes an uploaded or pasted job file too. With more words it submits one step.",
    ),
    "status": ("status [JOB]", "One job: its state, its steps, why it waits, what was kept and lost."),
    "list": ("list [mine|team|all] [waiting|running|done] [page N]", "Jobs, newest first."),
    "cancel": ("cancel JOB", "Ends a job, after a question."),
    "logs": ("logs JOB [STEP]", "The last lines of its output."),
    "rerun": ("rerun JOB [from STEP] [param.KEY=VALUE ..]", "A new job from an old one; finished steps can be kept."),
    "approve": ("approve JOB", "For approvers: let a job run."),
    "deny": ("deny JOB [reason]", "For approvers: refuse a job."),
    "pool": ("pool", "What each service uses, which GPUs are idle and until when."),
    "report": ("report [YYYY-MM]", "Jobs and GPU-hours of a month, and what renting such GPUs would have cost."),
    "settings": ("settings", "Which messages reach you, and where."),
    "help": ("help [command]", "This text."),
}

UNCLOSED_QUOTE = 'A quote is opened and not closed. Write param.KEY="two words".'
TAKEN = "Taken. I will tell you here."
LATE = "Taken, but the scheduler has not answered for 30 minutes. Your request is kept; see `/gpujob list`."
RESTARTING = "Taken and kept. I restart now, so I cannot tell you the end here; see `/gpujob list`."
TRY_AGAIN = "Slack's 3 seconds ran out before the form could open. Type `/gpujob submit` again."
FORM_FAILED = (
    "Slack could not open the form. Type `/gpujob submit` again, or write the job in one line: `/gpujob help`."
)
OLD_BUTTON = "This button is from an older version of me and does nothing now. Type `/gpujob status JOB` for a new one."
OLD_FORM = "This form is from an older version of me. Type `/gpujob submit` for a new one."
NOTHING_SHOWN = (
    "There is no job here to act on. In the thread of a job, write `status`, `logs` or `cancel` after my name."
)
MENTION_ONLY = "In a thread I understand `status`, `logs` and `cancel`. Everything else: `/gpujob help`."
NO_BOARD = "The scheduler has not looked at the GPUs yet. Ask again in a minute."
NO_JOBS = "No jobs to show. `/gpujob submit` makes one."
NO_TEAM = "None of your jobs names a team, so there is no team to list. Write `team=NAME` when you submit."
NO_LOG = "It has written no output yet."
NO_GPUS = (
    "There is no GPU in the pool right now, so there is nothing to choose from. "
    "`/gpujob pool` shows why; a job without GPUs can be written in one line, see `/gpujob help submit`."
)
TWO_JOB_FILES = "A job file is uploaded here and another is pasted below. Leave one of them."
NO_THREAD_FOR_LOG = (
    "The beginning is cut; this job has no thread yet into which the whole could go. Ask again in a moment."
)
LOADING = "One moment, I am looking which GPUs are free …"
NO_DATABASE = "The database does not answer. Nothing was changed; try again in a minute."
SETTINGS = (
    "*Messages that reach you*\n"
    "• In the thread of each of your jobs: everything that happens to it.\n"
    "• As a direct message: its end, a second and later preemption, and what waits for your approval.\n"
    "These are the same for everyone; they cannot be changed yet."
)


def unknown_command(verb: str, nearest: str) -> str:
    """Unescaped."""
    meant = f'; did you mean "/gpujob {nearest}"?' if nearest else '. Type "/gpujob help" for what there is.'
    return f'"{verb[:60]}" is no command{meant}'


def wrong_list(part: str) -> str:
    """Unescaped."""
    return f'"{part[:60]}" says nothing to list. Write: list [mine|team|all] [waiting|running|done] [page N]'


def wrong_rerun(part: str) -> str:
    """Unescaped."""
    return f'"{part[:60]}" does not belong there. Write: rerun JOB [from STEP] [param.KEY=VALUE ..]'


def wrong_month(text: str) -> str:
    """Unescaped."""
    return f'"{text[:60]}" is no month. Write it as YYYY-MM, such as 2026-11.'


def no_job_id(verb: str, text: str) -> str:
    """Unescaped."""
    if not text:
        return f'Which job? Write "/gpujob {verb} job-41"; "/gpujob list" shows yours.'
    return f'"{text[:60]}" is no job. A job is written job-41, #41 or 41; "/gpujob list" shows yours.'


def no_such_job(label: str) -> str:
    """A well written id that belongs to nobody."""
    return f"There is no {label}. `/gpujob list all` shows what there is."


def already_submitted(label: str) -> str:
    """The same command came twice within seconds."""
    return f"Already submitted as {label}: the same command came twice within 10 seconds, so I made one job."


def broken(error_id: str) -> str:
    """Something of ours failed; the log has the same id."""
    return f"Something broke on my side, and it is logged as error {error_id}. Nothing is half done; please try again."


def file_too_large(name: str, size: int | None, limit: int) -> str:
    """Unescaped; sizes in bytes, None if only more than the limit is known."""
    has = "has more" if size is None else f"has {-(-size // 1024):,} kB"
    return (
        f"{name[:80]} {has}; a job file has at most {limit // 1024} kB."
        " Keep data out of it: write where it lies, such as s3://bucket/key."
    )


def file_is_no_text(name: str) -> str:
    """Unescaped."""
    return f"{name[:80]} is no UTF-8 text. A job file is YAML or JSON; save it as UTF-8 and upload it again."


def file_unread(why: str) -> str:
    """`why` is Slack's word, or ours."""
    if why == "missing_scope":
        why = "it lacks the permission files:read; an operator installs the app again with `gpujob-bot manifest`"
    return f"The app could not read the file: {why}. Paste the text into the field below instead."


def log_file(label: str, task: str) -> str:
    """The name of the file with the log of a task."""
    return f"{label}-{task}.log" if task else f"{label}.log"


def log_is_in(name: str) -> str:
    """Where the rest of a log is that was cut."""
    return f"The beginning is cut; {name} in the job's thread has more."


def log_follows(name: str) -> str:
    """Said in the thread itself, before the file is there."""
    return f"The beginning is cut; {name} follows here."


def log_not_shared(why: str) -> str:
    """`why` is Slack's word, or ours."""
    start = "The beginning is cut, and the file with more could not be put into the job's thread: "
    if why in {"not_in_channel", "channel_not_found"}:
        return f"{start}I am not in its channel. Invite me with `/invite @gpujob`, then ask for the logs again."
    if why in {"file_uploads_disabled", "file_uploads_except_images_disabled"}:
        return f"{start}this workspace takes no files from apps. `gpujob logs JOB` on the command line shows it."
    if why == "missing_scope":
        return f"{start}the app lacks files:write. An operator installs it again with `gpujob-bot manifest`."
    return f"{start}{why}. Ask for the logs again."


def help_text(topic: str) -> str:
    """All commands, or one of them."""
    if topic in TOPICS:
        usage, what = TOPICS[topic]
        return f"`/gpujob {usage}`\n{what}"
    lines = [f"• `/gpujob {usage}`: {what}" for usage, what in TOPICS.values()]
    return "\n".join(["*What I understand*", *lines, "A job is written `job-41`; `41` and `#41` work too."])


def duration(seconds: float) -> str:
    """`less than 1 s`, `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    whole = int(seconds)
    if whole < 1:
        return "less than 1 s"
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def count(number: int, one: str, many: str = "") -> str:
    """`1 task`, `3 tasks`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def gpus(number: int) -> str:
    """`1 GPU`, `4 GPUs`, `no GPUs`."""
    return count(number, "GPU") if number else "no GPUs"


def mean_gpus(number: float) -> str:
    """`4.7 GPUs`."""
    return f"{number:,.1f} GPUs" if number >= 0.1 or not number else "less than 0.1 GPUs"


def times(number: int) -> str:
    """`once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def gpu_hours(hours: float) -> str:
    """`3.2 GPU-hours`; below one hour `6 GPU-minutes`."""
    if hours <= 0:
        return "0 GPU-hours"
    minutes = hours * 60
    if minutes >= 59.5:
        return f"{hours:,.1f} GPU-hours"
    if minutes < 0.1:
        return "less than 0.1 GPU-minutes"
    shown = f"{minutes:.0f}" if minutes >= 9.95 else f"{minutes:.1f}".removesuffix(".0")
    return f"{shown} GPU-minute{'' if shown == '1' else 's'}"


def ended(sentence: str) -> str:
    """With one full stop, whoever wrote it."""
    bare = sentence.rstrip()
    return bare if bare.endswith((".", "!", "?", "…", "(cut)")) else f"{bare}."
