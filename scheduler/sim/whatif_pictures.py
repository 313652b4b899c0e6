"""Two pictures as SVG that takes its colours from the page: the pool over time, and idle GPUs by hour and weekday."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import matplotlib as mpl
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from scheduler.sim.whatif import WEEKDAYS, Hour
from scheduler.sim.whatif_observed import Row

# Colours are names of the page's own: each is written as a number that no other has, and replaced in the SVG.
_NAMED = {
    "serving": "#010101",
    "lent": "#020202",
    "held": "#030303",
    "idle": "#040404",
    "ink": "#050505",
    "quiet": "#060606",
    "line": "#070707",
    "missing": "#080808",
    **{f"heat-{level}": f"#1010{level:02x}" for level in range(10)},
    **{f"on-heat-{level}": f"#2020{level:02x}" for level in range(10)},
}
_MOST_TICKS = 10
LEVELS = 9  # of the heat map, from 0
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.edgecolor": _NAMED["line"],
    "axes.labelcolor": _NAMED["ink"],
    "xtick.color": _NAMED["quiet"],
    "ytick.color": _NAMED["quiet"],
    "text.color": _NAMED["ink"],
    "hatch.color": _NAMED["missing"],
    "hatch.linewidth": 0.8,
}
_NO_DATA = "no data: counts as serving"
_PARTS = (
    ("serving", "serving"),
    ("lent", "lent to jobs"),
    ("held", "held for services"),
    ("idle", "idle, left over"),
)


def pool_over_time(hours: Sequence[Hour], gpus: int, zone: ZoneInfo) -> str:
    """Who held the GPUs, hour by hour."""
    with mpl.rc_context({**_STYLE, "svg.hashsalt": "pool"}):
        figure = Figure(figsize=(11, 4.4), layout="constrained")
        axes = figure.add_subplot()
        edges = _edges(hours)
        floor = np.zeros(len(edges))
        shown = []
        for part, words in _PARTS:
            values = np.array([getattr(hour, part) for hour in hours])
            if not values.any():
                continue
            top = floor + np.append(values, values[-1])
            shown.append(
                axes.fill_between(edges, floor, top, step="post", color=_NAMED[part], linewidth=0, label=words)
            )
            floor = top
        for start, end in _stretches([hour.missing for hour in hours]):
            axes.axvspan(
                edges[start], edges[end], facecolor="none", hatch="///", edgecolor=_NAMED["missing"], linewidth=0
            )
        handles: list[object] = [*shown]
        if any(hour.missing for hour in hours):
            handles.append(Patch(facecolor="none", hatch="///", edgecolor=_NAMED["missing"], label=_NO_DATA))
        _dress_pool(axes, handles, (edges[0], edges[-1]), gpus, zone)
        return _svg(figure)


def heat_map(heat: Row, gpus: int) -> str:
    """Idle GPUs by hour and weekday, each cell with its number; a cell without data is hatched."""
    with mpl.rc_context({**_STYLE, "svg.hashsalt": "heat"}):
        figure = Figure(figsize=(11, 3.7), layout="constrained")
        axes = figure.add_subplot()
        for day in range(7):
            for hour in range(24):
                _cell(axes, day, hour, float(heat[day, hour]), gpus)
        axes.set_xlim(0, 24)
        axes.set_ylim(7, 0)
        axes.set_xticks(range(0, 25, 2), [f"{hour:02}:00" for hour in range(0, 25, 2)])
        axes.set_yticks([day + 0.5 for day in range(7)], [day.capitalize() for day in WEEKDAYS])
        axes.set_xlabel("hour of the day")
        axes.set_ylabel("day of the week")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        _scale(axes, gpus, holes=bool(np.isnan(heat).any()))
        return _svg(figure)


def level(value: float, gpus: int) -> int:
    """The shade of a number of idle GPUs: 0 for none, `LEVELS` for the whole pool."""
    return min(LEVELS, max(0, round(LEVELS * value / gpus)))


def _dress_pool(axes: Axes, handles: list[object], limits: tuple[float, float], gpus: int, zone: ZoneInfo) -> None:
    axes.set_xlim(*limits)
    axes.set_ylim(0, gpus)
    axes.set_ylabel("GPUs (mean of the hour)")
    axes.set_xlabel(f"day, marked at its midnight ({zone.key})")
    places, words = _midnights(*limits, zone)
    axes.set_xticks(places, words)
    axes.yaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
    axes.grid(axis="y", color=_NAMED["line"], linewidth=0.6, alpha=0.6)
    axes.set_axisbelow(False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    # Above the picture and in its order from the bottom, so that no curve is covered.
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(handles), frameon=False)


def _cell(axes: Axes, day: int, hour: int, value: float, gpus: int) -> None:
    if math.isnan(value):
        box = Rectangle((hour, day), 1, 1, facecolor="none", hatch="////", edgecolor=_NAMED["missing"], linewidth=0)
        axes.add_patch(box)
        return
    shade = level(value, gpus)
    axes.add_patch(Rectangle((hour + 0.02, day + 0.03), 0.96, 0.94, facecolor=_NAMED[f"heat-{shade}"], linewidth=0))
    axes.text(
        hour + 0.5,
        day + 0.52,
        f"{value:.0f}",
        color=_NAMED[f"on-heat-{shade}"],
        ha="center",
        va="center",
        fontsize=9.5,
    )


def _scale(axes: Axes, gpus: int, *, holes: bool) -> None:
    """The legend: what the lightest, a middle and the darkest shade mean."""
    shades = (0, 3, 6, LEVELS)
    handles = [
        Patch(facecolor=_NAMED[f"heat-{shade}"], label=f"{gpus * shade / LEVELS:.0f}", edgecolor=_NAMED["line"])
        for shade in shades
    ]
    if holes:
        handles.append(Patch(facecolor="none", hatch="////", edgecolor=_NAMED["missing"], label="no data", linewidth=0))
    axes.legend(
        handles=handles,
        title=f"idle GPUs (mean), of {gpus}",
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=len(handles),
        frameon=False,
        alignment="left",
    )


def _edges(hours: Sequence[Hour]) -> list[float]:
    """Starts of the hours and the end of the last, in unix hours."""
    starts = [hour.at.timestamp() / 3600 for hour in hours]
    return [*starts, starts[-1] + 1]


def _midnights(first: float, last: float, zone: ZoneInfo) -> tuple[list[float], list[str]]:
    """At most ten local midnights between two times, evenly apart, and their names."""
    each = math.ceil((last - first) / 24 / _MOST_TICKS)
    day = datetime.fromtimestamp(first * 3600, UTC).astimezone(zone).replace(hour=0, minute=0)
    days = [day + timedelta(days=number * each) for number in range(_MOST_TICKS + 2)]
    # Wall-clock arithmetic: the next midnight may be 23 or 25 hours away.
    inside = [at for at in days if first <= at.timestamp() / 3600 <= last]
    return [at.timestamp() / 3600 for at in inside], [f"{at:%a}\n{at.day} {at:%b}" for at in inside]


def _stretches(flags: Sequence[bool]) -> Sequence[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], np.array(flags, dtype=np.int8), [0]))))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _svg(figure: Figure) -> str:
    """One `<svg>` for a page: as wide as its place, colours and fonts from there; the same bytes each time."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text, count=1)
    text = text.replace("xlink:href", "href").replace("'DejaVu Sans'", "inherit")
    for name, color in _NAMED.items():
        text = text.replace(color, f"var(--{name})")
    return text
