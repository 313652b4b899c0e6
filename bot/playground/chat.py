"""Web API: messages."""

from __future__ import annotations

import json
from collections.abc import Sequence

from bot.playground import blocks as rules
from bot.playground import people
from bot.playground.arguments import Arguments
from bot.playground.people import Channel
from bot.playground.refusal import Json, NotThere, Refusal
from bot.playground.stored_text import stored, stored_blocks
from bot.playground.workspace import Message, Workspace, with_ids

MAX_TEXT = 40_000  # characters; more is cut without an error
MAX_UPDATE_BYTES = 4_000
MAX_METADATA_BYTES = 8_000


def post_message(workspace: Workspace, arguments: Arguments) -> Json:
    """chat.postMessage; an unknown thread makes it a message of the channel, as in Slack."""
    channel = writable(workspace, arguments.need("channel", "channel_not_found"))
    text, blocks, warnings = content(arguments)
    message = Message(
        channel=channel.id,
        ts=workspace.new_ts(),
        user=people.U_GPUJOB,
        text=text,
        blocks=blocks,
        thread_ts=thread_of(workspace, channel.id, arguments.text("thread_ts")),
        metadata=metadata(arguments),
    )
    workspace.add(message)
    answer: Json = {"channel": channel.id, "ts": message.ts, "message": message.as_slack()}
    return answer | ({"response_metadata": {"warnings": warnings}} if warnings else {})


def update(workspace: Workspace, arguments: Arguments) -> Json:
    """chat.update; metadata that is not sent again is dropped."""
    message = own_message(workspace, arguments, "cant_update_message")
    if workspace.channels[message.channel].archived:
        raise Refusal("is_inactive")
    if len(arguments.text("text").encode()) > MAX_UPDATE_BYTES:
        raise Refusal("msg_too_long")
    text, blocks, _ = content(arguments)
    message.text = text or message.text
    if "blocks" in arguments.values:
        message.blocks = blocks
    message.metadata = metadata(arguments)
    message.edited = workspace.new_ts()
    workspace.changed()
    return {"channel": message.channel, "ts": message.ts, "text": message.text, "message": message.as_slack()}


def delete(workspace: Workspace, arguments: Arguments) -> Json:
    """chat.delete."""
    message = own_message(workspace, arguments, "cant_delete_message")
    workspace.messages[message.channel].remove(message)
    workspace.changed()
    return {"channel": message.channel, "ts": message.ts}


def post_ephemeral(workspace: Workspace, arguments: Arguments) -> Json:
    """chat.postEphemeral; in a thread without replies nobody would see it, so it shows in the channel."""
    channel = writable(workspace, arguments.need("channel", "channel_not_found"))
    user = arguments.need("user", "user_not_found")
    if user not in workspace.users:
        raise Refusal("user_not_found")
    if user not in channel.members:
        raise Refusal("user_not_in_channel")
    text, blocks, _ = content(arguments)
    message = Message(
        channel=channel.id,
        ts=workspace.new_ts(),
        user=people.U_GPUJOB,
        text=text,
        blocks=blocks,
        thread_ts=thread_of(workspace, channel.id, arguments.text("thread_ts")),
        only_for=user,
    )
    workspace.add(message)
    return {"message_ts": message.ts}


def permalink(workspace: Workspace, arguments: Arguments) -> Json:
    """chat.getPermalink."""
    channel = readable(workspace, arguments.need("channel", "channel_not_found"))
    message = workspace.find(channel.id, arguments.need("message_ts", "message_not_found"))
    if message is None:
        raise Refusal("message_not_found")
    link = f"/archives/{channel.id}/p{message.ts.replace('.', '')}"
    return {"channel": channel.id, "permalink": f"https://playground.slack.com{link}"}


def add_reaction(workspace: Workspace, arguments: Arguments) -> Json:
    """reactions.add."""
    channel = readable(workspace, arguments.need("channel", "channel_not_found"))
    message = workspace.find(channel.id, arguments.need("timestamp", "bad_timestamp"))
    if message is None:
        raise Refusal("message_not_found")
    users = message.reactions.setdefault(arguments.need("name", "invalid_name"), [])
    if people.U_GPUJOB in users:
        raise Refusal("already_reacted")
    users.append(people.U_GPUJOB)
    workspace.changed()
    return {}


def readable(workspace: Workspace, name: str) -> Channel:
    """A channel that the bot can see; a person's id means the direct message with them."""
    if name in workspace.users:
        user = workspace.users[name]
        if user.is_bot:
            raise Refusal("cannot_dm_bot")
        if user.deleted:
            raise Refusal("user_disabled")
        name = people.direct_message(name)
    try:
        channel = workspace.channel(name)
    except NotThere as error:
        raise Refusal("channel_not_found") from error
    if channel.kind != "channel" and people.U_GPUJOB not in channel.members:
        raise Refusal("channel_not_found")
    return channel


def writable(workspace: Workspace, name: str) -> Channel:
    """A channel that the bot can write to; public ones without joining, by chat:write.public."""
    channel = readable(workspace, name)
    if channel.archived:
        raise Refusal("is_archived")
    if people.U_GPUJOB not in channel.members and not workspace.write_public:
        raise Refusal("not_in_channel")
    return channel


def content(arguments: Arguments) -> tuple[str, list[Json], list[str]]:
    """Text and blocks as they are stored, and warnings.

    Raises:
        Refusal: there is neither, or a block that Slack would not take.
    """
    text = arguments.text("text")
    blocks = arguments.structure("blocks") or []
    if not text and not blocks:
        raise Refusal("no_text")
    refuse_wrong(rules.message(blocks))
    if rules.text_length(blocks) > rules.MAX_MESSAGE_TEXT:
        raise Refusal("msg_blocks_too_long")
    warnings = ["message_truncated"] if len(text) > MAX_TEXT else []
    return stored(text[:MAX_TEXT]), stored_blocks(with_ids(blocks)), warnings


def refuse_wrong(wrong: Sequence[str], error: str = "invalid_blocks") -> None:
    """Refuse, if there is anything wrong with blocks."""
    if wrong:
        raise Refusal(error, *wrong, errors=list(wrong))


def thread_of(workspace: Workspace, channel: str, ts: str) -> str | None:
    """The parent that a reply belongs to; None if there is no such message."""
    parent = workspace.find(channel, ts) if ts else None
    return (parent.thread_ts or parent.ts) if parent else None


def metadata(arguments: Arguments) -> Json | None:
    """Checked message metadata."""
    value = arguments.structure("metadata")
    if value is None:
        return None
    if not isinstance(value, dict) or not value.get("event_type") or not isinstance(value.get("event_payload"), dict):
        raise Refusal("invalid_metadata_format")
    if len(json.dumps(value).encode()) > MAX_METADATA_BYTES:
        raise Refusal("metadata_too_large")
    return value


def own_message(workspace: Workspace, arguments: Arguments, error: str) -> Message:
    """A message that the bot wrote itself."""
    channel = readable(workspace, arguments.need("channel", "channel_not_found"))
    message = workspace.find(channel.id, arguments.need("ts", "message_not_found"))
    if message is None:
        raise Refusal("message_not_found")
    if message.user != people.U_GPUJOB:
        raise Refusal(error)
    return message


METHODS = {
    "chat.postMessage": post_message,
    "chat.update": update,
    "chat.delete": delete,
    "chat.postEphemeral": post_ephemeral,
    "chat.getPermalink": permalink,
    "reactions.add": add_reaction,
}
