"""``/livez``, ``/readyz`` and ``/metrics`` of a process, served by threads.

Threads, so that the probes still answer, and can report a failure, when the event loop is stalled.
Anyone who reaches the port can use it, so its cost is bounded: each connection gets one request and
a few seconds for it, few connections are open at once, and metrics are rendered at most once a
second. Used by the node and the operator.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    disable_created_metrics,
    generate_latest,
)

logger = logging.getLogger(__name__)

# A creation timestamp for each series would double the size of a scrape.
disable_created_metrics()  # type: ignore[no-untyped-call]

Probe = Callable[[], str]
"""Returns an empty string if healthy, else the reason why not."""
MAX_CONNECTIONS: Final = 16
"""Open at once. One more closes the oldest, or idle clients could lock out the probes."""
TIMEOUT_S: Final = 5.0
"""The time limit of a connection: for its request and the response together."""
_BACKLOG: Final = 64
_METRICS_S: Final = 1.0
"""The maximum age of scraped metrics; gauges are published equally often."""


class HealthServer:
    """Serves two probes and a metrics registry until closed."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        live: Probe,
        ready: Probe,
        registry: CollectorRegistry,
    ) -> None:
        """Bind *address*. Raises OSError when that is not possible."""
        metrics = _Metrics(registry)
        routes: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            "/livez": lambda: _probe(live),
            "/readyz": lambda: _probe(ready),
            "/metrics": lambda: (200, CONTENT_TYPE_LATEST, metrics.text()),
        }

        class Handler(BaseHTTPRequestHandler):
            timeout = TIMEOUT_S

            def do_GET(self) -> None:
                route = routes.get(self.path.partition("?")[0])
                status, kind, body = route() if route else (404, "text/plain", b"not found\n")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                with contextlib.suppress(OSError):  # the client has gone away
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
                """Probes arrive every few seconds; they are not worth a line each."""

        self._server = _Server(address, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        """The port that was bound."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Serve in the background."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Serves each connection on a thread, with limits on their number and duration."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = _BACKLOG

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._since_s: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection; close the oldest if there are too many."""
        with self._lock:
            oldest = list(self._since_s)[: len(self._since_s) + 1 - MAX_CONNECTIONS]
            self._since_s[request] = time.monotonic()
        _end(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that its thread has finished with."""
        with self._lock:
            self._since_s.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections past their time limit, even active ones; called twice a second."""
        before_s = time.monotonic() - TIMEOUT_S
        with self._lock:
            overdue = [each for each, since_s in self._since_s.items() if since_s < before_s]
        _end(overdue)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log errors of our own; a connection that breaks is not one."""
        del request
        error = sys.exception()
        if not isinstance(error, OSError):
            logger.error("a request of %s failed", client_address, exc_info=error)


class _Metrics:
    """Renders a registry, at most once every `_METRICS_S`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._text, self._until_s = b"", 0.0

    def text(self) -> bytes:
        """Return the metrics as they were at most `_METRICS_S` ago."""
        with self._lock:
            if time.monotonic() >= self._until_s:
                self._text = generate_latest(self._registry)
                self._until_s = time.monotonic() + _METRICS_S
            return self._text


def _end(connections: Iterable[socket.socket]) -> None:
    """Shut down *connections*, which ends their threads."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _probe(probe: Probe) -> tuple[int, str, bytes]:
    problem = probe()
    return (503, "text/plain", f"{problem}\n".encode()) if problem else (200, "text/plain", b"ok\n")
