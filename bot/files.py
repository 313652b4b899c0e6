"""Files in Slack: the job file that somebody uploads, and the log that is too long for a message."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from pydantic import SecretStr

from bot import words
from bot.outbound import Outbound, Refused, Sent
from bot.slack_text import clean

log = logging.getLogger("gpujob.bot.files")

LIMIT = 256 * 1024  # bytes of a job file
PATIENCE = aiohttp.ClientTimeout(total=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A file that we do not have; `why` is a sentence for the person who sent it."""

    why: str


class Files:
    """Reads and shares files. Our token goes to Slack's own addresses alone."""

    def __init__(self, outbound: Outbound, token: SecretStr, base_url: str) -> None:
        self._outbound = outbound
        self._token = token
        self._host = urlsplit(base_url).hostname or ""

    async def read(self, file: Mapping[str, Any]) -> str | Unread:
        """The text of an uploaded file; `file` is what Slack says of it."""
        if file.get("file_access") == "check_file_info" or not file.get("url_private"):
            outcome = await self._outbound.call("files.info", {"file": str(file.get("id", ""))})
            if not isinstance(outcome, Sent):
                return Unread(why=words.file_unread(_why(outcome)))
            file = outcome.data["file"]
        name, size = str(file.get("name") or "the file"), file.get("size")
        if isinstance(size, int) and size > LIMIT:
            return Unread(why=words.file_too_large(name, size, LIMIT))
        url = str(file.get("url_private") or "")
        if not self._is_slack(url):
            log.warning("file_elsewhere host=%s", urlsplit(url).hostname)
            return Unread(why=words.file_unread("it does not lie in Slack itself"))
        raw = await self._fetch(url)
        if isinstance(raw, Unread):
            return raw
        if len(raw) > LIMIT:
            return Unread(why=words.file_too_large(name, None, LIMIT))
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            return Unread(why=words.file_is_no_text(name))

    async def share(self, channel: str, thread_ts: str, name: str, text: str) -> str:
        """Puts a text into a thread, as a file; "" if it is there, else a sentence about why not and what to do."""
        raw = clean(text).encode()
        asked = await self._outbound.call("files.getUploadURLExternal", {"filename": name, "length": len(raw)})
        if not isinstance(asked, Sent):
            return words.log_not_shared(_why(asked))
        if not await self._put(str(asked.data["upload_url"]), raw):
            return words.log_not_shared("the upload broke off")
        files = [{"id": str(asked.data["file_id"]), "title": name}]
        shared = await self._outbound.call(
            "files.completeUploadExternal", {"files": files, "channel_id": channel, "thread_ts": thread_ts}
        )
        return "" if isinstance(shared, Sent) else words.log_not_shared(_why(shared))

    async def _fetch(self, url: str) -> bytes | Unread:
        """At most one byte more than the limit."""
        headers = {"Authorization": f"Bearer {self._token.get_secret_value()}"}
        raw = bytearray()
        try:
            async with (
                aiohttp.ClientSession(timeout=PATIENCE) as session,
                session.get(url, headers=headers, allow_redirects=False) as answer,
            ):
                # Without the scope, Slack shows its page to log in instead of the file.
                if answer.status != 200 or answer.content_type == "text/html":
                    log.error("file_refused status=%s type=%s", answer.status, answer.content_type)
                    return Unread(why=words.file_unread("missing_scope"))
                async for part in answer.content.iter_chunked(65_536):
                    raw += part[: LIMIT + 1 - len(raw)]
                    if len(raw) > LIMIT:
                        break
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            log.warning("file_broke why=%s", type(error).__name__)
            return Unread(why=words.file_unread("the connection broke"))
        return bytes(raw)

    async def _put(self, url: str, raw: bytes) -> bool:
        try:
            async with aiohttp.ClientSession(timeout=PATIENCE) as session, session.post(url, data=raw) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            log.warning("upload_broke why=%s", type(error).__name__)
            return False

    def _is_slack(self, url: str) -> bool:
        host = urlsplit(url).hostname or ""
        return bool(self._host) and (host == self._host or host.endswith(f".{self._host}"))


def _why(outcome: object) -> str:
    return outcome.error if isinstance(outcome, Refused) else "Slack did not answer"
