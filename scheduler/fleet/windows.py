"""Which GPUs of which node are idle, from when, until when, how sure, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from zoneinfo import ZoneInfo

from scheduler.fleet import seats
from scheduler.fleet.calendar import Calendar, closes_at, is_open
from scheduler.fleet.demand import ServiceDemand
from scheduler.fleet.pattern import SLOT, Pattern, slot_start
from scheduler.fleet.pool import Pool
from scheduler.fleet.services import Service
from scheduler.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """GPUs of one node that are idle from `since` until `until`. The windows of a node are disjoint sets of GPUs."""

    node: str
    gpus: int
    since: datetime
    until: datetime
    confidence: float  # 0 to 1: how sure it lasts until then
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """From `at` on, services probably want `gpus` more than they have now."""

    at: datetime
    gpus: int
    why: str


def windows(
    *,
    pool: Pool,
    services: Sequence[Service],
    demands: Sequence[ServiceDemand],
    pattern: Pattern,
    calendar: Calendar,
    policy: Policy,
    now: datetime,
) -> tuple[Window, ...]:
    """Idle GPUs that may be lent now; by node, the longest first.

    Not lent: the reserve, and what services lack at this moment. GPUs of fuller nodes are wanted back first, so that
    the emptiest nodes stay whole. Source of the order: docs/decisions/0003.
    """
    if not is_open(calendar, now):
        return ()
    smallest = min((service.gpus_per_replica for service in services), default=1)
    lacking = seats.missing(services, demands, pool)
    free = _beyond_need(pool, lacking)
    kept = _keep_reserve(free, policy.reserve_gpus, smallest, seats.hosts(pool))
    ends = tuple(_ends(services, lacking, pattern, policy, now))
    close = closes_at(calendar, now)
    sure, seen = _confidence(services, pattern, policy, now)
    found: list[Window] = []
    for node, gpus_and_end in _ended(free, kept, smallest, ends):
        for end, gpus in gpus_and_end:
            until, why = _until(end, close, policy, now)
            if until - now >= timedelta(seconds=policy.least_window_s) and until > now:
                window = Window(node=node, gpus=gpus, since=now, until=until, confidence=sure, why=f"{why} {seen}")
                found.append(window)
    return _joined(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How the windows of one node changed between two turns."""

    node: str
    gpus_before: int
    gpus: int
    until_before: datetime | None  # None: there was no window
    until: datetime | None


def changes(before: Sequence[Window], after: Sequence[Window], moved: timedelta = SLOT) -> tuple[Shift, ...]:
    """Nodes with more or fewer idle GPUs than before, or whose windows end earlier or later by more than `moved`."""
    found = []
    for node in sorted({window.node for window in (*before, *after)}):
        old = [window for window in before if window.node == node]
        new = [window for window in after if window.node == node]
        shift = Shift(
            node=node,
            gpus_before=sum(window.gpus for window in old),
            gpus=sum(window.gpus for window in new),
            until_before=min((window.until for window in old), default=None),
            until=min((window.until for window in new), default=None),
        )
        if shift.gpus != shift.gpus_before or (
            shift.until and shift.until_before and abs(shift.until - shift.until_before) > moved
        ):
            found.append(shift)
    return tuple(found)


def _beyond_need(pool: Pool, lacking: Sequence[seats.Missing]) -> dict[str, int]:
    """Idle GPUs by node, less those that replicas need which are wanted but have none."""
    free = {node: gpus for node, gpus in pool.idle().items() if gpus > 0}
    soon = seats.coming(pool)
    hosting = seats.hosts(pool)
    unseated = [
        service.gpus
        for service in lacking
        for _ in range(service.pending + service.unasked)
        if seats.seat(free, service.gpus, hosting) is None
    ]
    # Where GPUs are coming free, the idle ones beside them make up the seat.
    together = {node: gpus + free.get(node, 0) for node, gpus in soon.items()}
    for gpus in unseated:
        node = seats.seat(together, gpus, hosting)
        if node is not None and node in free:
            free[node] = min(free[node], together[node])
    return free


