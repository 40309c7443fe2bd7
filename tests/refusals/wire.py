"""A client that takes down all that a server says to a call: messages, status, words, trailers.

It speaks HTTP/2 itself, so it sees the server's own words where a gRPC library would put its own in
their place, at a deadline for instance; and it can send what no library sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import ngh2

Pairs: TypeAlias = Sequence[tuple[bytes, bytes]]
WINDOW_BYTES = 16 << 20
"""What a server may send before any of it is taken in: more than any answer here has."""


def prefixed(message: bytes, *, declared: int | None = None, flag: int = 0) -> bytes:
    """Return a message as gRPC frames it; it may declare another size than it has."""
    size = len(message) if declared is None else declared
    return struct.pack(">BI", flag, size) + message


@dataclass
class Heard:
    """What a server has said to one call.

    Attributes:
        headers: What came before the messages; if nothing came after, all there was.
        trailers: What came after them.
        data: The messages as gRPC frames them.
        reset: The HTTP/2 error that ended the call before its time; None: none did.
        lost: Whether the connection ended first.
    """

    headers: Pairs = ()
    trailers: Pairs = ()
    data: bytearray = field(default_factory=bytearray)
    reset: int | None = None
    lost: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def first(self) -> None:
        """Return when it has said anything."""
        await self.news.wait()


class Wire:
    """One connection to one port of the loopback."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._h2 = ngh2.Connection(
            ngh2.Role.CLIENT,
            ngh2.Configuration(
                peer_max_concurrent_streams=1 << 10, max_send_header_block_length=1 << 20
            ),
        )
        self._calls: dict[int, Heard] = {}
        self._settled = asyncio.Event()

    async def hello(self) -> None:
        """Exchange SETTINGS."""
        self._h2.initiate_connection({4: WINDOW_BYTES})
        self._h2.set_local_window_size(WINDOW_BYTES)
        self._flush()

    async def settled(self) -> None:
        """Return once the server's own SETTINGS are known."""
        await self._settled.wait()

    def call(
        self, path: str, body: bytes, headers: Pairs = (), *, ends: bool = True, http: Pairs = ()
    ) -> Heard:
        """Begin a call.

        Args:
            path: The method.
            body: Its messages, framed.
            headers: The call's metadata.
            ends: Whether the client says at once that it sends nothing more.
            http: Instead of the fields that gRPC has of HTTP/2.
        """
        fields = http or (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":authority", b"dledger"),
            (b":path", path.encode()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
        stream_id = self._h2.send_request((*fields, *headers), end_stream=ends and not body)
        if body:
            self._h2.send_data(stream_id, body, end_stream=ends)
        heard = self._calls[stream_id] = Heard()
        self._flush()
        return heard

    def give_up(self, heard: Heard) -> None:
        """Reset a call, as a client does that waits no longer."""
        stream_id = next(each for each, known in self._calls.items() if known is heard)
        self._h2.reset_stream(stream_id, ngh2.ErrorCode.CANCEL)
        self._flush()

    async def listen(self) -> None:
        """Take in what the server says, until it ends the connection."""
        try:
            while data := await self._reader.read(1 << 16):
                self._h2.receive_data(data)
                for event in self._h2.events():
                    self._on_event(event)
                self._flush()
        except (ConnectionError, ngh2.ConnectionStateError):
            pass
        for heard in self._calls.values():
            if not heard.over.is_set():
                heard.lost = True
                self._over(heard)

    def _on_event(self, event: ngh2.Event) -> None:
        if isinstance(event, ngh2.SettingsReceived):
            self._settled.set()
        heard = self._calls.get(getattr(event, "stream_id", 0))
        if heard is None:
            return
        heard.news.set()
        match event:
            case ngh2.ResponseReceived():
                heard.headers = event.headers
            case ngh2.TrailersReceived():
                heard.trailers = event.headers
            case ngh2.DataReceived():
                heard.data += event.data
            case ngh2.StreamReset():
                heard.reset = event.error_code
            case ngh2.StreamClosed():
                self._over(heard)
            case _:
                pass
        ended = any(name == b"grpc-status" for name, _ in (*heard.headers, *heard.trailers))
        if ended or getattr(event, "end_stream", False):
            self._over(heard)

    def _over(self, heard: Heard) -> None:
        heard.news.set()
        heard.over.set()

    def _flush(self) -> None:
        if not self._writer.is_closing():
            self._writer.write(self._h2.data_to_send())


@contextlib.asynccontextmanager
async def wire(port: int) -> AsyncIterator[Wire]:
    """Connect to a port of the loopback."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = Wire(reader, writer)
    await connection.hello()
    listening = asyncio.create_task(connection.listen())
    try:
        await connection.settled()
        yield connection
    finally:
        listening.cancel()
        writer.close()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await listening
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
