"""A node's settings, and what comes to its HTTP port: from a ConfigMap, and from anybody."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Hashable
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import ClassVar, Final

from prometheus_client import CollectorRegistry

from dledger.common.http import HealthServer
from dledger.server.config import ConfigError, Settings, load
from tests.fuzz.mutation import NUMBERS, TEXTS, json_bytes, mutated
from tests.fuzz.target import Broken, Target

_TIMEOUT_S: Final = 10.0


class NodeSettings(Target):
    """The TOML file and the environment: settings within their bounds, or the key is named."""

    name = "settings"
    refuses = (ConfigError,)
    _TOML: ClassVar = (
        'name = "orders-0"\ngroup = "orders"\ndata_dir = "/data"\nadvertise_host = "orders-0"\n'
        "client_port = 8081\ntick_ms = 50\nauto_create_topics = true\n"
    )
    _KEYS: ClassVar = tuple(field.name for field in fields(Settings))

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="fuzz-")
        self._path = Path(self._directory.name, "node.toml")

    def close(self) -> None:
        self._directory.cleanup()

    def draw(self, rng: Random) -> bytes:
        toml = self._TOML.encode()
        for _ in range(rng.randrange(3)):
            value = rng.choice((str(rng.choice(NUMBERS)), "true", '"x"', "[]", "1.5", "2020-01-01"))
            toml += f"{rng.choice(self._KEYS)} = {value}\n".encode()
        toml = mutated(rng, toml) if rng.random() < 0.3 else toml
        values = (*TEXTS, *map(str, NUMBERS), "true", "sync", "INFO", "9" * 5_000, "10.0.0.1")
        environ = {
            f"DLEDGER_{rng.choice((*self._KEYS, 'more')).upper()}": rng.choice(values)
            for _ in range(rng.randrange(4))
        }
        return json_bytes([toml.decode("latin-1"), environ])

    def feed(self, data: bytes) -> Hashable:
        try:
            toml, environ = json.loads(data)
            self._path.write_bytes(toml.encode("latin-1", "replace"))
            environ = {str(key): str(value) for key, value in environ.items()}
        except (ValueError, TypeError, AttributeError):
            return "no settings"
        found = load(self._path, environ)
        for port in (found.client_port, found.client_tls_port, found.peer_port, found.http_port):
            if not 0 <= port < 1 << 16:
                raise Broken(f"it would listen on port {port}")
        str(found.data_dir / "x")
        return found.durability, found.auto_create_topics


class Http(Target):
    """Bytes at the health port: an answer or none, and the next probe is answered."""

    name = "http"
    _SEEDS: ClassVar = (
        b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /metrics?x=1 HTTP/1.0\r\nAccept: */*\r\n\r\n",
        b"POST /readyz HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"GET /livez HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    )

    def __init__(self) -> None:
        self._server = HealthServer(
            ("127.0.0.1", 0), live=lambda: "", ready=lambda: "", registry=CollectorRegistry()
        )
        self._server.start()

    def close(self) -> None:
        self._server.close()

    def draw(self, rng: Random) -> bytes:
        seed = rng.choice(self._SEEDS)
        return mutated(rng, seed) if rng.random() < 0.8 else seed

    def feed(self, data: bytes) -> Hashable:
        first = self._ask(data)
        probe = self._ask(self._SEEDS[0])
        if not probe.startswith(b"HTTP/1.0 200 OK"):
            raise Broken(f"the next probe is answered {probe[:40]!r}")
        return first.partition(b" ")[2][:3]

    def _ask(self, data: bytes) -> bytes:
        answer = b""
        with socket.create_connection(("127.0.0.1", self._server.port), _TIMEOUT_S) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(1 << 16):
                    answer += piece
            except TimeoutError as error:
                raise Broken("it never ends the connection") from error
            except OSError:  # it has closed it
                return answer
        return answer
