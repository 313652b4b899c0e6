from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.jobs import outcomes
from scheduler.jobs.job import Intent, JobId, TaskName, Uid
from scheduler.jobs.outcomes import Outcome, Verdict
from scheduler.jobs.progress import Progress
from scheduler.jobs.reports import Phase, Report
from scheduler.policy import Policy
from tests.jobs.building import NOON, a_run, after

SAVED = Progress(fraction=0.4, first_at=after(60), saved_at=after(500))
POLICY = Policy(failures_unseen=3)

NONE, HAND_BACK, CANCEL, TIME_LIMIT = Intent.NONE, Intent.HAND_BACK, Intent.CANCEL, Intent.TIME_LIMIT
NO_START = Intent.NO_START
OOM = "main: OOMKilled (exit code 137)"


def ended(code: int | None, message: str = "", asked: bool = False, progress: Progress | None = None) -> Report:
    return Report(
        uid=Uid("u-1"),
        job=JobId(41),
        task=TaskName("sft-0"),
        phase=Phase.ENDED,
        ended_at=after(600),
        stop_asked_at=after(590) if asked else None,
        exit_code=code,
        message=message,
        progress=progress,
    )


def judged(report: Report | None, intent: Intent = NONE, unseen: int = 0, failures: int = 0) -> Outcome:
    outcome = outcomes.judge(
        a_run(intent=intent), report, now=after(610), policy=POLICY, unseen=unseen, failures=failures
    )
    assert outcome is not None
    return outcome


@pytest.mark.parametrize(
    ("intent", "code", "message", "asked", "verdict"),
    [
        (NONE, 0, "", False, Verdict.SUCCEEDED),
        (NONE, 0, "", True, Verdict.SUCCEEDED),
        (NONE, 143, "", False, Verdict.PREEMPTED),
        (NONE, 75, "", False, Verdict.PREEMPTED),
        (NONE, 143, "", True, Verdict.PREEMPTED),
        (NONE, 137, "", True, Verdict.PREEMPTED),
        (NONE, 137, "", False, Verdict.LOST),
        (NONE, 137, OOM, False, Verdict.FAILED),
        (NONE, None, "", False, Verdict.LOST),
        (NONE, None, "pod deleted", True, Verdict.LOST),
        (NONE, 137, "lost with its node", False, Verdict.LOST),
        (NONE, 143, "Pod was terminated in response to imminent node shutdown.", False, Verdict.LOST),
        (NONE, 1, "The node was low on resource: memory.", False, Verdict.LOST),
        (NONE, None, "was never started: its pod was deleted", True, Verdict.PREEMPTED),
        (NO_START, None, "was never started: its pod was deleted", True, Verdict.PREEMPTED),
        (NO_START, 0, "", True, Verdict.SUCCEEDED),
        (CANCEL, None, "was never started: its pod was deleted", True, Verdict.CANCELLED),
        (NONE, 1, "", False, Verdict.FAILED),
        (NONE, 1, "", True, Verdict.FAILED),
        (NONE, 139, "", False, Verdict.FAILED),
        (NONE, 143, "gpujob-final: used up its chances", False, Verdict.FAILED),
        (HAND_BACK, 0, "", True, Verdict.SUCCEEDED),
        (HAND_BACK, 143, "", True, Verdict.PREEMPTED),
        (HAND_BACK, 75, "", True, Verdict.PREEMPTED),
        (HAND_BACK, 137, "", True, Verdict.PREEMPTED),
        (HAND_BACK, 137, OOM, True, Verdict.FAILED),
        (HAND_BACK, None, "pod deleted", True, Verdict.PREEMPTED),
        (HAND_BACK, 1, "", True, Verdict.FAILED),
        (CANCEL, 0, "", True, Verdict.CANCELLED),
        (CANCEL, 1, "", True, Verdict.CANCELLED),
        (CANCEL, 143, "", True, Verdict.CANCELLED),
        (CANCEL, None, "", True, Verdict.CANCELLED),
        (TIME_LIMIT, 143, "", True, Verdict.FAILED),
        (TIME_LIMIT, 0, "", True, Verdict.FAILED),
    ],
)
def test_what_we_meant_and_what_was_seen_give_the_verdict(intent, code, message, asked, verdict):
    assert judged(ended(code, message, asked), intent).verdict is verdict


