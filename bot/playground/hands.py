"""What people do: type commands, click, fill in views, write. The same for the page, for tests and for the demo."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from bot.playground import payloads, people
from bot.playground.arguments import Arguments
from bot.playground.filling import Value, filled, shortcomings
from bot.playground.people import Channel, User
from bot.playground.refusal import Json, NotThere, Refusal
from bot.playground.responses import answer
from bot.playground.sockets import Acknowledged, Late, Sockets
from bot.playground.stored_text import stored
from bot.playground.views import checked, push, replace
from bot.playground.workspace import Message, View, Workspace, elements

TROUBLE = "We had some trouble connecting. Try again?"
RETRY_AFTER_S = (0.0, 60.0, 300.0)  # an event that nobody acknowledged comes again
EVENTS = frozenset({"app_mention", "app_home_opened"})  # what the app subscribes to, by its manifest
SLACKBOT = "USLACKBOT"
LOOK_S = 0.02  # `until` looks so often at what is not part of the workspace


@dataclass(slots=True, kw_only=True)
class CommandResult:
    """What a person got for a command or a click. `responses` goes on filling."""

    acked_s: float | None = None  # seconds until the ack; None: it did not come in time
    payload: Json | None = None  # of the ack
    responses: list[Json] = field(default_factory=list)
    error: str | None = None  # what Slack itself shows


@dataclass(slots=True, kw_only=True)
class ViewResult:
    """What became of a submitted view."""

    acked_s: float | None = None
    payload: Json | None = None
    errors: dict[str, str] = field(default_factory=dict)  # block -> sentence under the field
    closed: bool = False  # no view is open any more
    updated: bool = False
    error: str | None = None  # what Slack itself shows


class Hands:
    """People at their screens."""

    def __init__(self, workspace: Workspace, sockets: Sockets, *, speed: float, events: frozenset[str]) -> None:
        self.workspace = workspace
        self.sockets = sockets
        self.speed = speed
        self.events = events
        self.origin = ""
        self.last_event: Json | None = None
        self._latest: dict[str, CommandResult] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        workspace.on_message.append(self._collect)

    async def command(self, user: str, channel: str, text: str) -> CommandResult:
        """Type a slash command; `/gpujob` may be left out."""
        person, room = self._person_in(user, channel)
        command, _, rest = text.partition(" ") if text.startswith("/") else ("/gpujob", "", text)
        result = self._latest[person.id] = CommandResult()
        if command not in people.COMMANDS:
            result.error = f"{command} is not a valid command."
            return result
        url = self.workspace.new_response_url(person.id, room.id)
        payload = payloads.slash_command(
            person,
            room,
            command,
            self._with_ids(rest.strip()),
            trigger=self.workspace.new_trigger(person.id),
            response_url=f"{self.origin}/{url}",
        )
        outcome = await self.sockets.send("slash_commands", payload)
        if isinstance(outcome, Late):
            result.error = f'{command} failed with the error "{outcome.error}"'
            self._say_as_slack(person.id, room.id, result.error)
            return result
        result.acked_s, result.payload = outcome.seconds, outcome.payload
        if outcome.payload and (outcome.payload.get("text") or outcome.payload.get("blocks")):
            result.error = self._answered_by_ack(url, outcome.payload)
        return result

    async def click(
        self, user: str, channel: str, ts: str, action_id: str, *, block_id: str | None = None, value: Value = None
    ) -> CommandResult:
        """Use a button, a select or a menu of a message; a question before it counts as answered yes."""
        person, room = self._person_in(user, channel)
        message = self._seen(person, room, ts)
        block, element = _element(message.blocks, action_id, block_id)
        result = self._latest[person.id] = CommandResult()
        url = self.workspace.new_response_url(person.id, room.id, message)
        payload = payloads.message_action(
            person,
            room,
            message,
            payloads.action(block, element, filled(element, value)),
            trigger_id=self.workspace.new_trigger(person.id),
            response_url=f"{self.origin}/{url}",
            state={"values": {}},
        )
        self._note(result, await self.sockets.send("interactive", payload, answers=False))
        return result

    async def click_view(
        self,
        user: str,
        action_id: str,
        *,
        block_id: str | None = None,
        value: Value = None,
        values: dict[str, dict[str, Value]] | None = None,
    ) -> CommandResult:
        """Use a button or a select of the open view, or of the home tab; `values` are what was typed by then."""
        person = self.workspace.user(user)
        view = self._top(person) or self.workspace.homes.get(person.id)
        if view is None:
            raise NotThere(f"{person.name} has no open view")
        self._type(view, values or {})
        block, element = _element(view.content["blocks"], action_id, block_id)
        chosen = filled(element, value)
        if element["type"] != "button":
            view.state.setdefault(block["block_id"], {})[action_id] = chosen
        result = self._latest[person.id] = CommandResult()
        trigger = self.workspace.new_trigger(person.id, view.id)
        payload = payloads.view_action(person, view, payloads.action(block, element, chosen), trigger)
        self._note(result, await self.sockets.send("interactive", payload, answers=False))
        return result

    async def submit_view(self, user: str, values: dict[str, dict[str, Value]] | None = None) -> ViewResult:
        """Fill in the open view and send it."""
        person = self.workspace.user(user)
        view = self._top(person)
        if view is None:
            raise NotThere(f"{person.name} has no open view")
        self._type(view, values or {})
        if wrong := shortcomings(view):
            return ViewResult(errors=wrong)
        trigger = self.workspace.new_trigger(person.id, view.id)
        payload = payloads.interaction("view_submission", person, trigger) | {
            "view": view.as_slack(),
            "response_urls": [],
        }
        outcome = await self.sockets.send("interactive", payload)
        if isinstance(outcome, Late):
            return ViewResult(error=TROUBLE)
        result = ViewResult(acked_s=outcome.seconds, payload=outcome.payload)
        try:
            self._follow(view, outcome.payload or {}, result)
        except Refusal as refusal:
            result.error = f"{TROUBLE} ({refusal.error}: {' '.join(refusal.messages)})"
        result.closed = not self.workspace.views[person.id]
        return result

    async def close_view(self, user: str) -> None:
        """Close the view on top; the app is told if it asked for that."""
        person = self.workspace.user(user)
        if not self.workspace.views[person.id]:
            return
        view = self.workspace.views[person.id].pop()
        self.workspace.changed()
        if view.content.get("notify_on_close"):
            payload = payloads.interaction("view_closed", person) | {"view": view.as_slack(), "is_cleared": False}
            await self.sockets.send("interactive", payload, answers=False)

    async def suggestions(self, user: str, action_id: str, query: str, ts: str = "", channel: str = "") -> list[Json]:
        """What an external select of the open view, or of a message, offers for a word."""
        person = self.workspace.user(user)
        view = None if ts else self._top(person)
        blocks = view.content["blocks"] if view else self._seen(person, self.workspace.channel(channel), ts).blocks
        block, element = _element(blocks, action_id, None)
        payload = payloads.interaction("block_suggestion", person) | {
            "action_id": element["action_id"],
            "block_id": block["block_id"],
            "value": query,
            "container": {"type": "view", "view_id": view.id} if view else {"type": "message", "message_ts": ts},
            **({"view": view.as_slack()} if view else {}),
        }
        outcome = await self.sockets.send("interactive", payload)
        answered = outcome.payload or {} if isinstance(outcome, Acknowledged) else {}
        groups = answered.get("option_groups", [])
        options = [*answered.get("options", []), *(option for group in groups for option in group["options"])]
        return options if len(options) <= 100 else []

    async def mention(self, user: str, channel: str, text: str, thread_ts: str | None = None) -> Json:
        """Write a message that names the bot."""
        named = text if f"<@{people.U_GPUJOB}>" in text else f"<@{people.U_GPUJOB}> {text}"
        return await self.say(user, channel, named, thread_ts)

    async def say(self, user: str, channel: str, text: str, thread_ts: str | None = None) -> Json:
        """Write a message; the app hears of it if it names the bot, or lies in their direct message."""
        person, room = self._person_in(user, channel)
        named = self._with_ids(text)
        message = Message(
            channel=room.id, ts=self.workspace.new_ts(), user=person.id, text=stored(named), thread_ts=thread_ts
        )
        self.workspace.add(message)
        direct = room.kind == "im" and people.U_GPUJOB in room.members
        if f"<@{people.U_GPUJOB}>" in named and not direct:
            await self._event("app_mention", payloads.written("app_mention", message, room))
        elif direct:
            await self._event("message.im", payloads.written("message", message, room))
        return message.as_slack()

    def upload(self, user: str, name: str, content: str) -> Json:
        """Give a file to the app, for a file field of a view; answers its id and where it can be read."""
        person = self.workspace.user(user)
        file: Json = {
            "id": f"F{secrets.token_hex(5).upper()}",
            "name": name,
            "title": name,
            "user": person.id,
            "size": len(content.encode()),
            "mimetype": "text/plain",
            "filetype": name.rpartition(".")[2],
        }
        file["url_private"] = file["url_private_download"] = f"{self.origin}/files/{file['id']}"
        self.workspace.uploads[file["id"]] = file | {"content": content}
        return file

    async def open_home(self, user: str) -> None:
        """Open the app's home tab."""
        person = self.workspace.user(user)
        home = self.workspace.homes.get(person.id)
        body: Json = {"type": "app_home_opened", "user": person.id, "tab": "home", "event_ts": self.workspace.new_ts()}
        body["channel"] = people.direct_message(person.id)
        await self._event("app_home_opened", body | ({"view": home.as_slack()} if home else {}))

    async def redeliver(self, *, attempt: int = 1, reason: str = "timeout") -> Acknowledged | Late:
        """Send the last event once more, with the same event id."""
        if self.last_event is None:
            raise NotThere("no event was sent yet")
        return await self._send_event(self.last_event, attempt, reason)

    def messages(self, channel: str) -> list[Json]:
        """What stands in a channel, oldest first; replies stand in their threads alone."""
        room = self.workspace.channel(self._room_id(channel))
        found = self.workspace.messages[room.id]
        return [message.as_slack() for message in found if message.thread_ts in {None, message.ts}]

    def thread(self, channel: str, ts: str) -> list[Json]:
        """A parent and its replies, oldest first."""
        return [message.as_slack() for message in self.workspace.thread(self._room_id(channel), ts)]

    def ephemerals(self, user: str) -> list[Json]:
        """What one person alone can see, oldest first."""
        found = self.workspace.ephemerals[self.workspace.user(user).id]
        return [message.as_slack() | {"channel": message.channel} for message in found]

    def open_view(self, user: str) -> Json | None:
        """The view on top of a person's screen."""
        view = self._top(self.workspace.user(user))
        return view.as_slack() if view else None

    def home(self, user: str) -> Json | None:
        """The app's home tab of a person."""
        view = self.workspace.homes.get(self.workspace.user(user).id)
        return view.as_slack() if view else None

    async def until(self, true: Callable[[], Any], timeout_s: float = 5.0) -> Any:
        """Wait for something to be true; answers what `true` answered.

        Raises:
            TimeoutError: it was not in time.
        """

        async def wait() -> Any:
            while not (found := true()):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.workspace.news(), LOOK_S)
            return found

        return await asyncio.wait_for(wait(), timeout_s)

    async def rest(self) -> None:
        """End what still waits to be sent again."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def told(self, user: str, message: Message) -> None:
        """Count a message among the answers to a person's latest command or click."""
        if user in self._latest:
            self._latest[user].responses.append(message.as_slack())

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside; it ends with the playground."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _person_in(self, user: str, channel: str) -> tuple[User, Channel]:
        person = self.workspace.user(user)
        room = self.workspace.channel(self._room_id(channel))
        if person.id not in room.members:
            raise NotThere(f"{person.name} is not in {room.name}")
        return person, room

    def _room_id(self, name: str) -> str:
        return people.direct_message(name) if name in self.workspace.users else name

    def _seen(self, person: User, room: Channel, ts: str) -> Message:
        shown = [message for message in self.workspace.ephemerals[person.id] if message.ts == ts]
        message = self.workspace.find(room.id, ts) or (shown[0] if shown else None)
        if message is None:
            raise NotThere(f"{person.name} sees no message {ts} in {room.name}")
        return message

    def _top(self, person: User) -> View | None:
        stack = self.workspace.views[person.id]
        return stack[-1] if stack else None

    def _with_ids(self, text: str) -> str:
        for user in self.workspace.users.values():
            text = re.sub(rf"(?<![\w<])@{re.escape(user.name)}\b", f"<@{user.id}>", text)
        return text

    def _type(self, view: View, values: dict[str, dict[str, Value]]) -> None:
        for block_id, actions in values.items():
            for action_id, value in actions.items():
                block, element = _element(view.content["blocks"], action_id, block_id)
                view.state.setdefault(block["block_id"], {})[action_id] = filled(element, value)

    def _follow(self, view: View, reply: Json, result: ViewResult) -> None:
        stack = self.workspace.views[view.user]
        match reply.get("response_action"):
            case None:
                if view in stack:
                    stack.remove(view)
            case "clear":
                stack.clear()
            case "errors":
                result.errors = _field_errors(view, reply.get("errors"))
            case "update":
                replace(self.workspace, view, checked(self.workspace, reply.get("view"), "modal", replaces=view))
                result.updated = True
            case "push":
                push(self.workspace, view.user, checked(self.workspace, reply.get("view"), "modal"))
                result.updated = True
            case other:
                raise Refusal("invalid_response_action", f"there is no response_action {other}")
        self.workspace.changed()

    def _note(self, result: CommandResult, outcome: Acknowledged | Late) -> None:
        if isinstance(outcome, Late):
            result.error = f"This app did not respond ({outcome.error})."
        else:
            result.acked_s, result.payload = outcome.seconds, outcome.payload
        self.workspace.changed()

    def _answered_by_ack(self, url: str, reply: Json) -> str | None:
        try:
            answer(self.workspace, self.workspace.response_urls[url.rpartition("/")[2]], Arguments(reply, ""))
        except Refusal as refusal:
            return f"The answer could not be shown ({refusal.error}: {' '.join(refusal.messages)})."
        return None

    def _say_as_slack(self, user: str, channel: str, text: str) -> None:
        ts = self.workspace.new_ts()
        self.workspace.add(Message(channel=channel, ts=ts, user=SLACKBOT, text=text, only_for=user))

    def _collect(self, message: Message) -> None:
        if message.only_for and message.user != SLACKBOT:
            self.told(message.only_for, message)

    async def _event(self, name: str, body: Json) -> None:
        if name not in self.events:
            return
        self.last_event = payloads.event(body)
        if isinstance(await self._send_event(self.last_event, 0, ""), Late):
            self.in_background(self._send_again(self.last_event))

    async def _send_again(self, event: Json) -> None:
        for attempt, wait_s in enumerate(RETRY_AFTER_S, start=1):
            await asyncio.sleep(wait_s / self.speed)
            if isinstance(await self._send_event(event, attempt, "timeout"), Acknowledged):
                return

    async def _send_event(self, event: Json, attempt: int, reason: str) -> Acknowledged | Late:
        return await self.sockets.send("events_api", event, answers=False, retry_attempt=attempt, retry_reason=reason)


def _element(blocks: list[Json], action_id: str, block_id: str | None) -> tuple[Json, Json]:
    for block in blocks:
        for element in elements(block):
            if element["action_id"] == action_id and block_id in {None, block["block_id"]}:
                return block, element
    names = [element["action_id"] for block in blocks for element in elements(block)]
    raise NotThere(f"there is nothing to use named {action_id!r}; there are {', '.join(names) or 'none'}")


def _field_errors(view: View, errors: Any) -> dict[str, str]:
    fields = {block["block_id"] for block in view.content["blocks"] if block["type"] == "input"}
    if not isinstance(errors, dict) or not errors or not errors.keys() <= fields:
        raise Refusal("invalid_response_action", "errors must name block ids of input blocks")
    return {block: str(sentence) for block, sentence in errors.items()}
