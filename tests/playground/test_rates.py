from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.playground.rates import POST_BURST, Rates
from bot.playground.refusal import Refusal


def passed(rates: Rates, method: str, times: list[float], channel: str = "C1") -> int:
    count = 0
    for now in times:
        try:
            rates.check(method, channel, now)
        except Refusal:
            continue
        count += 1
    return count


@given(st.lists(st.floats(0, 60), max_size=200))
def test_no_channel_gets_more_than_its_burst_and_one_a_second(times: list[float]):
    rates = Rates(speed=1.0, enforced=True)

    assert passed(rates, "chat.postMessage", sorted(times)) <= POST_BURST + 60


def test_whoever_waits_as_told_gets_through():
    rates = Rates(speed=1.0, enforced=True)
    passed(rates, "chat.update", [0.0] * 50)

    with pytest.raises(Refusal) as caught:
        rates.check("chat.update", "C1", 0.0)

    assert caught.value.retry_after == 2
    rates.check("chat.update", "C1", 2.0)


@pytest.mark.parametrize(("method", "calls"), [("usergroups.users.list", 20), ("chat.update", 50), ("views.open", 100)])
def test_each_tier_has_its_calls_a_minute(method: str, calls: int):
    assert passed(Rates(speed=1.0, enforced=True), method, [0.0] * 200) == calls


def test_a_faster_clock_lets_more_through():
    assert passed(Rates(speed=10.0, enforced=True), "chat.postMessage", [float(n) / 10 for n in range(50)]) == 50


def test_limits_can_be_switched_off():
    assert passed(Rates(speed=1.0, enforced=False), "chat.postMessage", [0.0] * 100) == 100
