"""One question to a registry: which digest a tag stands for (OCI distribution spec, Docker's token flow)."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Collection, Mapping
from urllib.parse import urlsplit

import httpx

from scheduler.adapters.images.reference import Reference
from scheduler.errors import Unavailable

MOST_BYTES = 4 * 1024 * 1024  # of a manifest, as registries bound it
# The index of all platforms first: its digest is right on every node.
_ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_CHALLENGE = re.compile(r'([A-Za-z]+)="((?:[^"\\]|\\.)*)"')
_SAYS = {
    httpx.codes.FORBIDDEN: "does not let gpujob read it",
    httpx.codes.NOT_FOUND: "does not have it",
    httpx.codes.TOO_MANY_REQUESTS: "takes no more questions for now",
}
Headers = Mapping[str, str]


class Registry:
    """Any registry. Safe for many threads."""

    def __init__(
        self,
        plain_http: Collection[str],
        timeout_s: float,
        seconds: Callable[[], float],
        logins: Callable[[], Mapping[str, str]],
    ) -> None:
        self._plain_http = frozenset(plain_http)
        self._timeout_s = timeout_s
        self._seconds = seconds  # a clock that only goes forward
        self._logins = logins  # read anew for each question: they change while we run
        self._client = httpx.Client(follow_redirects=True, max_redirects=5, headers={"User-Agent": "gpujob"})

    def digest(self, image: Reference) -> str:
        """`sha256:..` of what the tag stands for now.

        Raises:
            Unavailable: there is none to be had; the words go on after the name of the image.
        """
        until = self._seconds() + self._timeout_s
        scheme = "http" if self._is_plain(image.host) else "https"
        url = f"{scheme}://{image.api_host}/v2/{image.repository}/manifests/{image.tag}"
        try:
            return self._asked(image, url, until)
        except httpx.TimeoutException as error:
            raise Unavailable(f"{image.host} did not answer within {self._timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(f"{image.host} cannot be reached: {error or type(error).__name__}") from error

    def close(self) -> None:
        """Give back connections."""
        self._client.close()

    def _asked(self, image: Reference, url: str, until: float) -> str:
        headers: Headers = {"Accept": _ACCEPT}
        head = self._client.head(url, headers=headers, timeout=self._left(until))
        if head.status_code == httpx.codes.UNAUTHORIZED:
            login = self._logins().get(image.host, "")
            headers = {**headers, "Authorization": self._authorization(image, head, login, until)}
            head = self._client.head(url, headers=headers, timeout=self._left(until))
            if head.status_code == httpx.codes.UNAUTHORIZED:
                raise Unavailable(_locked(image, login))
        if head.status_code == httpx.codes.OK and _DIGEST.fullmatch(told := _told(head)):
            return told
        # Not every registry answers HEAD, and a few leave the header out.
        if head.is_success or head.status_code in {httpx.codes.METHOD_NOT_ALLOWED, httpx.codes.NOT_IMPLEMENTED}:
            return self._counted(image, url, headers, until)
        raise Unavailable(f"{image.host} {_refusal(head.status_code)}")

    def _counted(self, image: Reference, url: str, headers: Headers, until: float) -> str:
        """The digest of the manifest itself, which is its sha256."""
        body = bytearray()
        with self._client.stream("GET", url, headers=headers, timeout=self._left(until)) as answer:
            if answer.status_code != httpx.codes.OK:
                raise Unavailable(f"{image.host} {_refusal(answer.status_code)}")
            for piece in answer.iter_bytes():
                body += piece
                if len(body) > MOST_BYTES:
                    raise Unavailable(f"{image.host} sent a manifest of more than {MOST_BYTES // 1024} KiB")
                self._left(until)
            told = _told(answer)
        counted = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if told.startswith("sha256:") and told != counted:
            raise Unavailable(f"{image.host} sent a manifest that is not the one its digest names")
        return told if _DIGEST.fullmatch(told) else counted

    def _authorization(self, image: Reference, refused: httpx.Response, login: str, until: float) -> str:
        """What the registry asks for: a token that somebody else gives, or the login itself."""
        scheme, _, rest = refused.headers.get("WWW-Authenticate", "").partition(" ")
        challenge = {key.lower(): value for key, value in _CHALLENGE.findall(rest)}
        realm = urlsplit(challenge.get("realm", ""))
        if scheme.lower() == "basic" and login:
            return f"Basic {login}"
        if scheme.lower() != "bearer" or not realm.hostname:
            raise Unavailable(_locked(image, login))
        if realm.scheme != "https" and not (realm.scheme == "http" and self._is_plain(realm.netloc)):
            raise Unavailable(f"{image.host} sends gpujob to {realm.netloc} for a token, and not over https")
        asks = {"scope": challenge.get("scope") or f"repository:{image.repository}:pull"}
        if "service" in challenge:
            asks["service"] = challenge["service"]
        proof = {"Authorization": f"Basic {login}"} if login else {}
        answer = self._client.get(challenge["realm"], params=asks, headers=proof, timeout=self._left(until))
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise Unavailable(_locked(image, login))
        if answer.status_code != httpx.codes.OK:
            raise Unavailable(f"{image.host} {_refusal(answer.status_code)}")
        return f"Bearer {_token(image, answer)}"

    def _left(self, until: float) -> float:
        left = until - self._seconds()
        if left <= 0:
            raise httpx.PoolTimeout("the time of the whole question is used up")
        return left

    def _is_plain(self, host: str) -> bool:
        return host in self._plain_http or _is_loopback(host)


def _token(image: Reference, answer: httpx.Response) -> str:
    try:
        given = answer.json()
        token = given.get("token") or given["access_token"]
    except (ValueError, KeyError, AttributeError) as error:
        raise Unavailable(f"{image.host} gave no token") from error
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise Unavailable(f"{image.host} gave a token that is none")
    return token


def _locked(image: Reference, login: str) -> str:
    what = "does not take the login that gpujob has" if login else "asks for a login, and gpujob has none"
    return f"{image.host} {what} (401)"


def _told(answer: httpx.Response) -> str:
    told: str = answer.headers.get("Docker-Content-Digest", "")
    return told


def _refusal(status: int) -> str:
    return f"{_SAYS.get(httpx.codes(status), 'failed')} ({status})" if status in set(httpx.codes) else f"said {status}"


def _is_loopback(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
