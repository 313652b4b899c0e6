"""How one pod ended, out of all that its status may say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from scheduler.adapters.argo.memory import Sighting
from scheduler.adapters.kube.objects import Ended
from scheduler.jobs.outcomes import NEVER_STARTED

_PLAIN = frozenset({"", "Error", "Completed"})
_OUT_OF_MEMORY = "OOMKilled"
_MADE_UP = "ContainerStatusUnknown"  # the kubelet lost the container, and writes 137 for want of better
_PREEMPTED = "PreemptionByScheduler"

# Reasons of a kubelet that did not admit a pod (pkg/kubelet/lifecycle); one that was lost with its node has others.
_REFUSED = re.compile(
    r"OutOf\S+$|UnexpectedAdmissionError$|Node(Affinity|Name|Ports)$|NodeUnschedulable$|AdmissionRejected$"
    r"|TopologyAffinityError$|TaintToleration$|PodOSNotSupported$|PodOSSelectorNodeLabelDoesNotMatch$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of one pod. No code: nobody saw it, or its program never began."""

    code: int | None
    message: str = ""
    at: datetime | None = None


def end_of(seen: Sighting) -> End | None:
    """The end of a pod that is over; None if its own status does not tell, as when it vanished while it ran."""
    pod, main = seen.pod, seen.ended
    if main is not None:
        return _of_main(seen, main)
    if not pod.terminal:
        return None
    if pod.phase == "Succeeded":
        return End(code=0, message=pod.message, at=seen.over_at)
    if pod.side_ended is not None:
        side = pod.side_ended
        return End(code=side.exit_code, message=pod.message or _side(side), at=side.at or seen.over_at)
    why = pod.message or pod.reason or "pod failed: its status does not say why"
    if seen.started_at is None and _REFUSED.match(pod.reason):
        why = f"{NEVER_STARTED}: {why}"
    return End(code=None, message=why, at=seen.over_at)


def _of_main(seen: Sighting, main: Ended) -> End:
    pod = seen.pod
    if main.at is None or main.reason == _MADE_UP:
        why = pod.message or main.message or "the kubelet lost its container"
        return End(code=None, message=f"{why} ({main.reason or _MADE_UP}: nobody saw it end)", at=seen.over_at)
    if main.exit_code == 0 and pod.side_ended is not None:
        return End(code=pod.side_ended.exit_code, message=pod.message or _side(pod.side_ended), at=main.at)
    return End(code=main.exit_code, message=pod.message or _said(seen, main), at=main.at)


def _said(seen: Sighting, main: Ended) -> str:
    if main.reason == _OUT_OF_MEMORY:
        return _OUT_OF_MEMORY
    if seen.disrupted == _PREEMPTED:
        return f"kube-scheduler took its place for a pod of higher priority ({_PREEMPTED})"
    # The texts of a plain end are the program's own, and must not pass for ours.
    return "" if main.reason in _PLAIN else f"main: {main.reason}: {main.message}".rstrip(": ")


def _side(side: Ended) -> str:
    return f"its helper container ended with exit code {side.exit_code} ({side.message or side.reason or 'Error'})"
