from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.jobs import usage
from scheduler.jobs.job import TERMINAL_RUN, Intent, JobId, RunState
from scheduler.jobs.progress import Progress
from scheduler.jobs.spec import Checkpoint
from scheduler.jobs.usage import GpuHours, Split
from tests.jobs.building import NOON, a_job, a_run, after

RESTART_S = 120.0
EVERY_10_MIN = Checkpoint(every_s=600.0, on_sigterm=True)
HOUR = 3600.0
SEOUL = ZoneInfo("Asia/Seoul")
BERLIN = ZoneInfo("Europe/Berlin")


def an_ended_run(state: RunState, code: int | None, **said: Any):
    return a_run(**{"state": state, "exit_code": code, "ended_at": after(HOUR)} | said)


def handed_back(code: int | None, **said: Any):
    asked: dict[str, Any] = {"intent": Intent.HAND_BACK, "intent_at": after(HOUR - 40)}
    return an_ended_run(RunState.PREEMPTED, code, **asked | said)


def told(first: float | None = None, saved: float | None = None) -> Progress:
    return Progress(
        fraction=0.5,
        first_at=None if first is None else after(first),
        saved_at=None if saved is None else after(saved),
    )


@pytest.mark.parametrize(
    ("run", "checkpoint", "expected"),
    [
        pytest.param(an_ended_run(RunState.DONE, 0), None, (3600, 0, 0, 0), id="finished"),
        pytest.param(
            an_ended_run(RunState.DONE, 0, intent=Intent.HAND_BACK, intent_at=after(3590)),
            None,
            (3590, 0, 0, 10),
            id="finished while it was stopped",
        ),
        pytest.param(handed_back(143), EVERY_10_MIN, (3560, 0, 0, 40), id="saved at the end"),
        pytest.param(handed_back(75), EVERY_10_MIN, (3560, 0, 0, 40), id="saved at the end, 75"),
        pytest.param(
            handed_back(143),
            Checkpoint(every_s=600, on_sigterm=False),
            (3000, 560, 0, 40),
            id="saves by the clock only",
        ),
        pytest.param(handed_back(143), None, (0, 3560, 0, 40), id="cannot save"),
        pytest.param(handed_back(137), EVERY_10_MIN, (3000, 560, 0, 40), id="killed, newest multiple of every"),
        pytest.param(
            handed_back(137, progress=told(saved=3300)),
            EVERY_10_MIN,
            (3300, 260, 0, 40),
            id="killed, told when it saved",
        ),
        pytest.param(
            handed_back(137, progress=told(saved=3580)), EVERY_10_MIN, (3560, 0, 0, 40), id="saved while it was stopped"
        ),
        pytest.param(
            handed_back(143, attempt=2, progress=told(first=90)), EVERY_10_MIN, (3470, 0, 90, 40), id="resumed"
        ),
        pytest.param(handed_back(143, attempt=2), EVERY_10_MIN, (3440, 0, 120, 40), id="resumed without a word"),
        pytest.param(
            handed_back(143, attempt=2, intent_at=after(30)), EVERY_10_MIN, (0, 0, 30, 3570), id="stopped as it began"
        ),
        pytest.param(
            handed_back(137, attempt=2, progress=told(first=300)),
            EVERY_10_MIN,
            (3000, 260, 300, 40),
            id="every, from then",
        ),
        pytest.param(
            handed_back(137, attempt=2, progress=told(first=300, saved=-50)),
            None,
            (0, 3260, 300, 40),
            id="old checkpoint",
        ),
        pytest.param(an_ended_run(RunState.LOST, None), EVERY_10_MIN, (3600, 0, 0, 0), id="lost on the dot"),
        pytest.param(
            an_ended_run(RunState.LOST, None, ended_at=after(3599)), EVERY_10_MIN, (3000, 599, 0, 0), id="lost"
        ),
        pytest.param(an_ended_run(RunState.FAILED, 1), None, (0, 3600, 0, 0), id="failed"),
        pytest.param(
            an_ended_run(RunState.FAILED, 1, progress=told(saved=3000)),
            EVERY_10_MIN,
            (3000, 600, 0, 0),
            id="failed, saved",
        ),
        pytest.param(
            an_ended_run(RunState.CANCELLED, 143, intent=Intent.CANCEL, intent_at=after(3590)),
            None,
            (0, 3590, 0, 10),
            id="cancelled",
        ),
        pytest.param(an_ended_run(RunState.LOST, None, ended_at=after(-5)), None, (0, 0, 0, 0), id="clock went back"),
    ],
)
def test_the_time_of_a_run_is_split(run, checkpoint, expected):
    assert usage.split(run, checkpoint, RESTART_S) == Split(*map(float, expected))


SECONDS = st.floats(-1e4, 1e6)
MAYBE_AT = st.none() | SECONDS.map(after)


