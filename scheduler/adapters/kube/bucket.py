"""The object storage of jobs, looked at from outside: gpujob has no key to it, only the pods of jobs do."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx

_TIMEOUT_S = 3.0
_AMAZON = "https://s3.{region}.amazonaws.com"
_THERE = frozenset({200, 301, 307, 401, 403})  # 301: in another region, which clients follow


def looked_at(root: str, endpoint: str, region: str) -> tuple[bool, str]:
    """Whether the bucket of `s3://bucket/prefix` is there, as far as anybody can see without a key; and a sentence.

    Args:
        root: of the settings.
        endpoint: URL of an S3 that is not Amazon's, or "".
        region: of the bucket; "" = us-east-1.
    """
    bucket = urlsplit(root).netloc
    server = (endpoint or _AMAZON.format(region=region or "us-east-1")).rstrip("/")
    try:
        answer = httpx.head(f"{server}/{bucket}", timeout=_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = "no answer in time" if isinstance(error, httpx.TimeoutException) else str(error) or type(error).__name__
        return False, f"{server} cannot be reached from here ({why}); the pods of jobs must reach it for {root}"
    if answer.status_code in _THERE:
        return (
            True,
            f"{server} has the bucket {bucket}; only pods have its keys, so whether they may write is not tried",
        )
    if answer.status_code == httpx.codes.NOT_FOUND:
        return False, f"{server} has no bucket {bucket}: make it, or change [storage] root"
    return False, f"{server} answered {answer.status_code} to a question about the bucket {bucket}"
