"""The story as the workspace received it: every notice of the bot, in order."""

from __future__ import annotations

import json
import time
from pathlib import Path

from bot.playground.refusal import Json
from bot.playground.workspace import Message

NOTICE = "gpujob_notice"
OPTIONAL = ("reason", "saved_step", "from_step")


class Transcript:
    """Collects notices; kept in a file too, if one is named."""

    def __init__(self, started_at: float, path: Path | None) -> None:
        self.started_at = started_at
        self.path = path
        self.events: list[Json] = []

    def hear(self, message: Message) -> None:
        """Take note of a message, if it is a notice."""
        metadata = message.metadata or {}
        if metadata.get("event_type") != NOTICE:
            return
        notice = metadata["event_payload"]
        entry: Json = {
            "t": round(time.time() - self.started_at, 3),
            "job": notice.get("job"),
            "kind": notice.get("kind"),
            "channel": message.channel,
            "thread_ts": message.thread_ts,
            "text": message.text,
        }
        self.events.append(entry | {name: notice[name] for name in OPTIONAL if name in notice})
        self.write()

    def as_json(self) -> Json:
        """The whole of it."""
        return {"events": self.events}

    def write(self) -> None:
        """Put it into its file, never half."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        half = self.path.with_name(self.path.name + ".part")
        half.write_text(json.dumps(self.as_json(), indent=1, ensure_ascii=False), encoding="utf-8")
        half.replace(self.path)
