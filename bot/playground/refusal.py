"""How Slack says no."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class Refusal(Exception):
    """An answer `ok: false`, with Slack's own error code."""

    def __init__(self, error: str, *messages: str, retry_after: int | None = None, **extra: Any) -> None:
        super().__init__(error)
        self.error = error
        self.messages = messages
        self.retry_after = retry_after  # whole seconds; the answer is then HTTP 429
        self.extra = extra

    def body(self) -> Json:
        """The JSON that the caller gets."""
        answer: Json = {"ok": False, "error": self.error, **self.extra}
        if self.messages:
            answer["response_metadata"] = {"messages": [f"[ERROR] {message}" for message in self.messages]}
        return answer


class NotThere(LookupError):
    """A person cannot use what is not on their screen."""
