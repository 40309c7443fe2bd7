"""Which way a message goes: to the group, to the spool, or neither for a moment."""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import Final

from dledger.errors import DledgerError
from dledger.spool.spool import Spool

BATCH_RECORDS: Final = 4_096
BATCH_BYTES: Final = 4 << 20
"""What is sent, or written and synced, together; one message may be larger."""

_log = logging.getLogger(__name__)


class Route(Enum):
    """The way of the next messages of a topic."""

    DIRECT = "to the group"
    SPOOL = "to the spool"
    WAIT = "behind the replay, which must go faster than what comes in"


class CircuitBreaker:
    """Whether the group takes writes, as the last attempt of anyone showed.

    A topic with spooled messages gets no direct ones. While the spool is replayed, each replayed
    byte lets half a byte in behind it, and when no more than a batch is left, nothing: so the spool
    is empty some time, whatever the senders do, and they never wait long.

    Attributes:
        broken: Whether the replay has stopped, because the disk failed.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._down = spool.waiting > 0
        self.broken = False
        self._credit_bytes = 0
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def down(self) -> bool:
        """Whether the group took no writes when it was last tried."""
        return self._down

    def route(self, topic: str) -> Route:
        """Return the way of the next messages of *topic*."""
        if not self._spool.waiting:
            return Route.DIRECT
        if self._down or self.broken:
            return Route.SPOOL
        if not self._spool.depth[topic]:
            return Route.DIRECT
        behind = self._spool.waiting > BATCH_RECORDS or self._spool.waiting_bytes > BATCH_BYTES
        return Route.SPOOL if behind and self._credit_bytes > 0 else Route.WAIT

    def opened(self) -> None:
        """Note that the group took a write."""
        if self._down:
            self._down = False
            self._credit_bytes = 0
            _log.info("the group takes writes; %d messages are spooled", self._spool.waiting)
            self.changed()

    def closed(self, error: DledgerError) -> None:
        """Note that the group takes no writes."""
        if not self._down:
            self._down = True
            _log.warning("the group takes no writes, messages are spooled: %s", error)
            self.changed()

    def broke(self) -> None:
        """Note that nothing is replayed any more: the disk failed."""
        self.broken = True
        self.changed()

    def spooled(self, size_bytes: int) -> None:
        """Note that bytes were spooled."""
        if not self._down:
            self._credit_bytes -= size_bytes
        self.changed()

    def replayed(self, size_bytes: int) -> None:
        """Note that bytes were replayed."""
        self._credit_bytes = min(self._credit_bytes + size_bytes // 2, BATCH_BYTES)
        self.changed()

    def changed(self) -> None:
        """Let those who wait look again."""
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        """Return at the next change."""
        await asyncio.shield(self._changed)
