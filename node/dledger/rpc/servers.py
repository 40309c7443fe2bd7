"""The gRPC servers of a node: clients in plain text, clients over TLS, and peers with Admin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

MAX_CONCURRENT_RPCS: Final = 1 << 15
"""Calls under way at one port, polls and streams included; more are refused as overload."""
_OPTIONS: Final = (
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One port: where, what it serves, and the TLS pair (key, chain) if it is encrypted."""

    address: str
    handlers: Sequence[grpc.GenericRpcHandler]
    tls: tuple[bytes, bytes] | None = None


class Servers:
    """Servers that start and stop together."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        """Bind every port. Raises OSError naming the address that is taken."""
        self._servers = [_build(listener) for listener in listeners]

    async def start(self) -> None:
        """Start serving on all ports."""
        for server in self._servers:
            await server.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give the running ones *grace_s*, then cancel them."""
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))


def _build(listener: Listener) -> grpc.aio.Server:
    server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MAX_CONCURRENT_RPCS)
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