def _keep_reserve(free: dict[str, int], reserve: int, smallest: int, hosting: frozenset[str]) -> int:
    """Takes the reserve out of `free`, as seats for replicas first, then from the smallest rests; gives what it got."""
    left = reserve
    while left >= smallest and seats.seat(free, smallest, hosting) is not None:
        left -= smallest
    for node in sorted(free, key=lambda node: (free[node], node)):
        taken = min(free[node], left)
        free[node] -= taken
        left -= taken
    return reserve - left


def _ends(
    services: Sequence[Service], lacking: Sequence[seats.Missing], pattern: Pattern, policy: Policy, now: datetime
) -> Iterator[_End]:
    """Times at which services probably want more than at any time before, in order."""
    have = {service.service: service.standing + service.unasked for service in lacking}
    zone = ZoneInfo(pattern.timezone)
    peak = 0
    at = slot_start(now) + SLOT
    while at <= now + timedelta(seconds=policy.horizon_s):
        more = 0
        rising: list[str] = []
        slot = pattern.slot(at)
        for service in services:
            expected = pattern.expected_in(service.name, slot, policy.pattern_quantile)
            extra = 0 if expected is None else expected - have[service.name]
            more += extra * service.gpus_per_replica
            if extra > 0:
                rising.append(service.name)
        if more > peak:
            peak = more
            who = " and ".join(sorted(rising))
            yield _End(at=at, gpus=more, why=f"idle until {who} probably grows at {at.astimezone(zone):%H:%M}")
        at += SLOT


def _ended(
    free: dict[str, int], kept: int, smallest: int, ends: Sequence[_End]
) -> Iterator[tuple[str, list[tuple[_End | None, int]]]]:
    """By node, fullest first: its GPUs grouped by what will want them back."""
    before = kept
    for node in sorted(free, key=lambda node: (free[node], node)):
        # A rest in which no replica fits takes no need away from other nodes, and is told to last no longer than they.
        usable = free[node] - free[node] % smallest
        ranks = [before + max(min(number, usable), 1) for number in range(1, free[node] + 1)]
        wanting = [next((end for end in ends if end.gpus >= rank), None) for rank in ranks]
        yield node, [(end, len(list(group))) for end, group in groupby(wanting)]
        before += usable


def _until(end: _End | None, close: datetime | None, policy: Policy, now: datetime) -> tuple[datetime, str]:
    until = now + timedelta(seconds=policy.horizon_s)
    why = f"idle, and no end is in sight for {policy.horizon_s / 3600:g} h"
    if end is not None and end.at < until:
        until, why = end.at, end.why
    if close is not None and close <= until:
        until, why = close, "idle until the hours of lending close"
    return until, why


def _confidence(services: Sequence[Service], pattern: Pattern, policy: Policy, now: datetime) -> tuple[float, str]:
    """How sure, and the part of the sentence that says what it rests on."""
    days = min((pattern.days(service.name, now) for service in services), default=0)
    if days == 0:
        return policy.unsure_confidence, "(no day of history yet)"
    # Few days say little: it grows from unsure towards the quantile that was asked for.
    grown = (policy.pattern_quantile - policy.unsure_confidence) * days / (days + 2)
    return policy.unsure_confidence + grown, f"({days} {'day' if days == 1 else 'days'} of history)"


def _joined(found: Sequence[Window]) -> tuple[Window, ...]:
    """One window for GPUs of a node that are alike."""

    def alike(window: Window) -> tuple[str, float, str]:
        return window.node, -window.until.timestamp(), window.why

    ordered = sorted(found, key=alike)
    groups = [list(group) for _, group in groupby(ordered, key=alike)]
    return tuple(
        Window(
            node=group[0].node,
            gpus=sum(window.gpus for window in group),
            since=group[0].since,
            until=group[0].until,
            confidence=group[0].confidence,
            why=group[0].why,
        )
        for group in groups
    )
