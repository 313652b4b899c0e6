"""What Slack tells the app: commands, clicks, views, events. Source: docs.slack.dev, interaction-payloads."""

from __future__ import annotations

import secrets
import time
from typing import Any

from bot.playground import people
from bot.playground.people import Channel, User
from bot.playground.refusal import Json
from bot.playground.workspace import Message, View

TOKEN = "playground"  # noqa: S105 - the legacy verification token; nothing checks it
TEAM: Json = {"id": people.TEAM, "domain": "playground"}


def slash_command(user: User, channel: Channel, command: str, text: str, *, trigger: str, response_url: str) -> Json:
    """A typed command."""
    names = {"im": "directmessage", "private": "privategroup"}
    return {
        "token": TOKEN,
        "team_id": people.TEAM,
        "team_domain": "playground",
        "channel_id": channel.id,
        "channel_name": names.get(channel.kind, channel.name),
        "user_id": user.id,
        "user_name": user.name,
        "command": command,
        "text": text,
        "api_app_id": people.APP,
        "is_enterprise_install": "false",
        "response_url": response_url,
        "trigger_id": trigger,
    }


def interaction(kind: str, user: User, trigger: str | None = None) -> Json:
    """What all interactive payloads share."""
    shared: Json = {
        "type": kind,
        "user": {"id": user.id, "username": user.name, "name": user.name, "team_id": people.TEAM},
        "api_app_id": people.APP,
        "token": TOKEN,
        "team": TEAM,
        "enterprise": None,
        "is_enterprise_install": False,
    }
    return shared | ({"trigger_id": trigger} if trigger else {})


def message_action(user: User, channel: Channel, message: Message, action: Json, **more: Any) -> Json:
    """A click in a message; `more` holds trigger_id, response_url and state."""
    return {
        **interaction("block_actions", user),
        "container": {
            "type": "message",
            "message_ts": message.ts,
            "channel_id": channel.id,
            "is_ephemeral": message.only_for is not None,
            **({"thread_ts": message.thread_ts} if message.thread_ts else {}),
        },
        "channel": {"id": channel.id, "name": "directmessage" if channel.kind == "im" else channel.name},
        # Slack shows apps no content of ephemeral messages.
        **({} if message.only_for else {"message": message.as_slack()}),
        "actions": [action],
        **more,
    }


def view_action(user: User, view: View, action: Json, trigger: str) -> Json:
    """A click in a modal or in the home tab."""
    return {
        **interaction("block_actions", user, trigger),
        "container": {"type": "view", "view_id": view.id},
        "view": view.as_slack(),
        "actions": [action],
    }


def action(block: Json, element: Json, value: Json) -> Json:
    """One entry of `actions`."""
    shown: Json = {name: element[name] for name in ("style", "placeholder", "confirm") if name in element}
    return {
        **shown,
        **value,
        "action_id": element["action_id"],
        "block_id": block["block_id"],
        "action_ts": f"{time.time():.6f}",
    }


def event(body: Json) -> Json:
    """An Events API callback around one event."""
    return {
        "token": TOKEN,
        "team_id": people.TEAM,
        "api_app_id": people.APP,
        "event": body,
        "type": "event_callback",
        "event_id": f"Ev{secrets.token_hex(5).upper()}",
        "event_time": int(time.time()),
        "authorizations": [
            {
                "enterprise_id": None,
                "team_id": people.TEAM,
                "user_id": people.U_GPUJOB,
                "is_bot": True,
                "is_enterprise_install": False,
            }
        ],
        "is_ext_shared_channel": False,
        "event_context": f"4-{secrets.token_hex(8)}",
    }


def written(kind: str, message: Message, channel: Channel) -> Json:
    """The event for a message that a person wrote: `app_mention` or `message`."""
    body: Json = {
        "type": kind,
        "user": message.user,
        "text": message.text,
        "ts": message.ts,
        "client_msg_id": secrets.token_hex(16),
        "team": people.TEAM,
        "channel": channel.id,
        "event_ts": message.ts,
    }
    if message.thread_ts:
        body["thread_ts"] = message.thread_ts
    if kind == "message":
        body["channel_type"] = "im" if channel.kind == "im" else "channel"
    return body
