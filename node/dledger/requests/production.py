"""The room for batches of streams that are not in the log yet: all of them, and of a connection.

A stream alone may have more unanswered than it takes to keep the log busy, and a connection has
many streams. What is beyond this room is not queued, but held back at its producer.
"""

from __future__ import annotations

from typing import Final

from dledger.common.window import Window

MAX_BYTES: Final = 24 << 20
MAX_BYTES_OF_CONNECTION: Final = 8 << 20
"""Of both, a batch that is larger by itself goes alone. A log of 200 MiB a second has applied so
much in 40 ms, a few times what an entry takes from disk to disk."""


class Room:
    """What one batch has taken, until it is given back."""

    __slots__ = ("_connection", "_production", "_size_bytes")

    def __init__(self, production: Production, connection: str, size_bytes: int) -> None:
        self._production, self._connection = production, connection
        self._size_bytes = size_bytes

    def give(self) -> None:
        """Give it back; once."""
        self._production.give(self._connection, self._size_bytes)


class Production:
    """The room of one node.

    Args:
        max_bytes: All of it.
        of_connection: The most that one connection has.
    """

    def __init__(
        self, max_bytes: int = MAX_BYTES, *, of_connection: int = MAX_BYTES_OF_CONNECTION
    ) -> None:
        self._all, self._of_connection = Window(max_bytes), of_connection
        self._connections: dict[str, tuple[Window, int]] = {}

    @property
    def taken(self) -> int:
        """Bytes that are taken."""
        return self._all.taken

    async def room(self, connection: str, size_bytes: int) -> Room:
        """Take room for a batch when there is some, each connection's batches in their order."""
        window, users = self._connections.get(connection) or (Window(self._of_connection), 0)
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
        """Give back what a batch of *connection* has taken."""
        self._all.give(size_bytes)
        self._left(connection, size_bytes)

    def _left(self, connection: str, size_bytes: int) -> None:
        window, users = self._connections.pop(connection)
        if users > 1:
            self._connections[connection] = window, users - 1
        window.give(size_bytes)
