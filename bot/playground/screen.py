"""Everything that one person's screen shows, as JSON for the page."""

from __future__ import annotations

from bot.playground import people
from bot.playground.people import Channel, User
from bot.playground.refusal import Json
from bot.playground.workspace import Message, Workspace


def screen(workspace: Workspace, user: User, *, connected: int) -> Json:
    """Channels with their messages, people, the open view and the home tab."""
    rooms = [room for room in workspace.channels.values() if user.id in room.members]
    stack = workspace.views[user.id]
    home = workspace.homes.get(user.id)
    return {
        "version": workspace.version,
        "workspace": people.TEAM_NAME,
        "me": user.id,
        "connected": connected,
        "commands": people.COMMANDS,
        "people": {person.id: _person(person) for person in workspace.users.values()},
        "groups": {group.id: {"handle": group.handle, "name": group.name} for group in workspace.groups.values()},
        "channels": [_channel(workspace, room, user) for room in rooms],
        "view": stack[-1].as_slack() if stack else None,
        "depth": len(stack),
        "home": home.as_slack() if home else None,
    }


def _person(user: User) -> Json:
    return {"name": user.name, "real_name": user.real_name, "role": user.role, "is_bot": user.is_bot, "tz": user.tz}


def _channel(workspace: Workspace, room: Channel, user: User) -> Json:
    own = [message for message in workspace.ephemerals[user.id] if message.channel == room.id]
    seen = sorted([*workspace.messages[room.id], *own], key=lambda message: message.ts)
    other = next((person for person in sorted(room.members) if person != user.id), user.id)
    return {
        "id": room.id,
        "name": room.name,
        "kind": room.kind,
        "topic": room.topic,
        "archived": room.archived,
        "members": len(room.members),
        "with": other if room.kind == "im" else None,
        "messages": [_message(message) for message in seen],
    }


def _message(message: Message) -> Json:
    return message.as_slack() | ({"only_for": message.only_for} if message.only_for else {})
