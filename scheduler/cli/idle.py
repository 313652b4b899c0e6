"""`gpujob windows`: idle GPUs, what changed, and how much of what was said came true."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime, timedelta

from scheduler.cli.say import Say, table
from scheduler.cli.showing import last_seen
from scheduler.fleet import promises
from scheduler.fleet.windows import Shift, changes
from scheduler.settings import Settings
from scheduler.wiring import clock, house, services

_EARLIER = timedelta(minutes=10)  # what windows are held against, to say what changed
_CALIBRATED = timedelta(days=14)


def windows(arguments: argparse.Namespace, say: Say, settings: Settings) -> int:
    """Idle GPUs: `at windows[{node, gpus, from, until, confidence, why}] changes[] calibration[]`."""
    if arguments.calibration:
        return _calibration(say, settings)
    seen = last_seen(settings)
    rows = [
        {
            "node": window.node,
            "gpus": window.gpus,
            "from": window.since,
            "until": window.until,
            "confidence": round(window.confidence, 3),
            "why": window.why,
        }
        for window in seen.windows
    ]
    here = settings.local_time
    lines = table(
        ("node", "GPUs", "from", "until", "sure", "why"),
        [
            (
                w.node,
                w.gpus,
                f"{here(w.since):%d %b %H:%M}",
                f"{here(w.until):%d %b %H:%M}",
                f"{w.confidence:.0%}",
                w.why,
            )
            for w in seen.windows
        ],
    )
    kept = house(settings).store.turn(seen.now - _EARLIER)
    shifts = changes(kept[0].windows, seen.windows) if kept else ()
    rows_changed = [
        {
            "node": shift.node,
            "gpus_before": shift.gpus_before,
            "gpus": shift.gpus,
            "until_before": shift.until_before,
            "until": shift.until,
        }
        for shift in shifts
    ]
    told = [f"Since {here(kept[0].now):%H:%M}:", *(f"  {_shift(shift, here)}" for shift in shifts)] if kept else []
    return say.answer(
        {"at": seen.now, "windows": rows, "changes": rows_changed},
        [*(lines if rows else ["No GPU is idle now."]), *(told if shifts else [])],
    )


def _shift(shift: Shift, here: Callable[[datetime], datetime]) -> str:
    if shift.gpus != shift.gpus_before:
        return f"{shift.node}: {shift.gpus} GPUs idle instead of {shift.gpus_before}"
    assert shift.until is not None
    assert shift.until_before is not None
    return f"{shift.node}: until {here(shift.until):%H:%M} instead of {here(shift.until_before):%H:%M}"


def _calibration(say: Say, settings: Settings) -> int:
    """Of what windows said, how much came true: `calibration[{lead_h, said, promises, kept, came_true}]`."""
    now = clock()
    parts = house(settings)
    rows = [(row.at, row.service, row.want) for row in parts.store.observed(now - _CALIBRATED)]
    found = promises.calibration(rows, services(settings), settings.calendar.timezone)
    plain = [
        {
            "lead_h": one.lead.total_seconds() / 3600,
            "said": one.said,
            "promises": one.made,
            "kept": one.kept,
            "came_true": one.came_true,
        }
        for one in found
    ]
    lines = table(
        ("for", "said", "promises", "came true"),
        [
            (
                f"{one.lead.total_seconds() / 3600:g} h",
                f"{one.said:.0%}",
                one.made,
                "-" if one.came_true is None else f"{one.came_true:.0%}",
            )
            for one in found
        ],
    )
    few = not any(one.made for one in found)
    note = "There is less than a day of history: nothing can be said yet." if few else "One promise an hour, 14 days."
    return say.answer({"at": now, "calibration": plain}, [note] if few else [*lines, note])
