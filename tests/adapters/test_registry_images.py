from __future__ import annotations

import base64
import json
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from scheduler.adapters.images import RegistryImages
from scheduler.adapters.images.logins import read_logins
from scheduler.ports import Unresolved
from tests.fake_registry import MANIFEST, FakeRegistry

HUNDRED_TURNS = 100


class Asking:
    """Images, as a cycle asks for them: again, once an answer has come. Its clock stands still unless it is moved."""

    def __init__(self, timeout_s: float = 2.0, plain_http: Collection[str] = (), logins: Path | None = None) -> None:
        self.seconds = 0.0
        self.images = RegistryImages(plain_http, timeout_s, seconds=lambda: self.seconds, logins=logins)
        self._came = threading.Event()
        self.images.listen(self._came.set)

    def about(self, name: str) -> str | Unresolved:
        for _ in range(HUNDRED_TURNS):
            found = self.images.digests([name])
            if name in found:
                return found[name]
            assert self._came.wait(10), "no answer came"
            self._came.clear()
        raise AssertionError("it asks for ever")

    def why(self, name: str) -> str:
        found = self.about(name)
        assert isinstance(found, Unresolved)
        return found.why


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def asking() -> Iterator[Asking]:
    asking = Asking()
    yield asking
    asking.images.close()


def test_a_tag_becomes_its_digest(registry, asking):
    digest = registry.push("nlp/train", "1.2")

    assert asking.about(f"{registry.host}/nlp/train:1.2") == f"{registry.host}/nlp/train@{digest}"
    assert registry.asked == ["HEAD /v2/nlp/train/manifests/1.2"]


def test_an_image_of_one_platform_is_found_too(registry, asking):
    digest = registry.push("train", "latest", media_type=MANIFEST)

    assert asking.about(f"{registry.host}/train") == f"{registry.host}/train@{digest}"


def test_nothing_waits_for_a_registry(registry, asking):
    registry.silent.set()
    name = f"{registry.host}/train:1"

    assert asking.images.digests([name]) == {}
    assert asking.images.digests([name]) == {}
    asking.seconds = 4.1
    assert asking.images.digests([name]) == {name: Unresolved(why=f"{registry.host} was not heard of in time")}


def test_a_digest_asks_nobody(registry, asking):
    name = f"{registry.host}/train:1@sha256:{'9f' * 32}"

    assert asking.images.digests([name]) == {name: name}
    assert registry.asked == []


def test_a_name_that_is_none_says_so_at_once(asking):
    assert asking.images.digests(["Train"]) == {
        "Train": Unresolved(why="it is no name of an image: 'library/Train' may hold a-z 0-9 . _ - and / between them")
    }


def test_a_registry_that_wants_a_token_gives_one_to_anybody(registry, asking):
    digest = registry.push("nlp/train", "1.2")
    registry.tokens_needed = True

    assert asking.about(f"{registry.host}/nlp/train:1.2") == f"{registry.host}/nlp/train@{digest}"
    assert registry.asked == ["HEAD /v2/nlp/train/manifests/1.2", "GET /token", "HEAD /v2/nlp/train/manifests/1.2"]


def test_without_a_login_a_private_image_stays_unresolved(registry, asking):
    registry.push("train", "1")
    registry.tokens_needed, registry.tokens_given = True, False

    assert asking.why(f"{registry.host}/train:1") == f"{registry.host} asks for a login, and gpujob has none (401)"


LOGIN = "robot:s3cret"
INDEX = "index.docker.io"
AUTH = base64.b64encode(LOGIN.encode()).decode()


@pytest.fixture
def with_login(registry: FakeRegistry, tmp_path: Path) -> Iterator[Asking]:
    """Its file can be changed meanwhile."""
    write_logins(tmp_path, {registry.host: {"auth": AUTH}, "other.example.com": {}})
    asking = Asking(logins=tmp_path / "config.json")
    yield asking
    asking.images.close()


def write_logins(folder: Path, auths: Mapping[str, Mapping[str, str]]) -> None:
    (folder / "config.json").write_text(json.dumps({"auths": auths}))


@pytest.mark.parametrize("basic", [False, True])
def test_a_private_image_is_found_with_a_login(registry, with_login, basic):
    digest = registry.push("train", "1")
    registry.login, registry.basic = LOGIN, basic
    registry.tokens_needed, registry.tokens_given = not basic, False

    assert with_login.about(f"{registry.host}/train:1") == f"{registry.host}/train@{digest}"


@pytest.mark.parametrize("basic", [False, True])
def test_a_login_that_is_not_taken_says_so_and_never_what_it_is(registry, with_login, basic):
    registry.push("train", "1")
    registry.login, registry.basic = "robot:changed", basic
    registry.tokens_needed, registry.tokens_given = not basic, False

    why = with_login.why(f"{registry.host}/train:1")

    assert why == f"{registry.host} does not take the login that gpujob has (401)"


def test_a_login_that_is_changed_is_read_anew(registry, with_login, tmp_path):
    digest = registry.push("train", "1")
    registry.login, registry.basic = "robot:changed", True
    with_login.why(f"{registry.host}/train:1")
    write_logins(tmp_path, {f"http://{registry.host}/v2/": {"username": "robot", "password": "changed"}})

    with_login.seconds = 30
    assert with_login.about(f"{registry.host}/train:1") == f"{registry.host}/train@{digest}"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"auths": 7}', '{"auths": {"a": "s3cret"}}', '{"auths": {"a": {"auth": "s3\\ncret"}}}']
)
def test_a_file_of_logins_that_cannot_be_used_is_named_without_what_it_holds(registry, with_login, tmp_path, text):
    registry.basic = True
    (tmp_path / "config.json").write_text(text)

    why = with_login.why(f"{registry.host}/train:1")

    assert why == f"the logins in {tmp_path / 'config.json'} are not written as `docker login` writes them"


