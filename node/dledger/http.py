"""``/livez``, ``/readyz`` and ``/metrics`` of a process, served by a thread.

A thread, so that a stalled event loop is seen from outside as what it is: not alive.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    disable_created_metrics,
    generate_latest,
)

# A time of creation for each series would double what is scraped.
disable_created_metrics()  # type: ignore[no-untyped-call]

Probe = Callable[[], str]
"""Returns an empty string when all is well, else what is not."""


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
        routes: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            "/livez": lambda: _probe(live),
            "/readyz": lambda: _probe(ready),
            "/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
        }

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                route = routes.get(self.path.partition("?")[0])
                status, kind, body = route() if route else (404, "text/plain", b"not found\n")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                with contextlib.suppress(ConnectionError):  # the probe did not wait
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
                """Probes arrive every few seconds; they are not worth a line each."""

        self._server = ThreadingHTTPServer(address, Handler)
        self._server.daemon_threads = True
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


def _probe(probe: Probe) -> tuple[int, str, bytes]:
    problem = probe()
    return (503, "text/plain", f"{problem}\n".encode()) if problem else (200, "text/plain", b"ok\n")
