"""What every store promises, said once and held against each of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import pytest

from scheduler.errors import Conflict, Deposed
from scheduler.jobs.job import JobState, RunState, TaskState
from scheduler.jobs.mail import (
    TERMINAL_NOTICES,
    Answer,
    Board,
    Body,
    Cancel,
    Decide,
    Logs,
    Notice,
    NoticeKind,
    Person,
    RequestId,
    Rerun,
    Submit,
)
from scheduler.jobs.progress import Progress
from scheduler.jobs.waits import Wait, WaitReason
from scheduler.ports import (
    AddJob,
    AddRun,
    Audit,
    Change,
    ChangeJob,
    ChangeRun,
    ChangeTask,
    HandBack,
    KeepHandBack,
    Live,
    Observed,
    Settle,
    ShowBoard,
    Tell,
)
from scheduler.store.mailbox import Mailbox
from scheduler.store.memory import MemoryStore
from scheduler.store.migrations import clear, migrate
from scheduler.store.sql import SqlStore
from tests.store.building import NOW, a_job, a_notice, a_run, a_task, a_turn, added, minutes

ANA = Person(id="U_ANA", groups=("S_NLP",))
YES = Answer(ok=True, text="Submitted as job-1.", job=None, detail={"log": "a\x00\ud800b", "lines": [1, None, 2.5]})


@dataclass
class Sides:
    """A store, and what the other side of it sees."""

    store: MemoryStore | SqlStore
    send: Callable[[str, Person, datetime, Body], RequestId]
    answer: Callable[[RequestId], Answer | None]
    notices: Callable[[], tuple[Notice, ...]]
    board: Callable[[], Board | None]

    def record(self, *changes: Change) -> None:
        self.store.record(changes, token=0)  # nobody has led yet


def _sql(url: str) -> Iterator[Sides]:
    migrate(url)
    store, mailbox = SqlStore(url), Mailbox(url)
    yield Sides(store, mailbox.send, mailbox.answer, lambda: mailbox.unexpanded(1000), mailbox.board)
    store.close()
    mailbox.close()


POSTGRES = os.environ.get("GPUJOB_TEST_POSTGRES", "")  # URL of an empty database; without it there is none to test


@pytest.fixture(params=["memory", "sqlite", *(["postgres"] if POSTGRES else [])])
def sides(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sides]:
    if request.param == "memory":
        memory = MemoryStore()
        yield Sides(memory, memory.send, memory.answer, memory.notices, memory.board)
    elif request.param == "sqlite":
        yield from _sql(f"sqlite:///{tmp_path}/gpujob.sqlite3")
    else:
        yield from _sql(POSTGRES)
        clear(POSTGRES)


def test_an_empty_store_begins_with_job_1(sides: Sides):
    assert sides.store.live() == Live(jobs=(), tasks=(), runs=(), attempts={}, next_job=1)
    assert sides.store.open_requests() == ()
    assert sides.store.turn() is None
    assert sides.board() is None


def test_jobs_come_back_as_they_were_recorded(sides: Sides):
    wait = Wait(reason=WaitReason.GPUS, short_by=4, held_by="chat (16)", earliest=NOW + minutes(5), detail="")
    progress = Progress(fraction=0.5, values={"loss": "1.3"}, first_at=NOW, saved_at=None)
    job = a_job(2, approval_why=("high priority", "ümlaut"), decided_at=NOW, handed_over=True, why="because")
    tasks = (a_task(2, "z", wait=wait), a_task(2, "a", index=1, progress=progress, state=TaskState.RUNNING))
    run = a_run(job=2, task="a", window_until=NOW + minutes(60), progress=progress, exit_code=None)

    sides.record(added(1), AddJob(job=job, tasks=tasks), AddRun(run=run))

    live = sides.store.live()
    assert live.jobs == (a_job(1), replace(job, version=1))
    assert live.tasks == (a_task(1), *tasks)
    assert live.runs == (run,)
    assert live.attempts == {(2, "a"): 1}
    assert live.next_job == 3


def test_instants_in_another_zone_are_the_same_instants(sides: Sides):
    seoul = datetime.fromisoformat("2026-12-01T05:00+09:00")

    sides.record(added(1, submitted_at=seoul))

    (job,) = sides.store.live().jobs
    assert job.submitted_at == NOW


@pytest.mark.parametrize(
    "change",
    [
        added(1, submitted_at=datetime(2026, 11, 30)),  # noqa: DTZ001
        AddRun(run=a_run(since=datetime(2026, 11, 30))),  # noqa: DTZ001
        Observed(at=datetime(2026, 11, 30), service="chat", have=1, want=1),  # noqa: DTZ001
    ],
)
def test_a_time_without_a_zone_is_refused_and_nothing_of_it_stays(sides: Sides, change: Change):
    with pytest.raises(ValueError, match="zone"):
        sides.record(added(2), change)

    assert sides.store.live().jobs == ()


def test_words_that_no_database_takes_do_not_stop_a_turn(sides: Sides):
    sides.record(added(1, why="no \0 and \ud800"), AddRun(run=a_run(message="it ended so: \x00\udcff")))

    (run,) = sides.store.live().runs
    assert run.message.startswith("it ended so: ")


def test_what_has_ended_is_not_live_but_still_found(sides: Sides):
    sides.record(added(1), added(2), AddRun(run=a_run()))
    done = replace(a_job(1), state=JobState.COMPLETED, ended_at=NOW)
    ended_run = replace(a_run(), state=RunState.DONE, ended_at=NOW + minutes(3), kept_s=180.0)

    sides.record(
        ChangeJob(was=JobState.WAITING, now=done),
        ChangeTask(was=TaskState.WAITING, now=replace(a_task(1), state=TaskState.DONE)),
        ChangeRun(was=RunState.STARTING, now=ended_run),
    )

    live = sides.store.live()
    assert [job.id for job in live.jobs] == [2]
    assert [task.job for task in live.tasks] == [2]
    assert live.runs == ()
    assert live.attempts == {}
    assert live.next_job == 3
    assert sides.store.job(done.id) == replace(done, version=2)
    assert sides.store.job_tasks(done.id) == (replace(a_task(1), state=TaskState.DONE),)
    assert sides.store.job_runs(done.id) == (ended_run,)
    assert sides.store.job(a_job(3).id) is None


def test_a_run_outlives_its_job_until_it_is_seen_to_end(sides: Sides):
    stopping = a_run(state=RunState.STOPPING)

    sides.record(added(1, state=JobState.CANCELLED), AddRun(run=stopping))

    assert sides.store.live().runs == (stopping,)


@pytest.mark.parametrize(
    "late",
    [
        ChangeJob(was=JobState.AWAITING_APPROVAL, now=a_job(1, state=JobState.DENIED)),
        ChangeTask(was=TaskState.BLOCKED, now=a_task(1)),
        ChangeRun(was=RunState.RUNNING, now=a_run(state=RunState.DONE)),
        ChangeJob(was=JobState.WAITING, now=a_job(9)),
        ChangeRun(was=RunState.STARTING, now=a_run("pod-9")),
        added(1),
        AddRun(run=a_run()),
        AddRun(run=a_run("pod-2", task="nowhere")),
        Tell(notice=a_notice(9)),
        Settle(request=RequestId(7), answer=YES),
    ],
    ids=lambda change: type(change).__name__,
)
def test_a_change_that_meets_another_state_takes_all_others_with_it(sides: Sides, late: Change):
    sides.record(added(1), AddRun(run=a_run()))
    before = sides.store.live()

    with pytest.raises(Conflict):
        sides.record(
            added(2),
            ChangeTask(was=TaskState.WAITING, now=a_task(1, state=TaskState.RUNNING)),
            Tell(notice=a_notice(1)),
            Audit(at=NOW, who="U_BO", what="approved", job=None, detail=""),
            late,
        )

    assert sides.store.live() == before
    assert sides.notices() == ()
    assert sides.store.audits() == ()


@pytest.mark.parametrize("kind", sorted(TERMINAL_NOTICES))
def test_a_job_gets_one_terminal_notice(sides: Sides, kind: NoticeKind):
    sides.record(added(1), added(2), Tell(notice=a_notice(1, NoticeKind.COMPLETED)))

    with pytest.raises(Conflict):
        sides.record(Tell(notice=a_notice(2, kind)), Tell(notice=a_notice(1, kind)))
    sides.record(Tell(notice=a_notice(2, kind)), Tell(notice=a_notice(1, NoticeKind.NODE_LOST)))

    assert [(notice.job, notice.kind) for notice in sides.notices()] == [
        (1, NoticeKind.COMPLETED),
        (2, kind),
        (1, NoticeKind.NODE_LOST),
    ]


def test_notices_have_ids_in_the_order_in_which_they_were_told(sides: Sides):
    sides.record(added(1), Tell(notice=a_notice(1, NoticeKind.SUBMITTED, gpus=4, warnings=["no checkpoint"])))
    sides.record(Tell(notice=a_notice(1, NoticeKind.WAITING)), Tell(notice=a_notice(1, NoticeKind.STARTED)))

    told = sides.notices()
    assert [notice.kind for notice in told] == [NoticeKind.SUBMITTED, NoticeKind.WAITING, NoticeKind.STARTED]
    assert [notice.id for notice in told] == sorted({notice.id for notice in told})
    assert told[0].payload == {"gpus": 4, "warnings": ["no checkpoint"]}


def test_a_job_has_one_new_version_a_record_however_much_of_it_changes(sides: Sides):
    sides.record(added(1, tasks=2), added(2))
    assert [job.version for job in sides.store.live().jobs] == [0, 0]

    sides.record(
        ChangeTask(was=TaskState.WAITING, now=a_task(1, "main-0", state=TaskState.RUNNING)),
        ChangeTask(was=TaskState.WAITING, now=a_task(1, "main-1", index=1, state=TaskState.RUNNING)),
        AddRun(run=a_run(task="main-0")),
        Tell(notice=a_notice(1, NoticeKind.STARTED)),
    )
    assert [job.version for job in sides.store.live().jobs] == [1, 0]

    sides.record(ChangeJob(was=JobState.WAITING, now=a_job(1, state=JobState.RUNNING, version=77)))
    sides.record(ChangeRun(was=RunState.STARTING, now=a_run(task="main-0", state=RunState.RUNNING)))
    sides.record(Observed(at=NOW, service="chat", have=1, want=1))
    assert [job.version for job in sides.store.live().jobs] == [3, 0]


@pytest.mark.parametrize(
    "body",
    [
        Submit(text="gpujob: 1\nname: ünï\x00code\n", channel="C_GPU", folder="", source="form"),
        Cancel(job=a_job().id),
        Decide(job=a_job().id, approve=False, reason="no budget"),
        Logs(job=a_job().id, step="sft", lines=10),
        Rerun(job=a_job().id, from_step="sft", params={"lr": "2e-5"}, channel="C_GPU"),
    ],
    ids=lambda body: type(body).__name__,
)
def test_a_request_arrives_as_it_was_sent_and_is_answered_once(sides: Sides, body: Body):
    sent = sides.send("trigger-1", ANA, NOW, body)

    (request,) = sides.store.open_requests()
    assert (request.id, request.key, request.by, request.at, request.body) == (sent, "trigger-1", ANA, NOW, body)
    assert sides.answer(sent) is None

    sides.record(Settle(request=sent, answer=YES))
    assert sides.store.open_requests() == ()
    assert sides.answer(sent) == YES
    with pytest.raises(Conflict):
        sides.record(Settle(request=sent, answer=Answer(ok=False, text="No.")))
    assert sides.answer(sent) == YES


def test_the_same_key_is_the_same_request(sides: Sides):
    first = sides.send("trigger-1", ANA, NOW, Cancel(job=a_job(1).id))
    again = sides.send("trigger-1", ANA, NOW + minutes(1), Cancel(job=a_job(2).id))
    other = sides.send("trigger-2", ANA, NOW, Cancel(job=a_job(3).id))

    assert first == again
    assert [(request.id, request.body) for request in sides.store.open_requests()] == [
        (first, Cancel(job=a_job(1).id)),
        (other, Cancel(job=a_job(3).id)),
    ]


def test_a_new_leader_gets_a_larger_token_and_the_old_one_may_not_write(sides: Sides):
    old = sides.store.hold("a", NOW, 30)
    assert old is not None
    assert sides.store.hold("b", NOW + minutes(0.4), 30) is None

    new = sides.store.hold("b", NOW + minutes(0.6), 30)

    assert new is not None
    assert new > old
    with pytest.raises(Deposed):
        sides.store.record([added(1)], old)
    assert sides.store.live().jobs == ()
    sides.store.record([added(1)], new)
    assert [job.id for job in sides.store.live().jobs] == [1]


def test_a_leader_keeps_its_token_while_it_holds_on(sides: Sides):
    token = sides.store.hold("a", NOW, 30)

    assert sides.store.hold("a", NOW + minutes(0.4), 30) == token
    assert sides.store.hold("b", NOW + minutes(0.8), 30) is None  # the renewal counts
    assert sides.store.hold("a", NOW + minutes(5), 30) == token  # nobody came in between


def test_who_lets_go_is_followed_at_once_and_a_stranger_cannot_let_go(sides: Sides):
    old = sides.store.hold("a", NOW, 30)
    assert old is not None

    sides.store.let_go("b")
    assert sides.store.hold("b", NOW, 30) is None

    sides.store.let_go("a")
    new = sides.store.hold("b", NOW, 30)
    assert new is not None
    assert new > old


def test_runs_since_are_those_that_had_not_ended_before(sides: Sides):
    early = a_run("early", since=NOW - minutes(60), ended_at=NOW - minutes(1), state=RunState.DONE)
    on_time = a_run("on-time", since=NOW - minutes(30), ended_at=NOW, state=RunState.DONE)
    going = a_run("going", since=NOW - minutes(90))
    sides.record(added(1), AddRun(run=on_time), AddRun(run=early), AddRun(run=going))

    assert [run.uid for run in sides.store.runs(NOW)] == ["going", "on-time"]


def test_hours_of_a_team_are_those_of_its_runs_within_the_time(sides: Sides):
    sides.record(
        added(1, team="nlp"),
        added(2, team=""),
        added(3, team="vision"),
        AddRun(run=a_run("before", since=NOW - minutes(90), ended_at=NOW - minutes(60))),
        AddRun(run=a_run("across", since=NOW - minutes(30), ended_at=NOW + minutes(30))),
        AddRun(run=a_run("going", since=NOW + minutes(30), placement={"node-1": 1, "node-2": 1})),
        AddRun(run=a_run("teamless", job=2)),
        AddRun(run=a_run("gpuless", job=3, placement={"node-1": 0})),
    )

    assert sides.store.team_hours(NOW, NOW + minutes(60)) == pytest.approx({"nlp": 4 * 0.5 + 2 * 0.5})


def test_a_turn_replays(sides: Sides):
    first, second = a_turn(NOW), a_turn(NOW + minutes(1), why="still idle")
    sides.record(first, second)

    assert sides.store.turn() == (second.snapshot, second.plan)
    assert sides.store.turn(NOW + minutes(0.5)) == (first.snapshot, first.plan)
    assert sides.store.turn(NOW - minutes(1)) is None


def test_the_newest_board_replaces_the_one_before(sides: Sides):
    board = Board(
        at=NOW,
        gpus=8,
        serving=4,
        running=0,
        idle=4,
        unknown=0,
        services=(),
        windows=(),
        waiting_tasks=0,
        waiting_gpus=0,
    )
    sides.record(ShowBoard(board=board))
    newer = replace(board, at=NOW + minutes(1), idle=0, running=4, alerts=("chat-1 is stalled",))

    sides.record(ShowBoard(board=newer))

    assert sides.board() == newer


def test_a_hand_back_is_filled_in_as_it_goes_on(sides: Sides):
    begun = HandBack(service="chat", signal_at=NOW - minutes(1), decided_at=NOW, gpus=4)
    other = replace(begun, service="code")
    ready = replace(begun, freed_at=NOW + minutes(1), ready_at=NOW + minutes(3))
    sides.record(KeepHandBack(hand_back=begun), KeepHandBack(hand_back=other))

    sides.record(KeepHandBack(hand_back=ready))

    assert sides.store.hand_backs(NOW) == (ready, other)
    assert sides.store.hand_backs(NOW + minutes(1)) == ()


def test_observations_come_oldest_first(sides: Sides):
    seen = [Observed(at=NOW + minutes(at), service="chat", have=2, want=at) for at in (3, 1, 2)]
    sides.record(*seen)

    assert [observed.want for observed in sides.store.observed(NOW + minutes(2))] == [2, 3]


def test_audits_come_newest_first(sides: Sides):
    decided = [Audit(at=NOW, who="U_BO", what=what, job=a_job().id, detail="") for what in ("submitted", "approved")]
    sides.record(*decided)

    assert sides.store.audits() == tuple(reversed(decided))
    assert sides.store.audits(limit=1) == (decided[1],)
