"""Bounds the batches of produce streams that are not in the log yet, in all and per connection.

A single stream may have more unanswered bytes than it takes to keep the log busy, and a connection
has many streams. Batches beyond this room are not queued, but held back at their producer.
"""

from __future__ import annotations

from typing import Final

from dledger.common.window import Window

MAX_BYTES: Final = 24 << 20
MAX_BYTES_OF_CONNECTION: Final = 8 << 20
"""A batch larger than either limit is admitted alone. A log that takes 200 MiB a second applies
this much in 40 ms, a few times the latency of an entry."""


class Room:
    """The room that one batch holds, until it is released."""

    __slots__ = ("_connection", "_production", "_size_bytes")

    def __init__(self, production: Production, connection: str, size_bytes: int) -> None:
        self._production, self._connection = production, connection
        self._size_bytes = size_bytes

    def give(self) -> None:
        """Release it; call once."""
        self._production.give(self._connection, self._size_bytes)


class Production:
    """The room of one node."""

    def __init__(self) -> None:
        self._all = Window(MAX_BYTES)
        self._connections: dict[str, tuple[Window, int]] = {}

    @property
    def taken(self) -> int:
        """Bytes in use."""
        return self._all.taken

    async def room(self, connection: str, size_bytes: int) -> Room:
        """Wait for room for a batch; the batches of a connection get it in order."""
        window, users = self._connections.get(connection) or (Window(MAX_BYTES_OF_CONNECTION), 0)
        self._connections[connection] = window, users + 1
        taken = False
        try:
            await window.take(size_bytes)
            taken = True
            await self._all.take(size_bytes)
        except BaseException:
            self._left(connection, size_bytes if taken else 0)
            raise
        return Room(self, connection, size_bytes)

    def give(self, connection: str, size_bytes: int) -> None:
        """Release the room of a batch of *connection*."""
        self._all.give(size_bytes)
        self._left(connection, size_bytes)

    def _left(self, connection: str, size_bytes: int) -> None:
        window, users = self._connections.pop(connection)
        if users > 1:
            self._connections[connection] = window, users - 1
        window.give(size_bytes)
