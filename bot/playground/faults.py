"""What can be made to go wrong, on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """How a call or a delivery goes wrong."""

    RATE_LIMITED = "rate_limited"  # HTTP 429 with Retry-After
    SERVER_ERROR = "server_error"  # HTTP 500 before anything happened
    DROP_AFTER = "drop_after"  # done, but the connection breaks before the answer
    SLOW = "slow"  # the answer comes late
    REFUSE = "refuse"  # any other error code of Slack


@dataclass(slots=True, kw_only=True)
class Fault:
    """One rule. `method` is a Web API method, "response_url", or "socket" for what Slack sends."""

    method: str
    kind: FaultKind
    channel: str | None = None  # None: every channel
    times: int = 1  # how often it still strikes; -1: until cleared
    retry_after: int = 1  # seconds
    delay_s: float = 0.0
    error: str = "internal_error"

    def strikes(self, method: str, channel: str | None) -> bool:
        """Whether it is meant for this call, and not used up."""
        return self.times != 0 and self.method in {method, "*"} and self.channel in {None, channel}


class Faults:
    """The rules in force; the first that fits strikes."""

    def __init__(self) -> None:
        self.rules: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Put a rule in force."""
        self.rules.append(fault)
        return fault

    def rate_limit(self, method: str, *, channel: str | None = None, retry_after: int = 1, times: int = 1) -> Fault:
        """Answer 429."""
        kind = FaultKind.RATE_LIMITED
        return self.add(Fault(method=method, kind=kind, channel=channel, retry_after=retry_after, times=times))

    def server_error(self, method: str, *, channel: str | None = None, times: int = 1) -> Fault:
        """Answer HTTP 500."""
        return self.add(Fault(method=method, kind=FaultKind.SERVER_ERROR, channel=channel, times=times))

    def drop_after(self, method: str, *, channel: str | None = None, times: int = 1) -> Fault:
        """Do it, then break the connection."""
        return self.add(Fault(method=method, kind=FaultKind.DROP_AFTER, channel=channel, times=times))

    def slow(self, method: str, delay_s: float, *, channel: str | None = None, times: int = 1) -> Fault:
        """Answer, or deliver, late."""
        return self.add(Fault(method=method, kind=FaultKind.SLOW, channel=channel, delay_s=delay_s, times=times))

    def refuse(self, method: str, error: str, *, channel: str | None = None, times: int = 1) -> Fault:
        """Answer with an error code."""
        return self.add(Fault(method=method, kind=FaultKind.REFUSE, channel=channel, error=error, times=times))

    def clear(self) -> None:
        """Let everything go well again."""
        self.rules.clear()

    def strike(self, method: str, channel: str | None) -> Fault | None:
        """The fault of this call, which counts as one of its times."""
        for fault in self.rules:
            if fault.strikes(method, channel):
                fault.times -= fault.times > 0
                return fault
        return None
