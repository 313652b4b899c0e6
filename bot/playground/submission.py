"""What becomes of a submitted view: it closes, shows errors, changes, or another is laid on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bot.playground.refusal import Json, Refusal
from bot.playground.views import checked, push, replace
from bot.playground.workspace import View, Workspace


@dataclass(slots=True, kw_only=True)
class ViewResult:
    """What became of a submitted view."""

    acked_s: float | None = None
    payload: Json | None = None
    errors: dict[str, str] = field(default_factory=dict)  # block -> sentence under the field
    closed: bool = False  # no view is open any more
    updated: bool = False
    error: str | None = None  # what Slack itself shows


def follow(workspace: Workspace, view: View, reply: Json, result: ViewResult) -> None:
    """Do what the app answered to a submitted view, and note it in the result.

    Raises:
        Refusal: the answer is none that Slack takes; the person sees trouble.
    """
    stack = workspace.views[view.user]
    match reply.get("response_action"):
        case None:
            if view in stack:
                stack.remove(view)
        case "clear":
            stack.clear()
        case "errors":
            result.errors = _field_errors(view, reply.get("errors"))
        case "update":
            replace(workspace, view, checked(workspace, reply.get("view"), "modal", replaces=view))
            result.updated = True
        case "push":
            push(workspace, view.user, checked(workspace, reply.get("view"), "modal"))
            result.updated = True
        case other:
            raise Refusal("invalid_response_action", f"there is no response_action {other}")
    workspace.changed()


def _field_errors(view: View, errors: Any) -> dict[str, str]:
    fields = {block["block_id"] for block in view.content["blocks"] if block["type"] == "input"}
    if not isinstance(errors, dict) or not errors or not errors.keys() <= fields:
        raise Refusal("invalid_response_action", "errors must name block ids of input blocks")
    return {block: str(sentence) for block, sentence in errors.items()}
