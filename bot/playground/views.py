"""Web API: modals and the home tab."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from bot.playground import blocks as rules
from bot.playground.arguments import Arguments
from bot.playground.chat import refuse_wrong
from bot.playground.refusal import Json, Refusal
from bot.playground.stored_text import stored_blocks
from bot.playground.workspace import View, Workspace, with_ids

MAX_STACK = 3
MAX_VIEW_BYTES = 250_000


def open_view(workspace: Workspace, arguments: Arguments) -> Json:
    """views.open."""
    content = checked(workspace, arguments.structure("view"), "modal")
    trigger = workspace.use_trigger(arguments.need("trigger_id"))
    view = new_view(trigger.user, content)
    workspace.views[trigger.user] = [view]
    workspace.changed()
    return {"view": view.as_slack()}


def push_view(workspace: Workspace, arguments: Arguments) -> Json:
    """views.push: at most three views lie on one another."""
    content = checked(workspace, arguments.structure("view"), "modal")
    trigger = workspace.use_trigger(arguments.need("trigger_id"))
    view = push(workspace, trigger.user, content)
    return {"view": view.as_slack()}


def update_view(workspace: Workspace, arguments: Arguments) -> Json:
    """views.update, by id or external_id; a stale hash is a conflict."""
    view = found(workspace, arguments)
    content = checked(workspace, arguments.structure("view"), view.content["type"], replaces=view)
    if arguments.text("hash") and arguments.text("hash") != view.hash:
        raise Refusal("hash_conflict")
    replace(workspace, view, content)
    return {"view": view.as_slack()}


def publish_view(workspace: Workspace, arguments: Arguments) -> Json:
    """views.publish: the home tab of one person."""
    user = arguments.need("user_id")
    if user not in workspace.users:
        raise Refusal("user_not_found")
    old = workspace.homes.get(user)
    content = checked(workspace, arguments.structure("view"), "home", replaces=old)
    if old and arguments.text("hash") and arguments.text("hash") != old.hash:
        raise Refusal("hash_conflict")
    view = workspace.homes[user] = new_view(user, content)
    workspace.changed()
    return {"view": view.as_slack()}


def validate(_: Workspace, arguments: Arguments) -> Json:
    """blocks.validate: blocks, a message or a view."""
    view = arguments.structure("view")
    message = arguments.structure("message") or {}
    blocks = arguments.structure("blocks") or message.get("blocks")
    if view is None and blocks is None:
        raise Refusal("invalid_arguments", "one of blocks, message or view is required")
    wrong = rules.view(view) if view is not None else rules.message(blocks)
    refuse_wrong(wrong)
    return {}


def new_view(user: str, content: Json, *, below: View | None = None) -> View:
    """A view, not yet shown."""
    name = f"V{secrets.token_hex(5).upper()}"
    return View(
        id=name,
        user=user,
        content=content,
        hash=new_hash(),
        root=below.root if below else name,
        previous=below.id if below else None,
        state=first_state(content["blocks"]),
    )


def push(workspace: Workspace, user: str, content: Json) -> View:
    """Lay a view on those that are open.

    Raises:
        Refusal: three are open.
    """
    stack = workspace.views[user]
    if len(stack) >= MAX_STACK:
        raise Refusal("push_limit_reached")
    view = new_view(user, content, below=stack[-1] if stack else None)
    stack.append(view)
    workspace.changed()
    return view


def replace(workspace: Workspace, view: View, content: Json) -> None:
    """Show other content; what was typed stays where block and action keep their ids."""
    fresh = first_state(content["blocks"])
    view.state = {
        block: {action: view.state.get(block, {}).get(action, value) for action, value in actions.items()}
        for block, actions in fresh.items()
    }
    view.content = content
    view.hash = new_hash()
    workspace.changed()


def checked(workspace: Workspace, content: Any, kind: str, *, replaces: View | None = None) -> Json:
    """A view as it is stored.

    Raises:
        Refusal: Slack would not take it.
    """
    if not isinstance(content, dict):
        raise Refusal("invalid_arguments", "missing required field: view")
    if len(json.dumps(content, ensure_ascii=False).encode()) > MAX_VIEW_BYTES:
        raise Refusal("view_too_large")
    wrong = rules.view(content)
    if content.get("type") != kind:
        wrong = [f"must be {kind} [json-pointer:/view/type]", *wrong]
    if wrong:
        raise Refusal("invalid_arguments", *wrong)
    external = content.get("external_id")
    taken = {view.content.get("external_id") for view in workspace.all_views() if view is not replaces}
    if external and external in taken:
        raise Refusal("duplicate_external_id")
    return content | {"blocks": stored_blocks(with_ids(content["blocks"]))}


def found(workspace: Workspace, arguments: Arguments) -> View:
    """The view that is meant; closed ones are not found."""
    name, external = arguments.text("view_id"), arguments.text("external_id")
    if not name and not external:
        raise Refusal("invalid_arguments", "view_id or external_id is required")
    for view in workspace.all_views():
        if view.id == name or (external and view.content.get("external_id") == external):
            return view
    raise Refusal("not_found")


def new_hash() -> str:
    """A name for one version of a view."""
    return f"{int(time.time())}.{secrets.token_hex(4)}"


def first_state(blocks: list[Json]) -> dict[str, dict[str, Json]]:
    """What the fields of a view hold before anyone types."""
    state: dict[str, dict[str, Json]] = {}
    for block in blocks:
        if block["type"] == "input":
            element = block["element"]
            state[block["block_id"]] = {element["action_id"]: first_value(element)}
    return state


INITIAL = {
    "plain_text_input": ("value", "initial_value"),
    "number_input": ("value", "initial_value"),
    "email_text_input": ("value", "initial_value"),
    "url_text_input": ("value", "initial_value"),
    "static_select": ("selected_option", "initial_option"),
    "external_select": ("selected_option", "initial_option"),
    "radio_buttons": ("selected_option", "initial_option"),
    "checkboxes": ("selected_options", "initial_options"),
    "multi_static_select": ("selected_options", "initial_options"),
    "users_select": ("selected_user", "initial_user"),
    "conversations_select": ("selected_conversation", "initial_conversation"),
    "channels_select": ("selected_channel", "initial_channel"),
    "datepicker": ("selected_date", "initial_date"),
    "timepicker": ("selected_time", "initial_time"),
    "datetimepicker": ("selected_date_time", "initial_date_time"),
    "file_input": ("files", ""),
    "rich_text_input": ("rich_text_value", "initial_value"),
}


def first_value(element: Json) -> Json:
    """An element's value before anyone uses it, as payloads show it."""
    kind = element["type"]
    key, initial = INITIAL.get(kind, ("value", "initial_value"))
    empty: Any = [] if key in {"selected_options", "files"} else None
    return {"type": kind, key: element.get(initial, empty)}


METHODS = {
    "views.open": open_view,
    "views.push": push_view,
    "views.update": update_view,
    "views.publish": publish_view,
    "blocks.validate": validate,
}
