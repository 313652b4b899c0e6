"""Hand-backs measured: from the first sign of need to the replica that answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from scheduler.cycle.work import Work
from scheduler.fleet.pool import ReplicaPhase
from scheduler.jobs.job import TERMINAL_RUN, Uid
from scheduler.planning.plan import TakeBack
from scheduler.planning.snapshot import Snapshot
from scheduler.ports import Change, HandBack, KeepHandBack


class HandBacks:
    """The hand-backs under way, by service. A restart forgets them: what was recorded stays without its later times."""

    def __init__(self) -> None:
        self._open: dict[str, HandBack] = {}
        self._victims: dict[str, set[Uid]] = {}

    def decided(self, action: TakeBack, seen: Snapshot, now: datetime) -> list[Change]:
        """A run was asked to end: for a service, or for none, as when the hours of lending are over."""
        if not action.service:
            return []
        demand = next((d for d in seen.demands if d.service == action.service), None)
        gpus = sum(action.placement.values())
        known = self._open.get(action.service)
        if known is None or known.freed_at is not None:
            signal = demand.above_since if demand and demand.above_since else now
            known = HandBack(service=action.service, signal_at=min(signal, now), decided_at=now)
            self._victims[action.service] = set()
        self._victims[action.service].add(action.uid)
        self._open[action.service] = replace(known, gpus=known.gpus + gpus)
        return [KeepHandBack(hand_back=self._open[action.service])]

    def followed(self, work: Work, seen: Snapshot, now: datetime) -> list[Change]:
        """The times that are known by now."""
        changes: list[Change] = []
        for service, hand_back in list(self._open.items()):
            victims = [work.runs[uid] for uid in self._victims[service] if uid in work.runs]
            if hand_back.freed_at is None and all(run.state in TERMINAL_RUN for run in victims):
                freed = max((run.ended_at for run in victims if run.ended_at), default=now)
                hand_back = self._open[service] = replace(hand_back, freed_at=freed)  # noqa: PLW2901
                changes.append(KeepHandBack(hand_back=hand_back))
            elif hand_back.freed_at is not None and _all_ready(service, seen, hand_back.freed_at):
                changes.append(KeepHandBack(hand_back=replace(hand_back, ready_at=now)))
                del self._open[service]
        return changes


def _all_ready(service: str, seen: Snapshot, freed_at: datetime) -> bool:
    replicas = [r for r in seen.pool.replicas if r.service == service and r.phase is not ReplicaPhase.LEAVING]
    new = [r for r in replicas if r.since >= freed_at]
    return bool(new) and all(r.phase is ReplicaPhase.READY for r in replicas)
