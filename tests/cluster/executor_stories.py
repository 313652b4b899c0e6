"""Stories told through our own executor: what its reports say must not depend on the plane."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.jobs.job import JobId, Uid
from scheduler.jobs.reports import Phase
from tests.cluster.argo_bench import ArgoBench, a_task

Seen = list[str]
Story = Callable[[ArgoBench], Seen]


def told(bench: ArgoBench, *uids: Uid) -> Seen:
    """The reports of the job, without times and uids."""
    lines = [
        f"{one.task} {one.phase} {one.exit_code} {','.join(one.placement)}".strip()
        + (" asked" if one.stop_asked_at else "")
        for one in bench.reports(uids)
        if not one.whole_task
    ]
    return sorted(lines)


def it_runs_is_evicted_and_runs_again(bench: ArgoBench) -> Seen:
    bench.submit(a_task())
    first = bench.start(mode="script")
    bench.executor.take_back(first.uid, 5.0)
    again = bench.gated(but=[first.uid])
    bench.script(again.uid, run_for="0.1")
    bench.executor.release(again.uid, {"gpu-1": 1})
    bench.see("train", Phase.ENDED, live=[first.uid, again.uid], but=[first.uid])
    return told(bench, first.uid, again.uid)


def it_is_given_up_and_its_sibling_goes_on(bench: ArgoBench) -> Seen:
    bench.submit(a_task("bad"), a_task("good"))
    bad = bench.gated("bad").uid
    bench.executor.give_up(bad, "no more")
    good = bench.start("good", mode="script", run_for="0.3").uid
    bench.see("good", Phase.ENDED, live=[good])
    bench.see("bad", Phase.ENDED, live=[bad])
    return told(bench, bad, good)


def it_is_skipped_and_what_needs_it_appears(bench: ArgoBench) -> Seen:
    bench.submit(a_task("prep"), a_task(needs=["prep"]))
    prep = bench.gated("prep").uid
    bench.executor.skip(prep, "done before")
    bench.gated("train")
    return told(bench, prep)


def it_is_taken_back_before_it_was_released(bench: ArgoBench) -> Seen:
    bench.submit(a_task())
    first = bench.gated().uid
    bench.executor.take_back(first, 5.0)
    second = bench.gated(but=[first]).uid
    bench.executor.release(second, {"gpu-0": 1})
    bench.see("train", Phase.ENDED, live=[second], but=[first])
    return told(bench, second)


def it_fails_and_nothing_follows(bench: ArgoBench) -> Seen:
    bench.submit(a_task())
    failed = bench.start(mode="script", run_for="0.3", exit_code="3").uid
    bench.see("train", Phase.ENDED, live=[failed])
    return told(bench, failed)


def it_is_cancelled_with_all_that_waits(bench: ArgoBench) -> Seen:
    bench.submit(a_task(), a_task("other"))
    running = bench.start(mode="script").uid
    bench.executor.cancel(JobId(1), 5.0)
    bench.until(lambda: all(one.phase is Phase.ENDED for one in bench.reports([running])))
    return told(bench, running)


STORIES: dict[str, tuple[Story, Seen]] = {
    story.__name__: (story, seen)
    for story, seen in (
        (it_runs_is_evicted_and_runs_again, ["train ended 0 gpu-1", "train ended 143 gpu-0 asked"]),
        (it_is_given_up_and_its_sibling_goes_on, ["bad ended None", "good ended 0 gpu-0"]),
        (it_is_skipped_and_what_needs_it_appears, ["prep ended 0", "train gated None"]),
        (it_is_taken_back_before_it_was_released, ["train ended 0 gpu-0"]),
        (it_fails_and_nothing_follows, ["train ended 3 gpu-0"]),
        (it_is_cancelled_with_all_that_waits, ["train ended 143 gpu-0 asked"]),
    )
}
