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
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from kubernetes import client

from scheduler.adapters.kube.api import Api
from tests.cluster.fake_calls import Call, Rights
from tests.cluster.fake_http import Handler
from tests.cluster.fake_store import KINDS, OPTIONAL, STRATEGIC, Event, FakeStore, Kind, Problem, Raw, stamp
from tests.cluster.selectors import selects


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
        self.rights = Rights(self.kinds)
        self._sockets: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self._clients: list[Api] = []

    # life

    def start(self) -> Self:
        fake = self

        class Bound(Handler):
            api: FakeApi = fake

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                fake.handler_failed()

        self._server = Server(("127.0.0.1", 0), Bound)
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

    def grant(self, user: str, rules: Collection[Raw], namespace: str | None = None) -> None:
        """From now on the user may only what it was granted. `rules` are those of a Role, or of a ClusterRole."""
        self.rights.grant(user, rules, namespace)

    def revoke(self, user: str, verb: str, resource: str) -> None:
        """Takes one verb away."""
        self.rights.revoke(user, verb, resource)

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