@pytest.mark.parametrize("phase", [Phase.GATED, Phase.STARTING, Phase.RUNNING, Phase.STOPPING])
def test_a_run_that_goes_on_has_no_verdict(phase):
    report = replace(ended(None), phase=phase, ended_at=None)

    assert outcomes.judge(a_run(), report, now=after(610), policy=POLICY) is None


@pytest.mark.parametrize(
    ("intent", "verdict"),
    [
        (NONE, Verdict.LOST),
        (HAND_BACK, Verdict.PREEMPTED),
        (CANCEL, Verdict.CANCELLED),
        (TIME_LIMIT, Verdict.FAILED),
    ],
)
def test_a_run_that_vanished_is_judged_by_what_we_meant(intent, verdict):
    outcome = judged(None, intent)

    assert (outcome.verdict, outcome.ended_at) == (verdict, after(610))


def test_argo_r01_an_evicted_pod_counts_as_preempted_whether_its_end_was_seen_or_not():
    seen = judged(ended(143, "Error (exit code 143)", asked=True), HAND_BACK)
    unseen = judged(ended(None, "pod deleted", asked=True), HAND_BACK)

    assert (seen.verdict, unseen.verdict) == (Verdict.PREEMPTED, Verdict.PREEMPTED)
    assert outcomes.again(seen, failures=0, retries=0)
    assert outcomes.again(unseen, failures=0, retries=0)


@pytest.mark.parametrize(("intent", "asked"), [(HAND_BACK, False), (HAND_BACK, True), (NONE, True)])
def test_argo_r09_an_end_with_0_while_being_stopped_is_flagged(intent, asked):
    outcome = judged(ended(0, asked=asked), intent)

    assert outcome.while_stopping
    assert outcome.why == "finished while it was being stopped"


def test_an_end_with_0_that_nobody_disturbed_is_not_flagged():
    assert judged(ended(0)) == Outcome(verdict=Verdict.SUCCEEDED, why="finished", ended_at=after(600))


@pytest.mark.parametrize(("code", "verdict"), [(143, Verdict.PREEMPTED), (75, Verdict.PREEMPTED), (137, Verdict.LOST)])
def test_being_stopped_by_nobody_counts_until_it_is_a_failure(code, verdict):
    first, second, third = (judged(ended(code), unseen=count) for count in range(3))

    assert (first.verdict, first.unseen) == (verdict, True)
    assert (second.verdict, second.unseen) == (verdict, True)
    assert (third.verdict, third.unseen) == (Verdict.FAILED, False)
    assert third.why == f"ended with {code} 3 times although nobody asked it to"


def test_a_run_that_saved_something_is_never_given_up_for_being_stopped():
    outcome = judged(ended(143, progress=SAVED), unseen=99)

    assert (outcome.verdict, outcome.unseen) == (Verdict.PREEMPTED, False)


@pytest.mark.parametrize("report", [ended(143, asked=True), ended(None, "pod deleted"), ended(1), ended(0)])
def test_other_endings_do_not_count_as_unseen(report):
    assert not judged(report, unseen=2).unseen


def test_a_program_that_fails_while_it_stops_is_told_how_to_end():
    why = judged(ended(1, asked=True), HAND_BACK).why

    assert why == (
        "ended with exit code 1 when it was asked to stop; "
        "a program that saved its work must end with 143 or 75 to go on later"
    )


@pytest.mark.parametrize(
    ("report", "failures", "why"),
    [
        (ended(1), 0, "ended with exit code 1"),
        (ended(1), 1, "ended with exit code 1; failure 2 of this task"),
        (ended(127, "python3: not found"), 0, "ended with exit code 127 (python3: not found)"),
        (ended(137, OOM), 0, "ran out of memory and was killed (OOMKilled)"),
        (ended(1, "gpujob-final: cannot be placed"), 0, "cannot be placed"),
    ],
)
def test_a_failure_says_why(report, failures, why):
    assert judged(report, failures=failures).why == why


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (143, "used up max_hours"),
        (0, "used up max_hours, although it ended with 0 when it was asked to stop"),
    ],
)
def test_a_run_over_its_time_says_so(code, why):
    assert judged(ended(code, asked=True), TIME_LIMIT).why == why


