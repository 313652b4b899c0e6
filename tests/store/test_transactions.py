"""Several who write at once, and one who dies in the middle."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest

from scheduler.errors import Conflict, Deposed
from scheduler.jobs.job import JobState
from scheduler.jobs.mail import Cancel, NoticeKind, Person
from scheduler.ports import Change, ChangeJob, Observed, Tell
from scheduler.store.changes import MOST_TURNS, OBSERVATIONS_KEPT, TURNS_KEPT
from scheduler.store.database import Database
from scheduler.store.mailbox import Mailbox
from scheduler.store.sql import SqlStore
from tests.store.building import NOW, a_job, a_notice, a_turn, added, minutes

DIES_IN_THE_MIDDLE = """
import sys
from scheduler.ports import Tell
from scheduler.store.sql import SqlStore
from tests.store.building import a_notice, added

def changes():
    yield added(2)
    yield Tell(notice=a_notice(1))
    print("in the middle", flush=True)
    sys.stdin.read()

SqlStore(sys.argv[1]).record(changes(), token=0)
"""

TELLS_THE_END = """
import sys
from scheduler.errors import Conflict
from scheduler.jobs.mail import NoticeKind
from scheduler.ports import Tell
from scheduler.store.sql import SqlStore
from tests.store.building import a_notice

store = SqlStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    store.record([Tell(notice=a_notice(1, NoticeKind.COMPLETED))], token=0)
    print("told")
except Conflict:
    print("conflict")
store.close()
"""


@pytest.fixture
def a_process(url: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(program: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, url]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def outcomes(url: str, attempts: Sequence[tuple[Change, int]]) -> list[str]:
    """What became of changes that are recorded at the same moment, each by a store of its own."""
    stores = [SqlStore(url) for _ in attempts]
    start = Barrier(len(attempts))

    def attempt(store: SqlStore, change: Change, token: int) -> str:
        start.wait()
        try:
            store.record([change], token)
        except (Conflict, Deposed) as error:
            return type(error).__name__
        return "recorded"

    with ThreadPoolExecutor(len(attempts)) as pool:
        racing = [pool.submit(attempt, store, *one) for store, one in zip(stores, attempts, strict=True)]
        found = sorted(each.result() for each in racing)
    for store in stores:
        store.close()
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda n: ChangeJob(was=JobState.WAITING, now=a_job(1, state=JobState.RUNNING, why=f"by {n}")),
        lambda n: Tell(notice=a_notice(1, NoticeKind.COMPLETED, by=n)),
        lambda n: added(2, why=f"by {n}"),
    ],
    ids=["a guarded move", "a terminal notice", "a new job"],
)
def test_of_8_who_record_the_same_at_once_one_wins(url: str, store: SqlStore, change: Callable[[int], Change]):
    store.record([added(1)], token=0)

    found = outcomes(url, [(change(number), 0) for number in range(8)])

    assert found == ["Conflict"] * 7 + ["recorded"]


def test_of_two_processes_that_tell_the_end_one_does(a_process, store: SqlStore, mailbox: Mailbox):
    store.record([added(1)], token=0)
    both = [a_process(TELLS_THE_END) for _ in range(2)]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = sorted(process.communicate(timeout=30)[0].strip() for process in both)

    assert said == ["conflict", "told"]
    assert len(mailbox.unexpanded()) == 1


def test_of_8_who_want_to_lead_one_does(url: str, store: SqlStore):
    stores = [SqlStore(url) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(lambda numbered: numbered[1].hold(f"s{numbered[0]}", NOW, 30), enumerate(stores)))
    for each in stores:
        each.close()

    assert sorted(token for token in tokens if token is not None) == [1]


def test_a_deposed_leader_writes_nothing_even_when_it_races(url: str, store: SqlStore):
    old = store.hold("a", NOW, 30)
    new = store.hold("b", NOW + minutes(1), 30)
    assert old is not None
    assert new is not None

    found = outcomes(url, [(added(number), new if number % 2 else old) for number in range(1, 9)])

    assert found == ["Deposed"] * 4 + ["recorded"] * 4
    assert [job.id for job in store.live().jobs] == [1, 3, 5, 7]


def test_a_process_killed_in_the_middle_leaves_nothing_and_blocks_nobody(a_process, store: SqlStore, mailbox: Mailbox):
    store.record([added(1)], token=0)
    before = store.live()
    process = a_process(DIES_IN_THE_MIDDLE)
    assert process.stdout is not None
    assert process.stdout.readline() == "in the middle\n"

    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)

    assert process.returncode == -signal.SIGKILL
    assert store.live() == before
    assert mailbox.unexpanded() == ()
    store.record([added(2)], token=0)
    assert [job.id for job in store.live().jobs] == [1, 2]


def test_readers_see_the_state_before_while_a_turn_is_being_recorded(store: SqlStore, mailbox: Mailbox):
    store.record([added(1)], token=0)
    seen: list[int] = []

    class Changes(list[Change]):
        def __iter__(self):
            yield added(2)
            seen.append(len(mailbox.jobs()))

    store.record(Changes(), token=0)

    assert seen == [1]
    assert len(mailbox.jobs()) == 2


def test_the_bot_waits_for_a_turn_that_is_being_recorded(store: SqlStore, mailbox: Mailbox):
    with ThreadPoolExecutor(1) as pool:

        class Changes(list[Change]):
            def __iter__(self):
                yield added(1)
                sent.append(pool.submit(mailbox.send, "key", Person(id="U_ANA"), NOW, Cancel(job=a_job(1).id)))

        sent: list = []
        store.record(Changes(), token=0)
        request = sent[0].result(timeout=30)

    assert [each.id for each in store.open_requests()] == [request]


def test_turns_are_kept_for_some_days(store: SqlStore):
    old, edge, new = (a_turn(NOW + at) for at in (-timedelta(seconds=1), timedelta(0), TURNS_KEPT))
    for turn in (old, edge, new):
        store.record([turn], token=0)

    assert store.turn(old.snapshot.now) is None
    assert store.turn(edge.snapshot.now) == (edge.snapshot, edge.plan)


def test_only_so_many_turns_are_kept(url: str, store: SqlStore):
    first, second, third = (a_turn(NOW + timedelta(seconds=at)) for at in range(3))
    store.record([first, second], token=0)
    database = Database(url)
    with database.closing(), database.writing() as connection:
        connection.exec_driver_sql("UPDATE turns SET id = ? WHERE id = 2", (MOST_TURNS,))

    store.record([third], token=0)

    assert store.turn(first.snapshot.now) is None
    assert store.turn(second.snapshot.now) == (second.snapshot, second.plan)


def test_observations_are_kept_for_two_months(store: SqlStore):
    for at in (-timedelta(seconds=1), timedelta(0), OBSERVATIONS_KEPT):
        store.record([Observed(at=NOW + at, service="chat", have=1, want=1)], token=0)

    assert [seen.at for seen in store.observed(NOW - minutes(60))] == [NOW, NOW + OBSERVATIONS_KEPT]
