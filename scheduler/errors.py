"""Everything that gpujob raises on purpose.

GpujobError
├── Unavailable     the outside did not answer; the next turn tries again
├── Conflict        a row moved under us; what was decided is dropped
├── Deposed         another scheduler holds the lease now; this one must stop acting
├── IllegalMove     a state may not follow another: a bug, loud
├── BadInput        something a person wrote cannot be used; every fault has its own sentence
└── NoAnswer        the question was right, but what was found does not answer it
"""

from __future__ import annotations


class GpujobError(Exception):
    """The root; never raised itself."""


class Unavailable(GpujobError):
    """The outside did not answer, or answered with an error of its own."""


class Conflict(GpujobError):
    """A guarded write found another state than the one it expected."""


class Deposed(GpujobError):
    """The fencing token of this process is no longer the newest."""


class IllegalMove(GpujobError):
    """A job, task or run was asked to go where its table of moves does not lead."""


class BadInput(GpujobError):
    """What a person wrote cannot be used. `faults` has one sentence for each fault."""

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class NoAnswer(GpujobError):
    """What was found does not answer the question; the sentence says what is missing and where it could come from."""
