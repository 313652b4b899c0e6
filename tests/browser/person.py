"""A person at the page of the playground, in Chromium: what they see and what they do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Locator, Page, Playwright, expect, sync_playwright

WIDTH, HEIGHT = 1280, 800
SOON = 20_000  # ms: an answer of the bot, on a busy computer
LATER = 60_000  # ms: something that the scheduler or a job has to do first

IMAGES = Path(__file__).parents[2] / "docs" / "images"

NO_CHROMIUM = "Chromium is missing: install the package chromium, or run `playwright install chromium`."


def program(playwright: Playwright) -> str | None:
    """Chromium of the system, or else the one that Playwright brought along; None without any."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    own = playwright.chromium.executable_path
    return found or (own if Path(own).exists() else None)


@contextmanager
def chromium() -> Iterator[Browser | None]:
    """A browser, or None where there is no Chromium."""
    with sync_playwright() as playwright:
        path = program(playwright)
        if path is None:
            yield None
            return
        # Root may not use the sandbox, and CI is root.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--font-render-hinting=none"])
        yield browser
        browser.close()


class Human:
    """Whoever sits at the page. Everything waits for what it expects; `errors` are those of the page's own code."""

    def __init__(self, browser: Browser, slack: str, scheme: Literal["light", "dark"] = "light") -> None:
        self.page: Page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.set_default_timeout(SOON)
        self.page.goto(slack)
        expect(self.page.get_by_text("gpujob is connected")).to_be_visible(timeout=SOON)

    @property
    def box(self) -> Locator:
        """Where messages and commands are typed."""
        return self.page.get_by_role("textbox", name="Message", exact=True)

    @property
    def messages(self) -> Locator:
        """Those of the open channel, without its thread."""
        return self.page.get_by_role("region", name="Messages", exact=True).get_by_role("article")

    @property
    def thread(self) -> Locator:
        """The messages of the open thread; the first is the card."""
        return self.page.get_by_role("region", name="Thread").get_by_role("article")

    def type(self, text: str) -> None:
        """Types into the message box, and sends."""
        self.box.fill(text)
        self.box.press("Enter")

    def become(self, name: str) -> None:
        """Sits down in the chair of somebody else."""
        self.page.get_by_role("radio", name=name).click()
        expect(self.page.get_by_role("radio", name=name)).to_be_checked(timeout=SOON)

    def go(self, room: str) -> None:
        """Opens a channel, or a direct message."""
        self.page.get_by_role("navigation").get_by_role("button", name=room).click()
        expect(self.page.get_by_role("heading", name=room)).to_be_visible(timeout=SOON)

    def card(self, job: str) -> Locator:
        """The one message of a job that everybody sees; it has a button for its status."""
        status = self.page.get_by_role("button", name=f"Status of {job}", exact=True)
        return self.messages.filter(has=status, has_not_text="Only visible to you")

    def answer(self, text: str | re.Pattern[str]) -> Locator:
        """What only the one who asked sees."""
        return self.messages.filter(has_text="Only visible to you").filter(has_text=text)

    def press(self, name: str) -> None:
        """Presses a button of a card."""
        self.page.get_by_role("button", name=name, exact=True).first.click()

    def open_form(self) -> Locator:
        """`/gpujob submit`, until the form is there to be filled in."""
        self.type("/gpujob submit")
        form = self.page.get_by_role("dialog", name="Submit a job")
        expect(form.get_by_label("Docker image")).to_be_visible(timeout=SOON)
        return form

    def open_thread(self, job: str) -> None:
        """Opens the replies below a card."""
        self.card(job).get_by_role("button", name=re.compile(r"\d+ repl(y|ies)")).click()
        expect(self.thread.first).to_be_visible(timeout=SOON)

    def sees(self, where: Locator, texts: Sequence[str], timeout: float = SOON) -> None:
        """All these words stand there, or come to stand there in time."""
        for text in texts:
            expect(where).to_contain_text(text, timeout=timeout)

    def picture(self, path: Path) -> None:
        """Keeps what the page shows, with the mouse out of the way."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.mouse.move(WIDTH - 1, HEIGHT - 1)
        self.page.evaluate("document.fonts.ready.then(() => true)")
        self.page.screenshot(path=path, animations="disabled", caret="hide")
