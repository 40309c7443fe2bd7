"""Decides where a message goes: to the group, to the spool, or that it must wait.

Shared by the senders and the replay of one producer.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import Final

from dledger.errors import DledgerError
from dledger.spool.spool import Spool

BATCH_RECORDS: Final = 4_096
BATCH_BYTES: Final = 4 << 20
"""The limits of one batch that is sent, or written and synced; a single message may be larger."""

_log = logging.getLogger(__name__)


class Route(Enum):
    """Where the next messages of a topic go."""

    DIRECT = "to the group"
    SPOOL = "to the spool"
    WAIT = "nowhere yet: the replay must catch up first"


class CircuitBreaker:
    """Whether the group accepts writes, as of the latest attempt by any sender or the replay.

    While a topic has spooled messages, new ones are not sent directly. During the replay, new
    messages are admitted to the spool at half the replay rate, and not at all once only one batch
    is left. So the spool always drains, and senders never wait long.

    Attributes:
        broken: Whether the replay has stopped because the disk failed.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._down = spool.waiting > 0
        self.broken = False
        self._credit_bytes = 0
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def down(self) -> bool:
        """Whether the group refused writes at the latest attempt."""
        return self._down

    def route(self, topic: str) -> Route:
        """Return where the next messages of *topic* go."""
        if not self._spool.waiting:
            return Route.DIRECT
        if self._down or self.broken:
            return Route.SPOOL
        if not self._spool.depth[topic]:
            return Route.DIRECT
        behind = self._spool.waiting > BATCH_RECORDS or self._spool.waiting_bytes > BATCH_BYTES
        return Route.SPOOL if behind and self._credit_bytes > 0 else Route.WAIT

    def opened(self) -> None:
        """Note that the group accepted a write."""
        if self._down:
            self._down = False
            self._credit_bytes = 0
            _log.info("the group accepts writes; %d messages are spooled", self._spool.waiting)
            self.changed()

    def closed(self, error: DledgerError) -> None:
        """Note that the group does not accept writes."""
        if not self._down:
            self._down = True
            _log.warning("the group accepts no writes, messages are spooled: %s", error)
            self.changed()

    def broke(self) -> None:
        """Note that the replay has stopped because the disk failed."""
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
        """Wake everyone who waits."""
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        """Wait for the next change."""
        await asyncio.shield(self._changed)
