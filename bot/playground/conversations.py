"""Web API: channels, people, groups and files."""

from __future__ import annotations

import base64
import secrets

from bot.playground import people
from bot.playground.arguments import Arguments
from bot.playground.chat import readable, thread_of
from bot.playground.people import Channel, User
from bot.playground.refusal import Json, Refusal
from bot.playground.stored_text import stored
from bot.playground.workspace import Message, Workspace


def auth_test(_: Workspace, __: Arguments) -> Json:
    """auth.test."""
    return {
        "url": "https://playground.slack.com/",
        "team": people.TEAM_NAME,
        "team_id": people.TEAM,
        "user": "gpujob",
        "user_id": people.U_GPUJOB,
        "bot_id": people.BOT,
        "is_enterprise_install": False,
    }


def open_conversation(workspace: Workspace, arguments: Arguments) -> Json:
    """conversations.open, with one person."""
    users = [user for user in arguments.text("users").split(",") if user]
    if arguments.text("channel"):
        return {"channel": shown_channel(readable(workspace, arguments.text("channel")))}
    if not users:
        raise Refusal("users_list_not_supplied")
    if len(users) > 1:
        raise Refusal("missing_scope", needed="mpim:write", provided="im:write")
    if users[0] not in workspace.users:
        raise Refusal("user_not_found")
    return {"channel": shown_channel(readable(workspace, users[0])), "no_op": True, "already_open": True}


def channel_info(workspace: Workspace, arguments: Arguments) -> Json:
    """conversations.info."""
    return {"channel": shown_channel(readable(workspace, arguments.need("channel", "channel_not_found")))}


def history(workspace: Workspace, arguments: Arguments) -> Json:
    """conversations.history: newest first, without replies."""
    channel = joined(workspace, arguments)
    top = [message for message in workspace.messages[channel.id] if message.thread_ts in {None, message.ts}]
    return page(workspace, list(reversed(top)), arguments)


def replies(workspace: Workspace, arguments: Arguments) -> Json:
    """conversations.replies: oldest first, the parent before them."""
    channel = joined(workspace, arguments)
    ts = arguments.need("ts")
    if workspace.find(channel.id, ts) is None:
        raise Refusal("thread_not_found")
    return page(workspace, workspace.thread(channel.id, ts), arguments)


def members(workspace: Workspace, arguments: Arguments) -> Json:
    """conversations.members."""
    channel = readable(workspace, arguments.need("channel", "channel_not_found"))
    return {"members": sorted(channel.members), "response_metadata": {"next_cursor": ""}}


def list_channels(workspace: Workspace, arguments: Arguments) -> Json:
    """conversations.list."""
    kinds = {"public_channel": "channel", "private_channel": "private", "im": "im"}
    wanted = {kinds.get(word) for word in (arguments.text("types") or "public_channel").split(",")}
    found = [
        shown_channel(channel)
        for channel in workspace.channels.values()
        if channel.kind in wanted and (channel.kind == "channel" or people.U_GPUJOB in channel.members)
    ]
    return {"channels": found, "response_metadata": {"next_cursor": ""}}


def user_info(workspace: Workspace, arguments: Arguments) -> Json:
    """users.info."""
    user = workspace.users.get(arguments.need("user", "user_not_found"))
    if user is None:
        raise Refusal("user_not_found")
    return {"user": shown_user(user, locale=arguments.flag("include_locale"))}


def list_users(workspace: Workspace, arguments: Arguments) -> Json:
    """users.list."""
    locale = arguments.flag("include_locale")
    return {
        "members": [shown_user(user, locale=locale) for user in workspace.users.values()],
        "response_metadata": {"next_cursor": ""},
    }


def list_groups(workspace: Workspace, arguments: Arguments) -> Json:
    """usergroups.list."""
    return {
        "usergroups": [
            {"id": group.id, "team_id": people.TEAM, "handle": group.handle, "name": group.name}
            | {"is_usergroup": True, "user_count": len(group.users)}
            | ({"users": list(group.users)} if arguments.flag("include_users") else {})
            for group in workspace.groups.values()
        ]
    }


def group_users(workspace: Workspace, arguments: Arguments) -> Json:
    """usergroups.users.list."""
    group = workspace.groups.get(arguments.need("usergroup"))
    if group is None:
        raise Refusal("no_such_subteam")
    return {"users": [user for user in group.users if not workspace.users[user].deleted]}


def upload_url(workspace: Workspace, arguments: Arguments) -> Json:
    """files.getUploadURLExternal. The caller puts the playground's address before the path."""
    length = arguments.number("length", 0)
    if length < 1:
        raise Refusal("invalid_arguments", "must be greater than 0 [json-pointer:/length]")
    name = f"F{secrets.token_hex(5).upper()}"
    workspace.uploads[name] = {
        "id": name,
        "name": arguments.need("filename"),
        "size": length,
        "alt_txt": arguments.text("alt_txt"),
    }
    return {"file_id": name, "upload_url": f"upload/{name}"}


def complete_upload(workspace: Workspace, arguments: Arguments) -> Json:
    """files.completeUploadExternal: the bot must be in the channel, chat:write.public does not help."""
    files = arguments.structure("files")
    if not isinstance(files, list) or not files:
        raise Refusal("invalid_arguments", "must be a non-empty list [json-pointer:/files]")
    kept = []
    for file in files:
        upload = workspace.uploads.get(file.get("id", ""))
        if upload is None or "content" not in upload:
            raise Refusal("file_not_found")
        kept.append(upload | {"title": file.get("title") or upload["name"]})
    shown = [{key: value for key, value in file.items() if key != "alt_txt" or value} for file in kept]
    if name := arguments.text("channel_id"):
        share(workspace, name, shown, arguments)
    return {"files": [{key: value for key, value in file.items() if key != "content"} for file in shown]}


