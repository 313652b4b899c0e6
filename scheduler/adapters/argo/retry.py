"""When Argo makes another attempt: `scheduler/jobs/outcomes.py`, `exit_again`, in Argo's words."""

from __future__ import annotations

from hera.workflows import RetryStrategy
from hera.workflows import models as m

from scheduler.jobs.outcomes import FINAL

LIMIT = 500  # attempts; a backstop, and without a limit Argo takes no notice of the backoff

# lastRetry.* are texts. "-1" is an exit code that nobody saw; then only the message tells.
_NO_MORE = (
    f"not (lastRetry.message startsWith '{FINAL}')"
    " and not (lastRetry.message startsWith 'Pod was active on the node longer than the specified deadline')"
)
_STOPPED = (
    "lastRetry.exitCode in ['143', '75']"
    " or (lastRetry.exitCode == '137' and not (lastRetry.message contains 'OOMKilled'))"
)
_TAKEN_AWAY = (
    "lastRetry.message matches '^(pod deleted$|pod failed: |Pod failed before .+ container starts due to "
    "|can.t find failed message for pod |Pod was rejected|Allocate failed due to |The node was low on resource"
    "|Pod was terminated in response to imminent node shutdown)'"
)
# `retries` of Argo counts preempted attempts too, so that the bound is ours: a gated attempt too many is given up.
_FAILED = "(lastRetry.status == 'Failed' and not (lastRetry.exitCode in ['0', '-1']))"


def expression(retries: int) -> str:
    """The condition for another attempt, in expr-lang; with `retries`, real failures are met with one, too."""
    clauses = [_STOPPED, _TAKEN_AWAY, *([_FAILED] if retries else [])]
    return f"{_NO_MORE} and ({' or '.join(clauses)})"


def strategy(retries: int) -> RetryStrategy:
    """The retryStrategy of every template."""
    return RetryStrategy(
        retry_policy="Always",
        limit=LIMIT,
        expression=expression(retries),
        # Flat and short: what was preempted should stand in the queue again at once.
        backoff=m.Backoff(duration="1s", factor=m.IntOrString(root=1), cap="1s"),
    )
