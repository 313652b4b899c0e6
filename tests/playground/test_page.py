"""A person at the page, in Chromium."""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect
from slack_bolt.async_app import AsyncApp
from slack_sdk.web.async_client import AsyncWebClient

from bot.playground import C_GPU, U_ANA, U_BO, Playground
from tests.playground.block_samples import actions, button, input_block, modal, mrkdwn, option, plain, section
from tests.playground.conftest import Connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: install it, then run make browser."),
]

QUESTION = {"title": plain("Cancel job-41?"), "text": mrkdwn("It stops *now*."), "confirm": plain("Stop it")}


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture
async def slack() -> AsyncIterator[Playground]:
    async with Playground(rate_limits=False) as playground:
        yield playground


@pytest.fixture
async def page(browser: Browser, slack: Playground) -> AsyncIterator[Page]:
    page = await browser.new_page(viewport={"width": 1280, "height": 800})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_default_timeout(10_000)
    expect.set_options(timeout=20_000)  # the computer may have much else to do
    await page.goto(slack.url)
    await expect(page.get_by_role("heading", name="#gpu-jobs")).to_be_visible()
    yield page
    await page.close()
    assert errors == []


@pytest.fixture
async def bot(app: AsyncApp, connect: Connect) -> AsyncApp:
    numbers = {"type": "number_input", "action_id": "n", "is_decimal_allowed": False}
    teams = {"type": "static_select", "action_id": "t", "options": [option("nlp"), option("vision")]}
    form = modal(
        input_block(),
        input_block("gpus", numbers, label=plain("GPUs")),
        input_block("team", teams, label=plain("Team"), optional=True),
        callback_id="form",
    )

    @app.command("/gpujob")
    async def command(ack, body, client):
        if body["text"] != "submit":
            await ack(f"You typed {body['text']}")
            return
        await ack()
        await client.views_open(trigger_id=body["trigger_id"], view=form)

    @app.view("form")
    async def submitted(ack, view, client):
        values = view["state"]["values"]
        if values["gpus"]["n"]["value"] == "64":
            await ack(response_action="errors", errors={"gpus": "At most 16."})
            return
        await ack()
        team = (values["team"]["t"]["selected_option"] or {}).get("value")
        await client.chat_postMessage(
            channel=C_GPU,
            text=f"{values['name']['value']['value']} {values['gpus']['n']['value']} {team}",
        )

    @app.action("approve")
    async def approved(ack, body, respond):
        await ack()
        await respond(f"approved by {body['user']['name']}", replace_original=True, blocks=[])

    @app.action("cancel")
    async def cancelled(ack, respond):
        await ack()
        await respond("cancelled", replace_original=True, blocks=[])

    @app.action("more")
    async def chosen(ack, body, say):
        await ack()
        await say(f"chose {body['actions'][0]['selected_option']['value']}")

    await connect(app)
    return app


def box(page: Page) -> Any:
    return page.get_by_role("textbox", name="Message", exact=True)


def messages(page: Page) -> Any:
    return page.get_by_role("region", name="Messages", exact=True)


async def test_a_command_is_answered_to_its_person_alone(page: Page, bot: AsyncApp):
    await box(page).fill("/gpujob pool")
    await box(page).press("Enter")

    answer = page.get_by_role("article").filter(has_text="You typed pool")
    await expect(answer).to_contain_text("Only visible to you")
    await page.get_by_role("radio", name="Bo").click()
    await expect(page.get_by_role("radio", name="Bo")).to_be_checked()
    await expect(answer).to_have_count(0)


async def test_a_form_is_filled_in_refused_mended_and_sent(page: Page, slack: Playground, bot: AsyncApp):
    await box(page).fill("/gpujob submit")
    await box(page).press("Enter")
    dialog = page.get_by_role("dialog", name="Title")
    await dialog.get_by_role("button", name="Go").click()
    await expect(dialog.get_by_text("Please complete this required field.")).to_have_count(2)

    await dialog.get_by_label("Name").fill("sweep")
    await dialog.get_by_label("GPUs").fill("64")
    await dialog.get_by_label("Team").select_option("vision")
    await dialog.get_by_role("button", name="Go").click()
    await expect(dialog.get_by_text("At most 16.")).to_be_visible()
    await expect(dialog.get_by_label("GPUs")).to_be_focused()
    await expect(dialog.get_by_label("GPUs")).to_have_attribute("aria-invalid", "true")
    await expect(dialog.get_by_label("Name")).to_have_value("sweep")

    await dialog.get_by_label("GPUs").fill("2")
    await dialog.get_by_role("button", name="Go").click()
    await expect(messages(page)).to_contain_text("sweep 2 vision")
    await expect(dialog).to_have_count(0)


