"""`make demo`: a night in two minutes, on this computer; GPUJOB_DEMO_EXIT=1 ends after it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

from demo.house import ROOT, House, Stopped
from demo.story import DAY, NIGHT, Story, check

PORT = 8321
DAY_S, NIGHT_S = 45, 120  # while people play


def main() -> int:
    """The exit code: 0 only if every expected event happened."""
    stays = os.environ.get("GPUJOB_DEMO_EXIT") != "1"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = ROOT / ".demo"
    shutil.rmtree(folder, ignore_errors=True)
    house = House(folder, PORT)
    try:
        house.open()
        say(f"The page of the local Slack: {house.slack}")
        story = Story(house, say)
        story.tell()
        faults = check(story)
        for fault in faults:
            say(f"NOT AS EXPECTED: {fault}")
        if not faults:
            say("\nEverything happened as it should; see demo/transcript.json and demo/timings.json.")
        if stays and not faults:
            play(house)
    except Stopped as fault:
        say(f"NOT AS EXPECTED: {fault}")
        return 1
    except (KeyboardInterrupt, subprocess.SubprocessError) as error:
        say(f"Stopped. {error}".strip())
        return 130
    finally:
        house.close()
    return 1 if faults else 0


def play(house: House) -> None:
    """Days and nights go on until Ctrl-C."""
    say(f"\nIt stays up: open {house.slack}, submit a job, switch persons. Ctrl-C ends it.")
    while True:
        for clients, seconds in ((NIGHT, NIGHT_S), (DAY, DAY_S)):
            house.load(clients)
            time.sleep(seconds)


def say(text: str) -> None:
    """One line in the terminal, at once."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
