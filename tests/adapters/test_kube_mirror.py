"""The mirror against a server that pages, compacts, refuses, falls silent and speaks again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.adapters.kube import objects
from scheduler.adapters.kube.mirror import ADDED, DELETED, MODIFIED, Event, Mirror
from scheduler.adapters.kube.objects import Pod
from scheduler.adapters.kube.watching import Watching
from scheduler.errors import Unavailable
from tests.cluster.fake_api import FakeApi
from tests.local_bench import until

JOBS, SERVING = "gpujobs", "serving"


def a_pod(name: str, namespace: str = JOBS, gpus: int = 1, **labels: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": {"containers": [container]}}


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    with FakeApi() as fake:
        yield fake
    assert not fake.errors


class Seen:
    """A mirror of all pods, and what it told."""

    def __init__(self, fake: FakeApi, **options: Any) -> None:
        self.told: list[tuple[str, str]] = []
        options = {"pauses_s": (0.01, 0.05)} | options
        self.mirror: Mirror[Pod] = Mirror(fake.api(), "/api/v1/pods", objects.pod, "pods", **options)
        self.mirror.listen(self.heard)
        self.fake = fake

    def heard(self, event: Event[Pod]) -> None:
        pod = event.new or event.old
        assert pod is not None
        self.told.append((event.kind, pod.name))

    def names(self) -> set[str]:
        return {pod.name for pod in self.mirror.items().values()}

    def lists(self) -> int:
        return sum("watch=" not in path and path.startswith("/api/v1/pods") for _, _, path in asked(self.fake))


def asked(fake: FakeApi) -> list[tuple[str, str, str]]:
    return [tuple(str(part) for part in request)[:3] for request in fake.requests]  # type: ignore[misc]


@pytest.fixture
def seen(fake: FakeApi) -> Iterator[Seen]:
    with following(fake) as seen:
        yield seen


@contextmanager
def following(fake: FakeApi, **options: Any) -> Iterator[Seen]:
    seen = Seen(fake, **options)
    seen.mirror.start()
    until(lambda: seen.mirror.synced or bool(seen.mirror.trouble))
    try:
        yield seen
    finally:
        fake.speak()
        seen.mirror.stop()
    assert not seen.mirror._thread.is_alive()


def test_what_is_there_and_what_comes_and_goes_is_told_once_and_in_order(fake: FakeApi):
    fake.create("pods", a_pod("a"), JOBS)
    with following(fake) as seen:
        fake.create("pods", a_pod("b"), JOBS)
        fake.patch(
            "pods", JOBS, "b", {"metadata": {"labels": {"gpujob.io/job": "job-1"}}}, "application/merge-patch+json"
        )
        fake.delete("pods", JOBS, "a", {})
        until(lambda: "a" not in seen.names())

        assert seen.told == [(ADDED, "a"), (ADDED, "b"), (MODIFIED, "b"), (DELETED, "a")]
        assert seen.names() == {"b"}


def test_a_long_list_comes_in_pages(fake: FakeApi):
    for number in range(25):
        fake.create("pods", a_pod(f"p-{number}"), JOBS)
    with following(fake, page=10) as seen:
        assert len(seen.names()) == 25


def test_pages_that_grow_too_old_are_begun_again(fake: FakeApi):
    for number in range(25):
        fake.create("pods", a_pod(f"p-{number}"), JOBS)
    fake.refuse("GET", r"/api/v1/pods\?.*continue=", 410)
    with following(fake, page=10) as seen:
        assert len(seen.names()) == 25


@pytest.mark.parametrize("running", [False, True], ids=["as an answer", "inside the stream"])
def test_argo_r20_a_version_that_is_gone_leads_to_a_new_list_and_what_vanished_is_told(
    fake: FakeApi, seen: Seen, running: bool
):
    fake.create("pods", a_pod("stays"), JOBS)
    fake.create("pods", a_pod("goes"), JOBS)
    until(lambda: seen.names() == {"stays", "goes"})
    lists = seen.lists()

    fake.go_silent()
    fake.delete("pods", JOBS, "goes", {})
    fake.compact(running)
    fake.drop_connections()
    fake.speak()
    until(lambda: seen.names() == {"stays"})

    assert seen.told[-1] == (DELETED, "goes")
    assert seen.lists() - lists <= 3, "a hot loop"


def test_argo_r20_a_server_that_keeps_saying_gone_is_not_asked_in_a_hot_loop(fake: FakeApi):
    fake.refuse("GET", r"/api/v1/pods\?.*watch=", 410, times=10_000)
    with following(fake, pauses_s=(0.1, 0.4)) as seen:
        until(lambda: seen.lists() >= 3)
        began = seen.lists()
        with suppress(AssertionError):
            until(lambda: seen.lists() > began + 8, 1.0)

        assert seen.lists() <= began + 8


def test_argo_r19_a_server_that_stops_sending_is_noticed_and_the_news_ages(fake: FakeApi):
    with following(fake, silence_s=0.3) as seen:
        fake.create("pods", a_pod("a"), JOBS)
        until(lambda: seen.names() == {"a"})
        fake.go_silent()
        fake.create("pods", a_pod("b"), JOBS)
        until(lambda: bool(seen.mirror.trouble))

        assert seen.names() == {"a"}
        assert seen.mirror.age_s() > 0.25

        fake.speak()
        until(lambda: seen.names() == {"a", "b"} and not seen.mirror.trouble)


def test_argo_r19_nothing_counts_as_fresh_while_the_server_is_silent(fake: FakeApi):
    api = fake.api()
    api._http.connection_pool_kw["timeout"] = 0.2
    watching = Watching(api, JOBS, [SERVING], stale_s=0.2, silence_s=60)
    watching.start(10)
    try:
        watching.fresh()
        fake.refuse("GET", r"/api/v1/(pods|nodes)\?", 503, times=10_000)
        until(lambda: watching.pods.age_s() > 0.2)
        with pytest.raises(Unavailable, match=r"the news of pods is \d+ s old"):
            watching.fresh()
    finally:
        watching.stop()


def test_argo_r19_a_watch_that_lost_news_is_cut_once_a_list_proves_it(fake: FakeApi, seen: Seen):
    fake.create("pods", a_pod("a"), JOBS)
    until(lambda: seen.names() == {"a"})
    watches = sum("watch=" in path for _, _, path in asked(fake))
    # A proxy that swallows the watch's bytes while lists go through: here the mirror forgets what it was told.
    with seen.mirror._lock:
        seen.mirror._items.clear()
        seen.mirror._versions.clear()
        seen.mirror._view = None

    seen.mirror.refresh()

    assert seen.names() == {"a"}
    until(lambda: sum("watch=" in path for _, _, path in asked(fake)) > watches)


def test_an_event_that_a_list_has_overtaken_shows_nothing_again(fake: FakeApi):
    mirror = Seen(fake).mirror
    mirror._take_list({}, 12)
    mirror._take_event("ADDED", objects.pod(raw("z", 8)), 8)

    assert not mirror.items(), "it was deleted before the list"


def test_a_server_that_was_restored_from_a_backup_is_believed(fake: FakeApi, seen: Seen):
    fake.create("pods", a_pod("old"), JOBS)
    until(lambda: seen.names() == {"old"})
    seen.mirror.refresh()
    seen.mirror._take_list({"later": (objects.pod(raw("later", 900)), 900)}, 900)

    seen.mirror.refresh()

    assert seen.names() == {"old"}


def test_an_object_that_cannot_be_read_is_trouble_and_not_passed_over(fake: FakeApi):
    broken = Mirror(fake.api(), "/api/v1/pods", lambda raw: objects.pod({"spec": raw["spec"]}), "pods")
    fake.create("pods", a_pod("odd"), JOBS)

    with pytest.raises(Unavailable, match="odd cannot be read"):
        broken.refresh()
    broken.start()
    until(lambda: bool(broken.trouble))
    broken.stop()


@pytest.mark.parametrize("status", [401, 403])
def test_argo_r21_a_refused_list_is_said_and_followed_again_once_it_is_allowed(fake: FakeApi, status: int):
    fake.create("pods", a_pod("a"), JOBS)
    fake.refuse("GET", r"/api/v1/pods", status, times=3)
    with following(fake) as seen:
        first = seen.mirror.trouble
        until(lambda: seen.mirror.synced and not seen.mirror.trouble)

        assert first == "" or str(status) in first
        assert seen.names() == {"a"}


def test_argo_r21_a_refusal_is_unavailable_to_who_asks_for_news(fake: FakeApi, seen: Seen):
    fake.refuse("GET", r"/api/v1/pods\?limit", 403)
    with pytest.raises(Unavailable, match="pods cannot be listed"):
        seen.mirror.refresh()


def test_argo_r10_a_pod_of_the_same_name_is_another_pod(fake: FakeApi, seen: Seen):
    fake.create("pods", a_pod("a"), JOBS)
    until(lambda: seen.names() == {"a"})
    (first,) = seen.mirror.items()
    fake.delete("pods", JOBS, "a", {})
    fake.create("pods", a_pod("a"), JOBS)
    until(lambda: len(seen.mirror.items()) == 1 and first not in seen.mirror.items())

    assert [kind for kind, _ in seen.told] == [ADDED, DELETED, ADDED]


def test_a_kind_that_is_not_installed_is_empty_and_no_trouble(fake: FakeApi):
    path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/serving/leaderworkersets"
    mirror = Mirror(fake.api(), path, lambda raw: objects.workload(raw, "LeaderWorkerSet"), "LWS", optional=True)
    mirror.start()
    until(lambda: mirror.synced)

    assert (dict(mirror.items()), mirror.trouble, mirror.absent) == ({}, "", True)
    mirror.stop()


def test_a_server_that_is_not_there_is_named_when_it_is_waited_for():
    with FakeApi() as fake:
        api = fake.api()
    watching = Watching(api, JOBS, [SERVING])
    with pytest.raises(Unavailable, match="could not be listed within"):
        watching.start(0.5)
    watching.stop()


@pytest.fixture
def hints(fake: FakeApi) -> Iterator[list[int]]:
    given: list[int] = []
    watching = Watching(fake.api(), JOBS, [SERVING])
    watching.listen(lambda: given.append(1))
    watching.start(10)
    yield given
    watching.stop()


@pytest.mark.parametrize(
    "happens",
    [
        lambda fake: fake.create("pods", a_pod("chat-1", SERVING), SERVING),
        lambda fake: fake.create("pods", a_pod("job-1"), JOBS),
        lambda fake: fake.create("nodes", {"metadata": {"name": "gpu-9"}}),
    ],
    ids=["a serving pod waits", "an attempt appears", "a node appears"],
)
def test_what_a_turn_may_act_on_is_hinted_at_once(fake: FakeApi, hints: list[int], happens: Callable[[FakeApi], Any]):
    hints.clear()
    happens(fake)

    until(lambda: len(hints) > 0)
    assert hints


def test_a_burst_is_a_few_hints_and_what_changes_nothing_is_none(fake: FakeApi, hints: list[int]):
    hints.clear()
    for number in range(300):
        fake.create("pods", a_pod(f"job-{number}"), JOBS)
    until(lambda: len(hints) > 0)
    many = len(hints)
    for number in range(300):
        fake.patch("pods", JOBS, f"job-{number}", {"metadata": {"labels": {"x": "y"}}}, "application/merge-patch+json")
    with suppress(AssertionError):
        until(lambda: len(hints) > many + 10, 0.5)

    assert many < 60
    assert len(hints) <= many + 10, "labels are nothing that a turn acts on"


def raw(uid: str, version: int) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "name": uid, "resourceVersion": str(version)}}


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_any_interleaving_of_lists_and_events_ends_as_the_truth(seed: int, steps: int):
    """The watch is in order; lists, begun at any time, arrive at any later time."""
    chance = random.Random(seed)
    with FakeApi() as fake:
        mirror: Mirror[Pod] = Mirror(fake.api(), "/api/v1/pods", objects.pod, "pods")
    truth: dict[str, int] = {}
    events: list[tuple[str, str, int]] = []
    lists: list[tuple[dict[str, int], int]] = []
    made = taken = 0
    known: set[str] = set()
    vanished: set[str] = set()
    for version in range(1, steps + 1):
        match chance.randrange(5):
            case 0 | 1:
                made += 1
                truth[f"u{made}"] = version
                events.append(("ADDED", f"u{made}", version))
            case 2 if truth:
                uid = chance.choice(sorted(truth))
                truth[uid] = version
                events.append(("MODIFIED", uid, version))
            case 3 if truth:
                uid = chance.choice(sorted(truth))
                del truth[uid]
                events.append(("DELETED", uid, version))
            case _:
                lists.append((dict(truth), version))
        if lists and chance.random() < 0.4:
            found, at = lists.pop(chance.randrange(len(lists)))
            mirror._take_list({uid: (objects.pod(raw(uid, v)), v) for uid, v in found.items()}, at)
        while taken < len(events) and chance.random() < 0.6:
            kind, uid, at = events[taken]
            mirror._take_event(kind, objects.pod(raw(uid, at)), at)
            taken += 1
        there = mirror.items().keys()
        assert not there & vanished, "an object that had vanished came back"
        vanished |= known - there
        known |= there
    for found, at in lists:
        mirror._take_list({uid: (objects.pod(raw(uid, v)), v) for uid, v in found.items()}, at)
    for kind, uid, at in events[taken:]:
        mirror._take_event(kind, objects.pod(raw(uid, at)), at)

    assert {uid: int(pod.version) for uid, pod in mirror.items().items()} == truth
