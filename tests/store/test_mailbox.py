from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import text

from scheduler.errors import Unavailable
from scheduler.jobs.job import JobState
from scheduler.jobs.mail import Cancel, Notice, NoticeKind, Person
from scheduler.ports import AddRun, Change, ChangeTask, Tell
from scheduler.store.database import Database
from scheduler.store.mailbox import Card, DeliveryState, JobView, Mailbox
from scheduler.store.sql import SqlStore
from tests.store.building import NOW, a_job, a_notice, a_run, a_task, added, minutes

TS = "1602251441.001700"


@pytest.fixture
def record(store: SqlStore) -> Callable[..., None]:
    def record(*changes: Change) -> None:
        store.record(changes, token=0)

    return record


def told(mailbox: Mailbox, record: Callable[..., None], *kinds: NoticeKind) -> tuple[Notice, ...]:
    record(added(1), *(Tell(notice=a_notice(1, kind)) for kind in kinds))
    return mailbox.unexpanded()


def test_a_job_is_seen_with_its_tasks_in_order_and_its_runs_oldest_first(mailbox, record):
    newer, older = a_run("pod-2", task="main-0", attempt=2, since=NOW + minutes(5)), a_run("pod-1", task="main-0")
    record(added(1, tasks=2), AddRun(run=newer), AddRun(run=older))

    assert mailbox.job(a_job(1).id) == JobView(
        job=a_job(1, version=1),
        tasks=(a_task(1, "main-0"), a_task(1, "main-1", index=1)),
        runs=(older, newer),
    )
    assert mailbox.job(a_job(2).id) is None


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, [4, 3, 2, 1]),
        ({"owner": "U_ANA"}, [4, 2, 1]),
        ({"team": "vision"}, [4, 3]),
        ({"states": [JobState.RUNNING, JobState.WAITING]}, [4, 2, 1]),
        ({"owner": "U_ANA", "team": "vision"}, [4]),
        ({"limit": 2}, [4, 3]),
        ({"limit": 2, "offset": 3}, [1]),
        ({"owner": "U_NOBODY"}, []),
    ],
)
def test_jobs_are_listed_newest_first(mailbox, record, asked, found):
    record(
        added(1),
        added(2, state=JobState.RUNNING),
        added(3, state=JobState.COMPLETED, owner="U_CY", team="vision"),
        added(4, team="vision"),
    )

    assert [job.id for job in mailbox.jobs(**asked)] == found


def test_runs_for_the_report_are_those_that_had_not_ended_before(mailbox, record):
    record(added(1), AddRun(run=a_run("old", ended_at=NOW)), AddRun(run=a_run("new", ended_at=NOW + minutes(2))))

    assert [run.uid for run in mailbox.runs(NOW + minutes(1))] == ["new"]


def test_a_notice_goes_to_each_place_once_however_often_it_is_expanded(mailbox, record):
    (notice,) = told(mailbox, record, NoticeKind.COMPLETED)

    mailbox.expand(notice, ["thread", "dm:U_ANA", "thread"])
    mailbox.expand(notice, ["thread", "dm:U_BO"])

    assert [(delivery.notice, delivery.place) for delivery in mailbox.due()] == [
        (notice, "thread"),
        (notice, "dm:U_ANA"),
    ]
    assert mailbox.unexpanded() == ()


def test_a_notice_without_places_is_done(mailbox, record):
    (notice,) = told(mailbox, record, NoticeKind.WAITING)

    mailbox.expand(notice, [])

    assert mailbox.unexpanded() == ()
    assert mailbox.due() == ()


def test_deliveries_are_due_in_the_order_of_their_notices(mailbox, record):
    notices = told(mailbox, record, NoticeKind.SUBMITTED, NoticeKind.WAITING, NoticeKind.STARTED)
    assert mailbox.unexpanded(limit=2) == notices[:2]

    for notice in reversed(notices):
        mailbox.expand(notice, ["thread"])

    assert [delivery.notice for delivery in mailbox.due()] == list(notices)
    assert [delivery.notice for delivery in mailbox.due(limit=1)] == [notices[0]]


def test_what_is_busy_hides_nothing_that_is_due_elsewhere(mailbox, record):
    record(added(1), added(2), *(Tell(notice=a_notice(number)) for number in (1, 1, 2)))
    first, second, other = mailbox.unexpanded()
    for notice, places in ((first, ["card", "dm:U_ANA"]), (second, ["thread"]), (other, ["card", "dm:U_BO"])):
        mailbox.expand(notice, places)

    def due(**busy) -> list[tuple[int, str]]:
        return [(delivery.notice.job, delivery.place) for delivery in mailbox.due(2, **busy)]

    assert due(busy_jobs=[first.job]) == [(2, "card"), (2, "dm:U_BO")]
    assert due(busy_jobs=[first.job], busy_places=["dm:U_BO"]) == [(2, "card")]

    # Its card stands, so its direct message waits for nothing that goes on in the thread.
    mailbox.delivered(mailbox.due()[0].id, "C_GPU", TS)
    assert due(busy_jobs=[first.job], busy_places=["dm:U_BO"]) == [(1, "dm:U_ANA"), (2, "card")]


