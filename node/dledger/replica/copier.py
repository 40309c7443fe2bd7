"""The one writer of REKEEP on a node: copies what is due of a queue, a command at a time.

Used by `roller`, for what retention is about to drop, and by `compactor`. Each command is found and
made under one lock, and the next only once it was applied: both may be at work on one queue, and
what one has copied the other finds copied. Of each, the event loop only finds where the messages
lie; a thread reads and copies them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dledger.broker.results import Rekept
from dledger.broker.state import BrokerState
from dledger.broker.topics import Topic
from dledger.common.metrics import NodeMetrics
from dledger.errors import FeatureNotReady, InvalidArgument, Refused
from dledger.replica.driver import Driver
from dledger.replica.rolling import Due, Stays, next_roll, past_blocks, rekeep_of
from dledger.store.commit_log import CommitLog
from dledger.types import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a REKEEP did.

    Attributes:
        kept: Messages that it copied.
        dropped: Messages that are gone with it.
        size_bytes: What it takes in the log.
    """

    kept: int
    dropped: int
    size_bytes: int


class Copier:
    """Proposes REKEEPs, of one node while it leads."""

    def __init__(
        self, driver: Driver, log: CommitLog, state: BrokerState, *, metrics: NodeMetrics
    ) -> None:
        self._driver, self._log, self._state = driver, log, state
        self._metrics = metrics
        self._writer = asyncio.Lock()

    async def copy_next(
        self, topic: Topic, queue_id: int, due: Due, stays: Callable[[Topic], Stays]
    ) -> Copied | None:
        """Copy what comes next of what is due in a queue; None: nothing, or the topic is gone.

        *stays* is asked for the topic as it is by now: a round may be long, and its retention
        change meanwhile; nothing goes by the one before.

        Raises:
            DledgerError: It does not lead any more, or an entry cannot be read.
        """
        async with self._writer:
            while (now := self._as_it_is(topic)) is not None:
                queue = self._state.topics.queue(topic.name, queue_id)
                erased, roll = queue.erased, next_roll(now, queue_id, queue, due)
                if roll is None:
                    return None
                command, kept = await asyncio.to_thread(
                    rekeep_of, roll, self.read, stays(now), due.alone
                )
                if self._as_it_is(topic) is not now:
                    continue
                try:
                    dropped = await self._propose(command)
                except InvalidArgument:
                    if self._state.topics.queue(topic.name, queue_id).erased is erased:
                        raise
                    continue  # some of it was erased meanwhile, and may not come back
                self._metrics.rolled_messages.inc(kept)
                self._metrics.rolled_bytes.inc(len(command))
                return Copied(kept=kept, dropped=dropped, size_bytes=len(command))
        return None

    async def drop_past(
        self, topic: Topic, queue_id: int, is_past: Callable[[Topic], Callable[[int], bool]]
    ) -> bool:
        """Drop the first blocks that have been kept for long enough; return whether any have.

        *is_past* is asked for the topic as it is by now; it says so of a time, Unix ms.

        Raises:
            DledgerError: It does not lead any more.
        """
        async with self._writer:
            now = self._as_it_is(topic)
            if now is None:
                return False
            queue = self._state.topics.queue(topic.name, queue_id)
            command = past_blocks(now, queue_id, queue, is_past(now))
            if command is None:
                return False
            await self._propose(command)
            return True

    def _as_it_is(self, topic: Topic) -> Topic | None:
        """Return a topic as it is by now; None if it is gone, or keeps nothing longer any more."""
        topics = self._state.topics
        return topics.named(topic.name) if topic.generation in topics.longer else None

    def read(self, index: int) -> Entry:
        """Return an entry of the log. Blocks. Raises DledgerError: it cannot be read."""
        (entry,) = self._log.read(index, index, 0)
        return entry

    async def _propose(self, command: bytes) -> int:
        try:
            result = await self._driver.propose(command, grows=False)
        except (Refused, FeatureNotReady):
            self._metrics.refused_copies.inc()
            raise
        if not isinstance(result, Rekept):
            raise TypeError(f"REKEEP answered {result!r}")
        return result.dropped
