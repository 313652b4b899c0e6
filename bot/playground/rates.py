"""How often each method may be called. Source: docs.slack.dev, apis/web-api/rate-limits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bot.playground.refusal import Refusal

PER_MINUTE = {2: 20, 3: 50, 4: 100}
POST_BURST = 5  # messages at once in one channel, before one a second is all that passes
POSTS = frozenset({"chat.postMessage", "files.completeUploadExternal"})
TIERS = {
    "chat.update": 3,
    "chat.delete": 3,
    "chat.postEphemeral": 4,
    "views.open": 4,
    "views.push": 4,
    "views.update": 4,
    "views.publish": 4,
    "users.info": 4,
    "users.list": 2,
    "conversations.open": 3,
    "conversations.info": 3,
    "conversations.history": 3,
    "conversations.replies": 3,
    "conversations.members": 4,
    "conversations.list": 2,
    "usergroups.list": 2,
    "usergroups.users.list": 2,
    "files.getUploadURLExternal": 4,
    "reactions.add": 3,
    "apps.connections.open": 3,
}


@dataclass(slots=True)
class Bucket:
    """Tokens that come back with time."""

    tokens: float
    at: float


class Rates:
    """Refuses what is too fast. `speed` is how many seconds of Slack pass in one of ours."""

    def __init__(self, *, speed: float, enforced: bool) -> None:
        self.speed = speed
        self.enforced = enforced
        self._buckets: dict[str, Bucket] = {}

    def check(self, method: str, channel: str, now: float) -> None:
        """Count one call at `now`, in seconds.

        Raises:
            Refusal: `ratelimited`, with the whole seconds to wait.
        """
        if not self.enforced:
            return
        if method in POSTS:
            self._take(f"post:{channel}", POST_BURST, 1.0, now)
        elif method in TIERS:
            per_minute = PER_MINUTE[TIERS[method]]
            self._take(method, per_minute, per_minute / 60, now)

    def _take(self, key: str, size: float, per_second: float, now: float) -> None:
        bucket = self._buckets.setdefault(key, Bucket(size, now))
        bucket.tokens = min(size, bucket.tokens + (now - bucket.at) * self.speed * per_second)
        bucket.at = now
        if bucket.tokens < 1:
            missing_s = (1 - bucket.tokens) / per_second / self.speed
            raise Refusal("ratelimited", retry_after=max(1, math.ceil(missing_s)))
        bucket.tokens -= 1
