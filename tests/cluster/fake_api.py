"""An API server of Kubernetes in this process: real HTTP, the rules of the real one, and faults on demand (T2).

with FakeApi() as fake:
    api = Api(fake.configuration("gpujob"))
    fake.create("nodes", {...})          # direct access, the same rules
    fake.go_silent()                     # nothing is answered or sent until speak()
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import urllib.request
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qsl, urlsplit

from kubernetes import client

from scheduler.adapters.kube.api import Api
from tests.cluster.fake_store import KINDS, OPTIONAL, STRATEGIC, Event, FakeStore, Kind, Problem, Raw, stamp
from tests.cluster.selectors import selects

_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?$"
)
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_SUBS = frozenset({"status", "eviction", "log", "scale", "binding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, understood."""

    user: str
    verb: str  # get, list, watch, create, ..
    resource: str
    sub: str
    namespace: str
    name: str
    query: Mapping[str, str]
    body: Any
    content: str

    @property
    def right(self) -> str:
        """The resource as a Role names it: pods/status."""
        return f"{self.resource}/{self.sub}" if self.sub else self.resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of a Role; `namespace` None = everywhere."""

    namespace: str | None
    groups: frozenset[str]
    resources: frozenset[str]  # pods, pods/status, ..
    verbs: frozenset[str]


@dataclass
class Refusal:
    """A fault: the next `times` requests that match are refused."""

    method: str
    path: re.Pattern[str]
    status: int
    times: int


class FakeApi(FakeStore):
    """The server. `requests` holds (user, method, path), `used` the rights that were used: (user, verb, resource)."""

    def __init__(self, crds: Iterable[str] = (), seed: int = 0, argo: bool = True) -> None:
        kinds: dict[str, Kind] = {name: k for name, k in KINDS.items() if argo or k.group != "argoproj.io"}
        super().__init__(kinds | {name: OPTIONAL[name] for name in crds}, seed)
        self.requests: list[tuple[str, str, str]] = []
        self.used: set[tuple[str, str, str]] = set()
        self.errors: list[BaseException] = []  # of handler threads: bugs
        self.latency_s = 0.0
        self.bookmark_s = 1.0
        self.list_versions: dict[str, list[Raw]] = {}  # continue token -> what is left
        self.stopped = threading.Event()
        self._speaks = threading.Event()
        self._speaks.set()
        self._cut = 0  # how often running watches were cut
        self._refusals: list[Refusal] = []
        self._rules: dict[str, list[Rule]] = {}
        self._sockets: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self._clients: list[Api] = []

    # life

    def start(self) -> Self:
        fake = self

        class Handler(_Handler):
            api: FakeApi = fake

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                fake.handler_failed()

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="fake-api").start()
        return self

    def stop(self) -> None:
        self.stopped.set()
        self._speaks.set()
        with self.changed:
            self.changed.notify_all()
        if self._server is not None:
            self._server.shutdown()
            self.drop_connections()
            self._server.server_close()
            self._server = None
        for one in self._clients:
            one._http.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def host(self) -> str:
        assert self._server is not None, "start() it first"
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def configuration(self, user: str = "gpujob") -> client.Configuration:
        """For `scheduler.adapters.kube.api.Api`, or any other client."""
        configuration = client.Configuration()
        configuration.host = self.host
        configuration.api_key = {"BearerToken": f"{user}-token"}
        configuration.api_key_prefix = {"BearerToken": "Bearer"}
        return configuration

    def api(self, user: str = "gpujob") -> Api:
        """Our own client; its connections are closed with the server."""
        self._clients.append(Api(self.configuration(user)))
        return self._clients[-1]

    def kubeconfig(self, folder: Path, user: str = "gpujob", namespace: str = "gpujobs") -> Path:
        """A kubeconfig file for another process."""
        path = folder / f"{user}.kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
            "clusters": [{"name": "c", "cluster": {"server": self.host}}],
            "users": [{"name": "u", "user": {"token": f"{user}-token"}}],
        }
        path.write_text(json.dumps(config))
        return path

    # rights

    def grant(self, user: str, rules: Collection[Raw], namespace: str | None = None) -> None:
        """From now on the user may only what it was granted. `rules` are those of a Role, or of a ClusterRole."""
        for one in rules:
            rule = Rule(
                namespace=namespace,
                groups=frozenset(one["apiGroups"]),
                resources=frozenset(one["resources"]),
                verbs=frozenset(one["verbs"]),
            )
            self._rules.setdefault(user, []).append(rule)

    def revoke(self, user: str, verb: str, resource: str) -> None:
        """Takes one verb away."""
        self._rules[user] = [
            replace(one, verbs=one.verbs - {verb}) if resource in one.resources else one
            for one in self._rules.get(user, [])
        ]

    def may(self, call: Call) -> bool:
        rules, group = self._rules.get(call.user), self.kinds[call.resource].group
        # A Namespace belongs to itself.
        where = call.name if call.resource == "namespaces" else call.namespace
        return rules is None or any(
            one.namespace in (None, where)
            and one.groups & {group, "*"}
            and one.resources & {call.right, "*"}
            and one.verbs & {call.verb, "*"}
            for one in rules
        )

    # faults

    def go_silent(self) -> None:
        """Connections stay open; nothing is answered, nothing is sent."""
        self._speaks.clear()

    def speak(self) -> None:
        self._speaks.set()
        with self.changed:
            self.changed.notify_all()

    def refuse(self, method: str, path: str, status: int, times: int = 1) -> None:
        """The next `times` requests that match (regular expressions) are refused. 0 = connections are cut."""
        self._refusals.append(Refusal(method, re.compile(path), status, times))

    def drop_connections(self) -> None:
        """All connections end now, as when a load balancer is restarted."""
        for one in list(self._sockets):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def compact(self, running: bool = False) -> None:
        """Watches and continue tokens from before now are Gone (410); `running` ones too."""
        with self.lock:
            super().compact()
            self.list_versions.clear()
            self._cut += running
            self.changed.notify_all()

    # for the handler

    def handler_failed(self) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, (ConnectionError, TimeoutError, ValueError)):
            self.errors.append(error)

    def hold(self) -> None:
        """Waits while the server is silent, and for the latency."""
        while not self._speaks.wait(1.0):
            pass
        if self.latency_s:
            self.stopped.wait(self.latency_s)

    def refusal(self, method: str, path: str) -> int | None:
        with self.lock:
            for one in self._refusals:
                if one.times > 0 and re.fullmatch(one.method, method) and one.path.search(path):
                    one.times -= 1
                    return one.status
        return None

    def do(self, call: Call) -> Any:
        """Everything but watches and logs. Raises Problem."""
        where = (call.resource, call.namespace, call.name)
        dry = "dryRun" in call.query
        match call.verb, call.sub:
            case "get", "scale":
                return _scale(self.get(*where))
            case "patch" | "update", "scale":
                return self._rescale(where, call.body)
            case "get", _:
                return self.get(*where)
            case "list", _:
                return self._list(call)
            case "create", "eviction":
                self.evict(call.namespace, call.name, call.body.get("deleteOptions") or {})
                return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
            case "create", "binding":
                self.bind(call.namespace, call.name, call.body["target"]["name"])
                return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
            case "create", "":
                return self.create(call.resource, call.body, call.namespace, dry)
            case "patch", "" | "status":
                return self.patch(*where, call.body, call.content, call.sub, dry)
            case "update", "" | "status":
                return self.replace(*where, call.body, call.sub, dry)
            case "delete", "":
                return self._delete(call)
        raise Problem(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _delete(self, call: Call) -> Any:
        options = dict(call.body or {})
        if "gracePeriodSeconds" in call.query:
            options.setdefault("gracePeriodSeconds", int(call.query["gracePeriodSeconds"]))
        if not call.name:
            raise Problem(405, "MethodNotAllowed", "deleting a whole collection is not played here")
        gone = self.delete(call.resource, call.namespace, call.name, options)
        return gone if call.resource == "pods" else {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _list(self, call: Call) -> Any:
        limit, token = int(call.query.get("limit") or 0), call.query.get("continue", "")
        with self.lock:
            version = token.partition("/")[0] or str(self.version)
            if token and token not in self.list_versions:
                raise Problem(410, "Expired", "The provided continue parameter is too old to display a consistent list")
            found = (
                self.list_versions.pop(token)
                if token
                else [
                    one for one in self.items(call.resource, call.namespace) if selects(call.query, call.resource, one)
                ]
            )
            page, left = (found[:limit], found[limit:]) if limit else (found, [])
            meta: dict[str, Any] = {"resourceVersion": version}
            if left:
                meta |= {"continue": f"{version}/{len(self.requests)}", "remainingItemCount": len(left)}
                self.list_versions[meta["continue"]] = left
        kind = self.kinds[call.resource]
        items = [_bare(one) for one in page]
        return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": meta, "items": items}

    def _rescale(self, where: tuple[str, str, str], body: Raw) -> Any:
        with self.lock:
            old = self.get(*where)
            told = (body.get("metadata") or {}).get("resourceVersion")
            patch: dict[str, Any] = {"spec": {"replicas": body["spec"]["replicas"]}}
            if told:
                patch["metadata"] = {"resourceVersion": told}
            content = "application/merge-patch+json" if self.kinds[where[0]].custom else STRATEGIC
            return _scale(self.patch(where[0], old["metadata"]["namespace"], where[2], patch, content))

    # watches

    def watch_from(self, call: Call) -> tuple[int, list[Raw]]:
        """Where a watch begins, and what it is told first. Raises Problem 410."""
        asked = call.query.get("resourceVersion", "")
        with self.lock:
            if asked in ("", "0"):
                found = self.items(call.resource, call.namespace)
                return self.version, [one for one in found if selects(call.query, call.resource, one)]
            if int(asked) < self.compacted:
                raise Problem(410, "Expired", f"too old resource version: {asked} ({self.compacted})")
            return int(asked), []

    def next_events(self, after: int, cut: int, timeout_s: float) -> tuple[int, list[Event]]:
        """Events after a version, waiting for the first. Raises Problem 410 once it was compacted away."""
        with self.changed:
            if self.version <= after and not self.stopped.is_set() and cut == self._cut:
                self.changed.wait(timeout_s)
            if cut != self._cut:
                raise Problem(410, "Expired", "too old resource version")
            at = len(self.log)
            while at and self.log[at - 1].version > after:
                at -= 1
            return max(after, self.version), self.log[at:]

    @property
    def cuts(self) -> int:
        return self._cut


class _Handler(BaseHTTPRequestHandler):
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
        split = urlsplit(self.path)
        if split.path in ("/readyz", "/healthz", "/livez", "/version"):
            return None
        call = self._understood(user, split.path, dict(parse_qsl(split.query, keep_blank_values=True)), body)
        self.api.used.add((user, call.verb, call.right))
        if not self.api.may(call):
            group = self.api.kinds[call.resource].group
            raise Problem(
                403,
                "Forbidden",
                f'{call.resource} is forbidden: User "{user}" cannot {call.verb} resource "{call.right}" '
                f'in API group "{group}" in the namespace "{call.namespace}"',
            )
        return call

    def _understood(self, user: str, path: str, query: dict[str, str], body: bytes) -> Call:
        found = _PATH.fullmatch(path)
        kind = self.api.kinds.get(found["resource"]) if found else None
        asked = (found["group"] or "", found["version"] or found["core"]) if found else ("", "")
        sub = (found["sub"] or "") if found else ""
        if found is None or kind is None or (kind.group, kind.version) != asked or (sub and sub not in _SUBS):
            raise Problem(404, "NotFound", "the server could not find the requested resource")
        verb = _VERBS.get(self.command, "")
        if self.command == "GET":
            watch = query.get("watch") in ("true", "1")
            verb = "get" if found["name"] else ("watch" if watch else "list")
        try:
            decoded = json.loads(body) if body else None
        except ValueError as error:
            raise Problem(400, "BadRequest", f"the body is no JSON: {error}") from error
        return Call(
            user=user,
            verb=verb,
            resource=found["resource"],
            sub=sub,
            namespace=found["namespace"] or "",
            name=found["name"] or "",
            query=query,
            body=decoded,
            content=self.headers.get("content-type", "").partition(";")[0],
        )

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
                kind = _kind_for(call, event)
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


def _kind_for(call: Call, event: Event) -> str:
    """How this watch is told of an event; "" = not at all."""
    if event.resource != call.resource or call.namespace not in ("", event.new["metadata"].get("namespace", "")):
        return ""
    is_one = event.type != "DELETED" and selects(call.query, call.resource, event.new)
    was_one = event.old is not None and selects(call.query, call.resource, event.old)
    if is_one:
        return "MODIFIED" if was_one else "ADDED"
    return "DELETED" if was_one else ""


def _bare(item: Raw) -> Raw:
    """Items of a list do not say their kind, except custom ones; ours never do."""
    return {key: value for key, value in item.items() if key not in ("kind", "apiVersion")}


def _scale(found: Raw) -> Raw:
    meta = {key: found["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    labels = (found["spec"].get("selector") or {}).get("matchLabels") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": meta | {"creationTimestamp": found["metadata"].get("creationTimestamp", stamp())},
        "spec": {"replicas": found["spec"].get("replicas", 1)},
        "status": {
            "replicas": (found.get("status") or {}).get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in labels.items()),
        },
    }
