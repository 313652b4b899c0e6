from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from scheduler.adapters.local.services import Wishes, read_wishes, write_wishes

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def ids(wishes: Wishes) -> list[str]:
    return [wish.id for wish in wishes.replicas]


def three() -> Wishes:
    return Wishes(service="chat").more(("node-1",), 3, NOW)


def test_replicas_go_to_the_named_nodes_as_far_as_they_are_named():
    assert [wish.node for wish in three().replicas] == ["node-1", "", ""]


def test_those_named_leave_first_in_that_order():
    assert ids(three().fewer(1, ["chat-1", "chat-2"], frozenset())) == ["chat-2", "chat-3"]


def test_after_those_named_the_ones_without_gpus_leave_then_the_newest():
    assert ids(three().fewer(1, (), frozenset({"chat-1", "chat-3"}))) == ["chat-1", "chat-3"]
    assert ids(three().fewer(2, (), frozenset({"chat-1", "chat-3"}))) == ["chat-1"]


def test_a_replica_that_keeps_dying_waits_longer_each_time_and_one_that_lived_does_not():
    wishes = Wishes(service="chat").more((), 1, NOW)
    waits = []
    for _ in range(9):
        wishes = wishes.after_death(wishes.replicas[0].id, NOW - timedelta(seconds=1), NOW)
        waits.append(wishes.replicas[0].not_before)
    lived = wishes.after_death(wishes.replicas[0].id, NOW - timedelta(hours=1), NOW)

    assert waits == [NOW + timedelta(seconds=wait) for wait in (0, 1, 3, 7, 15, 31, 60, 60, 60)]
    assert lived.replicas[0].not_before == NOW


def test_a_dead_replica_keeps_its_place_and_its_node_and_gets_a_new_name():
    wishes = three().after_death("chat-1", NOW, NOW)

    assert ids(wishes) == ["chat-4", "chat-2", "chat-3"]
    assert wishes.replicas[0].node == "node-1"


def test_wishes_come_back_from_their_file(tmp_path: Path):
    wishes = three().after_death("chat-2", NOW, NOW)

    write_wishes(tmp_path, wishes)

    assert read_wishes(tmp_path, "chat") == wishes
    assert read_wishes(tmp_path / "other", "chat") == Wishes(service="chat")


@given(st.lists(st.integers(0, 6), max_size=8))
def test_there_are_as_many_wishes_as_asked_for_and_no_name_is_used_twice(targets):
    wishes = Wishes(service="chat")
    seen: set[str] = set()
    for target in targets:
        have = len(wishes.replicas)
        before = set(ids(wishes))
        more = target > have
        wishes = wishes.more((), target - have, NOW) if more else wishes.fewer(have - target, (), frozenset())
        new = set(ids(wishes)) - before

        assert len(wishes.replicas) == target
        assert not new & seen
        seen |= new
