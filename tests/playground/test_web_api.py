from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from bot.playground import C_GPU, C_NLP, S_APPROVERS, U_ANA, U_BO, U_GPUJOB, Playground
from tests.playground.block_samples import home, modal, section

D_OTHERS = "D0ANABO"


async def refusal(client: AsyncWebClient, method: str, **arguments: Any) -> str:
    with pytest.raises(SlackApiError) as caught:
        await client.api_call(method, json=arguments)
    return str(caught.value.response["error"])


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("chat.postMessage", {"channel": "C404", "text": "x"}, "channel_not_found"),
        ("chat.postMessage", {"channel": D_OTHERS, "text": "x"}, "channel_not_found"),
        ("chat.postMessage", {"channel": C_GPU}, "no_text"),
        ("chat.postMessage", {"channel": C_GPU, "blocks": [{"type": "x"}]}, "invalid_blocks"),
        ("chat.postMessage", {"channel": C_GPU, "blocks": "[oh"}, "invalid_blocks_format"),
        ("chat.postMessage", {"channel": C_GPU, "blocks": [section("x" * 2900)] * 5}, "msg_blocks_too_long"),
        (
            "chat.postMessage",
            {"channel": C_GPU, "text": "x", "metadata": {"event_type": "e"}},
            "invalid_metadata_format",
        ),
        (
            "chat.postMessage",
            {"channel": C_GPU, "text": "x", "metadata": {"event_type": "e", "event_payload": {"k": "v" * 9000}}},
            "metadata_too_large",
        ),
        ("chat.postMessage", {"channel": U_GPUJOB, "text": "x"}, "cannot_dm_bot"),
        ("chat.update", {"channel": C_GPU, "ts": "1.000000", "text": "x"}, "message_not_found"),
        ("chat.delete", {"channel": C_GPU, "ts": "1.000000"}, "message_not_found"),
        ("chat.postEphemeral", {"channel": C_GPU, "user": "U404", "text": "x"}, "user_not_found"),
        ("conversations.info", {"channel": "C404"}, "channel_not_found"),
        ("conversations.replies", {"channel": C_GPU, "ts": "1.000000"}, "thread_not_found"),
        ("conversations.open", {"users": "U404"}, "user_not_found"),
        ("users.info", {"user": "U404"}, "user_not_found"),
        ("usergroups.users.list", {"usergroup": "S404"}, "no_such_subteam"),
        ("reactions.add", {"channel": C_GPU, "timestamp": "1.000000", "name": "eyes"}, "message_not_found"),
        ("views.open", {"trigger_id": "1.2.3", "view": modal()}, "invalid_trigger_id"),
        ("views.open", {"trigger_id": "1.2.3", "view": home()}, "invalid_arguments"),
        ("views.open", {"trigger_id": "1.2.3", "view": modal() | {"x": "y" * 250_000}}, "view_too_large"),
        ("views.update", {"view_id": "V404", "view": modal()}, "not_found"),
        ("views.publish", {"user_id": "U404", "view": home()}, "user_not_found"),
        ("files.completeUploadExternal", {"files": [{"id": "F404"}]}, "file_not_found"),
        ("blocks.validate", {"blocks": [{"type": "x"}]}, "invalid_blocks"),
        ("chat.shout", {}, "unknown_method"),
        ("apps.connections.open", {}, "not_allowed_token_type"),
    ],
)
async def test_what_slack_refuses_is_refused(
    client: AsyncWebClient, method: str, arguments: dict[str, Any], error: str
):
    assert await refusal(client, method, **arguments) == error


@pytest.mark.parametrize(("token", "error"), [("", "not_authed"), ("xoxb-other", "invalid_auth")])
async def test_a_wrong_token_opens_nothing(slack: Playground, token: str, error: str):
    client = AsyncWebClient(token=token or None, base_url=slack.base_url)

    assert await refusal(client, "chat.postMessage", channel=C_GPU, text="x") == error
    assert slack.messages(C_GPU) == []


async def test_invalid_blocks_say_where(client: AsyncWebClient):
    with pytest.raises(SlackApiError) as caught:
        await client.chat_postMessage(channel=C_GPU, text="x", blocks=[section("x" * 3001)])

    assert caught.value.response["response_metadata"]["messages"] == [
        "[ERROR] must be less than 3001 characters [json-pointer:/blocks/0/text/text]"
    ]


