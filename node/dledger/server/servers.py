"""The gRPC servers of a node: clients in plain text, clients over TLS, and peers with Admin."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

MAX_CONCURRENT_RPCS: Final = 1 << 15
"""Calls under way at one port, polls and streams included; more are refused as overload."""
MAX_CLIENT_STREAMS: Final = 256
"""Calls under way on one connection of a client, polls included. HTTP/2 tells clients so: a gRPC
library keeps further calls until there is room, so a flood waits where it is made."""
MAX_PENDING_CALLS: Final = 1_280
"""Calls that came faster than they are taken up, by one in each turn of the event loop, from five
connections that flood; gRPC cancels what exceeds them, and names no reason."""
MAX_CONNECTIONS: Final = 12_000
"""To one port; more are closed at once, and a gRPC client tries another node."""
HANDSHAKE_MS: Final = 5_000
"""So long a new connection may take to say that it speaks HTTP/2, and TLS where that is asked."""
MAX_IDLE_MS: Final = 300_000
"""A client's connection without a call is closed after so long; its next call opens one."""
_RESERVED_FILES: Final = 512
"""Files that connections never take: the log's segments, links to peers, libraries."""
_LEAST_CONNECTIONS: Final = 64
_OPTIONS: Final = (
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.so_reuseport", 0),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: 20 KiB would come to 20 MiB
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
    """One port.

    Attributes:
        address: Where.
        handlers: What it serves.
        max_request_bytes: The largest message it takes; what is larger is refused unread.
        max_streams: Calls under way on one connection; None: as many as come.
        tls: The pair (key, chain) if it is encrypted.
    """

    address: str
    handlers: Sequence[grpc.GenericRpcHandler]
    max_request_bytes: int
    max_streams: int | None = None
    tls: tuple[bytes, bytes] | None = None


class Servers:
    """Servers that start and stop together."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        """Bind every port. Raises OSError naming the address that is taken."""
        most = connections_of(resource.getrlimit(resource.RLIMIT_NOFILE)[0], len(listeners))
        self._servers = [_build(listener, most) for listener in listeners]

    async def start(self) -> None:
        """Start serving on all ports."""
        for server in self._servers:
            await server.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give the running ones *grace_s*, then cancel them."""
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))


def connections_of(files: int, ports: int) -> int:
    """Return how many connections each of so many ports may have, where files may be open.

    A node that runs out of files for its log is as good as one whose disk has failed.
    """
    return max(_LEAST_CONNECTIONS, min(MAX_CONNECTIONS, (files - _RESERVED_FILES) // ports))


def _build(listener: Listener, max_connections: int) -> grpc.aio.Server:
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
        if listener.tls is None:
            port = server.add_insecure_port(listener.address)
        else:
            credentials = grpc.ssl_server_credentials([listener.tls])
            port = server.add_secure_port(listener.address, credentials)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {listener.address}: {error}") from error
    if port == 0:
        raise OSError(f"cannot listen on {listener.address}")
    return server
