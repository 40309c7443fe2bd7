"""At the health port: connections that say half a request, and scrapers without end."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from socket import socket

from e2e.harness.checks import Check
from e2e.hostile.judging import held
from e2e.hostile.scene import Scene, connect, in_threads


def idle_requests(scene: Scene) -> list[Check]:
    """A10: 1,000 half requests at the leader's health port."""
    address = scene.http(scene.leader)
    held_: list[socket] = []
    for _ in range(1_000):
        with contextlib.suppress(OSError):
            connection = connect(address, 0.5)
            connection.sendall(b"GET /livez HTTP/1.0\r\nX-Slow: ")
            held_.append(connection)
    answered, end_s = 0, time.monotonic() + 15
    while not answered and time.monotonic() < end_s:
        answered += _asked(scene, "/livez")
        time.sleep(0.2)
    for connection in held_:
        connection.close()
    return [held("a10: a probe beside them", answered, "answered", answered > 0)]


def scrapers(scene: Scene) -> list[Check]:
    """A10: six scrapers of /metrics without a pause."""
    end_s, done = time.monotonic() + scene.seconds, [0]

    def scrape(_: int) -> None:
        while time.monotonic() < end_s:
            done[0] += _asked(scene, "/metrics")

    in_threads(6, scrape)
    return [held("a10: scrapes", done[0], "some", done[0] > 0)]


def _asked(scene: Scene, path: str) -> int:
    host, port = scene.http(scene.leader)
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=3) as answer:
            return int(answer.status == 200)
    except OSError:
        return 0
