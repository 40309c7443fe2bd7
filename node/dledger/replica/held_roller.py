"""The leader's roller of held messages: copies forward what retention would drop while it waits.

Run by `maintenance` ahead of each RETAIN, as `roller` is, and in bounded steps: one segment that
has some at a time, since nothing may be in it but what is held, and the room that is kept for its
copies on a full disk (`room.Limits.copies_bytes`) is that of one.

Retention drops no entry that something is held in, whoever leads and whatever was copied; so if
nothing can be copied, the log stays. What is held is moved piece by piece (`held_bucket`): what was
let go of a piece meanwhile would else keep its entries for ever.

Copying makes no room where most of the log is held; so then nothing goes for room, and the door
holds no more (`HeldMessages.full`). It refuses long before, by the share of the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from dledger.broker.commands import CancelHeld
from dledger.broker.held_commands import What
from dledger.broker.held_refs import HeldMessage, Ref
from dledger.broker.queue_positions import Payload
from dledger.broker.state import BrokerState
from dledger.common.metrics import NodeMetrics
from dledger.replica.copier import Copier
from dledger.replica.driver import Driver
from dledger.replica.held_copies import MAX_BYTES, MAX_ROWS, copies_of
from dledger.replica.retention import count_without, first_index_without, size_bytes_of
from dledger.replica.roller import Wanted
from dledger.store.commit_log import CommitLog
from dledger.store.log_index import SealedSegment

logger = logging.getLogger(__name__)

_PIECES_A_ROUND: Final = 128
"""Before RETAIN is proposed for what is free by then."""
_COPIES_A_SEGMENT: Final = 4
"""How many copies a segment has room for, at least."""
_BYTES_AT_ONCE: Final = 1 << 24
"""Of payloads, in each of which there may be only one message that is to be moved."""


class HeldRoller:
    """Moves what is held; of one node, used while it leads."""

    def __init__(
        self,
        driver: Driver,
        log: CommitLog,
        state: BrokerState,
        copier: Copier,
        *,
        metrics: NodeMetrics,
    ) -> None:
        self._driver, self._log, self._state = driver, log, state
        self._copier, self._metrics = copier, metrics
        self._deleted = 0

    async def make_way(self, wanted: Wanted) -> int:
        """Move what is held below *wanted*'s index, and return below which nothing is held then.

        At most that index, and in bounded steps, as `Roller.make_way`.

        Raises:
            DledgerError: It does not lead any more, or an entry cannot be read.
        """
        index = self._worthwhile(wanted)
        if index <= self._state.first_index or self._state.held.first_entry >= index:
            return index
        sealed = self._log.sealed()
        gone = count_without(sealed, self._state.first_index)
        if gone and self._driver.room.is_short:
            return 0  # copies would take room before what went is off this full disk
        with_held = count_without(sealed, self._state.held.first_entry)
        if with_held < len(sealed):  # one: the disk has room for the copies of no more
            index = min(index, sealed[with_held].last_index + 1)
        for _ in range(_PIECES_A_ROUND):
            piece = next(self._state.held.pieces_below(index), None)
            if piece is None:
                return index
            await self._move(*piece, index)
        return first_index_without(sealed, self._state.held.first_entry)

    async def _move(self, hour: int, piece: int, index: int) -> None:
        """Move what lies in entries below *index* of a piece, or the first of it.

        That one is for the others of the piece, which were let go: they say with it where they lie.
        """
        found = list(self._state.held.buckets()[hour].messages(piece))
        below = [message for message in found if message.payload.index < index] or found[:1]
        there = {topic.generation for topic in self._state.topics.all()}
        some = _first_bytes([each for each in below if each.generation in there])
        broken = [each.ref for each in below if each.generation not in there]
        if some:
            # A small one makes little of the rest of a segment useless.
            max_bytes = min(MAX_BYTES, self._driver.room.segment_bytes // _COPIES_A_SEGMENT)
            copies = await asyncio.to_thread(
                partial(copies_of, What.MOVE, some, self._copier.read, max_bytes=max_bytes)
            )
            broken += copies.broken
            for copy in copies.copies:
                await self._driver.propose(copy.command, grows=False)
                self._metrics.rolled_messages.inc(len(copy.refs))
                self._metrics.rolled_bytes.inc(len(copy.command))
        await self._cancel(broken)

    async def _cancel(self, refs: Sequence[Ref]) -> None:
        for first in range(0, len(refs), MAX_ROWS):
            command = CancelHeld(refs=tuple(refs[first : first + MAX_ROWS]))
            await self._driver.propose(command.encode(), grows=False)

    async def cancel_orphans(self) -> None:
        """Cancel what is held for topics that were deleted since this was last called on this node.

        Whoever led meanwhile may have done so already.

        Raises:
            DledgerError: It does not lead any more.
        """
        topics, held = self._state.topics, self._state.held
        deleted = topics.deletions
        if deleted == self._deleted:
            return
        there = {topic.generation for topic in topics.all()}
        for hour in sorted(held.buckets()):
            piece = 0
            while (bucket := held.buckets().get(hour)) is not None and piece < bucket.pieces:
                low, high = bucket.generations(piece)
                if bucket.count and not (low == high and low in there):
                    found = bucket.messages(piece)
                    await self._cancel([each.ref for each in found if each.generation not in there])
                piece += 1
                await asyncio.sleep(0)
        self._deleted = deleted

    def most_of_segment(self, sealed: Sequence[SealedSegment]) -> int:
        """Return the most that copying what is held in one segment takes; 0: nothing is held."""
        largest = max((each.size_bytes for each in sealed), default=0)
        held_bytes = self._state.held.size_bytes
        return min(largest, held_bytes) * (_COPIES_A_SEGMENT + 1) // _COPIES_A_SEGMENT

    def rest(self) -> None:
        """Refuse nothing: another node leads."""
        self._state.held.full = ""

    def _worthwhile(self, wanted: Wanted) -> int:
        """Return the index below which messages go: for room only if that makes some."""
        held, for_room = self._state.held, wanted.index > wanted.of_age
        size_bytes = size_bytes_of(self._log.sealed())
        if for_room and 2 * held.size_bytes >= size_bytes:
            said = (
                f"the disk is above its watermark, and of its log's {size_bytes >> 10} KiB "
                f"{held.size_bytes >> 10} are messages whose time has not come, so nothing can go "
                "for room; recall some, or grow the volume"
            )
            if not held.full:
                logger.warning("no more messages are held: %s", said)
            held.full = said
            return wanted.of_age
        if held.full and not for_room:
            logger.warning("messages are held again")
            held.full = ""
        return wanted.index


def _first_bytes(messages: Sequence[HeldMessage]) -> list[HeldMessage]:
    """Return the first messages, by their entries, of payloads of so many bytes; one at least."""
    found, payloads, size_bytes = list[HeldMessage](), set[Payload](), 0
    for each in sorted(messages, key=lambda one: (one.payload.index, one.payload.start)):
        if each.payload not in payloads:
            if size_bytes >= _BYTES_AT_ONCE:
                break
            payloads.add(each.payload)
            size_bytes += each.payload.end - each.payload.start
        found.append(each)
    return found
