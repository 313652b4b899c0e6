from __future__ import annotations

import re

import pytest

from scheduler.adapters.argo import retry
from scheduler.jobs.outcomes import exit_again
from tests.adapters.argo_jobs import DATA, the_expressions

# Endings as Argo sees them: exit code, phase and message of the node, and whether there is another attempt.
STOPPED = [
    ("143", "Failed", "main: Error (exit code 143)"),
    ("75", "Failed", "main: Error (exit code 75)"),
    ("137", "Failed", "main: Error (exit code 137)"),
    ("137", "Failed", "Pod was terminated in response to imminent node shutdown."),
]
TAKEN_AWAY = [
    ("-1", "Error", "pod deleted"),
    ("-1", "Failed", "pod failed: neither main nor wait container completed successfully"),
    ("-1", "Error", "Pod failed before main container starts due to PodInitializing: "),
    ("-1", "Error", "Pod failed before main container starts due to ImagePullBackOff: back-off pulling"),
    ("-1", "Failed", "can't find failed message for pod job-41-sft-123"),
    ("-1", "Failed", "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu"),
    ("-1", "Failed", "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu"),
    ("-1", "Failed", "The node was low on resource: memory."),
]
FAILED = [
    ("1", "Failed", "main: Error (exit code 1)"),
    ("2", "Failed", "main: Error (exit code 2)"),
    ("64", "Failed", "main: Error (exit code 64)"),
    ("137", "Failed", "main: OOMKilled (exit code 137)"),
    ("137", "Failed", "OOMKilled (exit code 137)"),
]
FINAL = [
    ("-1", "Failed", "gpujob-final: its image cannot be pulled"),
    ("143", "Failed", "gpujob-final: used up max_hours"),
    ("143", "Failed", "Pod was active on the node longer than the specified deadline"),
    ("137", "Failed", "Pod was active on the node longer than the specified deadline"),
    ("0", "Succeeded", ""),
]
# `exit_again` takes a code that nobody saw for a lost node; the expression can ask Argo's message first.
ARGO_KNOWS = [
    ("-1", "Error", "Error applying PodSpecPatch"),
    ("-1", "Error", 'pods "job-41-sft-1" is forbidden: no gate'),
    ("0", "Error", "wait: Error (exit code 64): no such output"),
]


def says(exit_code: str, phase: str, message: str, retries: int) -> bool:
    """The expression, clause by clause; `test_the_clauses_are_those_of_the_text` holds it to the text."""
    final = message.startswith("gpujob-final:")
    deadline = message.startswith("Pod was active on the node longer than the specified deadline")
    saved = exit_code in ["143", "75"]
    killed = exit_code == "137" and "OOMKilled" not in message
    taken_away = re.search(pattern(), message) is not None
    failed = retries > 0 and (phase == "Failed" and exit_code not in ["0", "-1"])
    return not final and not deadline and (saved or killed or taken_away or failed)


def pattern() -> str:
    found = re.search(r"lastRetry\.message matches '([^']+)'", retry.expression(0))
    assert found is not None
    return found[1]


def test_the_text_is_the_one_that_was_run_on_a_real_controller():
    assert the_expressions() == (DATA / "retry-expression.txt").read_text()


def test_the_clauses_are_those_of_the_text():
    text = retry.expression(3).replace(pattern(), "..")

    assert text == (
        "not (lastRetry.message startsWith 'gpujob-final:')"
        " and not (lastRetry.message startsWith 'Pod was active on the node longer than the specified deadline')"
        " and (lastRetry.exitCode in ['143', '75']"
        " or (lastRetry.exitCode == '137' and not (lastRetry.message contains 'OOMKilled'))"
        " or lastRetry.message matches '..'"
        " or (lastRetry.status == 'Failed' and not (lastRetry.exitCode in ['0', '-1'])))"
    )


@pytest.mark.parametrize(("exit_code", "phase", "message"), [*STOPPED, *TAKEN_AWAY])
@pytest.mark.parametrize("retries", [0, 2])
def test_argo_r01_what_was_stopped_or_taken_away_is_tried_again(exit_code, phase, message, retries):
    assert says(exit_code, phase, message, retries)


@pytest.mark.parametrize(("exit_code", "phase", "message"), FAILED)
def test_a_real_failure_is_tried_again_if_the_job_has_retries(exit_code, phase, message):
    assert not says(exit_code, phase, message, 0)
    assert says(exit_code, phase, message, 1)


@pytest.mark.parametrize(("exit_code", "phase", "message"), [*FINAL, *ARGO_KNOWS])
@pytest.mark.parametrize("retries", [0, 2])
def test_argo_r11_what_is_final_or_wrong_with_the_workflow_is_not_tried_again(exit_code, phase, message, retries):
    assert not says(exit_code, phase, message, retries)


@pytest.mark.parametrize(("exit_code", "phase", "message"), [*STOPPED, *TAKEN_AWAY, *FAILED, *FINAL])
@pytest.mark.parametrize("retries", [0, 2])
def test_the_expression_agrees_with_our_own_rule(exit_code, phase, message, retries):
    code = None if exit_code == "-1" else int(exit_code)

    # Our rule counts failures and Argo cannot: as long as some are left, the two are one.
    assert says(exit_code, phase, message, retries) == exit_again(code, message, failures=0, retries=retries)
