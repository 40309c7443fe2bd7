"""Port 8080: probes and metrics, whoever else is connected."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from dledger.common import http
from dledger.common.http import MAX_CONNECTIONS, HealthServer
from tests.waiting import eventually_blocking

WAIT_S = 30.0


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry with one gauge, `asked`: how often it was rendered."""
    registry, asked = CollectorRegistry(), iter(range(1, 1000))
    Gauge("asked", "How often.", registry=registry).set_function(lambda: next(asked))
    return registry


@pytest.fixture
def server(registry: CollectorRegistry) -> Iterator[HealthServer]:
    """A server that is alive and not ready."""
    server = HealthServer(("127.0.0.1", 0), live=str, ready=lambda: "no", registry=registry)
    server.start()
    yield server
    server.close()


def get(server: HealthServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=WAIT_S) as got:
            return got.status, got.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def half_a_request(server: HealthServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), WAIT_S)
    connection.sendall(b"GET /livez HTTP/1.0\r\nX-Slow: ")
    return connection


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


def test_probes_say_what_is_wrong(server: HealthServer) -> None:
    """200 or 503, and a sentence."""
    assert get(server, "/livez") == (200, "ok\n")
    assert get(server, "/readyz?verbose") == (503, "no\n")
    assert get(server, "/")[0] == 404


@pytest.mark.found
def test_idle_connections_are_few_and_keep_no_probe_out(server: HealthServer) -> None:
    """found: S6. Each was a thread and a file, without a bound: the log could open no segment."""
    before = threading.active_count()
    idle = [half_a_request(server) for _ in range(5 * MAX_CONNECTIONS)]

    assert get(server, "/livez") == (200, "ok\n")

    eventually_blocking(lambda: threading.active_count() <= before + MAX_CONNECTIONS)
    assert all(is_closed(connection) for connection in idle[: 4 * MAX_CONNECTIONS])
    for connection in idle:
        connection.close()


@pytest.mark.found
def test_a_connection_has_so_much_time_however_often_it_says_a_byte(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """found: S6. Half a request was borne for ever."""
    monkeypatch.setattr(http, "TIMEOUT_S", 0.2)
    connection = half_a_request(server)
    connection.settimeout(0.05)

    def ended() -> bool:
        try:
            connection.sendall(b"x")
            return is_closed(connection)
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    eventually_blocking(ended)
    connection.close()


@pytest.mark.found
def test_metrics_are_made_once_for_all_who_ask(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """found: S6. Six scrapers took half of the interpreter from the event loop."""
    monkeypatch.setattr(http, "_METRICS_S", 1000.0)

    texts = {get(server, "/metrics")[1] for _ in range(10)}

    assert len(texts) == 1
    assert "asked 1.0" in texts.pop()