@given(
    run=st.builds(
        a_run,
        attempt=st.integers(1, 3),
        state=st.sampled_from(sorted(TERMINAL_RUN)),
        ended_at=SECONDS.map(after),
        intent_at=MAYBE_AT,
        exit_code=st.sampled_from([None, 0, 1, 75, 137, 143]),
        progress=st.none() | st.builds(Progress, fraction=st.just(0.5), first_at=MAYBE_AT, saved_at=MAYBE_AT),
    ),
    checkpoint=st.none() | st.builds(Checkpoint, every_s=st.floats(0, 1e5), on_sigterm=st.booleans()),
    restart_s=st.floats(0, 1e4),
)
def test_the_four_kinds_of_time_add_up_to_the_microsecond(run, checkpoint, restart_s):
    parts = [timedelta(seconds=part) for part in usage.split(run, checkpoint, restart_s)]

    assert sum(parts, timedelta()) == max(timedelta(), run.ended_at - run.since)
    assert min(parts) >= timedelta()


@pytest.mark.parametrize("ended_at", [None, after(HOUR)])
def test_a_run_that_goes_on_cannot_be_split(ended_at):
    with pytest.raises(ValueError, match="run u-1 of job-41 is running: only a run that ended can be split"):
        usage.split(a_run(ended_at=ended_at), None, RESTART_S)


def test_gpu_hours_count_every_gpu_of_every_node():
    run = an_ended_run(
        RunState.PREEMPTED,
        137,
        placement={"node-1": 8, "node-2": 8},
        kept_s=1800,
        lost_s=900,
        restart_s=720,
        ending_s=180,
    )

    assert usage.of_runs([run]) == GpuHours(kept=8.0, lost=4.0, restart=3.2, ending=0.8)
    assert usage.of_runs([run]).used == pytest.approx(16.0)


def test_a_run_that_goes_on_counts_as_kept_until_now():
    run = a_run(placement={"node-1": 4})

    assert usage.of_runs([run], now=after(HOUR)) == GpuHours(kept=4.0)
    assert usage.of_runs([run]) == GpuHours()


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], 1000),
        ([(100, 400)], 700),
        ([(100, 400), (200, 500)], 600),
        ([(100, 200), (600, None)], 500),
        ([(0, 1000)], 0),
        ([(600, 700), (100, 300)], 700),
    ],
    ids=["never ran", "one run", "runs overlap", "still runs", "ran at once", "any order"],
)
def test_time_in_queue_is_time_in_which_nothing_of_the_job_ran(spans, expected):
    runs = [a_run(since=after(since), ended_at=None if end is None else after(end)) for since, end in spans]

    assert usage.queue_s(a_job(), runs, now=after(1000)) == expected


def test_time_in_queue_ends_with_the_job_and_ignores_other_jobs():
    job = a_job(ended_at=after(500))
    runs = [a_run(since=after(100), ended_at=after(300)), a_run(job=JobId(7), since=after(0), ended_at=after(500))]

    assert usage.queue_s(job, runs, now=after(9999)) == 300


def test_running_gpus_are_summed_by_team():
    runs = [
        a_run(job=JobId(1), placement={"node-1": 4}),
        a_run(job=JobId(2), placement={"node-1": 2, "node-2": 2}, state=RunState.STOPPING),
        a_run(job=JobId(3), placement={"node-3": 1}),
        a_run(job=JobId(1), placement={"node-1": 8}, state=RunState.DONE),
    ]

    assert usage.running_gpus(runs, {JobId(1): "nlp", JobId(2): "nlp", JobId(3): ""}) == {"nlp": 8, "": 1}


def test_hours_of_a_team_count_from_a_time_on():
    long = an_ended_run(RunState.DONE, 0, ended_at=after(2 * HOUR), kept_s=2 * HOUR)
    going_on = a_run(job=JobId(7), placement={"node-2": 1})
    teams = {JobId(41): "nlp", JobId(7): "vision"}

    hours = usage.team_hours([long, going_on], teams, since=after(HOUR), now=after(3 * HOUR))

    assert hours == {"nlp": pytest.approx(4.0), "vision": pytest.approx(2.0)}


def by_month(*runs, now: datetime, timezone=UTC):
    return usage.months(runs, now=now, timezone=timezone, price_per_gpu_hour=2000.0, currency="KRW")


def a_night(start: datetime, hours: float, gpus: int = 4, job: int = 41, lost: float = 0.0):
    return an_ended_run(
        RunState.DONE,
        0,
        job=JobId(job),
        placement={"node-1": gpus},
        since=start,
        ended_at=start + timedelta(hours=hours),
        kept_s=(hours - lost) * HOUR,
        lost_s=lost * HOUR,
    )


