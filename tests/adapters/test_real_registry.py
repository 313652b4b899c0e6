"""The same questions to a real registry: CNCF Distribution, built from its Go module."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from scheduler.adapters.images import RegistryImages
from scheduler.ports import Unresolved
from tests.go_programs import REGISTRY

pytestmark = pytest.mark.cluster

CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


class Registry:
    """One registry with nothing in it."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._client = httpx.Client(base_url=f"http://{host}/v2/")

    def push(self, name: str, tag: str, about: str) -> str:
        """An image for one platform, and an index that names it under the tag; the digest of the index."""
        config = json.dumps({"architecture": "amd64", "os": "linux", "about": about}).encode()
        upload = self._client.post(f"{name}/blobs/uploads/")
        where = httpx.URL(upload.headers["Location"]).copy_merge_params({"digest": _digest(config)})
        self._client.put(where, content=config).raise_for_status()
        described = {"mediaType": CONFIG, "digest": _digest(config), "size": len(config)}
        image = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": []}).encode()
        self._put(name, _digest(image), MANIFEST, image)
        entry = {
            "mediaType": MANIFEST,
            "digest": _digest(image),
            "size": len(image),
            "platform": {"architecture": "amd64", "os": "linux"},
        }
        index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).encode()
        self._put(name, tag, INDEX, index)
        self._put(name, f"{tag}-amd64", MANIFEST, image)
        return _digest(index)

    def _put(self, name: str, reference: str, kind: str, content: bytes) -> None:
        headers = {"Content-Type": kind}
        self._client.put(f"{name}/manifests/{reference}", content=content, headers=headers).raise_for_status()

    def close(self) -> None:
        self._client.close()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    program = REGISTRY.built()
    folder: Path = tmp_path_factory.mktemp("registry")
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{chosen.getsockname()[1]}"
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": host},
    }
    (folder / "config.json").write_text(json.dumps(settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(program), "serve", str(folder / "config.json")], stdout=log, stderr=log)
    try:
        for _ in range(200):
            try:
                httpx.get(f"http://{host}/v2/")
                break
            except httpx.TransportError:
                threading.Event().wait(0.05)
        registry = Registry(host)
        yield registry
        registry.close()
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def images() -> Iterator[RegistryImages]:
    images = RegistryImages()
    yield images
    images.close()


def asked(images: RegistryImages, name: str) -> str | Unresolved:
    came = threading.Event()
    images.listen(came.set)
    if name not in images.digests([name]):
        assert came.wait(10), "no answer came"
    return images.digests([name])[name]


def test_a_tag_becomes_the_digest_of_its_index(registry: Registry, images: RegistryImages):
    digest = registry.push("nlp/train", "1.2", "first")

    assert asked(images, f"{registry.host}/nlp/train:1.2") == f"{registry.host}/nlp/train@{digest}"


def test_an_image_of_one_platform_has_a_digest_of_its_own(registry: Registry, images: RegistryImages):
    index = registry.push("nlp/train", "1.3", "second")

    found = asked(images, f"{registry.host}/nlp/train:1.3-amd64")

    assert isinstance(found, str)
    assert found.startswith(f"{registry.host}/nlp/train@sha256:")
    assert not found.endswith(index)


def test_a_tag_that_moved_stands_for_another_image(registry: Registry):
    digests = [registry.push("moving", "latest", about) for about in ("before", "after")]
    images = RegistryImages()

    assert asked(images, f"{registry.host}/moving") == f"{registry.host}/moving@{digests[1]}"
    assert digests[0] != digests[1]
    images.close()


def test_what_is_not_there_is_said(registry: Registry, images: RegistryImages):
    why = f"{registry.host} does not have it (404)"

    assert asked(images, f"{registry.host}/nlp/train:never") == Unresolved(why=why)
    assert asked(images, f"{registry.host}/never/pushed") == Unresolved(why=why)
