"""The pool and the report as people see them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from bot import blocks, words
from bot.blocks import Message
from bot.slack_text import cut, escape, moment
from scheduler.jobs.mail import Board, BoardWindow
from scheduler.jobs.usage import Month

SHOWN = 20  # services, windows; more are counted


def pool(board: Board | None, zone: ZoneInfo) -> Message:
    """What each service uses, idle GPUs until when and how sure, what waits."""
    if board is None:
        return Message(text=words.NO_BOARD)
    total = (
        f"*Pool* {moment(board.at, zone)}: {words.gpus(board.gpus)}, {board.serving} with services,"
        f" {board.running} with jobs, {board.idle} idle, {board.unknown} unknown."
    )
    services = [
        f"• *{escape(service.name)}*: {words.count(service.have, 'replica')} (needs {service.want}), "
        f"{words.gpus(service.gpus)}. {escape(cut(service.why, 200))}"
        for service in board.services[:SHOWN]
    ]
    windows = [_window(window, zone) for window in board.windows[:SHOWN]] or ["No GPUs can be lent right now."]
    if len(board.windows) > SHOWN:
        windows.append(f"… and {len(board.windows) - SHOWN} more")
    waiting = words.count(board.waiting_tasks, "task waits", "tasks wait")
    queue = f"*Queue*: {f'{waiting} for {words.gpus(board.waiting_gpus)}' if board.waiting_tasks else 'nothing waits'}."
    parts = [
        blocks.section(total),
        blocks.section("\n".join(["*Services*", *(services or ["none"])])),
        blocks.section("\n".join(["*Idle GPUs*", *windows])),
        blocks.section(queue),
    ]
    if board.observe_only:
        parts.append(blocks.section("The scheduler only observes: it starts and stops nothing."))
    if board.alerts:
        parts.append(blocks.section("*To look at*\n" + "\n".join(f"• {escape(alert)}" for alert in board.alerts)))
    return blocks.message("\n".join([total, *windows, queue]), parts)


def report(month: Month | None, name: str, failing: Sequence[str] = ()) -> Message:
    """One month of lending; `failing` are sentences about places that take no messages."""
    if month is None:
        return Message(text=f"No job ran in {name}.")
    trend = "" if month.trend is None else f", {month.trend:+.0%} against the month before"
    lines = [
        f"*{name}*: {words.count(month.jobs, 'job')} used {words.gpu_hours(month.gpu_hours)}{trend}.",
        f"Kept work: {words.gpu_hours(month.kept_gpu_hours)}. Lost work: {words.gpu_hours(month.lost_gpu_hours)}."
        f" Restarts: {words.gpu_hours(month.restart_gpu_hours)}. Endings: {words.gpu_hours(month.ending_gpu_hours)}.",
        f"That is as much as {words.mean_gpus(month.gpus_24h)} all day,"
        f" or {words.mean_gpus(month.gpus_12h)} for 12 hours a day.",
    ]
    if month.money:
        lines.append(f"Renting such GPUs would have cost about {month.money:,.2f} {escape(month.currency)}.")
    lines += [escape(cut(sentence, 300)) for sentence in failing]
    text = "\n".join(lines)
    return blocks.message(text, [blocks.section(text)])


def _window(window: BoardWindow, zone: ZoneInfo) -> str:
    until = f"until {moment(window.until, zone)}" if window.until else "no end in sight"
    return f"• *{escape(window.node)}*: {words.gpus(window.gpus)}, {until}, {window.confidence:.0%} sure"
