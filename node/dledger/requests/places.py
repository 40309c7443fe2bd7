"""Where a queue is to be read from, as people say it: the oldest, the newest, a time, an offset.

Only the leader answers, and as of all that was acknowledged. The log has no index by time: a time
is looked for among the entries, of which some twenty are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger.broker.beginnings import OLDEST, Beginning
from dledger.broker.kept_blocks import KeptBlock
from dledger.broker.rekeep import origins
from dledger.broker.topics import Topic
from dledger.errors import InvalidArgument, OffsetOutOfRange, UnknownTopic
from dledger.requests.engine import Engine
from dledger.types import MAX_NUMBER

_APPLIED_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One place in each queue that is asked for.

    Attributes:
        at_end: Behind what there is.
        stored_ms: The first message that was stored then or later, Unix milliseconds.
        offset: A queue offset. Without any of these three: the oldest message.
    """

    at_end: bool = False
    stored_ms: int | None = None
    offset: int | None = None

    def check(self) -> None:
        """Raise InvalidArgument if no queue can have such a place."""
        for what, value in (("time", self.stored_ms), ("offset", self.offset)):
            if value is not None and not 0 <= value < MAX_NUMBER // 2:
                raise InvalidArgument(f"there is no {what} {value}")


class Places:
    """Finds places in the leader's state. Call it on the leader only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def settle(self) -> None:
        """Return once this node's state has all that was acknowledged before.

        Raises:
            NotLeader, Unavailable: It does not lead, or cannot tell whether it does.
        """
        await self._engine.wait_applied(await self._engine.read_index(), _APPLIED_S)

    async def offset(self, topic: Topic, queue_id: int, place: Place) -> int:
        """Return a place in one queue as an offset.

        Raises:
            UnknownTopic: The topic was deleted meanwhile.
            DledgerError: An entry cannot be read.
        """
        if place.offset is not None:
            return place.offset
        if place.stored_ms is not None:
            return await self._offset_from(topic, queue_id, place.stored_ms)
        topics = self._engine.state.topics
        queue = topics.queue(topic.name, queue_id)
        return queue.end if place.at_end else queue.first

    async def beginning(self, place: Place) -> Beginning:
        """Return where a new group begins. Raises InvalidArgument for an offset."""
        if place.offset is not None:
            raise InvalidArgument("a group reads several queues, so it begins at no single offset")
        if place.at_end:
            state = self._engine.state
            return Beginning(state.applied_index + 1, state.now_ms)
        if place.stored_ms is None:
            return OLDEST
        return Beginning(await self._entry_from(place.stored_ms), place.stored_ms)

    async def _offset_from(self, topic: Topic, queue_id: int, stored_ms: int) -> int:
        entry = await self._entry_from(stored_ms)
        topics = self._engine.state.topics
        if not topics.is_there(topic):
            raise UnknownTopic(topic.name)
        queue = topics.queue(topic.name, queue_id)
        block = None if queue.blocks is None else queue.blocks.stored_from(stored_ms)
        if block is None:
            return queue.log_stored_from(entry)
        return max(await self._row_from(block, stored_ms), queue.first)

    async def _row_from(self, block: KeptBlock, stored_ms: int) -> int:
        """Return the offset of a block's first message that was stored then or later."""
        entry = await self._engine.read_entry(block.entry)
        found = origins(entry, block.start, block.stop)
        rows = zip(block.offsets(), found, strict=True)
        return next((o for o, one in rows if one.stored_at_ms >= stored_ms), block.first_row)

    async def _entry_from(self, stored_ms: int) -> int:
        """Return the first entry of that time or later; the one behind the last if none is.

        The log's time never goes back. Raft's own entries have none.
        """
        low, high = self._engine.state.first_index, self._engine.state.applied_index + 1
        while low < high:
            middle = at = (low + high) // 2
            while not (found_ms := await self._time_of(at)) and at > low:
                at -= 1
            if found_ms < stored_ms:
                low = middle + 1
            else:
                high = at
        return low

    async def _time_of(self, index: int) -> int:
        """Return when an entry was stored; 0: it has no time, or retention has dropped it."""
        try:
            return (await self._engine.read_entry(index)).timestamp_ms
        except OffsetOutOfRange:
            return 0
