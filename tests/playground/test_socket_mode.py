from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from slack_bolt.async_app import AsyncApp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from bot.playground import C_GPU, U_ANA, U_BO, U_CY, Playground
from bot.playground.sockets import Acknowledged, Late
from tests.playground.block_samples import actions, button, input_block, modal, option, plain, section, select
from tests.playground.conftest import Connect


@asynccontextmanager
async def raw_socket(slack: Playground) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A socket that says nothing by itself; its hello is read."""
    opened = await AsyncWebClient(base_url=slack.base_url).apps_connections_open(app_token=slack.app_token)
    async with aiohttp.ClientSession() as session, session.ws_connect(str(opened["url"])) as socket:
        assert (await socket.receive_json())["type"] == "hello"
        yield socket


async def test_a_command_reaches_the_app_with_all_it_needs(slack: Playground, app: AsyncApp, connect: Connect):
    heard: list[dict[str, Any]] = []

    @app.command("/gpujob")
    async def command(ack, body):
        heard.append(body)
        await ack("taken")

    await connect(app)
    result = await slack.command(U_ANA, C_GPU, "status job-41")

    assert (heard[0]["user_id"], heard[0]["channel_name"], heard[0]["text"]) == (U_ANA, "gpu-jobs", "status job-41")
    assert result.acked_s is not None
    assert [message["text"] for message in result.responses] == ["taken"]


async def test_nobody_connected_fails_at_once(slack: Playground):
    result = await slack.command(U_ANA, C_GPU, "status")

    assert result.error == '/gpujob failed with the error "dispatch_failed"'
    assert [message["text"] for message in slack.ephemerals(U_ANA)] == [result.error]


async def test_a_late_ack_is_dropped_and_the_person_sees_an_error(slack: Playground):
    async with raw_socket(slack) as socket:
        typing = asyncio.create_task(slack.command(U_ANA, C_GPU, "status"))
        envelope = await socket.receive_json()
        result = await typing
        await socket.send_json({"envelope_id": envelope["envelope_id"], "payload": {"text": "too late"}})
        await socket.ping()
        sent = slack.sockets.sent[0]
        await slack.until(lambda: sent.late_acks)

    assert result.error == '/gpujob failed with the error "operation_timeout"'
    assert (sent.acks, sent.late_acks) == (0, 1)
    assert [message["text"] for message in slack.ephemerals(U_ANA)] == [result.error]


async def test_a_response_url_works_five_times(slack: Playground, app: AsyncApp, connect: Connect):
    statuses: list[int] = []

    @app.command("/gpujob")
    async def command(ack, respond):
        await ack()
        statuses.extend([(await respond(f"answer {number}")).status_code for number in range(6)])

    await connect(app)
    await slack.command(U_ANA, C_GPU, "status")
    await slack.until(lambda: len(slack.ephemerals(U_ANA)) == 5 and len(statuses) == 6)

    assert statuses == [200] * 5 + [404]


async def test_an_answer_in_the_channel_is_seen_by_all(slack: Playground, app: AsyncApp, connect: Connect):
    @app.command("/gpujob")
    async def command(ack, respond):
        await ack()
        await respond("for all", response_type="in_channel")

    await connect(app)
    result = await slack.command(U_ANA, C_GPU, "pool")
    await slack.until(lambda: result.responses)

    assert [message["text"] for message in result.responses] == ["for all"]
    assert (slack.messages(C_GPU)[0]["text"], slack.ephemerals(U_ANA)) == ("for all", [])


async def test_a_click_can_replace_the_message_it_was_in(
    slack: Playground, app: AsyncApp, client: AsyncWebClient, connect: Connect
):
    heard: list[dict[str, Any]] = []

    @app.action("ok")
    async def clicked(ack, body, respond):
        heard.append(body)
        await ack()
        await respond("done", replace_original=True)

    await connect(app)
    await client.chat_postEphemeral(channel=C_GPU, user=U_ANA, text="?", blocks=[actions(button(value="job-41"))])
    ts = slack.ephemerals(U_ANA)[0]["ts"]
    await slack.click(U_ANA, C_GPU, ts, "ok")
    await slack.until(lambda: slack.ephemerals(U_ANA)[0]["text"] == "done")

    assert heard[0]["actions"][0]["value"] == "job-41"
    assert heard[0]["container"]["is_ephemeral"]
    assert len(slack.ephemerals(U_ANA)) == 1


async def test_a_select_says_which_option_was_chosen(
    slack: Playground, app: AsyncApp, client: AsyncWebClient, connect: Connect
):
    heard: list[dict[str, Any]] = []

    @app.action("choose")
    async def chosen(ack, body):
        heard.append(body["actions"][0])
        await ack()

    await connect(app)
    ts = (await client.chat_postMessage(channel=C_GPU, text="x", blocks=[actions(select(3))]))["ts"]
    await slack.click(U_BO, C_GPU, ts, "choose", value="o2")

    assert heard[0]["selected_option"]["value"] == "o2"


async def test_what_is_not_on_the_screen_cannot_be_clicked(slack: Playground, client: AsyncWebClient):
    ts = (await client.chat_postMessage(channel=C_GPU, text="x", blocks=[actions(button())]))["ts"]

    with pytest.raises(LookupError, match="'cancel'; there are ok"):
        await slack.click(U_ANA, C_GPU, ts, "cancel")


async def test_a_form_keeps_its_errors_until_they_are_mended(slack: Playground, app: AsyncApp, connect: Connect):
    gpus = {"type": "number_input", "action_id": "n", "is_decimal_allowed": False, "max_value": "64"}

    @app.command("/gpujob")
    async def command(ack, body, client):
        await ack()
        view = modal(input_block(), input_block("gpus", gpus), callback_id="form")
        await client.views_open(trigger_id=body["trigger_id"], view=view)

    @app.view("form")
    async def submitted(ack, view):
        asked = view["state"]["values"]["gpus"]["n"]["value"]
        await (ack() if asked == "2" else ack(response_action="errors", errors={"gpus": "At most 2."}))

    await connect(app)
    await slack.command(U_ANA, C_GPU, "submit")
    await slack.until(lambda: slack.open_view(U_ANA))

    empty = await slack.submit_view(U_ANA)
    too_many = await slack.submit_view(U_ANA, {"name": {"value": "sweep"}, "gpus": {"n": 65}})
    refused = await slack.submit_view(U_ANA, {"gpus": {"n": 4}})
    taken = await slack.submit_view(U_ANA, {"gpus": {"n": 2}})

    assert empty.errors.keys() == {"name", "gpus"}
    assert too_many.errors == {"gpus": "Enter a number of at most 64."}
    assert (refused.errors, refused.closed) == ({"gpus": "At most 2."}, False)
    assert (taken.errors, taken.closed) == ({}, True)


async def test_errors_on_what_is_no_field_are_trouble(slack: Playground, app: AsyncApp, connect: Connect):
    @app.command("/gpujob")
    async def command(ack, body, client):
        await ack()
        await client.views_open(trigger_id=body["trigger_id"], view=modal(section(block_id="s"), callback_id="form"))

    @app.view("form")
    async def submitted(ack):
        await ack(response_action="errors", errors={"s": "no"})

    await connect(app)
    await slack.command(U_ANA, C_GPU, "submit")
    await slack.until(lambda: slack.open_view(U_ANA))

    result = await slack.submit_view(U_ANA)

    assert result.error is not None
    assert result.error.startswith("We had some trouble connecting.")
    assert slack.open_view(U_ANA) is not None


async def test_views_lie_three_deep_and_no_deeper(slack: Playground, app: AsyncApp, connect: Connect):
    errors: list[str] = []

    @app.command("/gpujob")
    async def command(ack, body, client):
        await ack()
        await client.views_open(trigger_id=body["trigger_id"], view=modal(actions(button("deeper"))))

    @app.action("deeper")
    async def deeper(ack, body, client):
        await ack()
        try:
            await client.views_push(trigger_id=body["trigger_id"], view=modal(actions(button("deeper"))))
        except SlackApiError as error:
            errors.append(error.response["error"])

    await connect(app)
    await slack.command(U_ANA, C_GPU, "submit")
    await slack.until(lambda: slack.open_view(U_ANA))
    for depth in (2, 3):
        await slack.click_view(U_ANA, "deeper")
        await slack.until(lambda depth=depth: len(slack.workspace.views[U_ANA]) == depth)
    await slack.click_view(U_ANA, "deeper")
    await slack.until(lambda: errors)

    assert errors == ["push_limit_reached"]


async def test_a_trigger_opens_one_view_and_not_for_long(slack: Playground, client: AsyncWebClient):
    used = slack.workspace.new_trigger(U_ANA)
    old = slack.workspace.new_trigger(U_ANA)
    await client.views_open(trigger_id=used, view=modal())
    await asyncio.sleep(0.35)

    errors = []
    for trigger in (used, old):
        with pytest.raises(SlackApiError) as caught:
            await client.views_open(trigger_id=trigger, view=modal())
        errors.append(caught.value.response["error"])

    assert errors == ["exchanged_trigger_id", "expired_trigger_id"]


async def test_a_stale_hash_is_a_conflict_and_typed_words_stay(slack: Playground, client: AsyncWebClient):
    opened = await client.views_open(trigger_id=slack.workspace.new_trigger(U_ANA), view=modal(input_block()))
    view = opened["view"]
    await slack.submit_view(U_ANA, {"name": {"value": "sweep"}})

    await client.views_update(view_id=view["id"], hash=view["hash"], view=modal(input_block(), section()))
    with pytest.raises(SlackApiError) as caught:
        await client.views_update(view_id=view["id"], hash=view["hash"], view=modal())

    shown = slack.open_view(U_ANA)
    assert shown is not None
    assert shown["state"]["values"]["name"]["value"]["value"] == "sweep"
    assert caught.value.response["error"] == "hash_conflict"


async def test_a_closed_view_is_not_found(slack: Playground, client: AsyncWebClient):
    opened = await client.views_open(trigger_id=slack.workspace.new_trigger(U_ANA), view=modal())
    await slack.close_view(U_ANA)

    with pytest.raises(SlackApiError) as caught:
        await client.views_update(view_id=opened["view"]["id"], view=modal())

    assert caught.value.response["error"] == "not_found"


async def test_an_external_id_is_used_once(slack: Playground, client: AsyncWebClient):
    view = modal(external_id="one")
    await client.views_open(trigger_id=slack.workspace.new_trigger(U_ANA), view=view)

    with pytest.raises(SlackApiError) as caught:
        await client.views_open(trigger_id=slack.workspace.new_trigger(U_BO), view=view)

    assert caught.value.response["error"] == "duplicate_external_id"


async def test_closing_is_told_to_those_who_asked(slack: Playground, app: AsyncApp, connect: Connect):
    heard: list[str] = []

    @app.view_closed("form")
    async def closed(ack, view):
        heard.append(view["id"])
        await ack()

    await connect(app)
    view = modal(callback_id="form", notify_on_close=True)
    opened = await app.client.views_open(trigger_id=slack.workspace.new_trigger(U_ANA), view=view)
    await slack.close_view(U_ANA)

    assert heard == [opened["view"]["id"]]
    assert slack.open_view(U_ANA) is None


async def test_suggestions_come_from_the_app(slack: Playground, app: AsyncApp, connect: Connect):
    finder = {"type": "external_select", "action_id": "image", "min_query_length": 0}

    @app.options("image")
    async def images(ack, payload):
        await ack(options=[option(f"{payload['value']}-1.4")])

    await connect(app)
    await app.client.views_open(trigger_id=slack.workspace.new_trigger(U_ANA), view=modal(input_block("image", finder)))

    assert await slack.suggestions(U_ANA, "image", "eval") == [option("eval-1.4")]


async def test_a_mention_is_an_event_in_its_thread(slack: Playground, app: AsyncApp, connect: Connect):
    @app.event("app_mention")
    async def mentioned(event, say):
        await say(f"heard {event['text']}", thread_ts=event.get("thread_ts"))

    await connect(app)
    parent = await slack.say(U_ANA, C_GPU, "parent")
    await slack.mention(U_CY, C_GPU, "status", thread_ts=parent["ts"])
    await slack.until(lambda: len(slack.thread(C_GPU, parent["ts"])) == 3)

    assert slack.thread(C_GPU, parent["ts"])[2]["text"] == "heard <@U0GPUJOB> status"


async def test_an_event_without_an_ack_comes_again_with_its_number(slack: Playground):
    async with raw_socket(slack) as socket:
        talking = asyncio.create_task(slack.mention(U_ANA, C_GPU, "status"))
        first = await socket.receive_json()
        second = await socket.receive_json()
        await socket.send_json({"envelope_id": second["envelope_id"]})
        await talking

    assert (first["retry_attempt"], second["retry_attempt"], second["retry_reason"]) == (0, 1, "timeout")
    assert first["payload"]["event_id"] == second["payload"]["event_id"]
    assert first["envelope_id"] != second["envelope_id"]


async def test_the_same_event_can_be_delivered_again(slack: Playground, app: AsyncApp, connect: Connect):
    heard: list[tuple[str, str]] = []

    @app.event("app_mention")
    async def mentioned(body, request):
        heard.append((body["event_id"], request.headers.get("x-slack-retry-num", [""])[0]))

    await connect(app)
    await slack.mention(U_ANA, C_GPU, "status")
    await slack.redeliver(attempt=1)
    await slack.until(lambda: len(heard) == 2)

    assert heard[0][0] == heard[1][0]
    assert heard[1][1] == "1"


async def test_the_home_tab_is_published_when_it_is_opened(slack: Playground, app: AsyncApp, connect: Connect):
    @app.event("app_home_opened")
    async def opened(event, client):
        await client.views_publish(user_id=event["user"], view={"type": "home", "blocks": [section("yours")]})

    await connect(app)
    await slack.open_home(U_ANA)
    home = await slack.until(lambda: slack.home(U_ANA))

    assert home["blocks"][0]["text"]["text"] == "yours"
    assert slack.home(U_BO) is None


@pytest.mark.parametrize("close", [False, True])
async def test_a_client_that_is_sent_away_comes_back(slack: Playground, app: AsyncApp, connect: Connect, close: bool):
    @app.command("/gpujob")
    async def command(ack):
        await ack("here")

    await connect(app)
    await slack.disconnect(close=close)
    await slack.until(lambda: slack.sockets.opened == 2)

    assert (await slack.command(U_ANA, C_GPU, "status")).error is None


async def test_each_envelope_goes_to_one_socket(slack: Playground, app: AsyncApp, connect: Connect):
    heard: list[str] = []

    @app.command("/gpujob")
    async def command(ack, body):
        heard.append(body["text"])
        await ack()

    await connect(app)
    await connect(app)
    await asyncio.gather(*(slack.command(U_ANA, C_GPU, str(number)) for number in range(20)))

    assert sorted(heard, key=int) == [str(number) for number in range(20)]
    assert {sent.socket for sent in slack.sockets.sent} == {1, 2}


async def test_a_link_to_a_socket_works_once(slack: Playground):
    opened = await AsyncWebClient(base_url=slack.base_url).apps_connections_open(app_token=slack.app_token)
    async with aiohttp.ClientSession() as session, session.ws_connect(str(opened["url"])):
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(str(opened["url"]))


async def test_the_eleventh_socket_is_one_too_many(slack: Playground):
    opened = [
        str((await AsyncWebClient(base_url=slack.base_url).apps_connections_open(app_token=slack.app_token))["url"])
        for _ in range(11)
    ]
    async with aiohttp.ClientSession() as session:
        sockets = [await session.ws_connect(url) for url in opened]
        words = [await socket.receive_json() for socket in sockets]

    assert [word["type"] for word in words] == ["hello"] * 10 + ["disconnect"]
    assert words[10]["reason"] == "too_many_websockets"


async def test_a_ping_gets_a_pong(slack: Playground):
    async with raw_socket(slack) as socket:
        await socket.ping(b"sdk-ping-pong:1")
        talking = asyncio.create_task(slack.sockets.send("slash_commands", {}))
        envelope = await socket.receive_json()
        await socket.send_json({"envelope_id": envelope["envelope_id"]})

        assert isinstance(await talking, Acknowledged)


async def test_a_slow_delivery_still_arrives(slack: Playground):
    slack.faults.slow("socket", 0.05)
    async with raw_socket(slack) as socket:
        outcome = asyncio.create_task(slack.sockets.send("slash_commands", {}))
        envelope = await socket.receive_json()
        assert envelope["type"] == "slash_commands"
        assert isinstance(await outcome, Late)


async def test_a_button_says_its_text_and_block(
    slack: Playground, app: AsyncApp, client: AsyncWebClient, connect: Connect
):
    heard: list[dict[str, Any]] = []

    @app.action("ok")
    async def clicked(ack, body):
        heard.append(body)
        await ack()

    await connect(app)
    blocks = [actions(button(), block_id="decide")]
    ts = (await client.chat_postMessage(channel=C_GPU, text="x", blocks=blocks))["ts"]
    await slack.click(U_BO, C_GPU, ts, "ok")

    assert (heard[0]["actions"][0]["block_id"], heard[0]["actions"][0]["text"]) == ("decide", plain("OK"))
    assert (heard[0]["user"]["id"], heard[0]["message"]["ts"]) == (U_BO, ts)


async def test_a_broken_line_is_noticed_on_both_sides(slack: Playground):
    async with raw_socket(slack) as socket:
        await slack.disconnect(abort=True)
        await slack.until(lambda: slack.sockets.connected == 0)

        assert (await socket.receive()).type in {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED}


async def test_an_event_that_is_not_subscribed_is_not_sent(slack: Playground):
    async with raw_socket(slack):
        await slack.say(U_ANA, "D0ANA", "status")

    assert slack.sockets.sent == []
    assert [message["text"] for message in slack.messages("D0ANA")] == ["status"]