def test_who_asked_for_the_end_is_told_if_it_was_not_us():
    by_kubernetes = ended(143, "kube-scheduler took its place", asked=True)

    assert "kube-scheduler took its place" in judged(by_kubernetes).why
    assert "kube-scheduler" not in judged(by_kubernetes, HAND_BACK).why


def test_an_operator_may_give_up_at_the_first_ending_that_nobody_asked_for():
    strict = replace(POLICY, failures_unseen=1)

    outcome = outcomes.judge(a_run(), ended(143), now=after(610), policy=strict)

    assert outcome is not None
    assert outcome.why == "ended with 143 once although nobody asked it to"


def test_a_kill_after_the_grace_says_what_is_lost():
    why = judged(ended(137, asked=True), HAND_BACK).why

    assert why == "was killed when its grace was over; work since its last checkpoint is lost"


@pytest.mark.parametrize(
    ("seconds", "at"),
    [(600, after(600)), (700, after(610)), (-5, NOON)],
    ids=["seen", "ahead of us", "before it began"],
)
def test_an_end_lies_between_the_begin_and_now(seconds, at):
    assert judged(replace(ended(0), ended_at=after(seconds))).ended_at == at


def test_retries_cover_failures_only():
    failed, preempted = judged(ended(1)), judged(ended(143, asked=True), HAND_BACK)

    assert [outcomes.again(failed, failures=count, retries=2) for count in range(4)] == [True, True, False, False]
    assert outcomes.again(preempted, failures=9, retries=0)
    assert not outcomes.again(judged(ended(0)), failures=0, retries=9)
    assert not outcomes.again(judged(ended(143), CANCEL), failures=0, retries=9)


@pytest.mark.parametrize(
    "outcome",
    [judged(ended(143), TIME_LIMIT), judged(ended(1, "gpujob-final: given up"))],
    ids=["time limit", "final"],
)
def test_some_failures_are_final(outcome):
    assert not outcomes.again(outcome, failures=0, retries=9)


CODES = st.none() | st.sampled_from([75, 137, 143]) | st.integers(0, 255)
MESSAGES = st.sampled_from(
    ["", OOM, "Error (exit code 1)", "pod deleted", "Pod was rejected: no GPU", "gpujob-final: given up", "lost"]
)


@given(CODES, MESSAGES, st.integers(0, 3), st.integers(0, 3))
def test_executor_and_judge_agree_on_trying_again_when_nobody_asked(code, message, failures, retries):
    outcome = judged(ended(code, message), failures=failures)

    assert outcomes.exit_again(code, message, failures, retries) == outcomes.again(outcome, failures, retries)


@given(CODES, MESSAGES, st.sampled_from(Intent), st.booleans(), st.integers(0, 5))
def test_every_ending_has_one_verdict_and_a_sentence(code, message, intent, asked, unseen):
    outcome = judged(ended(code, message, asked), intent, unseen)

    assert outcome.why
    assert not outcome.final or outcome.verdict is Verdict.FAILED
    assert not outcome.while_stopping or outcome.verdict is Verdict.SUCCEEDED


def test_argo_r27_r31_what_never_began_counts_for_nothing_unless_a_program_was_seen():
    told = ended(None, "was never started: Allocate failed due to no device")
    begun = replace(told, started_at=after(10))

    never = outcomes.judge(replace(a_run(), started_at=None), told, now=after(610), policy=POLICY)
    lost = outcomes.judge(replace(a_run(), started_at=None), begun, now=after(610), policy=POLICY)

    assert never is not None
    assert lost is not None
    assert (never.verdict, never.never_began, never.unseen) == (Verdict.PREEMPTED, True, False)
    assert (lost.verdict, lost.never_began) == (Verdict.LOST, False)


@pytest.mark.parametrize(("before", "verdict"), [(0, Verdict.PREEMPTED), (1, Verdict.PREEMPTED), (2, Verdict.FAILED)])
def test_what_no_node_can_start_is_given_up(before: int, verdict: Verdict):
    run = replace(a_run(intent=NO_START), started_at=None, intent_why="ImagePullBackOff: no such image")

    outcome = outcomes.judge(run, ended(None), now=after(610), policy=POLICY, unseen=before)

    assert outcome is not None
    assert (outcome.verdict, outcome.final, "no such image" in outcome.why) == (verdict, before == 2, True)
