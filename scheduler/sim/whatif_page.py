"""The answer of `gpujob whatif` as one page that needs nothing else: no script, no request, light and dark."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from scheduler.sim.whatif import WEEKDAYS, Answer, Hour
from scheduler.sim.whatif_pictures import heat_map, pool_over_time
from scheduler.sim.whatif_words import missing_words, span_words, wait_words

_HEAT = {  # from no idle GPU to a pool that is all idle
    "light": (
        "#f4f7f5", "#e3eee7", "#cbe3d4", "#aed5be", "#8dc5a5", "#69b38a", "#479e70", "#2b8558", "#186b43", "#0a5030",
    ),
    "dark": (
        "#17211c", "#1b3026", "#1f4131", "#23533d", "#28664a", "#2f7a58", "#3c9069", "#55a77f", "#7abf9b", "#a8d8bf",
    ),
}  # fmt: skip
_COLORS = {
    "light": {
        "page": "#ffffff", "card": "#f5f6f8", "ink": "#1c2127", "quiet": "#59636e", "line": "#c9d0d7",
        "serving": "#5b7fb5", "lent": "#2b8558", "held": "#e0a030", "idle": "#dfe3e8", "missing": "#b3402a",
    },
    "dark": {
        "page": "#14171b", "card": "#1d2229", "ink": "#e8ebee", "quiet": "#a3adb8", "line": "#3b444e",
        "serving": "#5878a8", "lent": "#4bab7d", "held": "#d99c35", "idle": "#2c333b", "missing": "#f08a70",
    },
}  # fmt: skip

_CSS = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 6px; }
h2 { font-size: 1.15rem; margin: 0 0 4px; }
p { margin: 0 0 10px; }
.quiet, figcaption p { color: var(--quiet); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(205px, 1fr)); gap: 12px; }
.tiles { margin: 20px 0 28px; padding: 0; }
.tiles > div { background: var(--card); border-radius: 10px; padding: 14px 16px; }
dt { color: var(--quiet); font-size: .85rem; }
dd { margin: 0; }
dd b { display: block; font-size: 1.5rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
dd b small { font-size: .9rem; font-weight: 600; }
dd .quiet { font-size: .9rem; }
section { margin-bottom: 26px; }
figure { margin: 0 0 30px; }
.wide { overflow-x: auto; }
svg { display: block; width: 100%; min-width: 760px; height: auto; font-family: inherit; }
details { margin-top: 6px; }
summary { cursor: pointer; color: var(--quiet); }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 9px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--quiet); font-weight: 600; }
"""


def page(answer: Answer) -> str:
    """The whole page."""
    told = answer.plain
    pool = pool_over_time(answer.hours, told["gpus"], answer.zone)
    heat = heat_map(answer.heat, told["gpus"])
    title = (
        f"{told['useful_gpu_hours']:,.0f} of {told['idle_gpu_hours']:,.0f} idle GPU-hours could have worked for jobs"
    )
    return "".join(
        (
            "<!doctype html>\n",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="color-scheme" content="light dark">',
            f"<title>gpujob whatif: {escape(title)}</title><style>{_colors()}{_CSS}</style></head>\n<body><main>",
            f"<h1>{escape(title)} ({told['useful_over_idle']:.0%})</h1>",
            f'<p class="quiet">{escape(span_words(told))}</p>\n',
            _tiles(told),
            _figure("pool", *_pool_words(answer.hours), pool, _pool_table(answer.hours)),
            _figure("heat", *_heat_words(told), heat, _heat_table(told)),
            "<section><h2>Services</h2>", _wide(_services(told)), "</section>\n",
            "<section><h2>What to know</h2>", "".join(f"<p>{escape(line)}</p>" for line in _notes(told)), "</section>",
            "</main></body></html>\n",
        )
    )  # fmt: skip


def _colors() -> str:
    def block(scheme: str) -> str:
        # Numbers on dark shades are light, and the other way round.
        dark = range(7, 10) if scheme == "light" else range(6)
        named = {
            **_COLORS[scheme],
            **{f"heat-{level}": shade for level, shade in enumerate(_HEAT[scheme])},
            **{f"on-heat-{level}": "#ffffff" if level in dark else "#10201a" for level in range(10)},
        }
        return "".join(f"--{name}:{value};" for name, value in named.items())

    return f":root{{{block('light')}}}\n@media (prefers-color-scheme: dark){{:root{{{block('dark')}}}}}\n"


