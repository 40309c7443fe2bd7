"""The servers of a node: clients in plain text, clients over TLS, and peers with Admin."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import grpc
import grpc.aio

from dledger.calls.service import Service, handlers_of, resumed_of
from dledger.door.bounds import Bounds
from dledger.door.server import DoorServer
from dledger.door.tls import TlsCertificate
from dledger.door_process.node_end import Batches
from dledger.door_process.supervisor import DoorPort, DoorProcesses

logger = logging.getLogger(__name__)

MAX_CONCURRENT_RPCS: Final = 1 << 15
"""Calls in progress at one port, polls and streams included; more get RESOURCE_EXHAUSTED."""
MAX_CLIENT_STREAMS: Final = 256
"""Calls in progress on one client connection, polls included. HTTP/2 announces it to clients, and a
gRPC library holds further calls back, so that a flood waits at its source."""
MAX_PENDING_CALLS: Final = 1_280
"""Calls waiting to be accepted, one per iteration of the event loop: enough for five flooding
connections. gRPC cancels further ones without a reason."""
MAX_CONNECTIONS: Final = 12_000
"""Connections to one port; more are closed at once, and a gRPC client tries another node."""
HANDSHAKE_MS: Final = 5_000
"""How long a new connection may take for its HTTP/2 preface, and for its TLS handshake if any."""
MAX_IDLE_MS: Final = 300_000
"""A client connection without a call is closed after this time; the next call opens a new one."""
_RESERVED_FILES: Final = 512
"""File descriptors reserved for the log's segments, links to peers, and libraries."""
_LEAST_CONNECTIONS: Final = 64
_CERTIFICATE_LOOK_S: Final = 1.0
FEW_CORES: Final = 4
"""With so many, node, followers' traffic and clients leave none for a door."""
_OPTIONS: Final = (
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.so_reuseport", 0),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: 20 KiB can inflate to 20 MiB
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ("grpc.http2.bdp_probe", 0),  # or a stream's window grows, and holds MiB that nobody reads yet
    ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One port, served by gRPC's own server.

    Attributes:
        address: ``HOST:PORT`` to listen on.
        handlers: The services of the port.
        max_request_bytes: The largest message it accepts; a larger one is refused unread.
        max_streams: Calls in progress on one connection; None: no limit.
        credentials: For TLS; None: the port is plain text.
        awaited: Returns credentials for TLS, or None while there are none: the port is closed then.
    """

    address: str
    handlers: Sequence[grpc.GenericRpcHandler]
    max_request_bytes: int
    max_streams: int | None = None
    credentials: grpc.ServerCredentials | None = None
    awaited: Callable[[], grpc.ServerCredentials | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientListener:
    """One client port, served by our own gRPC server (`door`).

    Attributes:
        address: ``HOST:PORT`` to listen on.
        services: The services of the port.
        tls: Its certificate; None: the port is plain text.
    """

    address: str
    services: Sequence[Service]
    tls: TlsCertificate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """That processes of their own serve the client ports.

    Attributes:
        processes: How many, at least one.
        batches: Carries out what they send in batches.
        on_restart: Called for each one that is replaced.
    """

    processes: int
    batches: Batches
    on_restart: Callable[[], None] = lambda: None


class _Server(Protocol):
    async def start(self) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


class Servers:
    """Servers that start and stop together.

    Args:
        listeners: The ports.
        doors: What serves those of clients, if that is not this process. They are native ones then.

    Raises:
        OSError: An address, which the message names, is taken.

    Attributes:
        doors: The door processes; None without.
    """

    def __init__(
        self, listeners: Sequence[Listener | ClientListener], doors: Doors | None = None
    ) -> None:
        most = connections_of(resource.getrlimit(resource.RLIMIT_NOFILE)[0], len(listeners))
        self.doors: DoorProcesses | None = None
        self._servers: list[_Server] = []
        if doors is not None:
            clients = [each for each in listeners if isinstance(each, ClientListener)]
            self.doors = _door_processes(clients, doors, most)
            self._servers.append(self.doors)
        for listener in listeners:
            if isinstance(listener, Listener):
                self._servers.append(_build(listener, most) or _LateServer(listener, most))
            elif doors is None:
                self._servers.append(_door(listener, most))

    @property
    def serving_doors(self) -> int | None:
        """How many door processes serve now; None: the node has none."""
        return self.doors.serving if self.doors is not None else None

    @property
    def problem(self) -> str:
        """Why clients cannot be served; empty: they can. On any thread."""
        return self.doors.problem if self.doors is not None else ""

    async def start(self) -> None:
        """Start serving on all ports."""
        for server in self._servers:
            await server.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give running calls *grace_s* seconds to finish, then cancel them."""
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))


