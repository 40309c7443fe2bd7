"""A real HTTP server in the place of an S3 server, which answers what a test says."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dledger_pipeline.object_store.store import Store
from dledger_pipeline.object_store.stored import Credentials

CREDENTIALS = Credentials(access_key_id="k", secret_access_key="s", session_token="t")  # noqa: S106


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer; a length is added to its headers, and *raw* is sent instead of all."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    raw: Iterator[bytes] | None = None


Rule = Callable[[Asked], Answered]


@dataclass(slots=True, kw_only=True)
class HostileServer:
    """A running server.

    Attributes:
        endpoint: Its address.
        rule: What it answers.
        asked: What came so far.
    """

    endpoint: str
    rule: Rule
    asked: list[Asked] = field(default_factory=list)

    def store(self, url: str = "s3://bucket/p") -> Store:
        """Open a store at this server."""
        return Store.open(url, self.endpoint, CREDENTIALS, allow_http=True)


@contextmanager
def hostile_server(
    rule: Rule = lambda _: Answered(), tls: ssl.SSLContext | None = None
) -> Iterator[HostileServer]:
    """Run a server on a free port until the block ends; with *tls* it speaks nothing else."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Say nothing."""

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(
                method=self.command,
                path=self.path,
                headers=headers,
                body=body,
                port=self.client_address[1],
            )
            made.asked.append(asked)
            answered = made.rule(asked)
            if answered.raw is not None:
                self.close_connection = True
                for piece in answered.raw:
                    self.wfile.write(piece)
                return
            self.send_response(answered.status)
            self.send_header("content-length", str(len(answered.body)))
            for name, value in answered.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answered.body)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815 - their names

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that give up are what is expected."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "https" if tls else "http"
    made = HostileServer(endpoint=f"{scheme}://127.0.0.1:{server.server_port}", rule=rule)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