async def test_an_approver_clicks_and_everyone_sees_it(
    page: Page, slack: Playground, client: AsyncWebClient, bot: AsyncApp
):
    await client.chat_postMessage(channel=C_GPU, text="?", blocks=[actions(button("approve", text=plain("Approve")))])
    await page.get_by_role("radio", name="Bo").click()
    await page.get_by_role("button", name="Approve").click()
    await expect(messages(page)).to_contain_text("approved by bo")

    await page.get_by_role("radio", name="Ana").click()
    await expect(messages(page)).to_contain_text("approved by bo")


async def test_what_cannot_be_undone_is_asked_first(
    page: Page, slack: Playground, client: AsyncWebClient, bot: AsyncApp
):
    element = button("cancel", text=plain("Cancel"), confirm=QUESTION | {"deny": plain("Keep it")})
    await client.chat_postMessage(channel=C_GPU, text="?", blocks=[actions(element)])

    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("dialog", name="Cancel job-41?").get_by_role("button", name="Keep it").click()
    assert slack.sockets.sent == []

    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("dialog", name="Cancel job-41?").get_by_role("button", name="Stop it").click()
    await expect(messages(page)).to_contain_text("cancelled")


async def test_a_thread_opens_beside_and_counts_its_replies(page: Page, slack: Playground, client: AsyncWebClient):
    card = await client.chat_postMessage(channel=C_GPU, text="job-41")
    for number in range(5):
        await client.chat_postMessage(channel=C_GPU, text=f"reply {number}", thread_ts=card["ts"])

    await page.get_by_role("button", name="5 replies").click()
    thread = page.get_by_role("region", name="Thread")
    await expect(thread.get_by_role("article")).to_have_count(6)
    await page.get_by_role("textbox", name="Reply").fill("thanks")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="6 replies")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(thread).to_be_hidden()

    assert slack.thread(C_GPU, card["ts"])[-1]["user"] == U_ANA


async def test_a_direct_message_is_marked_unread_until_it_is_opened(page: Page, client: AsyncWebClient):
    await client.chat_postMessage(channel=U_ANA, text="job-40 completed")

    entry = page.get_by_role("navigation").get_by_role("button", name="gpujob")
    await expect(entry).to_contain_text("unread")
    await entry.click()
    await expect(messages(page)).to_contain_text("job-40 completed")
    await expect(entry).not_to_contain_text("unread")


async def test_the_keyboard_alone_is_enough(page: Page, slack: Playground, client: AsyncWebClient, bot: AsyncApp):
    menu = {"type": "overflow", "action_id": "more", "options": [option("logs"), option("rerun")]}
    await client.chat_postMessage(channel=C_GPU, text="?", blocks=[section(accessory=menu)])
    await expect(page.get_by_role("button", name="More actions")).to_be_visible()

    await box(page).focus()
    await page.keyboard.type("/gpujob su")
    await expect(page.get_by_role("option", selected=True)).to_contain_text("/gpujob submit")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog", name="Title").get_by_label("Name")).to_be_focused()
    await page.keyboard.type("sweep")
    await page.keyboard.press("Tab")
    await page.keyboard.type("2")
    await page.keyboard.press("Enter")
    await expect(messages(page)).to_contain_text("sweep 2 None")
    await expect(
        page.get_by_role("dialog")
    ).to_be_hidden()  # an open form keeps the focus, and gives it back as it closes

    more = page.get_by_role("button", name="More actions")
    await box(page).focus()
    for _ in range(12):
        await page.keyboard.press("Shift+Tab")
        if await more.evaluate("button => button === document.activeElement"):
            break
    await expect(more).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("menuitem", name="logs")).to_be_focused()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(messages(page)).to_contain_text("chose rerun")