def connections_of(files: int, ports: int) -> int:
    """Return the connection limit of each of *ports* ports, with *files* file descriptors.

    A node without a file descriptor for its log has to stop, as if its disk had failed.
    """
    return max(_LEAST_CONNECTIONS, min(MAX_CONNECTIONS, (files - _RESERVED_FILES) // ports))


def _door(listener: ClientListener, max_connections: int) -> DoorServer:
    return DoorServer(
        listener.address,
        handlers_of(listener.services),
        bounds=Bounds(connections=max_connections),
        tls=listener.tls,
    )


def _door_processes(
    listeners: Sequence[ClientListener], doors: Doors, max_connections: int
) -> DoorProcesses:
    cores = len(os.sched_getaffinity(0))
    if cores <= FEW_CORES:
        logger.warning(
            "door_processes is %d on a machine with %d cores: up to %d, doors cost more than they "
            "take off the node",
            doors.processes,
            cores,
            FEW_CORES,
        )
    return DoorProcesses(
        [
            DoorPort(
                address=listener.address,
                handlers=handlers_of(listener.services),
                resumed=resumed_of(listener.services),
                tls=listener.tls,
            )
            for listener in listeners
        ],
        doors.processes,
        doors.batches,
        bounds=Bounds(connections=max_connections),
        on_restart=doors.on_restart,
    )


class _LateServer:
    """A port that is opened once it has a certificate to show."""

    def __init__(self, listener: Listener, max_connections: int) -> None:
        self._listener, self._max_connections = listener, max_connections
        self._server: grpc.aio.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._open())

    async def stop(self, grace_s: float) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self._server is not None:
            await self._server.stop(grace_s)

    async def _open(self) -> None:
        while self._server is None:
            await asyncio.sleep(_CERTIFICATE_LOOK_S)
            try:
                self._server = _build(self._listener, self._max_connections)
            except OSError as error:
                logger.error("a port stays closed: %s", error)
        await self._server.start()
        logger.info("listens on %s now", self._listener.address)


def _build(listener: Listener, max_connections: int) -> grpc.aio.Server | None:
    """Return a server; None: it has to wait for its certificate. Raises OSError."""
    credentials = listener.awaited() if listener.awaited else listener.credentials
    if listener.awaited and credentials is None:
        return None
    options: tuple[tuple[str, int], ...] = (
        *_OPTIONS,
        ("grpc.max_receive_message_length", listener.max_request_bytes),
        ("grpc.max_allowed_incoming_connections", max_connections),
    )
    if listener.max_streams is not None:
        options += (
            ("grpc.max_concurrent_streams", listener.max_streams),
            ("grpc.max_connection_idle_ms", MAX_IDLE_MS),
            ("grpc.http.overload_protection", 0),  # or calls fail whose room is not yet free here
        )
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_CONCURRENT_RPCS)
    server.add_generic_rpc_handlers(tuple(listener.handlers))
    try:
        if credentials is None:
            port = server.add_insecure_port(listener.address)
        else:
            port = server.add_secure_port(listener.address, credentials)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {listener.address}: {error}") from error
    if port == 0:
        raise OSError(f"cannot listen on {listener.address}")
    return server
