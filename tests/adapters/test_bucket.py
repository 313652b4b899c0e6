from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scheduler.adapters.kube.bucket import looked_at

ROOT = "s3://runs/gpujob"


class Storage:
    """An S3 server that answers everybody alike."""

    def __init__(self) -> None:
        self.status = 403
        self.asked: list[str] = []
        storage = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                storage.asked.append(self.path)
                self.send_response(storage.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def storage() -> Iterator[Storage]:
    storage = Storage()
    yield storage
    storage.stop()


@pytest.mark.parametrize("status", [200, 403])
def test_a_bucket_that_is_there_is_said_to_be_no_more_than_that(storage: Storage, status: int):
    storage.status = status

    ok, says = looked_at(ROOT, f"{storage.url}/", "")

    assert ok
    assert says == (
        f"{storage.url} has the bucket runs; only pods have its keys, so whether they may write is not tried"
    )
    assert storage.asked == ["/runs"]


@pytest.mark.parametrize(
    ("status", "words"), [(404, "has no bucket runs: make it, or change [storage] root"), (503, "answered 503")]
)
def test_a_bucket_that_cannot_be_used_says_what_to_do(storage: Storage, status: int, words: str):
    storage.status = status

    ok, says = looked_at(ROOT, storage.url, "eu-west-1")

    assert not ok
    assert says.startswith(storage.url)
    assert words in says


def test_storage_that_does_not_answer_is_named(storage: Storage):
    storage.stop()

    ok, says = looked_at(ROOT, storage.url, "")

    assert not ok
    assert says.startswith(f"{storage.url} cannot be reached from here (")
    assert says.endswith("; the pods of jobs must reach it for s3://runs/gpujob")


def test_an_endpoint_that_is_no_url_is_named():
    ok, says = looked_at(ROOT, "s3.example.com", "")

    assert not ok
    assert says.startswith("s3.example.com cannot be reached from here (")