def test_a_month_reports_what_was_lent_and_what_it_was_worth():
    runs = [a_night(datetime(2026, 11, day, 20, tzinfo=UTC), 12, job=day % 2, lost=3) for day in range(1, 30)]

    (month, empty) = by_month(*runs, now=datetime(2026, 12, 1, 12, tzinfo=UTC))

    assert (month.month, month.jobs, month.gpu_hours) == ("2026-11", 2, pytest.approx(29 * 48))
    assert (month.kept_gpu_hours, month.lost_gpu_hours) == (pytest.approx(29 * 36), pytest.approx(29 * 12))
    assert (month.gpus_12h, month.gpus_24h) == (pytest.approx(29 * 48 / 360), pytest.approx(29 * 48 / 720))
    assert (month.money, month.currency, month.trend) == (pytest.approx(29 * 48 * 2000), "KRW", None)
    assert (empty.month, empty.jobs, empty.gpu_hours, empty.trend) == ("2026-12", 0, 0.0, -1.0)


def test_a_month_that_goes_on_counts_only_its_days_so_far():
    (month,) = by_month(a_night(datetime(2026, 12, 1, tzinfo=UTC), 12, gpus=8), now=datetime(2026, 12, 3, tzinfo=UTC))

    assert (month.gpus_12h, month.gpus_24h) == (pytest.approx(4.0), pytest.approx(2.0))


def test_a_run_over_the_end_of_a_month_is_cut_there():
    run = a_night(datetime(2026, 11, 30, 18, tzinfo=UTC), 24, lost=8)

    november, december = by_month(run, now=datetime(2026, 12, 2, tzinfo=UTC))

    assert (november.gpu_hours, november.lost_gpu_hours) == (pytest.approx(24.0), pytest.approx(8.0))
    assert (december.gpu_hours, december.lost_gpu_hours) == (pytest.approx(72.0), pytest.approx(24.0))
    assert december.trend == pytest.approx(2.0)


def test_a_run_that_touches_a_month_is_no_part_of_it():
    midnight = datetime(2026, 12, 1, tzinfo=UTC)
    runs = [a_night(midnight - timedelta(hours=4), 4, job=1), a_night(midnight, 4, job=2)]

    november, december = by_month(*runs, now=datetime(2026, 12, 2, tzinfo=UTC))

    assert (november.jobs, december.jobs) == (1, 1)


def test_months_begin_at_midnight_of_the_zone():
    run = a_night(datetime(2026, 11, 30, 15, tzinfo=UTC), 1)

    (month,) = by_month(run, now=datetime(2026, 12, 1, tzinfo=UTC), timezone=SEOUL)

    assert month.month == "2026-12"


def test_a_month_in_which_clocks_change_has_an_hour_more():
    start, end = (usage.month_start(datetime(2026, n, 15, tzinfo=UTC), BERLIN) for n in (10, 11))

    (month, _) = by_month(a_night(start, 745, gpus=1), now=end, timezone=BERLIN)

    assert end - start == timedelta(hours=745)
    assert month.gpus_24h == pytest.approx(1.0)


def test_months_without_runs_stand_between_others():
    runs = [a_night(datetime(2026, 9, 2, tzinfo=UTC), 1), a_night(datetime(2026, 11, 2, tzinfo=UTC), 1)]

    months = by_month(*runs, now=datetime(2026, 11, 3, tzinfo=UTC))

    assert [(m.month, m.jobs, m.trend) for m in months] == [
        ("2026-09", 1, None),
        ("2026-10", 0, -1.0),
        ("2026-11", 1, None),
    ]


def test_without_runs_there_are_no_months_and_an_empty_total():
    total = usage.total([], now=NOON, timezone=UTC, price_per_gpu_hour=1.0, currency="KRW")

    assert by_month(now=NOON) == ()
    assert (total.month, total.jobs, total.gpu_hours, total.money) == ("total", 0, 0.0, 0.0)


RUNS = st.lists(
    st.builds(
        a_night,
        start=st.integers(0, 300).map(lambda days: datetime(2026, 1, 1, 20, tzinfo=UTC) + timedelta(days=days)),
        hours=st.floats(0.01, 2000),
        gpus=st.integers(0, 16),
        job=st.integers(1, 5),
    ),
    min_size=1,
    max_size=6,
)


@given(RUNS, st.sampled_from([UTC, SEOUL, BERLIN, ZoneInfo("America/New_York")]))
def test_months_add_up_to_the_total_and_to_their_runs(runs, timezone):
    now = datetime(2027, 2, 1, 7, tzinfo=UTC)
    runs = [replace(run, kept_s=run.kept_s / 2, lost_s=run.kept_s / 2) for run in runs]

    months = by_month(*runs, now=now, timezone=timezone)
    total = usage.total(runs, now=now, timezone=timezone, price_per_gpu_hour=2000.0, currency="KRW")

    assert sum(m.gpu_hours for m in months) == pytest.approx(total.gpu_hours)
    assert total.gpu_hours == pytest.approx(usage.of_runs(runs).used)
    assert sum(m.kept_gpu_hours + m.lost_gpu_hours for m in months) == pytest.approx(total.gpu_hours)
    assert total.jobs == len({run.job for run in runs})
