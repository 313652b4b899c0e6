"""gpujob-bot: the process that speaks Slack. `serve` runs it, `manifest` prints the Slack app, `check` looks around."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from aiohttp import web
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from bot import listeners, settings
from bot.counter import Counter, Money
from bot.courier import Courier
from bot.desk import Desk
from bot.files import Files
from bot.manifest import MANIFEST
from bot.outbound import Outbound, Refused, Sent
from bot.people import People
from bot.settings import BotSettings
from bot.voice import Voice
from bot.wishes import Wishes
from scheduler.errors import BadInput, Unavailable
from scheduler.store.mailbox import Mailbox

log = logging.getLogger("gpujob.bot")

GRACE_S = 5.0  # what is acknowledged gets so long to end
AGAIN_S = 1.0
HEALTH_S = 60.0
PING_S = 5.0  # a dead socket is noticed after four of them

DONE, NO, WRONG_USE, NO_ANSWER = 0, 1, 2, 3

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """A bot that runs; tests reach in here."""

    app: AsyncApp
    socket: AsyncSocketModeHandler
    courier: Courier
    outbound: Outbound


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if arguments.command == "manifest":
        print(MANIFEST, end="")
        return DONE
    try:
        chosen = settings.read(arguments.config, os.environ)
    except BadInput as error:
        print(error)
        return WRONG_USE
    work = (
        _serve(chosen, arguments.health_port) if arguments.command == "serve" else _check(chosen, live=arguments.live)
    )
    return asyncio.run(work)


@contextlib.asynccontextmanager
async def running(chosen: BotSettings, mailbox: Mailbox, clock: Clock) -> AsyncIterator[Bot]:
    """A bot that is connected and carries; it stops cleanly at the end.

    Raises:
        BadInput: Slack refuses a token, or knows no such channel.
    """
    if not chosen.approvers:
        log.warning("no_approvers effect=nobody can approve a job way_out=[approval] approvers in the settings")
    client = AsyncWebClient(
        token=chosen.slack.bot_token.get_secret_value(), base_url=chosen.slack.base_url, retry_handlers=[]
    )
    outbound = Outbound(client, posts_per_second=chosen.slack.posts_per_second)
    me = await _me(outbound)
    await _must_know(outbound, chosen.slack.channel)
    desk = Desk(mailbox, People(outbound, chosen.approver_groups), clock)
    money = Money(currency=chosen.currency, per_gpu_hour=chosen.per_gpu_hour)
    files, voice = Files(outbound, chosen.slack.bot_token, chosen.slack.base_url), Voice(outbound)
    counter = Counter(desk, outbound, Wishes(desk, voice), files, voice, zone=chosen.zone, money=money)
    courier = Courier(desk, outbound, files, channel=chosen.slack.channel, zone=chosen.zone)

    async def authorize() -> AuthorizeResult:
        return me

    # Bolt's own client carries no token: nothing is said to Slack but through `outbound`.
    silent = AsyncWebClient(base_url=chosen.slack.base_url, retry_handlers=[])
    app = AsyncApp(client=silent, authorize=authorize, request_verification_enabled=False)
    heard = listeners.register(app, counter)
    socket = AsyncSocketModeHandler(app, chosen.slack.app_token.get_secret_value(), ping_interval=PING_S)
    carrying = asyncio.create_task(courier.run())
    try:
        await _connect(socket)
        log.info("ready user=%s base_url=%s", me.bot_user_id, chosen.slack.base_url)
        yield Bot(app=app, socket=socket, courier=courier, outbound=outbound)
    finally:
        # No new work first, then what was acknowledged, then what is on its way to Slack, the socket last.
        socket.client.socket_mode_request_listeners.clear()
        await heard.stop(GRACE_S)
        await courier.stop(GRACE_S)
        await outbound.stop(GRACE_S)
        await carrying
        await socket.client.close()  # type: ignore[no-untyped-call]
        desk.close()


async def _me(outbound: Outbound) -> AuthorizeResult:
    """Who we are in Slack; asked once, so that no command ever waits for it.

    Raises:
        BadInput: Slack refuses the token.
    """
    while True:
        outcome = await outbound.call("auth.test", {})
        match outcome:
            case Sent(data=data):
                return AuthorizeResult(
                    enterprise_id=data.get("enterprise_id"),
                    team_id=data.get("team_id"),
                    bot_user_id=data.get("user_id"),
                    bot_id=data.get("bot_id"),
                    bot_token="",
                )
            case Refused(error=error):
                raise BadInput(f"Slack refuses [slack] bot_token: {error}. Install the app again and copy its token.")
            case _:
                log.warning("slack_unreachable outcome=%s next_try_s=%s", outcome, AGAIN_S)
                await asyncio.sleep(AGAIN_S)


async def _must_know(outbound: Outbound, channel: str) -> None:
    """A channel that does not exist would cost every job its card and its thread: better not to start.

    Raises:
        BadInput: Slack knows no such channel, or it is archived.
    """
    if not channel:
        return
    outcome = await outbound.call("conversations.info", {"channel": channel})
    archived = isinstance(outcome, Sent) and outcome.data.get("channel", {}).get("is_archived", False)
    if archived or (isinstance(outcome, Refused) and outcome.error == "channel_not_found"):
        raise BadInput(f"[slack] channel = {channel}: {_SAID['is_archived' if archived else 'channel_not_found']}")
    if not isinstance(outcome, Sent):
        log.warning("channel_not_checked channel=%s why=%s", channel, _said(outcome))


async def _connect(socket: AsyncSocketModeHandler) -> None:
    while True:
        try:
            await socket.client.connect()  # type: ignore[no-untyped-call]
        except SlackApiError as error:
            name = str(error.response.get("error", ""))
            if name in {"invalid_auth", "not_authed", "not_allowed_token_type", "token_revoked"}:
                raise BadInput(f"Slack refuses [slack] app_token: {name}. It starts with xapp-.") from error
            log.warning("socket_refused error=%s next_try_s=%s", name, AGAIN_S)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            log.warning("socket_unreachable why=%s next_try_s=%s", type(error).__name__, AGAIN_S)
        else:
            return
        await asyncio.sleep(AGAIN_S)


async def _serve(chosen: BotSettings, health_port: int | None) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    mailbox = await _mailbox(chosen, stop)
    if mailbox is None:
        return DONE
    try:
        async with running(chosen, mailbox, _now) as bot, _probed(bot, health_port):
            while not stop.is_set():
                log.info("health connected=%s", await bot.socket.client.is_connected())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), HEALTH_S)
            log.info("stopping")
    except BadInput as error:
        print(error)
        return WRONG_USE
    finally:
        mailbox.close()
    return DONE


@contextlib.asynccontextmanager
async def _probed(bot: Bot, port: int | None) -> AsyncIterator[None]:
    """`/healthz` answers while the bot's loop turns, `/readyz` while Slack is connected.

    Raises:
        BadInput: the port is taken.
    """
    if port is None:
        yield
        return

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        connected = await bot.socket.client.is_connected()
        text = "connected to Slack\n" if connected else "not connected to Slack\n"
        return web.Response(text=text, status=200 if connected else 503)

    server = web.Application()
    server.add_routes([web.get("/healthz", healthy), web.get("/readyz", ready)])
    runner = web.AppRunner(server, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, port=port).start()
        except OSError as error:
            raise BadInput(f"--health-port {port}: {error.strerror}; choose another") from error
        yield
    finally:
        await runner.cleanup()


async def _mailbox(chosen: BotSettings, stop: asyncio.Event) -> Mailbox | None:
    """The mailbox, once the database has its tables; None if we are told to stop before."""
    while not stop.is_set():
        mailbox = Mailbox(chosen.database_url)
        try:
            await asyncio.to_thread(mailbox.board)
        except Unavailable as error:
            mailbox.close()
            log.warning('database_not_ready why=%s way_out="gpujob migrate" makes its tables', error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), AGAIN_S)
        else:
            return mailbox
    return None


async def _check(chosen: BotSettings, *, live: bool) -> int:
    """Says what would keep the bot from working; with `live` it asks Slack too."""
    faults: list[str] = []
    mailbox = Mailbox(chosen.database_url)
    try:
        await asyncio.to_thread(mailbox.board)
    except Unavailable as error:
        faults.append(f'The database is not ready: {error}. "gpujob migrate" makes its tables.')
    finally:
        mailbox.close()
    if not chosen.approvers:
        faults.append("[approval] approvers is empty: nobody can approve a job.")
    if live:
        faults += await _check_slack(chosen)
    good = "Everything is in place." if live else "The settings are complete. `check --live` asks Slack too."
    print("\n".join(faults) if faults else good)
    return NO if faults else DONE


async def _check_slack(chosen: BotSettings) -> list[str]:
    client = AsyncWebClient(
        token=chosen.slack.bot_token.get_secret_value(), base_url=chosen.slack.base_url, retry_handlers=[]
    )
    outbound = Outbound(client)
    asked: list[tuple[str, dict[str, str], str]] = [("auth.test", {}, "[slack] bot_token")]
    if chosen.slack.channel:
        asked.append(("conversations.info", {"channel": chosen.slack.channel}, "[slack] channel"))
    asked += [
        ("usergroups.users.list", {"usergroup": group}, "[approval] approvers") for group in chosen.approver_groups
    ]
    faults = []
    for method, arguments, key in asked:
        outcome = await outbound.call(method, arguments)
        if not isinstance(outcome, Sent):
            named = " = ".join((key, *arguments.values()))
            faults.append(f"{named}: {_said(outcome)}")
    return faults


_SAID = {
    "channel_not_found": "Slack knows no such channel, or the bot is not in it. Write its id, and /invite the bot.",
    "is_archived": "the channel is archived. Choose another one.",
    "no_such_subteam": "Slack knows no such user group. Write its id (S..).",
    "invalid_auth": "Slack does not know this token. Install the app again and copy its token.",
    "missing_scope": "the app lacks a scope. Give it the manifest of `gpujob-bot manifest`, and install it again.",
}


def _said(outcome: object) -> str:
    """What Slack answered, for an operator."""
    if isinstance(outcome, Refused):
        return _SAID.get(outcome.error, f"Slack refuses: {outcome.error}.")
    return f"Slack cannot be reached: {getattr(outcome, 'why', '') or 'no answer'}."


def _now() -> datetime:
    return datetime.now(UTC)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpujob-bot", description="The Slack side of gpujob.")
    parser.add_argument("--config", type=Path, help="the settings file; else GPUJOB_CONFIG, else gpujob.toml")
    deeds = parser.add_subparsers(dest="command", required=True)
    serve = deeds.add_parser("serve", help="connect to Slack and work until SIGTERM")
    serve.add_argument("--health-port", type=int, metavar="PORT", help="answer /healthz and /readyz there")
    deeds.add_parser("manifest", help="print the manifest of the Slack app, YAML")
    check = deeds.add_parser("check", help="look whether everything is in place")
    check.add_argument("--live", action="store_true", help="ask Slack too")
    for deed in deeds.choices.values():
        deed.add_argument("--config", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
