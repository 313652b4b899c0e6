"""A stand-in for a registry of images on the loopback: manifests by tag and digest, tokens, and faults on purpose.

It follows the OCI distribution spec, and Docker's token flow where `private` repositories ask for it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class FakeRegistry:
    """One registry. `asked` are the requests that it got, as `HEAD /v2/..`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.tokens_needed = False
        self.tokens_given = True  # False: nobody gets one without a login
        self.login = ""  # user:password; with it one gets a token
        self.basic = False  # the login itself is asked for, and no token
        self.realm = ""  # where tokens are given; "" = here
        self.tells_digest = True
        self.lies_about_digest = False
        self.takes_head = True
        self.status: int | None = None  # of every answer
        self.moved_to = ""  # host and port that every manifest is redirected to
        self.silent = threading.Event()  # set: no answer comes until `stop`
        self._manifests: dict[str, tuple[str, bytes]] = {}  # path -> media type, body
        self._tokens: set[tuple[str, str]] = set()  # token, scope
        self._stopped = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def push(self, name: str, tag: str, about: str = "", media_type: str = INDEX) -> str:
        """A manifest under a tag, as a push leaves it; its digest."""
        body = json.dumps({"schemaVersion": 2, "mediaType": media_type, "manifests": [], "annotations": {"a": about}})
        digest = f"sha256:{hashlib.sha256(body.encode()).hexdigest()}"
        for reference in (tag, digest):
            self._manifests[f"/v2/{name}/manifests/{reference}"] = (media_type, body.encode())
        return digest

    def answer(self, method: str, target: str, accept: str, proof: str) -> tuple[int, dict[str, str], bytes]:
        url = urlsplit(target)
        self.asked.append(f"{method} {url.path}")
        if self.silent.is_set():
            self._stopped.wait()
        if self.status is not None:
            return self.status, {}, b"{}"
        if url.path == "/token":
            return self._give_token(parse_qs(url.query), proof)
        if self.moved_to:
            return 307, {"Location": f"http://{self.moved_to}{target}"}, b""
        if method == "HEAD" and not self.takes_head:
            return 405, {}, b""
        scope = f"repository:{url.path.removeprefix('/v2/').partition('/manifests/')[0]}:pull"
        if self.basic and not self._knows(proof):
            return 401, {"WWW-Authenticate": 'Basic realm="registry"'}, b"{}"
        if self.tokens_needed and (proof.removeprefix("Bearer "), scope) not in self._tokens:
            realm = self.realm or f"http://{self.host}/token"
            challenge = f'Bearer realm="{realm}",service="registry",scope="{scope}"'
            return 401, {"WWW-Authenticate": challenge}, b'{"errors": [{"code": "UNAUTHORIZED"}]}'
        media_type, body = self._manifests.get(url.path, ("", b""))
        if media_type not in accept.split(", "):
            return 404, {}, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}'
        told = "0" * 64 if self.lies_about_digest else hashlib.sha256(body).hexdigest()
        headers = {"Docker-Content-Digest": f"sha256:{told}"} if self.tells_digest else {}
        return 200, {"Content-Type": media_type, **headers}, body

    def _knows(self, proof: str) -> bool:
        return bool(self.login) and proof == f"Basic {base64.b64encode(self.login.encode()).decode()}"

    def _give_token(self, query: dict[str, list[str]], proof: str) -> tuple[int, dict[str, str], bytes]:
        if not (self.tokens_given or self._knows(proof)) or query.get("service") != ["registry"]:
            return 401, {}, b"{}"
        token = secrets.token_hex(8)
        self._tokens.add((token, query["scope"][0]))
        return 200, {}, json.dumps({"token": token}).encode()


def _handler(registry: FakeRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            proof = self.headers.get("Authorization", "")
            status, headers, body = registry.answer(
                self.command, self.path, ", ".join(self.headers.get_all("Accept") or ()), proof
            )
            with suppress(ConnectionError):  # who asked has given up
                self._send(status, headers, body)

        def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    return Handler