async def test_the_focus_stays_on_a_button_when_its_card_changes(page: Page, client: AsyncWebClient, bot: AsyncApp):
    def card(state: str) -> Any:
        return {"channel": C_GPU, "text": state, "blocks": [section(state), actions(button("cancel"))]}

    posted = await client.chat_postMessage(**card("waiting"))
    pressed = messages(page).locator("[data-action=cancel]")
    await pressed.focus()
    await client.chat_update(ts=posted["ts"], **card("running"))

    await expect(messages(page)).to_contain_text("running")
    await expect(pressed).to_be_focused()


async def test_escape_closes_a_form_and_the_app_is_told(page: Page, slack: Playground, app: AsyncApp, connect: Connect):
    closed: list[str] = []

    @app.view_closed("form")
    async def told(ack, view):
        closed.append(view["callback_id"])
        await ack()

    await connect(app)
    view = modal(callback_id="form", notify_on_close=True)
    await app.client.views_open(trigger_id=slack.workspace.new_trigger(U_ANA), view=view)
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await slack.until(lambda: closed)

    assert slack.open_view(U_ANA) is None


@pytest.mark.parametrize(
    "hostile",
    [
        "<img src=x onerror=window.hacked=1>",
        "<script>window.hacked=1</script>",
        "<javascript:window.hacked=1|click>",
        '"><svg onload=window.hacked=1>',
    ],
)
async def test_nothing_that_is_written_becomes_part_of_the_page(
    page: Page, slack: Playground, client: AsyncWebClient, hostile: str
):
    await client.chat_postMessage(channel=C_GPU, text=hostile)
    await client.chat_postMessage(channel=C_GPU, text="x", blocks=[{"type": "header", "text": plain(hostile)}])
    await slack.say(U_BO, C_GPU, hostile)

    await expect(page.get_by_role("article")).to_have_count(3)
    await expect(page.get_by_role("heading", name=hostile)).to_be_visible()
    assert await messages(page).locator("img, script, a, svg[onload]").count() == 0
    assert await page.evaluate("window.hacked") is None


async def test_markup_is_drawn_as_slack_draws_it(page: Page, client: AsyncWebClient):
    text = "*bold* _italic_ ~gone~ `code` <https://example.com|link> <@U0BO> <!date^0^{date_num}|long ago> a &lt; b"
    await client.chat_postMessage(channel=C_GPU, text=text)

    message = page.get_by_role("article")
    await expect(message.locator(".text strong")).to_have_text("bold")
    await expect(message.locator("em")).to_have_text("italic")
    await expect(message.locator("s")).to_have_text("gone")
    await expect(message.locator("code")).to_have_text("code")
    await expect(message.get_by_role("link", name="link")).to_have_attribute("href", "https://example.com")
    await expect(message.locator(".text")).to_contain_text("@bo 1970-01-01 a < b")


async def test_today_has_a_capital_only_where_it_begins_a_date(page: Page, client: AsyncWebClient):
    now = int(time.time())
    text = f"<!date^{now}^{{date_short_pretty}}|x> and <!date^{now}^since {{date_short_pretty}}|x>"
    await client.chat_postMessage(channel=C_GPU, text=text)

    await expect(page.get_by_role("article").locator(".text")).to_have_text("Today and since today")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_words_stand_out_from_their_ground(browser: Browser, slack: Playground, scheme: Any):
    await slack.say(U_ANA, C_GPU, "hello")
    page = await browser.new_page(color_scheme=scheme)
    await page.goto(slack.url)
    await expect(page.get_by_role("article")).to_be_visible()
    contrast = await page.evaluate(
        """() => {
          const light = (color) => {
            const [r, g, b] = color.match(/[\\d.]+/g).map((part) => part / 255)
              .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const of = (element, name) => getComputedStyle(element).getPropertyValue(name);
          const pair = (text, ground) => {
            const [a, b] = [light(of(text, "color")), light(of(ground, "background-color"))].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05);
          };
          const $ = (name) => document.querySelector(name);
          return [pair($(".message .text"), document.body), pair($(".head time"), document.body),
                  pair($("#people .role"), $("#sidebar")), pair($(".rooms button:not([aria-current])"), $("#sidebar"))];
        }"""
    )
    await page.close()

    assert min(contrast) >= 4.5
