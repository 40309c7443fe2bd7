"""A real S3 server, versitygw, over a directory of the test."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from dledger_pipeline.object_store.store import Store
from dledger_pipeline.object_store.stored import Credentials
from e2e.cluster import golang


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A running server: where it is, who may ask it, and the directory that holds its buckets."""

    endpoint: str
    credentials: Credentials
    directory: Path

    def bucket(self, name: str) -> str:
        """Create a bucket; return its URL."""
        (self.directory / name).mkdir()
        return f"s3://{name}/backups"

    def hold(self, url: str, name: str) -> None:
        """Put an object of a store under a legal hold: nobody may delete it."""
        parts, status = urlsplit(url), b"<LegalHold><Status>ON</Status></LegalHold>"
        self.ask("PUT", f"/{parts.netloc}{parts.path}/{name}", "legal-hold=", status)

    def locking_bucket(self, name: str) -> str:
        """Create a bucket that knows locks; return its URL."""
        self.ask("PUT", f"/{name}", headers={"x-amz-bucket-object-lock-enabled": "true"})
        return f"s3://{name}/backups"

    def locked_bucket(self, name: str, days: int) -> str:
        """Create a bucket in which nothing can be deleted for so many days; return its URL."""
        url = self.locking_bucket(name)
        rule = f"<DefaultRetention><Mode>COMPLIANCE</Mode><Days>{days}</Days></DefaultRetention>"
        self.ask(
            "PUT",
            f"/{name}",
            "object-lock=",
            f'<ObjectLockConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule>{rule}</Rule>"
            f"</ObjectLockConfiguration>".encode(),
        )
        return url

    def ask(
        self,
        method: str,
        path: str,
        query: str = "",
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """Send a request that obstore has no call for, signed as Amazon describes (SigV4)."""
        host, now = urlsplit(self.endpoint).netloc, datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(body).hexdigest()
        sent = {
            "host": host,
            "x-amz-date": now,
            "x-amz-content-sha256": digest,
            "content-md5": base64.b64encode(
                hashlib.md5(body, usedforsecurity=False).digest()
            ).decode(),
            **(headers or {}),
        }
        names = ";".join(sorted(sent))
        lines = [f"{name}:{sent[name]}" for name in sorted(sent)]
        canonical = "\n".join([method, path, query, *lines, "", names, digest])
        scope = f"{now[:8]}/{self.credentials.region}/s3/aws4_request"
        hashed = hashlib.sha256(canonical.encode()).hexdigest()
        key = f"AWS4{self.credentials.secret_access_key}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashed}"
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        credential = f"Credential={self.credentials.access_key_id}/{scope}"
        sent["authorization"] = (
            f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}"
        )
        connection = http.client.HTTPConnection(host, timeout=30)
        try:
            connection.request(method, f"{path}?{query}", body, sent)
            answer = connection.getresponse()
            found = answer.read()
        finally:
            connection.close()
        assert answer.status in (200, 204), found
        return found

    def store(self, url: str) -> Store:
        """Open a store in this server."""
        return Store.open(url, self.endpoint, self.credentials, allow_http=True)


@contextmanager
def s3_server(directory: Path, *, versions: Path | None = None) -> Iterator[S3Server]:
    """Run a server on a free port until the block ends; buckets have versions if it has a place.

    With versions a bucket under object lock hides what is deleted, as Amazon's do; without, it
    refuses to delete it.
    """
    credentials = Credentials(access_key_id="test-key", secret_access_key=secrets.token_hex())
    port = _free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "ROOT_ACCESS_KEY": credentials.access_key_id,
        "ROOT_SECRET_KEY": credentials.secret_access_key,
    }
    command = [str(golang.provide(golang.VERSITYGW)), "--port", f"127.0.0.1:{port}", "--quiet"]
    options = ["--versioning-dir", str(versions)] if versions else []
    server = subprocess.Popen([*command, "posix", *options, str(directory)], env=environment)
    try:
        _wait_until_it_listens(port, server)
        endpoint = f"http://127.0.0.1:{port}"
        yield S3Server(endpoint=endpoint, credentials=credentials, directory=directory)
    finally:
        server.terminate()
        server.wait(10)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _wait_until_it_listens(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(f"versitygw does not listen on {port}; it exited with {server.poll()}")
