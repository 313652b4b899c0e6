from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.adapters.images.reference import Reference, parse

SHA = "sha256:" + "9f" * 32


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag"),
    [
        ("python", "docker.io", "library/python", "latest"),
        ("python:3.12-slim", "docker.io", "library/python", "3.12-slim"),
        ("vllm/vllm-openai:v0.11.0", "docker.io", "vllm/vllm-openai", "v0.11.0"),
        ("docker.io/python", "docker.io", "library/python", "latest"),
        ("index.docker.io/vllm/vllm-openai", "docker.io", "vllm/vllm-openai", "latest"),
        ("registry.example.com/nlp/train:1.2", "registry.example.com", "nlp/train", "1.2"),
        ("registry.example.com/train", "registry.example.com", "train", "latest"),
        ("registry.example.com:5000/train", "registry.example.com:5000", "train", "latest"),
        ("localhost/train:1", "localhost", "train", "1"),
        ("localhost:5000/a/b/c", "localhost:5000", "a/b/c", "latest"),
        ("REGISTRY/train", "REGISTRY", "train", "latest"),
        ("[::1]:5000/train:x", "[::1]:5000", "train", "x"),
        ("a/b__c/d-e.f:_X", "docker.io", "a/b__c/d-e.f", "_X"),
    ],
)
def test_a_name_says_where_its_image_lies(text: str, host: str, repository: str, tag: str):
    found = parse(text)

    assert isinstance(found, Reference)
    assert (found.host, found.repository, found.tag, found.digest) == (host, repository, tag, "")


def test_docker_hub_answers_under_another_name():
    found = parse("python")

    assert isinstance(found, Reference)
    assert found.api_host == "registry-1.docker.io"


@pytest.mark.parametrize("text", [f"train@{SHA}", f"example.com:5000/train:1@{SHA}"])
def test_a_digest_is_kept(text: str):
    found = parse(text)

    assert isinstance(found, Reference)
    assert found.digest == SHA


def test_the_digest_takes_the_place_of_the_tag_and_the_name_stays_as_it_was_written():
    found = parse("localhost:5000/train:1.2")

    assert isinstance(found, Reference)
    assert found.pinned(SHA) == f"localhost:5000/train@{SHA}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no name of an image"),
        ("Train", "is no name of an image"),
        ("train:", "has a tag that no registry takes: ''"),
        ("train:a b", "has a tag that no registry takes"),
        (f"train:{'x' * 129}", "has a tag that no registry takes"),
        ("train@sha256:abc", "has no digest after its @"),
        ("train@", "has no digest after its @"),
        ("exa_mple.com/train", "has no name of a registry"),
        ("example.com:port/train", "has no name of a registry"),
        ("example.com//train", "is no name of an image"),
        ("example.com/../train", "is no name of an image"),
        ("https://example.com/train", "has no name of a registry"),
        (f"example.com/{'x' * 250}", "has a name of 262 characters"),
    ],
)
def test_what_is_no_name_is_said_in_words(text: str, says: str):
    found = parse(text)

    assert isinstance(found, str)
    assert found.startswith(says)


@given(st.text(max_size=60) | st.text("aA0.:/@_-[] \n", max_size=60))
def test_whatever_is_written_is_a_reference_or_a_sentence_and_never_leaves_its_path(text: str):
    found = parse(text)

    if isinstance(found, Reference):
        assert not set(found.host + found.repository + found.tag) & set(" \n\t?#%\\@")
        assert ".." not in found.repository.split("/")
        assert parse(found.pinned(SHA)) == Reference(
            written=found.written, host=found.host, repository=found.repository, tag="latest", digest=SHA
        )


PARTS = st.from_regex(r"[a-z0-9]+([._-][a-z0-9]+)*", fullmatch=True).filter(lambda part: len(part) < 20)


@given(
    st.sampled_from(["", "localhost/", "localhost:5000/", "registry.example.com/", "10.0.0.1:80/"]),
    st.lists(PARTS.filter(lambda part: part != "localhost" and "." not in part), min_size=1, max_size=4),
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True),
)
def test_what_is_put_together_is_taken_apart_again(host: str, parts: list[str], tag: str):
    found = parse(f"{host}{'/'.join(parts)}:{tag}")

    assert isinstance(found, Reference)
    assert found.host == (host.rstrip("/") or "docker.io")
    assert found.repository.removeprefix("library/") == "/".join(parts).removeprefix("library/")
    assert found.tag == tag
