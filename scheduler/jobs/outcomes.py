"""Why a run ended: what we meant by asking it to, against what was seen of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from scheduler.jobs.job import Intent, Run
from scheduler.jobs.reports import SAVED, Phase, Report
from scheduler.policy import Policy

KILLED = 137
FINAL = "gpujob-final:"  # starts the message of a gated attempt that we ended and that shall not be replaced
NEVER_STARTED = "was never started"  # starts the message of an attempt whose program cannot have begun

_OUT_OF_MEMORY = "OOMKilled"
_NO_MORE = (FINAL, "Pod was active on the node longer than the specified deadline")
# What Kubernetes and Argo say of an attempt that went with its node, or that never got it.
_TAKEN_AWAY = re.compile(
    r"(lost\b|pod deleted$|pod failed: |Pod failed before .+ container starts due to |"
    r"can.t find failed message for pod |Pod was rejected|Allocate failed due to |The node was low on resource|"
    r"Pod was terminated in response to imminent node shutdown)"
)


class Verdict(StrEnum):
    """What a run came to."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PREEMPTED = "preempted"
    LOST = "lost"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The verdict on a run that ended."""

    verdict: Verdict
    why: str  # completes the sentence "The run .."
    ended_at: datetime
    final: bool = False  # a failure that `retries` does not cover
    while_stopping: bool = False  # ended with 0 although it was asked to end: what it left may be half done
    unseen: bool = False  # stopped without having saved, and nobody asked for it: the task counts these in a row
    never_began: bool = False  # nobody hears of it, and it counts for nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """All evidence of one ending."""

    run: Run
    at: datetime
    code: int | None = None
    message: str = ""
    asked: bool = False  # by us, or by whoever else may end it
    saved: bool = False  # its program told of a checkpoint
    began: bool = True


def judge(
    run: Run, report: Report | None, *, now: datetime, policy: Policy, unseen: int = 0, failures: int = 0
) -> Outcome | None:
    """The verdict on `run`; None while it goes on.

    `unseen` and `failures` are the task's, from before this run. No report means that the executor has no such attempt
    any more: a caller that wants to be patient asks later.
    """
    if report is None:
        return _verdict(_End(run=run, at=now), policy, unseen, failures)
    if report.phase is not Phase.ENDED:
        return None
    progress = report.progress or run.progress
    end = _End(
        run=run,
        at=max(run.since, min(report.ended_at or now, now)),
        code=report.exit_code,
        message=report.message,
        asked=run.intent is not Intent.NONE or report.stop_asked_at is not None,
        saved=progress is not None and progress.saved_at is not None,
        began=report.started_at is not None or run.started_at is not None,
    )
    return _verdict(end, policy, unseen, failures)


def again(outcome: Outcome, failures: int, retries: int) -> bool:
    """Whether the task is tried again; `failures` are those before this outcome."""
    match outcome.verdict:
        case Verdict.PREEMPTED | Verdict.LOST:
            return True
        case Verdict.FAILED:
            return not outcome.final and failures < retries
        case Verdict.SUCCEEDED | Verdict.CANCELLED:
            return False


def exit_again(exit_code: int | None, message: str, failures: int, retries: int) -> bool:
    """Whether an executor replaces an attempt that ended so, knowing nothing of what we meant.

    The rule of the `retryStrategy` that Argo gets, in words; `judge` agrees with it wherever nobody asked for the end.
    """
    if exit_code == 0 or message.startswith(_NO_MORE):
        return False
    if _ran_out_of_memory(exit_code, message):
        return failures < retries
    if exit_code is None or exit_code == KILLED or exit_code in SAVED or _TAKEN_AWAY.match(message):
        return True
    return failures < retries


def _verdict(end: _End, policy: Policy, unseen: int, failures: int) -> Outcome:
    if end.run.intent is Intent.CANCEL:
        return Outcome(verdict=Verdict.CANCELLED, why="was cancelled", ended_at=end.at)
    if end.run.intent is Intent.TIME_LIMIT:
        why = "used up max_hours" + (", although it ended with 0 when it was asked to stop" if end.code == 0 else "")
        return Outcome(verdict=Verdict.FAILED, why=why, ended_at=end.at, final=True)
    if end.code == 0:
        why = "finished while it was being stopped" if end.asked else "finished"
        return Outcome(verdict=Verdict.SUCCEEDED, why=why, ended_at=end.at, while_stopping=end.asked)
    if end.message.startswith(_NO_MORE):
        why = end.message.removeprefix(FINAL).strip() or "was given up"
        return Outcome(verdict=Verdict.FAILED, why=why, ended_at=end.at, final=True)
    if not end.began and (never := _never_began(end, policy, unseen)) is not None:
        return never
    if end.code is None or _TAKEN_AWAY.match(end.message):
        return _gone(end)
    if not _ran_out_of_memory(end.code, end.message) and (end.code == KILLED or end.code in SAVED):
        return _stopped(end, policy, unseen)
    return _failed(end, failures)


def _never_began(end: _End, policy: Policy, unseen: int) -> Outcome | None:
    """It was no use where it was; None if it ended for another reason. What no node can give it is given up."""
    if end.run.intent is Intent.NONE and end.code is None and end.message.startswith(NEVER_STARTED):
        return Outcome(verdict=Verdict.PREEMPTED, why=end.message, ended_at=end.at, never_began=True)
    if end.run.intent is not Intent.NO_START:
        return None
    if unseen + 1 < policy.failures_unseen:
        why = f"{NEVER_STARTED}: {end.run.intent_why}"
        return Outcome(verdict=Verdict.PREEMPTED, why=why, ended_at=end.at, never_began=True, unseen=True)
    times = "once" if unseen == 0 else f"{unseen + 1} times"
    why = f"could not be started, tried {times}: {end.run.intent_why}"
    return Outcome(verdict=Verdict.FAILED, why=why, ended_at=end.at, final=True)


def _gone(end: _End) -> Outcome:
    """It went with its node or its pod, which says nothing of its program."""
    detail = f" ({end.message})" if end.message else ""
    # Whether the end of an evicted pod is seen before the pod is gone is chance (argo #9880, #2881).
    if end.run.intent in {Intent.HAND_BACK, Intent.NO_START}:
        why = f"gave its GPUs back, and was gone before its end was seen{detail}"
        return Outcome(verdict=Verdict.PREEMPTED, why=why, ended_at=end.at)
    return Outcome(verdict=Verdict.LOST, why=f"was lost, nobody saw it end{detail}", ended_at=end.at)


def _stopped(end: _End, policy: Policy, unseen: int) -> Outcome:
    """It ended as a program does that was stopped: by us, by someone else, or by nobody that we know of."""
    if end.asked:
        why = f"ended with {end.code} when it was asked to give its GPUs back"
        if end.code == KILLED:
            why = "was killed when its grace was over; work since its last checkpoint is lost"
        if end.message and end.run.intent is Intent.NONE:
            why += f" ({end.message})"  # who asked, if it was not us: kube-scheduler, a person
        return Outcome(verdict=Verdict.PREEMPTED, why=why, ended_at=end.at)
    # A program that gets on is never given up for being stopped; one that stops itself each time would loop for ever.
    if not end.saved and unseen + 1 >= policy.failures_unseen:
        times = "once" if unseen == 0 else f"{unseen + 1} times"
        why = f"ended with {end.code} {times} although nobody asked it to"
        return Outcome(verdict=Verdict.FAILED, why=why, ended_at=end.at)
    if end.code == KILLED:
        why = "was killed by someone else; work since its last checkpoint is lost"
        return Outcome(verdict=Verdict.LOST, why=why, ended_at=end.at, unseen=not end.saved)
    why = f"ended with {end.code}: someone else stopped it, or it stopped itself"
    return Outcome(verdict=Verdict.PREEMPTED, why=why, ended_at=end.at, unseen=not end.saved)


def _failed(end: _End, failures: int) -> Outcome:
    why = f"ended with exit code {end.code}"
    if _ran_out_of_memory(end.code, end.message):
        why = "ran out of memory and was killed (OOMKilled)"
    elif end.asked:
        why += " when it was asked to stop; a program that saved its work must end with 143 or 75 to go on later"
    elif end.message:
        why += f" ({end.message})"
    if failures:
        why += f"; failure {failures + 1} of this task"
    return Outcome(verdict=Verdict.FAILED, why=why, ended_at=end.at)


def _ran_out_of_memory(code: int | None, message: str) -> bool:
    return code == KILLED and _OUT_OF_MEMORY in message
