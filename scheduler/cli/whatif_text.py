"""The answer of `gpujob whatif` for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scheduler.cli.say import table
from scheduler.sim.whatif_words import missing_words, span_words, wait_words

_BAR = 30  # characters of the longest bar


def lines(told: Mapping[str, Any]) -> Iterable[str]:
    """All of it."""
    yield from span_words(told).split(". ", 1)
    yield ""
    yield from _amounts(told)
    yield from wait_words(told).split(". ", 1)
    yield ""
    yield from _by_hour(told["hours"])
    yield ""
    yield from table(
        ("service", "GPUs a replica", "replicas", "on average", "at most", "load", "GPU-hours", "hours missing"),
        [
            (
                one["name"],
                one["gpus_per_replica"],
                "as there were" if one["replicas"] == "there" else "as needed",
                one["wanted_mean"],
                one["wanted_max"],
                one["load_mean"],
                one["gpu_hours"],
                one["missing_hours"],
            )
            for one in told["services"]
        ],
    )
    yield ""
    yield missing_words(told)
    yield from told["notes"]


def _amounts(told: Mapping[str, Any]) -> Iterable[str]:
    days = told["days"]
    money = told["currency"] if told["per_gpu_hour"] else ""

    def amount(what: str, gpu_hours: float, worth: float, more: str) -> str:
        price = f"{money} {worth:>10,.0f}   " if money else ""
        return f"{what:<12}{gpu_hours:>10,.0f} GPU-hours {gpu_hours / days:>8,.0f} a day   {price}{more}".rstrip()

    share = f"{told['useful_over_idle']:.1%} of it: work of jobs that is kept"
    yield amount("Idle", told["idle_gpu_hours"], told["idle_money"], "GPUs that no service wanted")
    yield amount("Harvestable", told["useful_gpu_hours"], told["useful_money"], share)
    if money:
        yield (
            f"In 30 days of this kind: {told['useful_gpu_hours_30_days']:,.0f} GPU-hours, "
            f"{money} {told['useful_money_30_days']:,.0f} at {told['per_gpu_hour']:g} a GPU-hour."
        )
    else:
        yield "What that is worth is not said: set [money] per_gpu_hour and currency."


def _by_hour(hours: Iterable[Mapping[str, float]]) -> Iterable[str]:
    rows = list(hours)
    most = max((row["idle_gpus"] for row in rows), default=0.0) or 1.0
    yield "hour   idle GPUs   lent   (on average; # lent, . idle)"
    for row in rows:
        lent = round(min(row["lent_gpus"], row["idle_gpus"]) / most * _BAR)
        rest = round(row["idle_gpus"] / most * _BAR) - lent
        yield f"{row['hour']:02}:00  {row['idle_gpus']:>9.1f} {row['lent_gpus']:>6.1f}   {'#' * lent}{'.' * rest}"
