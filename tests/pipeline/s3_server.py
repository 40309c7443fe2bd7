"""A real S3 server, versitygw, over a directory of the test."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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

    def store(self, url: str) -> Store:
        """Open a store in this server."""
        return Store.open(url, self.endpoint, self.credentials, allow_http=True)


@contextmanager
def s3_server(directory: Path) -> Iterator[S3Server]:
    """Run a server on a free port until the block ends."""
    credentials = Credentials(access_key_id="test-key", secret_access_key=secrets.token_hex())
    port = _free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "ROOT_ACCESS_KEY": credentials.access_key_id,
        "ROOT_SECRET_KEY": credentials.secret_access_key,
    }
    command = [str(golang.provide(golang.VERSITYGW)), "--port", f"127.0.0.1:{port}", "--quiet"]
    server = subprocess.Popen([*command, "posix", str(directory)], env=environment)
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