def test_a_file_of_logins_that_is_not_there_is_named(registry, with_login, tmp_path):
    registry.basic = True
    (tmp_path / "config.json").unlink()

    assert with_login.why(f"{registry.host}/train:1") == (
        f"the logins in {tmp_path / 'config.json'} cannot be read (No such file or directory)"
    )


def test_docker_hub_has_one_login_under_all_its_names(tmp_path):
    write_logins(tmp_path, {f"https://{INDEX}/v1/": {"auth": AUTH}})

    assert read_logins(tmp_path / "config.json") == {"docker.io": AUTH}


@pytest.mark.parametrize("realm", ["http://token.example.com/token", "ftp://127.0.0.1/token", "nowhere"])
def test_no_token_is_fetched_from_a_strange_place(registry, asking, realm):
    registry.push("train", "1")
    registry.tokens_needed, registry.realm = True, realm

    assert asking.why(f"{registry.host}/train:1").startswith(registry.host)
    assert registry.asked == ["HEAD /v2/train/manifests/1"]


@pytest.mark.parametrize(("tells_digest", "takes_head"), [(False, True), (True, False), (False, False)])
def test_a_registry_that_tells_no_digest_sends_the_manifest_and_it_is_counted(
    registry, asking, tells_digest, takes_head
):
    digest = registry.push("train", "1")
    registry.tells_digest, registry.takes_head = tells_digest, takes_head

    assert asking.about(f"{registry.host}/train:1") == f"{registry.host}/train@{digest}"
    assert registry.asked[-1] == "GET /v2/train/manifests/1"


def test_a_manifest_that_is_not_what_its_digest_names_is_not_trusted(registry, asking):
    registry.push("train", "1")
    registry.takes_head, registry.lies_about_digest = False, True

    assert "not the one its digest names" in asking.why(f"{registry.host}/train:1")


def test_a_manifest_without_end_is_cut_off(registry, asking):
    registry.push("train", "1", about="x" * 5_000_000)
    registry.takes_head = False

    assert "more than 4096 KiB" in asking.why(f"{registry.host}/train:1")


def test_a_registry_may_send_on_to_another_one(registry, asking):
    with FakeRegistry() as front:
        front.moved_to = registry.host
        digest = registry.push("pause", "3.10")

        assert asking.about(f"{front.host}/pause:3.10") == f"{front.host}/pause@{digest}"


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (403, "does not let gpujob read it (403)"),
        (404, "does not have it (404)"),
        (429, "takes no more questions for now (429)"),
        (500, "failed (500)"),
        (299, "said 299"),
        (599, "said 599"),
    ],
)
def test_an_answer_that_is_none_says_why(registry, asking, status, says):
    registry.status = status

    assert asking.why(f"{registry.host}/train:1") == f"{registry.host} {says}"


def test_a_registry_that_is_not_there_says_so(asking):
    with FakeRegistry() as gone:
        host = gone.host

    assert asking.why(f"{host}/train:1").startswith(f"{host} cannot be reached: ")


def test_a_registry_that_does_not_answer_is_given_up_in_time(registry):
    asking = Asking(timeout_s=0.1)
    registry.silent.set()

    assert asking.why(f"{registry.host}/train:1") == f"{registry.host} did not answer within 0.1 s"
    asking.images.close()


def test_only_loopback_and_named_registries_are_asked_without_tls(registry):
    digest = registry.push("train", "1")
    host = f"127.1:{registry.host.partition(':')[2]}"  # this computer, and not by a name that says so
    strict, lenient = Asking(), Asking(plain_http=[host])

    assert strict.why(f"{host}/train:1").startswith(f"{host} cannot be reached: ")
    assert lenient.about(f"{host}/train:1") == f"{host}/train@{digest}"
    strict.images.close()
    lenient.images.close()


def test_a_tag_is_asked_for_again_after_a_minute(registry, asking):
    name = f"{registry.host}/train:1"
    registry.push("train", "1", about="old")
    old = asking.about(name)
    registry.push("train", "1", about="new")

    asking.seconds = 59
    assert asking.about(name) == old
    asking.seconds = 61
    assert asking.about(name) != old


def test_a_registry_that_failed_is_asked_again_after_a_while(registry, asking):
    name = f"{registry.host}/train:1"
    digest = registry.push("train", "1")
    registry.status = 500
    asking.why(name)
    registry.status = None

    asking.seconds = 19
    assert "500" in asking.why(name)
    asking.seconds = 21
    assert asking.about(name) == f"{registry.host}/train@{digest}"


def test_an_answer_is_given_even_to_one_who_asks_rarely(registry, asking):
    name = f"{registry.host}/train:1"
    registry.status = 500
    came = threading.Event()
    asking.images.listen(came.set)
    asking.images.digests([name])
    assert came.wait(10)

    asking.seconds = 3600
    assert asking.images.digests([name]) == {name: Unresolved(why=f"{registry.host} failed (500)")}


def test_many_names_are_asked_for_at_once_and_each_once(registry, asking):
    names: Collection[str] = [f"{registry.host}/train:{number}" for number in range(20)]
    digests = {f"{registry.host}/train:{number}": registry.push("train", str(number)) for number in range(20)}

    asking.images.digests(names)
    asking.images.digests(names)
    found = {name: asking.about(name) for name in names}

    assert found == {name: f"{registry.host}/train@{digest}" for name, digest in digests.items()}
    assert len(registry.asked) == 20