def test_slk_35_a_timestamp_keeps_its_zeros(mailbox, record):
    (notice,) = told(mailbox, record, NoticeKind.SUBMITTED)
    mailbox.expand(notice, ["card"])
    (delivery,) = mailbox.due()
    assert (delivery.state, delivery.tries, delivery.ts) == (DeliveryState.OPEN, 0, "")

    mailbox.tried(delivery.id)
    mailbox.card_posted(Card(job=notice.job, channel="C_GPU", ts=TS, shown_version=1))

    (tried,) = mailbox.due()
    assert (tried.state, tried.tries) == (DeliveryState.TRIED, 1)
    card = mailbox.card(notice.job)
    assert card is not None
    assert card.ts == TS
    assert mailbox.job_in_thread("C_GPU", TS) == notice.job
    assert mailbox.job_in_thread("C_GPU", "1602251441.0017") is None
    assert mailbox.job_in_thread("C_OTHER", TS) is None


def test_slk_35_a_delivered_message_is_stored_with_its_timestamp_as_text(url: str, mailbox, record):
    (notice,) = told(mailbox, record, NoticeKind.SUBMITTED)
    mailbox.expand(notice, ["card"])
    (delivery,) = mailbox.due()

    mailbox.delivered(delivery.id, "C_GPU", TS)

    database = Database(url)
    with database.closing(), database.reading() as connection:
        stored = connection.execute(text("SELECT state, channel, ts, typeof(ts) FROM deliveries")).all()
    assert stored == [("done", "C_GPU", TS, "text")]


def test_what_was_delivered_or_given_up_is_no_longer_due_whatever_comes_later(mailbox, record):
    (notice,) = told(mailbox, record, NoticeKind.COMPLETED)
    mailbox.expand(notice, ["thread", "dm:U_ANA", "dm:U_BO"])
    done, refused, going = mailbox.due()

    mailbox.delivered(done.id, "C_GPU", TS)
    mailbox.gave_up(refused.id, "channel_not_found")
    for late in (done, refused):
        mailbox.tried(late.id)

    assert mailbox.due() == (going,)


def test_a_card_is_stale_while_its_job_has_a_newer_version(mailbox, record):
    record(*(added(number) for number in (1, 2, 3)))
    for number in (2, 1, 3):
        mailbox.card_posted(Card(job=a_job(number).id, channel="C_GPU", ts=f"{number}.0", shown_version=0))
    assert mailbox.stale_cards() == ()

    record(*(Tell(notice=a_notice(number)) for number in (1, 2, 3)))
    assert [card.job for card in mailbox.stale_cards()] == [2, 1, 3]  # as long unseen as they were drawn early

    mailbox.card_posted(Card(job=a_job(1).id, channel="C_GPU", ts="9.0", shown_version=1))
    assert [card.job for card in mailbox.stale_cards()] == [2, 3]
    assert mailbox.job_in_thread("C_GPU", "9.0") == 1
    assert mailbox.job_in_thread("C_GPU", "1.0") is None

    record(ChangeTask(was=a_task(1).state, now=a_task(1, failures=1)))
    assert [card.job for card in mailbox.stale_cards(limit=2)] == [2, 3]
    assert [card.job for card in mailbox.stale_cards(limit=2, busy_jobs=[a_job(2).id])] == [3, 1]
    assert [card.job for card in mailbox.stale_cards()] == [2, 3, 1]


def test_a_key_is_new_once_and_forgotten_only_after_a_day(mailbox):
    assert mailbox.first_time("Ev1", NOW)
    assert not mailbox.first_time("Ev1", NOW)

    assert mailbox.first_time("Ev2", NOW + timedelta(days=1))
    assert not mailbox.first_time("Ev1", NOW + timedelta(days=1))

    assert mailbox.first_time("Ev3", NOW + timedelta(days=3))
    assert mailbox.first_time("Ev1", NOW + timedelta(days=3))


def test_32_deliveries_of_one_request_at_once_are_one_row(url: str, mailbox, store):
    boxes = [Mailbox(url) for _ in range(4)]  # as if four processes shared the file
    with ThreadPoolExecutor(32) as pool:
        asked = [
            pool.submit(boxes[n % 4].send, "trigger-1", Person(id="U_ANA"), NOW, Cancel(job=a_job(n).id))
            for n in range(32)
        ]
        ids = {each.result() for each in asked}
        firsts = [pool.submit(boxes[n % 4].first_time, "Ev1", NOW) for n in range(32)]
        new = [each.result() for each in firsts]
    for box in boxes:
        box.close()

    assert [request.id for request in store.open_requests()] == list(ids)
    assert sorted(new) == [False] * 31 + [True]


def test_64_threads_send_different_requests_and_none_is_lost(mailbox, store):
    with ThreadPoolExecutor(64) as pool:
        asked = [
            pool.submit(mailbox.send, f"key-{n}", Person(id="U_ANA"), NOW, Cancel(job=a_job(n).id)) for n in range(64)
        ]
        ids = {each.result(): n for n, each in enumerate(asked)}

    assert {request.id: int(request.key.removeprefix("key-")) for request in store.open_requests()} == ids
    assert [request.id for request in store.open_requests()] == sorted(ids)


def test_the_hook_hears_each_call_before_its_transaction(url: str):
    heard: list[str] = []
    mailbox = Mailbox(url, on_call=heard.append)
    mailbox.send("trigger-1", Person(id="U_ANA"), NOW, Cancel(job=a_job(1).id))
    mailbox.due()
    mailbox.close()

    assert heard == ["send", "due"]


def test_a_database_without_a_schema_says_what_to_do(tmp_path):
    mailbox = Mailbox(f"sqlite:///{tmp_path}/empty.sqlite3")

    with pytest.raises(Unavailable, match="gpujob migrate"):
        mailbox.board()
    mailbox.close()
