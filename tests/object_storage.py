"""Real S3 servers on the loopback, and what programs need to know of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import boto3
import obstore
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from obstore.store import S3Store

BUCKET = "runs"
REGION = "us-east-1"
KEY, SECRET = "gpujob-key", "gpujob-secret"
_PATIENCE_S = 20.0


class ObjectStorage:
    """One S3 server with an empty bucket."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.root = f"s3://{BUCKET}/gpujob"

    @property
    def environment(self) -> Mapping[str, str]:
        """As the pods of jobs get it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def folder(self, url: str) -> S3Store:
        """The objects beneath a URL."""
        return S3Store.from_url(
            url,
            endpoint=self.endpoint,
            region=REGION,
            access_key_id=KEY,
            secret_access_key=SECRET,
            client_options={"allow_http": True},
        )

    def read(self, url: str) -> bytes:
        where, _, name = url.rpartition("/")
        return bytes(obstore.get(self.folder(where), name).bytes())

    def write(self, url: str, content: bytes) -> None:
        where, _, name = url.rpartition("/")
        obstore.put(self.folder(where), name, content)

    def names(self, url: str) -> list[str]:
        """Of all objects beneath a URL."""
        return sorted(found["path"] for found in obstore.list(self.folder(url)).collect())


@contextmanager
def weed(program: Path) -> Iterator[ObjectStorage]:
    """SeaweedFS: all its parts in one process."""
    with tempfile.TemporaryDirectory(prefix="weed-") as name:
        folder = Path(name)
        who = {"accessKey": KEY, "secretKey": SECRET}
        identity = {"name": "jobs", "credentials": [who], "actions": ["Admin", "Read", "Write", "List"]}
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        ports = {part: _free_port() for part in ("master", "volume", "filer", "s3")}
        hidden = [f"-{part}.port.grpc={_free_port()}" for part in ports]
        words = [
            *(str(program), "server", "-filer", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}"),
            *(f"-{part}.port={port}" for part, port in ports.items()),
            *(*hidden, f"-s3.config={folder / 's3.json'}", "-volume.max=5", "-master.volumeSizeLimitMB=64"),
            *("-s3.port.iceberg=0", "-master.telemetry=false"),
        ]
        with _running(words, folder):
            yield _with_bucket(ObjectStorage(f"http://127.0.0.1:{ports['s3']}"))


@contextmanager
def moto() -> Iterator[ObjectStorage]:
    """Moto's server; it answers to any key."""
    port = _free_port()
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(words, Path(tempfile.gettempdir())):
        yield _with_bucket(ObjectStorage(f"http://127.0.0.1:{port}"))


@contextmanager
def _running(words: Sequence[str], folder: Path) -> Iterator[None]:
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()  # nothing of it is kept
        process.wait()


def _with_bucket(storage: ObjectStorage) -> ObjectStorage:
    client = boto3.client(
        "s3",
        endpoint_url=storage.endpoint,
        region_name=REGION,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        config=Config(retries={"total_max_attempts": 1}),
    )
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            client.create_bucket(Bucket=BUCKET)
        except (BotoCoreError, ClientError):
            if time.monotonic() > until:
                raise
            threading.Event().wait(0.1)
        else:
            client.close()
            return storage


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
        return port
