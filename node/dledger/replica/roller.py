"""The leader's roller: copies forward what retention would drop and a topic keeps longer.

Run by `maintenance` ahead of each RETAIN, in bounded steps: for two segments at a time, so that on
a full disk copies take no more than the room that is kept for commands; so many commands a round,
behind which RETAIN drops what is free by then. `rolling` decides what is copied, `copier` does it.

Dropping for room what would have to be copied again makes none. So where at least half of the
oldest segments is kept longer, nothing goes for room; messages of such topics are refused by name
instead, and room for others is made by who ends their retention, deletes one, or grows the volumes.
What has reached the group's retention is copied all the same, once in that time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dledger.broker.lived_time import older_than
from dledger.broker.state import BrokerState
from dledger.broker.topics import Topic
from dledger.replica.copier import Copier
from dledger.replica.driver import Driver
from dledger.replica.retention import (
    HOUR_MS,
    count_without,
    first_index_without,
    size_bytes_of,
)
from dledger.replica.rolling import Due, Stays, effective_hours, held_bytes
from dledger.store.commit_log import CommitLog
from dledger.store.log_index import SealedSegment

logger = logging.getLogger(__name__)

SEGMENTS_AT_ONCE: Final = 2
"""Segments that are made free of what is kept before the first of them may go."""
_COMMANDS_A_ROUND: Final = 128
"""REKEEPs of at most 1 MiB, before RETAIN is proposed for what is free by then."""
_QUEUES_A_TURN: Final = 256
_ROUNDS_BETWEEN_LOOKS: Final = 60
"""How often blocks are looked for that have been kept for long enough; a round is a second."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What retention would drop.

    Attributes:
        index: Messages in entries below it may go: for their age, or for room.
        of_age: Those below it for their age.
    """

    index: int
    of_age: int


class Roller:
    """Copies what is kept longer; of one node, used while it leads."""

    def __init__(self, driver: Driver, log: CommitLog, state: BrokerState, copier: Copier) -> None:
        self._driver, self._log, self._state, self._copier = driver, log, state, copier
        self._rounds = self._left = 0

    async def make_way(self, wanted: Wanted, *, group_hours: int) -> int:
        """Copy what topics keep longer, and return below which index nothing is kept any more.

        At most *wanted*'s, and in bounded steps: what is left is done when it is called again.

        Raises:
            DledgerError: It does not lead any more, or an entry cannot be read.
        """
        topics = self._state.topics.keeping_longer()
        sealed = self._log.sealed()
        sealed = sealed[count_without(sealed, self._state.first_index) :]
        index = await self._worthwhile(topics, sealed, wanted)
        if not topics or index <= self._state.first_index:
            return index
        held = self._state.topics.lowest_held()
        if held is not None and held < index:
            if self._waits_for_disk():
                return 0
            some = sealed[:SEGMENTS_AT_ONCE]
            index = min(index, some[-1].last_index + 1) if some else index
            self._left = _COMMANDS_A_ROUND
            for topic in topics:
                await self._roll_topic(topic, index, group_hours)
            held = self._state.topics.lowest_held()
        if held is None or held >= index:
            return index
        return first_index_without(sealed, held)

    def _waits_for_disk(self) -> bool:
        """Whether copies would take room before what went is off this full disk."""
        gone = count_without(self._log.sealed(), self._state.first_index)
        return gone > 0 and self._driver.room.is_short

    async def _roll_topic(self, topic: Topic, before: int, group_hours: int) -> None:
        due = Due.below(before, last_index=self._driver.applied_index)
        for queue_id in range(topic.queues):
            while self._left and await self._copier.copy_next(
                topic, queue_id, due, lambda now: self._stays(now, group_hours)
            ):
                self._left -= 1
            if queue_id % _QUEUES_A_TURN == _QUEUES_A_TURN - 1:
                await asyncio.sleep(0)

    def _stays(self, topic: Topic, group_hours: int) -> Stays:
        is_past = self._past(topic, group_hours)
        return lambda _, origin: not is_past(origin.stored_at_ms)

    def _past(self, topic: Topic, group_hours: int) -> Callable[[int], bool]:
        """Return whether a message of a topic has been kept for long enough, by when it came."""
        hours = effective_hours(topic.retention_hours or 0, group_hours)
        is_old = older_than(
            hours * HOUR_MS,
            leaps=self._state.time.leaps,
            lived_ms=self._driver.log_clock.lived_ms(),
        )
        return is_old if hours else lambda _: False

    async def drop_past(self, *, group_hours: int) -> None:
        """Every minute: drop the blocks that have been kept for long enough.

        Raises:
            DledgerError: It does not lead any more.
        """
        self._rounds += 1
        if self._rounds % _ROUNDS_BETWEEN_LOOKS:
            return
        for topic in self._state.topics.keeping_longer():
            for queue_id in range(topic.queues):
                while await self._copier.drop_past(
                    topic, queue_id, lambda now: self._past(now, group_hours)
                ):
                    pass
            await asyncio.sleep(0)

    # -- where copying makes no room ---------------------------------------------------------------

    async def _worthwhile(
        self, topics: Sequence[Topic], sealed: Sequence[SealedSegment], wanted: Wanted
    ) -> int:
        """Return the index below which messages go: for room only if that makes some."""
        for_room = wanted.index > max(wanted.of_age, self._state.first_index)
        if not topics or not for_room:
            self._take_again()
            return wanted.index
        oldest = sealed[: max(1, min(SEGMENTS_AT_ONCE, count_without(sealed, wanted.index)))]
        if not oldest:
            return wanted.index
        kept = await self._kept_bytes(topics, oldest[-1].last_index + 1)
        size_bytes = size_bytes_of(oldest)
        if 2 * kept < size_bytes:
            self._take_again()
            return wanted.index
        self._refuse(kept, size_bytes)
        return wanted.of_age

    async def _kept_bytes(self, topics: Sequence[Topic], before: int) -> int:
        """Return about how many bytes in entries below *before* would have to be copied."""
        parts, in_blocks, looked_at = [], 0, 0
        for topic in topics:
            for queue_id in range(topic.queues):
                if not self._state.topics.is_there(topic):
                    break
                queue = self._state.topics.queue(topic.name, queue_id)
                part = queue.part(self._state.first_index, before - 1)
                parts += [] if part is None else [part]
                in_blocks += sum(
                    block.size_bytes for block in queue.blocks or () if block.entry < before
                )
                looked_at += 1
                if looked_at % _QUEUES_A_TURN == 0:
                    await asyncio.sleep(0)
        return in_blocks + await asyncio.to_thread(held_bytes, parts)

    def _refuse(self, kept: int, size_bytes: int) -> None:
        said = (
            f"the disk is above its watermark, and of its {size_bytes >> 10} oldest KiB "
            f"{kept >> 10} are messages that topics keep for longer than the group does, so "
            "nothing can go for room; give these topics a shorter retention, delete one, or grow "
            "the volume"
        )
        if not self._state.topics.full:
            logger.warning("messages of topics with their own retention are refused: %s", said)
        self._state.topics.full = said

    def _take_again(self) -> None:
        if self._state.topics.full:
            logger.warning("messages of topics with their own retention are taken again")
        self.rest()

    def rest(self) -> None:
        """Refuse nothing: there is room, or another node leads."""
        self._state.topics.full = ""