async def test_forms_and_json_mean_the_same(slack: Playground):
    form = {"token": slack.bot_token, "channel": C_GPU, "blocks": '[{"type":"divider"}]', "text": "form"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{slack.base_url}chat.postMessage", data=form) as reply,
    ):
        assert (await reply.json())["ok"]

    assert slack.messages(C_GPU)[0]["blocks"][0]["type"] == "divider"


async def test_names_of_messages_are_unique_and_grow(slack: Playground, client: AsyncWebClient):
    posted = await asyncio.gather(*(client.chat_postMessage(channel=C_GPU, text=str(n)) for n in range(20)))

    names = [message["ts"] for message in slack.messages(C_GPU)]
    assert names == sorted({answer["ts"] for answer in posted})
    assert all(len(name.partition(".")[2]) == 6 for name in names)


async def test_a_reply_to_an_unknown_thread_stands_in_the_channel(slack: Playground, client: AsyncWebClient):
    answer = await client.chat_postMessage(channel=C_GPU, text="lost", thread_ts="1.000000")

    assert "thread_ts" not in answer["message"]
    assert [message["text"] for message in slack.messages(C_GPU)] == ["lost"]


async def test_a_thread_named_by_a_number_is_another_thread(slack: Playground, client: AsyncWebClient):
    parent = await client.chat_postMessage(channel=C_GPU, text="parent")

    await client.chat_postMessage(channel=C_GPU, text="reply", thread_ts=f"{float(parent['ts']):.3f}")

    assert [message["text"] for message in slack.thread(C_GPU, parent["ts"])] == ["parent"]


async def test_history_shows_metadata_only_when_asked(client: AsyncWebClient):
    metadata = {"event_type": "gpujob_notice", "event_payload": {"id": 7}}
    await client.chat_postMessage(channel=C_GPU, text="x", metadata=metadata)

    plainly = await client.conversations_history(channel=C_GPU)
    fully = await client.conversations_history(channel=C_GPU, include_all_metadata=True)

    assert "metadata" not in plainly["messages"][0]
    assert fully["messages"][0]["metadata"] == metadata


async def test_history_comes_in_pages_newest_first(client: AsyncWebClient):
    for number in range(5):
        await client.chat_postMessage(channel=C_GPU, text=str(number))

    first = await client.conversations_history(channel=C_GPU, limit=2)
    second = await client.conversations_history(
        channel=C_GPU, limit=2, cursor=first["response_metadata"]["next_cursor"]
    )

    assert [message["text"] for message in [*first["messages"], *second["messages"]]] == ["4", "3", "2", "1"]
    assert first["has_more"]


async def test_history_between_two_names_leaves_them_out(client: AsyncWebClient):
    names = [(await client.chat_postMessage(channel=C_GPU, text=str(n)))["ts"] for n in range(3)]

    between = await client.conversations_history(channel=C_GPU, oldest=names[0], latest=names[2])

    assert [message["ts"] for message in between["messages"]] == [names[1]]


async def test_replies_are_not_in_the_channels_history(client: AsyncWebClient):
    parent = await client.chat_postMessage(channel=C_GPU, text="parent")
    await client.chat_postMessage(channel=C_GPU, text="reply", thread_ts=parent["ts"])

    history = await client.conversations_history(channel=C_GPU)
    replies = await client.conversations_replies(channel=C_GPU, ts=parent["ts"])

    assert [(message["text"], message["reply_count"]) for message in history["messages"]] == [("parent", 1)]
    assert [message["text"] for message in replies["messages"]] == ["parent", "reply"]


async def test_an_update_counts_bytes(client: AsyncWebClient):
    ts = (await client.chat_postMessage(channel=C_GPU, text="x"))["ts"]

    assert (await client.chat_update(channel=C_GPU, ts=ts, text="가" * 1333))["ok"]
    assert await refusal(client, "chat.update", channel=C_GPU, ts=ts, text="가" * 1334) == "msg_too_long"


async def test_an_update_drops_metadata_that_is_not_sent_again(slack: Playground, client: AsyncWebClient):
    metadata = {"event_type": "e", "event_payload": {"id": 7}}
    ts = (await client.chat_postMessage(channel=C_GPU, text="x", metadata=metadata))["ts"]

    await client.chat_update(channel=C_GPU, ts=ts, text="y")

    assert "metadata" not in slack.messages(C_GPU)[0]


