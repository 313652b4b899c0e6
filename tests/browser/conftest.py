"""The whole product for one test, and a browser to look at it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo.house import House
from tests.browser.person import IMAGES, NO_CHROMIUM, Human, chromium

ANY_PORT = 0
NIGHT = 2  # clients of the service: one replica is enough, and 12 GPUs are idle

# Works until somebody lets it end; it never outlives the test for long.
TRAIN = """\
import pathlib, time
print("GPUJOB_PROGRESS 0.42 loss=1.3", flush=True)
end = time.monotonic() + 90
while time.monotonic() < end and not pathlib.Path(__file__).with_name("done").exists():
    time.sleep(0.1)
print("saved the model", flush=True)
"""


@pytest.fixture
def house() -> Iterator[House]:
    with tempfile.TemporaryDirectory(prefix="gpujob-") as folder:
        house = House(Path(folder), ANY_PORT)
        try:
            house.open()
            house.load(NIGHT)
            (house.folder / "train.py").write_text(TRAIN)
            yield house
        finally:
            (house.folder / "done").touch()
            house.close()


@pytest.fixture
def human(house: House) -> Iterator[Human]:
    with chromium() as browser:
        if browser is None:
            pytest.skip(NO_CHROMIUM)
        human = Human(browser, house.slack)
        yield human
        assert human.errors == []


@pytest.fixture
def keep(human: Human) -> Callable[[str], None]:
    """Keeps a picture of a stage; without GPUJOB_SCREENSHOTS=1 the tree stays as it is."""
    kept = os.environ.get("GPUJOB_SCREENSHOTS") == "1"
    return lambda name: human.picture(IMAGES / "way" / f"{name}.png") if kept else None
