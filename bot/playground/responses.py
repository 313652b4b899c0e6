"""What an app may do with a response_url: answer, replace or delete, five times within thirty minutes."""

from __future__ import annotations

import time

from bot.playground import people
from bot.playground.arguments import Arguments
from bot.playground.chat import content, metadata, thread_of
from bot.playground.refusal import Refusal
from bot.playground.workspace import RESPONSE_USES, Message, ResponseUrl, Workspace


def respond(workspace: Workspace, name: str, arguments: Arguments) -> Message | None:
    """The message that is shown now; None if one was deleted.

    Raises:
        Refusal: the URL is unknown, too old or used up, or the message is wrong.
    """
    url = workspace.response_urls.get(name)
    if url is None:
        raise Refusal("invalid_url")
    if time.monotonic() > url.until:
        raise Refusal("expired_url")
    if url.uses >= RESPONSE_USES:
        raise Refusal("used_url")
    url.uses += 1
    if arguments.flag("delete_original"):
        remove(workspace, url.message)
        return None
    if arguments.flag("replace_original") and url.message:
        return replace(workspace, url.message, arguments)
    return answer(workspace, url, arguments)


def answer(workspace: Workspace, url: ResponseUrl, arguments: Arguments) -> Message:
    """A new message; only the person sees it, unless `response_type` says `in_channel`."""
    text, blocks, _ = content(arguments)
    in_channel = arguments.text("response_type") == "in_channel"
    thread = thread_of(workspace, url.channel, arguments.text("thread_ts") or url.thread_ts or "")
    return workspace.add(
        Message(
            channel=url.channel,
            ts=workspace.new_ts(),
            user=people.U_GPUJOB,
            text=text,
            blocks=blocks,
            thread_ts=thread,
            metadata=metadata(arguments),
            only_for=None if in_channel else url.user,
        )
    )


def replace(workspace: Workspace, message: Message, arguments: Arguments) -> Message:
    """Put other content into the message whose button was clicked."""
    text, blocks, _ = content(arguments)
    message.text = text
    message.blocks = blocks
    if not message.only_for:
        message.edited = workspace.new_ts()
    workspace.changed()
    return message


def remove(workspace: Workspace, message: Message | None) -> None:
    """Take away the message whose button was clicked."""
    if message is None:
        return
    shelf = workspace.ephemerals[message.only_for] if message.only_for else workspace.messages[message.channel]
    if message in shelf:
        shelf.remove(message)
    workspace.changed()
