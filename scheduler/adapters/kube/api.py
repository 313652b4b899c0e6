"""Requests to the API server: auth, TLS and proxies from the official client, plain JSON in and out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config

from scheduler.errors import BadInput, Unavailable

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
JSON = "application/json"
_CONNECT_S = 5.0
_READ_S = 30.0


@dataclass
class Refused(Exception):
    """The API server said no: it was understood, and not carried out."""

    status: int  # HTTP
    reason: str  # NotFound, Conflict, Invalid, ..
    message: str
    causes: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        return f"the API server refused ({self.status} {self.reason}): {self.message}"


class Gone(Exception):
    """A watch from so old a version is not possible any more (410): list again."""


class Api:
    """One API server, as one user. Safe for many threads."""

    def __init__(self, configuration: client.Configuration, connections: int = 32) -> None:
        configuration.connection_pool_maxsize = connections
        configuration.retries = False
        self._configuration = configuration
        self._client = client.ApiClient(configuration)
        self._http: urllib3.PoolManager = self._client.rest_client.pool_manager
        self.host: str = configuration.host

    def get(self, path: str, **query: str | int) -> Any:
        """The object or list at a path.

        Raises:
            Refused: the answer was 4xx.
            Unavailable: no answer, or 5xx.
        """
        return self.call("GET", path, query=query)

    def create(self, path: str, body: Mapping[str, Any], **query: str | int) -> Any:
        """POST. Raises as `get`."""
        return self.call("POST", path, body, query=query)

    def patch(self, path: str, body: Mapping[str, Any], content: str = MERGE, **query: str | int) -> Any:
        """PATCH. Raises as `get`."""
        return self.call("PATCH", path, body, content, query=query)

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """DELETE. Raises as `get`."""
        return self.call("DELETE", path, body)

    def text(self, path: str, **query: str | int) -> str:
        """An answer that is no JSON: logs. Raises as `get`."""
        return self._request("GET", path, query=query).decode(errors="replace")

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content: str = JSON,
        query: Mapping[str, str | int] | None = None,
    ) -> Any:
        """One request, its answer decoded. Raises as `get`."""
        answer = self._request(method, path, body, content, query)
        try:
            found = json.loads(answer)
        except ValueError as error:
            raise Unavailable(f"{self.host} answered {method} {path} with something that is no JSON") from error
        if not isinstance(found, dict):
            raise Unavailable(f"{self.host} answered {method} {path} with something that is no object")
        return found

    def watch(self, path: str, version: str, timeout_s: int, silence_s: float, query: Mapping[str, str] = {}) -> Watch:
        """Events from `version` on, bookmarks too, until the server closes after `timeout_s`.

        Raises:
            Gone: `version` is too old; also while reading.
            Refused: the answer was another 4xx; also while reading.
            Unavailable: no answer, 5xx, or `silence_s` without a word; also while reading.
        """
        asked: dict[str, str | int] = {
            **query,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": timeout_s,
        }
        try:
            reply = self._open("GET", path, query=asked, read_s=silence_s)
            if reply.status >= 400:
                _raise(reply.status, reply.data)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"the watch of {path} broke: {error}") from error
        return Watch(path, reply)

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content: str = JSON,
        query: Mapping[str, str | int] | None = None,
    ) -> bytes:
        try:
            reply = self._open(method, path, body, content, query)
            data: bytes = reply.data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"{self.host} did not answer {method} {path}: {error}") from error
        if reply.status >= 400:
            try:
                _raise(reply.status, data)
            except Gone as error:
                raise Refused(410, "Gone", str(error)) from error
        return data

    def _open(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content: str = JSON,
        query: Mapping[str, str | int] | None = None,
        read_s: float = _READ_S,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"accept": JSON, "content-type": content, "user-agent": "gpujob"}
        # Refreshes a token that rotates. Where it is kept depends on how it was found.
        keys = self._configuration.get_api_key_with_prefix
        try:
            token = keys("BearerToken") or keys("authorization")
        except config.ConfigException as error:
            raise Unavailable(f"the token for {self.host} cannot be read: {error}") from error
        if token:
            headers["authorization"] = token
        return self._http.request(
            method,
            self.host + path + (f"?{urlencode(query)}" if query else ""),
            body=None if body is None else json.dumps(body).encode(),
            headers=headers,
            timeout=urllib3.Timeout(connect=_CONNECT_S, read=read_s),
            retries=False,
            preload_content=False,
        )


class Watch(Iterator[tuple[str, Any]]):
    """A watch that the server has accepted: what it says from then on, as (type, object)."""

    def __init__(self, path: str, reply: urllib3.BaseHTTPResponse) -> None:
        self._reply = reply
        self._events = _events(path, reply)

    def __next__(self) -> tuple[str, Any]:
        return next(self._events)

    def cut(self) -> None:
        """Wakes a thread that waits for the next event: it gets Unavailable. From any thread."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # it has ended by itself
            self._reply.shutdown()

    def close(self) -> None:
        """Ends the watch, between two events."""
        self._events.close()
        self._reply.close()


def connect(kubeconfig: str = "", context: str = "", connections: int = 32) -> Api:
    """The API server of a kubeconfig file; "" = the pod we run in, else the file that kubectl would take.

    Raises:
        BadInput: neither is there, or the file cannot be used.
    """
    if kubeconfig and not Path(kubeconfig).is_file():
        raise BadInput(f'[cluster] kubeconfig = "{kubeconfig}": there is no such file')
    configuration = client.Configuration()
    try:
        if kubeconfig:
            config.load_kube_config(kubeconfig, context or None, configuration)
        else:
            _load_default(configuration, context)
    except (config.ConfigException, OSError) as error:
        raise BadInput(
            f"[cluster] kubeconfig: no way to the API server ({str(error).rstrip('.')}). Run in the cluster, or name a "
            "kubeconfig file."
        ) from error
    return Api(configuration, connections)


def _load_default(configuration: client.Configuration, context: str) -> None:
    try:
        config.load_incluster_config(configuration)
    except config.ConfigException:
        config.load_kube_config(None, context or None, configuration)


def _events(path: str, reply: urllib3.BaseHTTPResponse) -> Generator[tuple[str, Any], None, None]:
    rest = b""
    try:
        for chunk in reply.stream(65536, decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in filter(None, lines):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    _raise(event["object"].get("code", 500), json.dumps(event["object"]).encode())
                yield event["type"], event["object"]
    except (urllib3.exceptions.HTTPError, OSError, ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"the watch of {path} broke: {error}") from error
    finally:
        reply.close()


def _raise(status: int, data: bytes) -> None:
    try:
        told = json.loads(data)
    except ValueError:
        told = {}
    told = told if isinstance(told, dict) else {}
    message = str(told.get("message") or data.decode(errors="replace")[:300])
    reason = str(told.get("reason") or "")
    if status == 410:
        raise Gone(message)
    if status >= 500 or status == 401:
        raise Unavailable(f"the API server answered {status}: {message}")
    causes = tuple(str(one.get("reason", "")) for one in (told.get("details") or {}).get("causes") or ())
    raise Refused(status, reason, message, causes)