def _tiles(told: Mapping[str, Any]) -> str:
    money, days = told["currency"], told["days"]
    priced = bool(told["per_gpu_hour"])
    worth_more = (
        f"at {money} {told['per_gpu_hour']:g} a GPU-hour; {money} {told['useful_money_30_days']:,.0f} in 30 such days"
        if priced
        else "set [money] per_gpu_hour and currency"
    )
    idle, useful = told["idle_gpu_hours"], told["useful_gpu_hours"]
    tiles = (
        ("Idle", f"{idle:,.0f}", "GPU-hours", f"{idle / days:,.0f} a day, of {told['gpus'] * 24:,}"),
        ("Harvestable", f"{useful:,.0f}", "GPU-hours", f"{useful / days:,.0f} a day of work that is kept"),
        ("Worth", f"{told['useful_money']:,.0f}" if priced else "not said", money if priced else "", worth_more),
        (
            "Services waited",
            f"{told['scale_ups_waited_share']:.1%}",
            f"of {told['scale_ups']:,}",
            f"new replicas; mean {told['scale_up_wait_mean_s']:.2f} s, longest {told['scale_up_wait_max_s']:.0f} s",
        ),
    )
    rows = (
        f"<div><dt>{escape(name)}</dt><dd><b>{escape(value)} <small>{escape(unit)}</small></b>"
        f'<span class="quiet">{escape(more)}</span></dd></div>'
        for name, value, unit, more in tiles
    )
    return f'<dl class="tiles">{"".join(rows)}</dl>\n'


def _figure(name: str, title: str, words: str, picture: str, twin: str) -> str:
    return (
        f'<figure role="group" aria-labelledby="{name}-title" aria-describedby="{name}-words">'
        f'<figcaption><h2 id="{name}-title">{escape(title)}</h2><p id="{name}-words">{escape(words)}</p></figcaption>'
        f'<div class="wide">{picture}</div>'
        f"<details><summary>The same as a table</summary>{_wide(twin)}</details></figure>\n"
    )


def _pool_words(hours: Sequence[Hour]) -> tuple[str, str]:
    mean = {
        part: sum(getattr(hour, part) for hour in hours) / len(hours) for part in ("serving", "lent", "held", "idle")
    }
    total = sum(mean.values())
    return (
        f"Jobs fill what services leave: {mean['lent']:.0f} of {total:.0f} GPUs are lent on average",
        f"On average {mean['serving']:.0f} GPUs serve, {mean['lent']:.0f} are lent, {mean['held']:.0f} are kept free "
        f"for services, {mean['idle']:.0f} are left over.",
    )


def _pool_table(hours: Sequence[Hour]) -> str:
    parts = ("serving", "lent", "held", "idle")
    rows = []
    for day, group in itertools.groupby(hours, key=lambda hour: hour.at.date()):
        those = list(group)
        means = [sum(getattr(hour, part) for hour in those) / len(those) for part in parts]
        rows.append((f"{day:%a %d %b %Y}", *(f"{value:.1f}" for value in means), sum(hour.missing for hour in those)))
    return _table(("day", *(f"{part} GPUs" for part in parts), "hours without data"), rows)


def _heat_words(told: Mapping[str, Any]) -> tuple[str, str]:
    hours = told["hours"]
    most = max(hours, key=lambda row: float(row["idle_gpus"]))
    least = min(hours, key=lambda row: float(row["idle_gpus"]))
    return (
        f"Most GPUs are idle at {most['hour']:02}:00 ({most['idle_gpus']:.0f}), fewest at {least['hour']:02}:00 "
        f"({least['idle_gpus']:.0f})",
        "GPUs that no service wanted, by hour and weekday, before any is lent.",
    )


def _heat_table(told: Mapping[str, Any]) -> str:
    rows = [
        (WEEKDAYS[day].capitalize(), *("-" if value is None else f"{value:.0f}" for value in values))
        for day, values in enumerate(told["heat"]["idle_gpus"])
    ]
    return _table(("idle GPUs", *(f"{hour:02}" for hour in range(24))), rows)


def _services(told: Mapping[str, Any]) -> str:
    head = (
        "service",
        "GPUs a replica",
        "replicas",
        "on average",
        "at most",
        "load on average",
        "GPU-hours",
        "hours missing",
    )
    rows = [
        (
            one["name"],
            one["gpus_per_replica"],
            "as there were" if one["replicas"] == "there" else "as needed",
            f"{one['wanted_mean']:.2f}",
            one["wanted_max"],
            f"{one['load_mean']:.2f}",
            f"{one['gpu_hours']:,.0f}",
            f"{one['missing_hours']:.1f}",
        )
        for one in told["services"]
    ]
    return _table(head, rows)


def _notes(told: Mapping[str, Any]) -> Iterable[str]:
    yield wait_words(told)
    yield missing_words(told)
    yield from told["notes"]
    yield (
        "Idle is what no service wanted. Harvestable is work of jobs that would have been kept, in a replay of these "
        "days with gpujob's own planner; what it costs to start, stop and save is taken off. Cold starts of replicas "
        "are not counted as waits."
    )


def _table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    top = "".join(f'<th scope="col">{escape(str(cell))}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{escape(str(row[0]))}</th>'
        + "".join(f"<td>{escape(str(c))}</td>" for c in row[1:])
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _wide(content: str) -> str:
    return f'<div class="wide">{content}</div>'
