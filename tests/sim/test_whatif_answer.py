"""The answer: GPU-hours, hours of the clock, money, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from scheduler.errors import BadInput, NoAnswer
from scheduler.policy import Policy
from scheduler.sim import whatif
from scheduler.sim.whatif import Price
from scheduler.sim.whatif_demand import TICK_S, Demand, Replicas, Wanting
from scheduler.sim.whatif_page import page
from scheduler.sim.whatif_replay import MIXES, Pool, Replayed, mix, replay
from tests.sim.whatif_pieces import T0

SEOUL, BERLIN, DELHI = ZoneInfo("Asia/Seoul"), ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")
HOUR = 3600 // TICK_S
POOL = Pool(nodes=2, gpus_per_node=8)
PRICE = Price(per_gpu_hour=2.0, currency="EUR")
FIGURES = {
    "useful_gpu_hours": 100.0,
    "lost_share": 0.01,
    "restart_share": 0.02,
    "unfilled_share": 0.03,
    "preemptions": 4,
    "preemptions_per_1000_gpu_hours": 40.0,
    "jobs_done": 5,
}


def wanting(hourly: Sequence[int], name: str = "chat", gpus: int = 4, missing: Sequence[int] = ()) -> Wanting:
    """A service that wants so many replicas in each hour."""
    wanted = np.repeat(np.array(hourly), HOUR)
    unknown = np.zeros(len(wanted), dtype=bool)
    for hour in missing:
        unknown[hour * HOUR : (hour + 1) * HOUR] = True
    return Wanting(
        name=name,
        gpus_per_replica=gpus,
        min_replicas=1,
        max_replicas=max(hourly),
        max_num_seqs=64,
        replicas=Replicas.THERE,
        load=wanted.astype(float),
        wanted=wanted,
        missing=unknown,
        there_mean=1.0,
    )


def demand(*services: Wanting, start: float = T0, blind: Sequence[int] = ()) -> Demand:
    dark = np.zeros(len(services[0].wanted), dtype=bool)
    for hour in blind:
        dark[hour * HOUR : (hour + 1) * HOUR] = True
    return Demand(start=start, services=services, blind=dark, source="test", step_s=60)


def replayed(seen: Demand) -> Replayed:
    serving = seen.serving_gpus().astype(float)
    lent = np.full(seen.ticks, 2.0)
    return Replayed(figures=FIGURES, serving=serving, lent=lent, held=np.zeros(seen.ticks), waits=np.array([0.0, 5.0]))


def told(seen: Demand, zone: ZoneInfo = SEOUL, price: Price = PRICE) -> whatif.Answer:
    return whatif.answer(seen, POOL, replayed(seen), "itp", price, zone)


def test_idle_is_what_no_service_wants():
    got = told(demand(wanting([1] * 12 + [3] * 12), wanting([1] * 24, "code", gpus=2))).plain

    assert got["idle_gpu_hours"] == 12 * (16 - 4 - 2) + 12 * (16 - 12 - 2)
    assert [row["gpu_hours"] for row in got["services"]] == [12 * 4 + 12 * 12, 48]


def test_money_is_hours_times_the_price():
    got = told(demand(wanting([1] * 24))).plain

    assert (got["useful_money"], got["idle_money"], got["currency"]) == (200.0, 24 * 12 * 2.0, "EUR")
    assert got["useful_money_30_days"] == 30 * 200.0


def test_what_nobody_knows_is_not_idle_and_is_told():
    got = told(demand(wanting([1] * 23 + [2], missing=[3, 4]), blind=[3])).plain

    # In hour 3 nothing is idle; hour 4 is known of the pool, and its service counts at what it may have.
    assert got["idle_gpu_hours"] == 22 * 12 + 8
    assert (got["missing_hours"], got["blind_hours"]) == (2.0, 1.0)
    assert got["missing_gpu_hours"] == 16 + 8


def test_hours_are_those_of_the_operators_clock():
    night = demand(wanting([1] * 8 + [4] * 16))  # from midnight UTC: 9 to 17 in Seoul

    hours = {row["hour"]: row["idle_gpus"] for row in told(night).plain["hours"]}

    assert [hour for hour in range(24) if hours[hour] == 12.0] == list(range(9, 17))


def test_an_hour_without_data_makes_no_hour_of_the_day_look_busy():
    hours = told(demand(wanting([1] * 48, missing=[20]), blind=[20]), ZoneInfo("UTC")).plain["hours"]

    assert [row["idle_gpus"] for row in hours] == [12.0] * 24


def test_weekdays_are_those_of_the_operators_clock():
    heat = told(demand(wanting([1] * 24))).plain["heat"]["idle_gpus"]

    assert [value is None for value in heat[0]] == [True] * 9 + [False] * 15  # Monday, from 9 in Seoul
    assert [value is None for value in heat[1]] == [False] * 9 + [True] * 15


def test_the_hour_that_comes_twice_is_two_hours_of_the_pool_and_one_of_the_day():
    october = datetime(2026, 10, 25, 0, 0, tzinfo=BERLIN).timestamp()
    seen = demand(wanting([1] * 25), start=october)

    got = told(seen, BERLIN).plain

    assert len(got["pool"]) == 25
    assert got["pool"][2]["at"] == "2026-10-25T02:00:00+02:00"
    assert got["pool"][3]["at"] == "2026-10-25T02:00:00+01:00"


def test_the_hour_that_never_comes_is_left_out():
    march = datetime(2026, 3, 29, 0, 0, tzinfo=BERLIN).timestamp()

    heat = told(demand(wanting([1] * 23), start=march), BERLIN).plain["heat"]["idle_gpus"]

    assert [hour for hour, value in enumerate(heat[6]) if value is None] == [2]


def test_hours_of_a_zone_with_half_an_hour_begin_at_its_own_full_hours():
    got = told(demand(wanting([1] * 24)), DELHI).plain

    assert got["pool"][0]["at"] == "2026-03-02T05:00:00+05:30"
    assert got["pool"][1]["at"] == "2026-03-02T06:00:00+05:30"


def test_waits_are_counted_over_all_new_replicas():
    got = told(demand(wanting([1] * 24))).plain

    assert (got["scale_ups"], got["scale_ups_waited_share"], got["scale_up_wait_mean_s"]) == (2, 0.5, 2.5)


def test_time_before_the_first_data_is_cut_off_and_told():
    seen = demand(wanting([2] * 10 + [1] * 30), blind=list(range(10)))

    got = whatif.trimmed(seen, 2)

    assert (got.start, got.hours) == (T0 + 10 * 3600, 30)
    assert "begins 10.0 h after" in got.notes[-1]


def test_less_than_a_day_is_no_answer():
    with pytest.raises(NoAnswer, match=r"has 23\.0 h of vLLM metrics in the 7 days asked for; at least 24 h"):
        whatif.trimmed(demand(wanting([1] * 30), blind=list(range(7))), 7)


@pytest.mark.parametrize(("step", "words"), [(900.0, "too coarse"), (5.0, "whole tens"), (45.0, "whole tens")])
def test_a_step_that_tells_too_little_is_refused(step: float, words: str):
    with pytest.raises(BadInput, match=words):
        whatif.check_step(step)


def test_without_a_pool_there_are_nodes_enough_for_all_services_at_their_largest():
    assert whatif.pool_for(demand(wanting([1, 5]), wanting([1, 3], "b", gpus=3)), None, 8) == Pool(
        nodes=4, gpus_per_node=8
    )


def test_a_pool_that_was_too_small_for_what_happened_is_refused():
    with pytest.raises(BadInput, match="wanted more at once than 2 nodes with 8 GPUs hold, 3 would do: say --nodes"):
        whatif.pool_for(demand(wanting([1, 5])), 2, 8)


def test_a_pool_need_not_hold_what_services_only_count_for_while_nobody_sees_them():
    assert whatif.pool_for(demand(wanting([1, 5], missing=[1])), 2, 8).nodes == 2


def test_a_replica_larger_than_a_node_is_refused():
    with pytest.raises(BadInput, match="A replica of chat holds 16 GPUs, a node has 8"):
        whatif.pool_for(demand(wanting([1], gpus=16)), 4, 8)


# -- The replay


@pytest.mark.parametrize("name", MIXES)
def test_each_mix_is_the_benchmarks_file(name: str):
    jobs = mix(name)

    assert len(jobs) in (3000, 6000)
    assert {job.gpus for job in jobs} <= {*range(1, 9), 16, 24, 32}


def test_a_mix_that_is_none_is_refused_with_what_there_is():
    with pytest.raises(BadInput, match="itp, seed, philly"):
        mix("imagenet")


def test_what_services_leave_is_lent_and_the_parts_add_up():
    seen = demand(wanting(([1] * 8 + [3] * 16) * 2))

    got = replay(seen, POOL, mix("philly"), Policy(), SEOUL, lambda _: None)

    free = 16 - got.serving - got.lent
    assert free.min() > -1e-6
    assert got.lent[: 8 * HOUR].mean() > 8  # of the 12 that are idle
    assert got.figures["useful_gpu_hours"] <= got.lent.sum() * TICK_S / 3600
    assert len(got.held) == seen.ticks


def test_replicas_that_only_a_gap_asks_for_are_no_waits():
    gap = wanting([1] * 6 + [4] * 2 + [1] * 16, missing=[6, 7])
    real = replace(gap, missing=np.zeros_like(gap.missing))

    waits = [replay(demand(one), POOL, mix("philly"), Policy(), SEOUL, lambda _: None).waits for one in (gap, real)]

    assert [len(those) for those in waits] == [0, 3]


def test_a_gap_that_asks_for_more_than_the_pool_has_does_not_hurt():
    seen = demand(wanting([1] * 6 + [6] * 2 + [1] * 16, missing=[6, 7]))

    got = replay(seen, POOL, mix("philly"), Policy(), SEOUL, lambda _: None)

    assert got.serving.max() <= POOL.gpus
    assert len(got.waits) == 0
    assert got.lent[-HOUR:].mean() > 8


def test_progress_is_told_to_the_end():
    shares: list[float] = []

    replay(demand(wanting([1] * 24)), POOL, mix("philly"), Policy(), SEOUL, shares.append)

    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 20


# -- The page


def test_the_page_needs_nothing_from_outside():
    text = page(told(demand(wanting([1] * 48))))

    assert "default-src 'none'" in text
    for word in ("<script", "<link", "<img", "url(http", "@import", ' src="', 'href="http'):
        assert word not in text


def test_the_page_is_the_same_each_time():
    seen = demand(wanting([1] * 48))

    assert page(told(seen)) == page(told(seen))


def test_the_title_says_the_answer_and_each_picture_has_its_twin_in_text():
    text = page(told(demand(wanting([1] * 48))))

    assert "<h1>100 of 576 idle GPU-hours could have worked for jobs (17%)</h1>" in text
    assert text.count("<svg ") == text.count("<summary>The same as a table</summary>") == 2
    assert text.count("<figcaption>") == 2
    assert '<th scope="row">Mon</th>' in text


def test_colours_come_from_the_page_in_light_and_dark():
    text = page(told(demand(wanting([1] * 48))))

    assert "prefers-color-scheme: dark" in text
    assert "var(--serving)" in text
    assert "#010101" not in text


def test_names_of_services_cannot_write_html():
    text = page(told(demand(wanting([1] * 48, name="<b>chat</b>"))))

    assert "<b>chat</b>" not in text
    assert "&lt;b&gt;chat&lt;/b&gt;" in text


def test_hours_without_data_are_marked_in_both_pictures():
    text = page(told(demand(wanting([1] * 48, missing=[5, 6]), blind=[5, 6])))

    assert text.count("no data: counts as serving") == 1
    assert text.count(">no data<") == 1
    assert f"{datetime.fromtimestamp(T0, UTC):%a %d %b}" in text
