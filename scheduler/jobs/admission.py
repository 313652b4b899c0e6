"""Whether a job may enter the queue, whether it needs an approver, and who may decide that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from scheduler.jobs.job import Job, JobState
from scheduler.jobs.mail import Person
from scheduler.jobs.spec import JobSpec, Priority, StepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamBudget:
    """What a team may use; None sets no limit."""

    running_gpus: int | None = None  # at once
    month_gpu_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The operator's rules; sections `[approval]` and `[[team]]` of the settings."""

    approve_over_gpu_hours: float | None = None  # a job that is estimated at more needs approval; None: no such rule
    approve_high_priority: bool = True
    max_gpus_per_node: int | None = None  # that a step may ask for, however large the nodes are
    teams: Mapping[str, TeamBudget] = field(default_factory=dict)  # if there are any, others are refused
    approvers: tuple[str, ...] = ()  # Slack user ids, Slack user group ids, or names given with `--as`
    own_jobs: bool = False  # approvers may decide on their own jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """It may wait for GPUs at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsApproval:
    """It waits for an approver first."""

    why: tuple[str, ...]  # one sentence a rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """It can never run as it is."""

    faults: tuple[str, ...]  # one sentence each


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The state that a decision leads to."""

    state: JobState
    by: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAllowed:
    """No decision was made."""

    why: str  # a sentence for the person who asked


def admit(
    spec: JobSpec,
    owner: Person,
    rules: Rules,
    *,
    running: Mapping[str, int],
    month_gpu_hours: Mapping[str, float],
    nodes: Mapping[str, int] | None,
) -> Admitted | NeedsApproval | Refused:
    """What becomes of a job that was just submitted.

    `running` and `month_gpu_hours` are by team. `nodes` are GPUs by node; None: not known now, so nothing is refused
    because of them.
    """
    faults = (*_unknown_team(spec, rules), *_too_large(spec, rules, nodes))
    if faults:
        return Refused(faults=faults)
    why = (*_over_hours(spec, rules), *_over_budget(spec, rules, running, month_gpu_hours))
    if rules.approve_high_priority and spec.priority is Priority.HIGH:
        why = ("It asks for high priority.", *why)
    if not why:
        return Admitted()
    return NeedsApproval(why=(*why, *_nobody_to_ask(owner, rules)))


def gpu_hours(spec: JobSpec) -> float | None:
    """GPU-hours of all its tasks; by `estimate_hours`, else by `max_hours` as the upper bound; None with neither.

    An elastic step counts with its first choice. A job without GPUs needs none, whatever it says of its hours.
    """
    gpus = sum(_tasks(step) * step.gpus[0] * step.nodes for step in spec.steps)
    hours = spec.max_hours if spec.estimate_hours is None else spec.estimate_hours
    if hours is None:
        return None if gpus else 0.0
    return gpus * hours


def decide(job: Job, by: Person, approve: bool, reason: str, rules: Rules) -> Decided | NotAllowed:
    """What an approval or a denial of `job` comes to."""
    verb = "approve" if approve else "deny"
    if job.state is not JobState.AWAITING_APPROVAL:
        return NotAllowed(why=f"{job.label} does not wait for approval: {_standing(job)}.")
    if not rules.approvers:
        return NotAllowed(
            why=f"Nobody may {verb} {job.label}: no approvers are set. An operator sets [approval] approvers."
        )
    if not is_approver(by, rules):
        return NotAllowed(
            why=f"You may not {verb} {job.label}. These may: {', '.join(rules.approvers)} ([approval] approvers)."
        )
    if by.id == job.owner and not rules.own_jobs:
        instead = "" if approve else f" To end it, cancel {job.label}."
        return NotAllowed(why=f"{job.label} is your own job: another approver must {verb} it.{instead}")
    return Decided(state=JobState.WAITING if approve else JobState.DENIED, by=by.id, why=reason.strip())


def may_cancel(job: Job, by: Person, rules: Rules) -> bool:
    """Its owner may, and every approver."""
    return by.id == job.owner or is_approver(by, rules)


def is_approver(person: Person, rules: Rules) -> bool:
    """Whether a person is named as approver, or is in a group that is."""
    return bool({person.id, *person.groups} & set(rules.approvers))


def _unknown_team(spec: JobSpec, rules: Rules) -> Iterator[str]:
    if not rules.teams or not spec.team or spec.team in rules.teams:
        return
    near = get_close_matches(spec.team, rules.teams, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Known teams: {', '.join(sorted(rules.teams))}."
    yield f"Team {spec.team} is not known. {hint}"


def _too_large(spec: JobSpec, rules: Rules, nodes: Mapping[str, int] | None) -> Iterator[str]:
    for step in spec.steps:
        least = min(step.gpus)
        if rules.max_gpus_per_node is not None and least > rules.max_gpus_per_node:
            yield (
                f"Step {step.name} asks for {least} GPUs a node; the limit here is {rules.max_gpus_per_node}"
                f" ([approval] max_gpus_per_node). {_smaller(rules.max_gpus_per_node)}"
            )
        elif nodes is not None and least:
            yield from _too_large_for_nodes(step, least, nodes)


def _too_large_for_nodes(step: StepSpec, least: int, nodes: Mapping[str, int]) -> Iterator[str]:
    largest = max(nodes.values(), default=0)
    if least > largest:
        where = (
            f"the largest node, {max(nodes, key=lambda name: nodes[name])}, has {largest}"
            if largest
            else "no node has any"
        )
        yield f"Step {step.name} asks for {least} GPUs a node; {where}. {_smaller(largest)}"
        return
    fitting = sum(gpus >= least for gpus in nodes.values())
    if step.nodes > fitting:
        have = "only 1 node has" if fitting == 1 else f"only {fitting} nodes have"
        yield (
            f"Step {step.name} asks for {step.nodes} nodes with {least} GPUs each; {have} so many."
            f" Ask for at most {fitting}, or for fewer GPUs a node."
        )


def _smaller(limit: int) -> str:
    return f"Ask for at most {limit} a node; nodes: 2 spreads a task over two." if limit else "Ask for gpus: 0."


def _over_hours(spec: JobSpec, rules: Rules) -> Iterator[str]:
    if rules.approve_over_gpu_hours is None:
        return
    estimate, limit = gpu_hours(spec), rules.approve_over_gpu_hours
    if estimate is None:
        yield (
            f"It says neither estimate_hours nor max_hours, so nobody knows if it stays below {limit:g} GPU-hours,"
            " above which a job needs approval."
        )
    elif estimate > limit:
        yield f"It is estimated at {estimate:g} GPU-hours; above {limit:g} a job needs approval."


def _over_budget(
    spec: JobSpec, rules: Rules, running: Mapping[str, int], month_gpu_hours: Mapping[str, float]
) -> Iterator[str]:
    budget = rules.teams.get(spec.team)
    if budget is None:
        return
    step = max(spec.steps, key=_least_at_once)
    if budget.running_gpus is not None and _least_at_once(step) > budget.running_gpus:
        yield (
            f"A task of step {step.name} needs {_least_at_once(step)} GPUs at once; team {spec.team} may run"
            f" {budget.running_gpus} ({running.get(spec.team, 0)} in use now)."
        )
    if budget.month_gpu_hours is not None:
        used = month_gpu_hours.get(spec.team, 0.0)
        yield from _over_month(spec, budget.month_gpu_hours, used)


def _over_month(spec: JobSpec, budget: float, used: float) -> Iterator[str]:
    estimate = gpu_hours(spec)
    so_far = f"team {spec.team} has used {used:g} of its {budget:g} GPU-hours of this month"
    if estimate is None:
        yield f"It says neither estimate_hours nor max_hours, and {so_far}."
    elif estimate and used + estimate > budget:
        yield f"It is estimated at {estimate:g} GPU-hours, and {so_far}."


def _nobody_to_ask(owner: Person, rules: Rules) -> Iterator[str]:
    if not rules.approvers:
        yield "No approvers are set, so nobody can approve it: an operator sets [approval] approvers."
    elif set(rules.approvers) == {owner.id} and not rules.own_jobs:
        yield "Its owner is the only approver, so nobody else can approve it: an operator adds to [approval] approvers."


def _standing(job: Job) -> str:
    match job.state:
        case JobState.DENIED:
            return f"{job.decided_by or 'someone'} denied it"
        case JobState.WAITING | JobState.RUNNING | JobState.PREEMPTED if job.decided_by:
            return f"{job.decided_by} approved it, and it is {job.state} now"
        case _:
            return f"it is {job.state}"


def _tasks(step: StepSpec) -> int:
    return 1 if step.sweep is None else len(step.sweep)


def _least_at_once(step: StepSpec) -> int:
    return min(step.gpus) * step.nodes