def share(workspace: Workspace, name: str, files: list[Json], arguments: Arguments) -> None:
    """Show uploaded files in a channel."""
    channel = readable(workspace, name)
    if channel.archived:
        raise Refusal("is_archived")
    if people.U_GPUJOB not in channel.members:
        raise Refusal("not_in_channel")
    workspace.add(
        Message(
            channel=channel.id,
            ts=workspace.new_ts(),
            user=people.U_GPUJOB,
            text=stored(arguments.text("initial_comment")),
            thread_ts=thread_of(workspace, channel.id, arguments.text("thread_ts")),
            files=files,
        )
    )


def keep_upload(workspace: Workspace, name: str, body: bytes) -> None:
    """Take the bytes of a file.

    Raises:
        Refusal: nobody asked for this upload, or its length is not what was said.
    """
    upload = workspace.uploads.get(name)
    if upload is None:
        raise Refusal("file_not_found")
    if len(body) != upload["size"]:
        raise Refusal("file_update_failed")
    try:
        upload["content"] = body.decode()
    except UnicodeDecodeError:
        upload["content"] = base64.b64encode(body).decode()


def joined(workspace: Workspace, arguments: Arguments) -> Channel:
    """A channel whose history the bot may read: it must be in it."""
    channel = readable(workspace, arguments.need("channel", "channel_not_found"))
    if people.U_GPUJOB not in channel.members:
        raise Refusal("not_in_channel")
    return channel


def page(workspace: Workspace, messages: list[Message], arguments: Arguments) -> Json:
    """One page of messages between `oldest` and `latest`."""
    oldest, latest = arguments.text("oldest"), arguments.text("latest")
    inclusive = arguments.flag("inclusive")
    kept = [message for message in messages if _between(message.ts, oldest, latest, inclusive=inclusive)]
    start = int(arguments.text("cursor") or 0)
    end = start + max(1, min(arguments.number("limit", 100), 999))
    shown = [_with_replies(workspace, message) for message in kept[start:end]]
    if not arguments.flag("include_all_metadata"):
        for message in shown:
            message.pop("metadata", None)
    more = end < len(kept)
    return {"messages": shown, "has_more": more, "response_metadata": {"next_cursor": str(end) if more else ""}}


def _between(ts: str, oldest: str, latest: str, *, inclusive: bool) -> bool:
    if inclusive and ts in {oldest, latest}:
        return True
    # Message names compare as text: they all have ten digits before the point.
    return (not oldest or ts > oldest) and (not latest or ts < latest)


def _with_replies(workspace: Workspace, message: Message) -> Json:
    shown = message.as_slack()
    answers = [reply for reply in workspace.thread(message.channel, message.ts) if reply is not message]
    if answers:
        shown |= {"thread_ts": message.ts, "reply_count": len(answers), "latest_reply": answers[-1].ts}
    return shown


def shown_channel(channel: Channel) -> Json:
    """A channel as the Web API shows it."""
    is_im = channel.kind == "im"
    shown: Json = {
        "id": channel.id,
        "is_channel": channel.kind == "channel",
        "is_group": channel.kind == "private",
        "is_im": is_im,
        "is_private": channel.kind != "channel",
        "is_archived": channel.archived,
        "is_member": people.U_GPUJOB in channel.members,
        "is_shared": False,
        "is_ext_shared": False,
    }
    if is_im:
        return shown | {"user": next((user for user in sorted(channel.members) if user != people.U_GPUJOB), "")}
    return shown | {"name": channel.name, "topic": {"value": channel.topic}, "num_members": len(channel.members)}


def shown_user(user: User, *, locale: bool) -> Json:
    """A person as the Web API shows them."""
    shown: Json = {
        "id": user.id,
        "team_id": people.TEAM,
        "name": user.name,
        "deleted": user.deleted,
        "real_name": user.real_name,
        "tz": user.tz,
        "tz_offset": user.tz_offset,
        "profile": {"display_name": user.name, "real_name": user.real_name, "email": f"{user.name}@example.com"},
        "is_bot": user.is_bot,
        "is_restricted": False,
        "is_ultra_restricted": False,
        "is_stranger": False,
    }
    return shown | ({"locale": user.locale} if locale else {})


def file_info(workspace: Workspace, arguments: Arguments) -> Json:
    """files.info."""
    file = workspace.uploads.get(arguments.need("file", "file_not_found"))
    if file is None:
        raise Refusal("file_not_found")
    return {"file": {key: value for key, value in file.items() if key != "content"}}


METHODS = {
    "files.info": file_info,
    "auth.test": auth_test,
    "conversations.open": open_conversation,
    "conversations.info": channel_info,
    "conversations.history": history,
    "conversations.replies": replies,
    "conversations.members": members,
    "conversations.list": list_channels,
    "users.info": user_info,
    "users.list": list_users,
    "usergroups.list": list_groups,
    "usergroups.users.list": group_users,
    "files.getUploadURLExternal": upload_url,
    "files.completeUploadExternal": complete_upload,
}