async def test_what_people_wrote_cannot_be_changed(slack: Playground, client: AsyncWebClient):
    ts = (await slack.say(U_ANA, C_GPU, "mine"))["ts"]

    assert await refusal(client, "chat.update", channel=C_GPU, ts=ts, text="x") == "cant_update_message"
    assert await refusal(client, "chat.delete", channel=C_GPU, ts=ts) == "cant_delete_message"


async def test_an_archived_channel_takes_nothing(slack: Playground, client: AsyncWebClient):
    ts = (await client.chat_postMessage(channel=C_NLP, text="x"))["ts"]
    slack.workspace.channel("#nlp").archived = True

    assert await refusal(client, "chat.postMessage", channel=C_NLP, text="x") == "is_archived"
    assert await refusal(client, "chat.update", channel=C_NLP, ts=ts, text="x") == "is_inactive"


async def test_writing_is_public_but_reading_and_files_need_a_member(slack: Playground, client: AsyncWebClient):
    slack.workspace.channel("#nlp").members.discard(U_GPUJOB)

    assert (await client.chat_postMessage(channel=C_NLP, text="x"))["ok"]
    assert await refusal(client, "conversations.history", channel=C_NLP) == "not_in_channel"
    with pytest.raises(SlackApiError) as caught:
        await client.files_upload_v2(channel=C_NLP, content="log", filename="log.txt")
    assert caught.value.response["error"] == "not_in_channel"


async def test_a_file_lands_in_its_thread_with_all_its_bytes(slack: Playground, client: AsyncWebClient):
    parent = await client.chat_postMessage(channel=C_GPU, text="parent")

    await client.files_upload_v2(channel=C_GPU, content="línea\n" * 50, filename="log.txt", thread_ts=parent["ts"])

    reply = slack.thread(C_GPU, parent["ts"])[1]
    assert (reply["files"][0]["name"], reply["files"][0]["content"]) == ("log.txt", "línea\n" * 50)


async def test_an_ephemeral_message_is_seen_by_one_person(slack: Playground, client: AsyncWebClient):
    await client.chat_postEphemeral(channel=C_GPU, user=U_ANA, text="psst")

    assert [message["text"] for message in slack.ephemerals(U_ANA)] == ["psst"]
    assert slack.ephemerals(U_BO) == slack.messages(C_GPU) == []


async def test_too_long_text_is_cut_with_a_warning(slack: Playground, client: AsyncWebClient):
    answer = await client.chat_postMessage(channel=C_GPU, text="x" * 40_001)

    assert len(slack.messages(C_GPU)[0]["text"]) == 40_000
    assert answer["response_metadata"]["warnings"] == ["message_truncated"]


async def test_people_and_groups_can_be_asked_for(client: AsyncWebClient):
    assert (await client.auth_test())["user_id"] == U_GPUJOB
    assert (await client.usergroups_users_list(usergroup=S_APPROVERS))["users"] == [U_BO]
    assert (await client.usergroups_list())["usergroups"][0]["handle"] == "gpu-approvers"
    assert (await client.users_info(user=U_ANA, include_locale=True))["user"]["locale"] == "en-US"
    assert (await client.conversations_open(users=U_BO))["channel"]["user"] == U_BO
    assert U_ANA in (await client.conversations_members(channel=C_GPU))["members"]
    assert {room["name"] for room in (await client.conversations_list())["channels"]} == {"gpu-jobs", "nlp"}


async def test_a_link_to_a_message_names_channel_and_message(client: AsyncWebClient):
    ts = (await client.chat_postMessage(channel=C_GPU, text="x"))["ts"]

    link = await client.chat_getPermalink(channel=C_GPU, message_ts=ts)

    assert str(link["permalink"]).endswith(f"/archives/{C_GPU}/p{ts.replace('.', '')}")


async def test_one_message_a_second_after_a_small_burst():
    async with Playground() as slack:
        client = AsyncWebClient(token=slack.bot_token, base_url=slack.base_url)
        for number in range(5):
            await client.chat_postMessage(channel=C_GPU, text=str(number))

        with pytest.raises(SlackApiError) as caught:
            await client.chat_postMessage(channel=C_GPU, text="too fast")

        assert caught.value.response["error"] == "ratelimited"
        assert caught.value.response.headers["Retry-After"] == "1"
        assert (await client.chat_postMessage(channel=C_NLP, text="elsewhere"))["ok"]
        assert len(slack.messages(C_GPU)) == 5
