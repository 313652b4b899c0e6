from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.jobs import admission
from scheduler.jobs.admission import Admitted, Decided, NeedsApproval, NotAllowed, Refused, Rules, TeamBudget
from scheduler.jobs.job import JobState
from scheduler.jobs.mail import Person
from scheduler.jobs.spec import JobSpec, Priority
from tests.jobs.building import a_job, a_spec, a_step

RESEARCHER, LEAD, MEMBER = Person(id="U1"), Person(id="U9"), Person(id="U2", groups=("S1",))
RULES = Rules(approvers=("U9", "S1"))
NODES = {"node-1": 8, "node-2": 8, "node-3": 4}
AWAITING = JobState.AWAITING_APPROVAL


def admitted(spec: JobSpec, rules: Rules = RULES, owner: Person = RESEARCHER, **world: Any):
    outside: dict[str, Any] = {"running": {}, "month_gpu_hours": {}, "nodes": NODES}
    return admission.admit(spec, owner, rules, **outside | world)


def test_a_small_job_is_admitted():
    assert admitted(a_spec()) == Admitted()


def test_high_priority_needs_approval():
    assert admitted(a_spec(priority=Priority.HIGH)) == NeedsApproval(why=("It asks for high priority.",))
    assert admitted(a_spec(priority=Priority.HIGH), replace(RULES, approve_high_priority=False)) == Admitted()


@pytest.mark.parametrize(
    ("spec", "hours"),
    [
        (a_spec(estimate_hours=6.0), 24.0),
        (a_spec(max_hours=10.0), 40.0),
        (a_spec(estimate_hours=6.0, max_hours=10.0), 24.0),
        (a_spec(a_step(nodes=2, sweep=({"lr": 1}, {"lr": 2}, {"lr": 3})), estimate_hours=1.0), 24.0),
        (a_spec(a_step("prep", gpus=(0,)), a_step(gpus=(8, 4)), estimate_hours=0.5), 4.0),
        (a_spec(a_step(sweep=()), estimate_hours=6.0), 0.0),
        (a_spec(), None),
        (a_spec(a_step(gpus=(0,))), 0.0),
    ],
    ids=[
        "estimate",
        "max as bound",
        "estimate wins",
        "gang and sweep",
        "elastic",
        "no tasks",
        "says nothing",
        "no GPUs",
    ],
)
def test_gpu_hours_of_a_job_are_estimated(spec, hours):
    assert admission.gpu_hours(spec) == hours


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (a_spec(estimate_hours=26.0), "It is estimated at 104 GPU-hours; above 100 a job needs approval."),
        (
            a_spec(),
            "It says neither estimate_hours nor max_hours, so nobody knows if it stays below 100 GPU-hours,"
            " above which a job needs approval.",
        ),
    ],
)
def test_a_job_over_the_limit_or_without_an_estimate_needs_approval(spec, why):
    rules = replace(RULES, approve_over_gpu_hours=100.0)

    assert admitted(spec, rules) == NeedsApproval(why=(why,))


@pytest.mark.parametrize(
    "spec", [a_spec(estimate_hours=25.0), a_spec(a_step(gpus=(0,)))], ids=["at the limit", "no GPUs"]
)
def test_a_job_up_to_the_limit_is_admitted(spec):
    assert admitted(spec, replace(RULES, approve_over_gpu_hours=100.0)) == Admitted()


def test_a_task_larger_than_the_budget_of_its_team_needs_approval():
    rules = replace(RULES, teams={"nlp": TeamBudget(running_gpus=8)})
    spec = a_spec(a_step("prep", gpus=(0,)), a_step(gpus=(8,), nodes=2), team="nlp")

    assert admitted(spec, rules, running={"nlp": 6}) == NeedsApproval(
        why=("A task of step sft needs 16 GPUs at once; team nlp may run 8 (6 in use now).",)
    )


