"""Answers that no API server gives, but a proxy before it may; and a token that cannot be read for a moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client, config

from scheduler.adapters.kube import objects
from scheduler.adapters.kube.api import Api
from scheduler.adapters.kube.mirror import Mirror
from scheduler.adapters.kube.objects import Pod
from scheduler.errors import Unavailable
from tests.cluster.waiting import until

LIST = b'{"metadata":{"resourceVersion":"5"},"items":[]}'
BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"6"}}}\n'


class Proxy(ThreadingHTTPServer):
    """Says what it is told to say."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lists, self.watches = LIST, BOOKMARK

    def configuration(self) -> client.Configuration:
        found = client.Configuration()
        found.host = f"http://127.0.0.1:{self.server_port}"
        return found


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        assert isinstance(self.server, Proxy)
        body = self.server.watches if "watch=true" in self.path else self.server.lists
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join()


@contextmanager
def following(configuration: client.Configuration) -> Iterator[Mirror[Pod]]:
    mirror = Mirror(Api(configuration), "/api/v1/pods", objects.pod, "pods", pauses_s=(0.01, 0.02))
    mirror.start()
    try:
        yield mirror
    finally:
        mirror.stop()


@pytest.mark.parametrize("answer", [b"null", b"[]", b"{}", b'{"metadata":{}}', b'{"metadata":{"resourceVersion":"x"}}'])
def test_a_list_that_is_none_is_trouble_and_is_asked_for_again(proxy: Proxy, answer: bytes):
    proxy.lists = answer
    with following(proxy.configuration()) as mirror:
        until(lambda: mirror.trouble)
        assert not mirror.synced

        proxy.lists = LIST
        until(lambda: mirror.synced and not mirror.trouble)


@pytest.mark.parametrize(
    "answer",
    [b'{"kind":"Status"}\n', b"7\n", b'{"type":"BOOKMARK","object":{}}\n', b'{"type":"ADDED","object":null}\n'],
)
def test_an_event_that_is_none_is_trouble_and_the_watch_is_opened_again(proxy: Proxy, answer: bytes):
    proxy.watches = answer
    with following(proxy.configuration()) as mirror:
        until(lambda: mirror.trouble)

        proxy.watches = BOOKMARK
        until(lambda: mirror.synced and not mirror.trouble)


def test_a_token_that_cannot_be_read_is_trouble_until_it_can(proxy: Proxy):
    lost = threading.Event()
    lost.set()

    def refresh(_: client.Configuration) -> None:
        if lost.is_set():
            raise config.ConfigException("Token file exists but empty.")

    configuration = proxy.configuration()
    configuration.api_key, configuration.refresh_api_key_hook = {"authorization": "Bearer x"}, refresh
    with pytest.raises(Unavailable, match=r"the token for http://\S+ cannot be read: Token file exists but empty"):
        Api(configuration).get("/api/v1/pods")
    with following(configuration) as mirror:
        until(lambda: mirror.trouble)

        lost.clear()
        until(lambda: mirror.synced and not mirror.trouble)
