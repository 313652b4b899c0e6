"""HTTP/1.1 of the fake API server: answers, chunked watches with bookmarks, logs from the kubelet."""

from __future__ import annotations

import json
import urllib.request
from http.server import BaseHTTPRequestHandler
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from tests.cluster.fake_calls import Call, kind_for, understood
from tests.cluster.fake_store import Problem

if TYPE_CHECKING:
    from tests.cluster.fake_api import FakeApi


class Handler(BaseHTTPRequestHandler):
    api: FakeApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65536

    def setup(self) -> None:
        super().setup()
        self.api._sockets.add(self.connection)

    def finish(self) -> None:
        self.api._sockets.discard(self.connection)
        super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else b""
        user = self.headers.get("authorization", "").removeprefix("Bearer ").removesuffix("-token")
        self.api.requests.append((user, self.command, self.path))
        self.api.hold()
        refused = self.api.refusal(self.command, self.path)
        if refused == 0:
            self.close_connection = True
            return
        try:
            self._do(self._allowed(user, body, refused))
        except Problem as problem:
            self._answer(problem.code, json.dumps(problem.status()).encode())

    def _do(self, call: Call | None) -> None:
        if call is None:
            self._answer(200, b'{"major": "1", "minor": "34", "gitVersion": "v1.34.4"}')
        elif call.verb == "watch":
            self._watch(call)
        elif call.sub == "log":
            self._log(call)
        else:
            data = json.dumps(self.api.do(call)).encode()
            self._answer(201 if call.verb == "create" else 200, data)

    def _allowed(self, user: str, body: bytes, refused: int | None) -> Call | None:
        """The request, once nothing speaks against it; None = one that is about no resource."""
        if refused is not None:
            raise Problem(refused, "Fault", f"refused on purpose with {refused}")
        if not user:
            raise Problem(401, "Unauthorized", "Unauthorized")
        if urlsplit(self.path).path in ("/readyz", "/healthz", "/livez", "/version"):
            return None
        content = self.headers.get("content-type", "").partition(";")[0]
        call = understood(self.api.kinds, user, self.command, self.path, content, body)
        self.api.used.add((user, call.verb, call.right))
        if not self.api.rights.may(call):
            group = self.api.kinds[call.resource].group
            raise Problem(
                403,
                "Forbidden",
                f'{call.resource} is forbidden: User "{user}" cannot {call.verb} resource "{call.right}" '
                f'in API group "{group}" in the namespace "{call.namespace}"',
            )
        return call

    def _answer(self, status: int, data: bytes, content: str = "application/json") -> None:
        self.send_response_only(status)
        self.send_header("content-type", content)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _watch(self, call: Call) -> None:
        version, first = self.api.watch_from(call)
        cut = self.api.cuts
        self.send_response_only(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for one in first:
            self._line({"type": "ADDED", "object": one})
        self.wfile.flush()
        end = _Timer(float(call.query.get("timeoutSeconds") or 300))
        bookmark = _Timer(self.api.bookmark_s)
        while not self.api.stopped.is_set() and not end.over:
            try:
                version, events = self.api.next_events(version, cut, min(end.left, bookmark.left))
            except Problem as problem:
                self.api.hold()
                self._line({"type": "ERROR", "object": problem.status()})
                break
            self.api.hold()
            for event in events:
                kind = kind_for(call, event)
                if kind:
                    self._chunk(b'{"type":"' + kind.encode() + b'","object":' + event.data + b"}\n")
            if bookmark.over and call.query.get("allowWatchBookmarks") == "true":
                bookmark = _Timer(self.api.bookmark_s)
                known = self.api.kinds[call.resource]
                meta = {"resourceVersion": str(version)}
                mark = {"kind": known.kind, "apiVersion": known.api_version, "metadata": meta}
                self._line({"type": "BOOKMARK", "object": mark})
            elif bookmark.over:
                bookmark = _Timer(self.api.bookmark_s)
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _line(self, told: Any) -> None:
        self._chunk(json.dumps(told).encode() + b"\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _log(self, call: Call) -> None:
        """The API server asks the kubelet of the pod's node, and hands its answer on."""
        pod = self.api.get("pods", call.namespace, call.name)
        node = pod["spec"].get("nodeName")
        names = [one["name"] for one in pod["spec"]["containers"]]
        container = call.query.get("container") or names[0]
        if container not in names:
            raise Problem(400, "BadRequest", f"container {container} is not valid for pod {call.name}")
        if not node:
            raise Problem(400, "BadRequest", f"pod {call.name} does not have a host assigned")
        told = self.api.get("nodes", "", node).get("status", {})
        port = ((told.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
        address = next((one["address"] for one in told.get("addresses") or () if one["type"] == "InternalIP"), "")
        query = "&".join(f"{key}={value}" for key, value in call.query.items() if key != "container")
        url = f"http://{address}:{port}/containerLogs/{call.namespace}/{call.name}/{container}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                self._answer(200, reply.read(), "text/plain")
        except HTTPError as error:
            error.close()
            raise Problem(error.code, "BadRequest", f"the kubelet of {node} answered {error.code}") from error
        except (URLError, OSError) as error:
            raise Problem(500, "InternalError", f"dial tcp {address}:{port}: {error}") from error


class _Timer:
    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.001, self._end - monotonic())

    @property
    def over(self) -> bool:
        return monotonic() >= self._end