def test_a_team_that_uses_its_budget_now_may_still_submit():
    rules = replace(RULES, teams={"nlp": TeamBudget(running_gpus=8)})

    assert admitted(a_spec(a_step(gpus=(16, 8)), team="nlp"), rules, running={"nlp": 8}) == Admitted()


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            a_spec(team="nlp", estimate_hours=6.0),
            ("It is estimated at 24 GPU-hours, and team nlp has used 80 of its 100 GPU-hours of this month.",),
        ),
        (
            a_spec(team="nlp"),
            (
                "It says neither estimate_hours nor max_hours,"
                " and team nlp has used 80 of its 100 GPU-hours of this month.",
            ),
        ),
    ],
)
def test_a_job_over_what_is_left_of_the_month_needs_approval(spec, why):
    rules = replace(RULES, teams={"nlp": TeamBudget(month_gpu_hours=100.0)})

    assert admitted(spec, rules, month_gpu_hours={"nlp": 80.0, "vision": 5.0}) == NeedsApproval(why=why)


def test_a_job_within_what_is_left_of_the_month_is_admitted():
    rules = replace(RULES, teams={"nlp": TeamBudget(month_gpu_hours=100.0)})

    assert admitted(a_spec(team="nlp", estimate_hours=5.0), rules, month_gpu_hours={"nlp": 80.0}) == Admitted()


@pytest.mark.parametrize(
    ("team", "fault"),
    [
        ("nlpp", "Team nlpp is not known. Did you mean nlp?"),
        ("robotics", "Team robotics is not known. Known teams: nlp, vision."),
    ],
)
def test_an_unknown_team_is_refused(team, fault):
    rules = replace(RULES, teams={"vision": TeamBudget(), "nlp": TeamBudget()})

    assert admitted(a_spec(team=team), rules) == Refused(faults=(fault,))


def test_any_team_is_known_where_no_teams_are_set():
    assert admitted(a_spec(team="robotics")) == Admitted()


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        (
            a_step(gpus=(16,)),
            "Step sft asks for 16 GPUs a node; the largest node, node-1, has 8."
            " Ask for at most 8 a node; nodes: 2 spreads a task over two.",
        ),
        (
            a_step(gpus=(8,), nodes=3),
            "Step sft asks for 3 nodes with 8 GPUs each; only 2 nodes have so many."
            " Ask for at most 2, or for fewer GPUs a node.",
        ),
    ],
)
def test_a_step_that_fits_on_no_node_is_refused(step, fault):
    assert admitted(a_spec(step)) == Refused(faults=(fault,))


def test_faults_of_all_steps_are_told_at_once():
    verdict = admitted(a_spec(a_step("a", gpus=(9,)), a_step("b", gpus=(10,))))

    assert isinstance(verdict, Refused)
    assert [fault[:22] for fault in verdict.faults] == ["Step a asks for 9 GPUs", "Step b asks for 10 GPU"]


def test_the_operator_may_limit_gpus_below_the_size_of_a_node():
    rules = replace(RULES, max_gpus_per_node=4)

    verdict = admitted(a_spec(a_step(gpus=(8,))), rules)

    assert admitted(a_spec(a_step(gpus=(4,))), rules) == Admitted()
    assert verdict == Refused(
        faults=(
            "Step sft asks for 8 GPUs a node; the limit here is 4 ([approval] max_gpus_per_node)."
            " Ask for at most 4 a node; nodes: 2 spreads a task over two.",
        )
    )


def test_nothing_is_refused_for_its_size_while_the_nodes_are_unknown():
    assert admitted(a_spec(a_step(gpus=(64,))), nodes=None) == Admitted()


def test_on_nodes_without_gpus_only_steps_without_gpus_are_admitted():
    assert admitted(a_spec(a_step(gpus=(0,))), nodes={}) == Admitted()
    assert admitted(a_spec(), nodes={"cpu-1": 0}) == Refused(
        faults=("Step sft asks for 4 GPUs a node; no node has any. Ask for gpus: 0.",)
    )


def test_an_elastic_step_is_refused_only_if_its_smallest_choice_fits_nowhere():
    assert admitted(a_spec(a_step(gpus=(16, 8)))) == Admitted()


