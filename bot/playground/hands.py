"""What people do: type commands, click, fill in views, write. The same for the page, for tests and for the demo."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field

from bot.playground import payloads, people
from bot.playground.arguments import Arguments
from bot.playground.events import Events
from bot.playground.eyes import Eyes, to_use
from bot.playground.filling import Value, filled, shortcomings
from bot.playground.people import Channel, User
from bot.playground.refusal import Json, NotThere, Refusal
from bot.playground.responses import answer
from bot.playground.sockets import Acknowledged, Late, Sockets
from bot.playground.stored_text import stored
from bot.playground.submission import ViewResult, follow
from bot.playground.workspace import Message, View, Workspace

TROUBLE = "We had some trouble connecting. Try again?"
SLACKBOT = "USLACKBOT"


@dataclass(slots=True, kw_only=True)
class CommandResult:
    """What a person got for a command or a click. `responses` goes on filling."""

    acked_s: float | None = None  # seconds until the ack; None: it did not come in time
    payload: Json | None = None  # of the ack
    responses: list[Json] = field(default_factory=list)
    error: str | None = None  # what Slack itself shows


class Hands(Eyes):
    """People at their screens."""

    def __init__(self, workspace: Workspace, sockets: Sockets, events: Events) -> None:
        super().__init__(workspace)
        self.sockets = sockets
        self.events = events
        self.origin = ""
        self._latest: dict[str, CommandResult] = {}
        workspace.on_message.append(self._collect)

    @property
    def last_event(self) -> Json | None:
        """The newest Events API callback that was sent."""
        return self.events.last

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
        block, element = to_use(message.blocks, action_id, block_id)
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
        block, element = to_use(view.content["blocks"], action_id, block_id)
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
            follow(self.workspace, view, outcome.payload or {}, result)
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
        block, element = to_use(blocks, action_id, None)
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
            await self.events.happened("app_mention", payloads.written("app_mention", message, room))
        elif direct:
            await self.events.happened("message.im", payloads.written("message", message, room))
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
        await self.events.happened("app_home_opened", body | ({"view": home.as_slack()} if home else {}))

    async def redeliver(self, *, attempt: int = 1, reason: str = "timeout") -> Acknowledged | Late:
        """Send the last event once more, with the same event id."""
        return await self.events.redeliver(attempt=attempt, reason=reason)

    def told(self, user: str, message: Message) -> None:
        """Count a message among the answers to a person's latest command or click."""
        if user in self._latest:
            self._latest[user].responses.append(message.as_slack())

    def _person_in(self, user: str, channel: str) -> tuple[User, Channel]:
        person = self.workspace.user(user)
        room = self.workspace.channel(self._room_id(channel))
        if person.id not in room.members:
            raise NotThere(f"{person.name} is not in {room.name}")
        return person, room

    def _with_ids(self, text: str) -> str:
        for user in self.workspace.users.values():
            text = re.sub(rf"(?<![\w<])@{re.escape(user.name)}\b", f"<@{user.id}>", text)
        return text

    def _type(self, view: View, values: dict[str, dict[str, Value]]) -> None:
        for block_id, actions in values.items():
            for action_id, value in actions.items():
                block, element = to_use(view.content["blocks"], action_id, block_id)
                view.state.setdefault(block["block_id"], {})[action_id] = filled(element, value)

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
