"""What a node writes to clients and has not left yet: room is taken before it is made.

A client that does not read holds what was written to it last, in memory that gRPC gives back only
with the call. So when such writes have taken all room and others wait for some, the connection
that holds most is closed; its client opens another, and its calls end as unavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Final

from dledger.common.window import Window
from dledger.requests.connections import close_connection

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 16 << 20
STUCK_S: Final = 5.0
"""So long a write may take although others wait for room."""


class Outflow:
    """The room for answers that are larger than a call's own cost.

    Args:
        max_bytes: All of it; what is larger by itself goes alone.
        close: Closes a connection, by its name.
    """

    def __init__(
        self, max_bytes: int = MAX_BYTES, close: Callable[[str], bool] = close_connection
    ) -> None:
        self._window, self._close = Window(max_bytes), close
        self._held: OrderedDict[object, tuple[str, int, float]] = OrderedDict()
        self._look: asyncio.TimerHandle | None = None

    @property
    def taken(self) -> int:
        """Bytes that are being written, or made to be."""
        return self._window.taken

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much would go at once."""
        return self._window.has_room(size_bytes)

    @contextlib.asynccontextmanager
    async def room(self, connection: str, size_bytes: int) -> AsyncIterator[None]:
        """Hold room for so much, to be made and written within.

        A connection without a name is a peer's: what it asks for counts at its own end.
        """
        if not connection:
            yield
            return
        if not self._window.take_now(size_bytes):
            self._watch()
            await self._window.take(size_bytes)
        key, now_s = object(), asyncio.get_running_loop().time()
        self._held[key] = (connection, size_bytes, now_s)
        try:
            yield
        finally:
            del self._held[key]
            self._window.give(size_bytes)

    def _watch(self) -> None:
        if self._look is None:
            loop = asyncio.get_running_loop()
            oldest_s = next((since_s for _, _, since_s in self._held.values()), loop.time())
            due_s = max(oldest_s + STUCK_S, loop.time() + STUCK_S / 10)
            self._look = loop.call_at(due_s, self._close_who_holds_most)

    def _close_who_holds_most(self) -> None:
        """Look, while anybody waits, for a connection whose writes are stuck."""
        self._look = None
        if not self._window.waiting:
            return
        stuck_s = asyncio.get_running_loop().time() - STUCK_S
        bytes_of: Counter[str] = Counter()
        for connection, size_bytes, since_s in self._held.values():
            if since_s <= stuck_s:
                bytes_of[connection] += size_bytes
        if bytes_of:
            connection, size_bytes = bytes_of.most_common(1)[0]
            if self._close(connection):
                logger.warning(
                    "closed %s: it has not read %d bytes, and others wait", connection, size_bytes
                )
        self._watch()