@pytest.mark.parametrize(
    ("rules", "owner", "hint"),
    [
        (
            Rules(),
            RESEARCHER,
            "No approvers are set, so nobody can approve it: an operator sets [approval] approvers.",
        ),
        (
            Rules(approvers=("U9",)),
            LEAD,
            "Its owner is the only approver, so nobody else can approve it: an operator adds to [approval] approvers.",
        ),
    ],
)
def test_a_job_that_nobody_could_approve_says_so_at_once(rules, owner, hint):
    verdict = admitted(a_spec(priority=Priority.HIGH), rules, owner)

    assert verdict == NeedsApproval(why=("It asks for high priority.", hint))


def decided(by: Person, approve: bool = True, rules: Rules = RULES, reason: str = "", **job: Any):
    return admission.decide(a_job(**{"state": AWAITING} | job), by, approve, reason, rules)


@pytest.mark.parametrize("by", [LEAD, MEMBER], ids=["by id", "by group"])
def test_an_approver_decides(by):
    assert decided(by) == Decided(state=JobState.WAITING, by=by.id, why="")
    assert decided(by, approve=False, reason=" too long ") == Decided(state=JobState.DENIED, by=by.id, why="too long")


def test_someone_else_may_not_decide():
    assert decided(Person(id="U3", groups=("S2",)), approve=False) == NotAllowed(
        why="You may not deny job-41. These may: U9, S1 ([approval] approvers)."
    )


def test_without_approvers_nobody_may_decide():
    assert decided(LEAD, rules=Rules()) == NotAllowed(
        why="Nobody may approve job-41: no approvers are set. An operator sets [approval] approvers."
    )


def test_an_approver_may_not_decide_on_the_own_job():
    assert decided(LEAD, owner="U9") == NotAllowed(why="job-41 is your own job: another approver must approve it.")
    assert decided(LEAD, approve=False, owner="U9") == NotAllowed(
        why="job-41 is your own job: another approver must deny it. To end it, cancel job-41."
    )


def test_the_operator_may_let_approvers_decide_on_own_jobs():
    assert isinstance(decided(LEAD, owner="U9", rules=replace(RULES, own_jobs=True)), Decided)
    assert isinstance(decided(RESEARCHER, rules=replace(RULES, own_jobs=True)), NotAllowed)


@pytest.mark.parametrize(
    ("state", "decided_by", "why"),
    [
        (JobState.WAITING, "U2", "job-41 does not wait for approval: U2 approved it, and it is waiting now."),
        (JobState.RUNNING, "U2", "job-41 does not wait for approval: U2 approved it, and it is running now."),
        (JobState.RUNNING, "", "job-41 does not wait for approval: it is running."),
        (JobState.DENIED, "U2", "job-41 does not wait for approval: U2 denied it."),
        (JobState.CANCELLED, "U2", "job-41 does not wait for approval: it is cancelled."),
        (JobState.EXPIRED, "", "job-41 does not wait for approval: it is expired."),
    ],
)
def test_a_late_decision_says_what_the_job_is_now(state, decided_by, why):
    assert decided(LEAD, state=state, decided_by=decided_by) == NotAllowed(why=why)


@pytest.mark.parametrize(("by", "may"), [(RESEARCHER, True), (LEAD, True), (MEMBER, True), (Person(id="U3"), False)])
def test_owner_and_approvers_may_cancel(by, may):
    assert admission.may_cancel(a_job(), by, RULES) is may


PEOPLE = st.builds(
    Person,
    id=st.sampled_from(["U1", "U2", "U9"]),
    groups=st.lists(st.sampled_from(["S1", "S2"]), max_size=2).map(tuple),
)
ANY_RULES = st.builds(
    Rules,
    approvers=st.lists(st.sampled_from(["U2", "U9", "S1"]), max_size=3).map(tuple),
    own_jobs=st.booleans(),
)


@given(PEOPLE, PEOPLE, ANY_RULES, st.booleans(), st.sampled_from(JobState))
def test_nobody_decides_who_may_not(owner, by, rules, approve, state):
    verdict = admission.decide(a_job(state=state, owner=owner.id), by, approve, "", rules)

    if isinstance(verdict, Decided):
        assert state is AWAITING
        assert by.id in rules.approvers or set(by.groups) & set(rules.approvers)
        assert by.id != owner.id or rules.own_jobs
    else:
        assert verdict.why.endswith(".")
