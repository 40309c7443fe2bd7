"""The peer port while it takes plain text and TLS: looks at the first byte, and passes bytes on.

A gRPC server speaks one of the two. So there is one of each behind Unix sockets that this user
alone can open, and this in front, at the port that everybody knows. It costs a copy of each byte,
and so a node that starts with TLS alone has none of it; entries do not come here.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Final, cast

from dledger.peers.acceptor import Acceptor, begins_tls

_BUFFER_BYTES: Final = 1 << 18
"""Bytes that may wait for a slow end of a connection, before the other end is read no further."""


class PeerFront:
    """Listens from `start` until `close`.

    Attributes:
        plain: Where the server for plain text has to listen, as gRPC names it.
        encrypted: Where the one for TLS has to.
    """

    def __init__(self, host: str, port: int) -> None:
        """Bind the port. Raises OSError naming the address."""
        try:
            self._socket = socket.create_server((host, port))
        except OSError as error:
            raise OSError(f"cannot listen on {host}:{port}: {error}") from error
        self._directory = Path(tempfile.mkdtemp(prefix="dledger-peers-"))  # nobody else enters it
        self.plain = f"unix:{self._directory / 'plain'}"
        self.encrypted = f"unix:{self._directory / 'tls'}"
        self._takes_plain = True
        self._plain_ends: set[_End] = set()
        self._all_ends: set[_End] = set()
        self._acceptor = Acceptor("the peer port", self._greet)

    def start(self) -> None:
        """Accept connections; the servers are there."""
        self._acceptor.start(self._socket)

    def refuse_plain(self) -> None:
        """From now on take TLS alone, and end the connections in plain text."""
        self._takes_plain = False
        for end in tuple(self._plain_ends):
            end.abort()

    def close(self) -> None:
        """Stop accepting, and end all connections."""
        self._acceptor.close()
        self._socket.close()
        for end in tuple(self._all_ends):
            end.abort()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _greet(self, connection: socket.socket) -> None:
        is_plain = not await begins_tls(connection)
        loop = asyncio.get_running_loop()
        kept = (self._all_ends, self._plain_ends) if is_plain else (self._all_ends,)
        within, outside = _End(kept), _End(kept)
        within.other, outside.other = outside, within
        path = (self.plain if is_plain else self.encrypted).removeprefix("unix:")
        try:
            if is_plain and not self._takes_plain:
                raise ConnectionRefusedError("plain text is not accepted any more")
            await loop.create_unix_connection(lambda: within, path)
            if is_plain and not self._takes_plain:  # since a moment ago
                raise ConnectionRefusedError("plain text is not accepted any more")
            await loop.connect_accepted_socket(lambda: outside, connection)
        except BaseException:
            within.abort()
            connection.close()
            raise


class _End(asyncio.Protocol):
    """One end of a connection that is passed on; ends with its other end."""

    other: _End

    def __init__(self, kept: tuple[set[_End], ...]) -> None:
        self._kept = kept
        self.transport: asyncio.Transport | None = None
        self.has_ended = False
        self.early = b""

    def abort(self) -> None:
        """End it now."""
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        for each in self._kept:
            each.add(self)
        if self.other.has_ended:
            self.transport.abort()
        elif self.other.transport is not None:
            self.transport.write(self.other.early)
            self.other.early = b""
            self.other.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.other.transport is not None:
            self.other.transport.write(data)
        elif self.transport is not None:  # there is nowhere yet to pass it on to
            self.early += data
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport, self.has_ended = None, True
        for each in self._kept:
            each.discard(self)
        if self.other.transport is not None:
            if error is None:
                self.other.transport.close()  # what it was sent before still gets there
            else:
                self.other.transport.abort()
