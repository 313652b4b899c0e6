"""Sentences about an answer, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any


def span_words(told: Mapping[str, Any]) -> str:
    """Which days of what, and of how many GPUs."""
    return (
        f"{told['days']:g} days of {told['source']}: {_when(told['from'])} to {_when(told['until'])}, "
        f"{told['timezone']}, a point each {told['step_s']:g} s. {told['gpus']} GPUs ({told['nodes']} nodes x "
        f"{told['gpus_per_node']}), {len(told['services'])} services; jobs of the mix {told['jobs']}, "
        "more than fit at any time."
    )


def wait_words(told: Mapping[str, Any]) -> str:
    """How long services waited, and what became of the jobs."""
    return (
        f"Service wait: {told['scale_ups_waited_share']:.1%} of {told['scale_ups']:,} new replicas waited for GPUs; "
        f"{told['scale_up_wait_mean_s']:.2f} s on average, 99 of 100 at most {told['scale_up_wait_p99_s']:.0f} s, "
        f"the longest {told['scale_up_wait_max_s']:.0f} s. "
        f"Jobs: {told['jobs_done']:,} done, {told['preemptions']:,} times one was stopped; "
        f"lost work {told['lost_share']:.1%}, starting {told['restart_share']:.1%} of their time."
    )


def missing_words(told: Mapping[str, Any]) -> str:
    """What was not known."""
    if not told["missing_hours"]:
        return "Nothing was missing in the data."
    return (
        f"Data is missing for {told['missing_hours']:.1f} h of at least one service "
        f"({told['blind_hours']:.1f} h of all): {told['missing_gpu_hours']:,.0f} GPU-hours, counted as not idle."
    )


def _when(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M}"
