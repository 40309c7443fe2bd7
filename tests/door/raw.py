"""A client that speaks HTTP/2 frame by frame, and may speak it badly."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypeVar

import ngh2

from tests.door.ports import OVER_TLS, PATIENCE_S
from tests.door.tls_client import client_context

E = TypeVar("E", bound=ngh2.Event)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9


@dataclass(frozen=True)
class Goaway:
    """How a connection was ended."""

    code: int
    why: bytes


def frame(kind: int, stream_id: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """Return one frame (RFC 9113, 4.1)."""
    return (
        struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload
    )


def prefixed(size: int, flag: int = 0) -> bytes:
    """Return the prefix of a gRPC message."""
    return struct.pack(">BI", flag, size)


class RawClient:
    """One connection, with the library's client for what should be sound in it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        config = ngh2.Configuration(
            peer_max_concurrent_streams=1 << 20,
            max_send_header_block_length=1 << 20,
            stream_reset_rate_limit=(1 << 20, 1 << 20),
        )
        self.h2 = ngh2.Connection(ngh2.Role.CLIENT, config)
        self.events: list[ngh2.Event] = []

    async def hello(self, settings: dict[int, int] | None = None) -> None:
        """Exchange SETTINGS, and take the server's acknowledgement."""
        self.h2.initiate_connection(settings)
        await self.flush()
        await self.event(ngh2.SettingsAcknowledged)
        await self.flush()

    async def flush(self) -> None:
        await self.raw(self.h2.data_to_send())

    async def raw(self, data: bytes) -> None:
        """Send bytes as they are; a server that has closed may refuse them."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    def request(
        self, path: str, *more: tuple[bytes, bytes], kind: bytes = b"application/grpc"
    ) -> int:
        """Queue the headers of a call; return its stream."""
        return self.h2.send_request(
            (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":authority", b"door"),
                (b":path", path.encode()),
                (b"content-type", kind),
                (b"te", b"trailers"),
                *more,
            )
        )

    async def event(self, kind: type[E], stream_id: int | None = None) -> E:
        """Return the first event of a kind (of a stream), from now or before."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for event in self.events:
                    if isinstance(event, kind) and stream_id in (
                        None,
                        getattr(event, "stream_id", None),
                    ):
                        return event
                assert await self.more(), f"closed without {kind.__name__}: {self.events}"

    async def status(self, stream_id: int) -> tuple[int, bytes]:
        """Return how a call ended: status and message."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for event in self.events:
                    if getattr(event, "stream_id", None) != stream_id:
                        continue
                    fields = dict(getattr(event, "headers", ()))
                    if b"grpc-status" in fields:
                        return int(fields[b"grpc-status"]), fields.get(b"grpc-message", b"")
                assert await self.more(), f"closed without a status: {self.events}"

    async def goaway(self) -> Goaway | None:
        """Read to the end of the connection; return its GOAWAY, if there was one."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.more():
                pass
        for event in self.events:
            if isinstance(event, ngh2.GoAwayReceived):
                return Goaway(event.error_code, event.debug_data)
        return None

    async def more(self) -> bool:
        """Take in what comes next; return False at the end."""
        try:
            data = await self._reader.read(1 << 16)
        except ConnectionError:
            return False
        if data:
            with contextlib.suppress(ngh2.ConnectionStateError):
                self.h2.receive_data(data)
                self.events += self.h2.events()
                await self.flush()
        return bool(data)


@contextlib.asynccontextmanager
async def raw_client(port: int, source: str = "127.0.0.1") -> AsyncIterator[RawClient]:
    """Connect to a port of the loopback, from one of its addresses; over TLS if a test is so."""
    context = client_context() if OVER_TLS.get() else None
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, local_addr=(source, 0), ssl=context
    )
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
