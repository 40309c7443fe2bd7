"""Reads a compacted topic as changes of a table: for each key its newest message, or none.

For whoever holds the table elsewhere, in a database or a cache: nothing is held here but a batch
for each queue and the position. `table` holds one in memory. Exported from `dledger.client`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from dledger.broker.message import is_tombstone
from dledger.client.batch_reader import follow, read_to_end
from dledger.client.ledger_client import Client
from dledger.client.stored_batch import StoredBatch
from dledger.client.table_position import TablePosition
from dledger.common.backoff import Backoff
from dledger.errors import (
    InvalidArgument,
    PositionTooOld,
    TopicMadeAnew,
    Unavailable,
    UnknownTopic,
)
from dledger.rpc.channel import nodes_of
from dledger.types import MAX_NUMBER, StoredRecord

_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 2.0
_ROUNDS: Final = 4
"""So often a follower makes sure, in the time that tombstones are kept, that it has read all."""
_SHORTEST_ROUND_S: Final = 1.0
_CERTAIN: Final = 7 / 8
"""This part of the time for which tombstones are kept passes on every clock before one goes: the
log's time goes at seven eighths of a leader's at least (docs/internals/time.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A key has a new message, or is deleted.

    Attributes:
        key: The key.
        queue_id: Its queue: all messages of a key are in one.
        stored: The message; a tombstone if the key is deleted.
        deleted: Whether it is.
    """

    key: str
    queue_id: int
    stored: StoredRecord
    deleted: bool


class TableReader:
    """Reads all queues of a compacted topic, from their start or from a position that was kept.

    Use `catch_up` to get what there is, and `changes` to go on; one at a time. A key's changes come
    in order, those of two keys in none. Messages that newer ones have replaced may come or not, so
    count on nothing but the last of a key. After `position` was kept and restored, the change that
    was being worked on comes again, and no earlier one.

    Attributes:
        topic: The topic's name.
        caught_up: Whether all has come that was acknowledged before the first `catch_up`.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        topic: str,
        *,
        position: TablePosition | None = None,
    ) -> None:
        """Remember what to read; nothing is asked yet.

        Args:
            addresses: Client ports (8081) of the group's nodes, ``host:port``; one is enough.
            topic: A compacted topic.
            position: Where to go on; None: at the start, with an empty table.

        Raises:
            InvalidArgument: There is no address, or *position* is another topic's.
        """
        self._nodes = nodes_of(addresses, for_what="reader")
        if position is not None and position.topic != topic:
            raise InvalidArgument(
                f"the position is of topic {position.topic!r}, and topic {topic!r} is to be read"
            )
        self.topic = topic
        self.caught_up = False
        self._tombstone_ms = 0  # until the topic was looked up
        self._generation = position.generation if position is not None else 0
        self._offsets = list(position.offsets) if position is not None else []
        self._as_of_ms = position.as_of_ms if position is not None else None

    @property
    def position(self) -> TablePosition:
        """Behind all changes whose successor was asked for. Keep it together with the table."""
        return TablePosition(
            topic=self.topic,
            generation=self._generation,
            offsets=tuple(self._offsets),
            as_of_ms=_now_ms() if self._as_of_ms is None else self._as_of_ms,
        )

    async def catch_up(self) -> AsyncGenerator[Change]:
        """Yield changes; end when all that was acknowledged before this call has come.

        While no node answers, it waits.

        Raises:
            InvalidArgument: The topic is not compacted, or has not the queues of the position.
            UnknownTopic: There is no such topic.
            TopicMadeAnew: The position is of one that was deleted; another has its name. Begin
                again without a position, with an empty table.
            PositionTooOld: Tombstones may have gone that were not read. Likewise.
        """
        began_ms = _now_ms()
        if not self._tombstone_ms:
            await self._look_up()
        as_of_ms = self._as_of_ms = began_ms if self._as_of_ms is None else self._as_of_ms
        self._check_age(as_of_ms)
        for queue_id in range(len(self._offsets)):
            batches = read_to_end(self._nodes, self.topic, queue_id, **self._from(queue_id))
            async with aclosing(batches):
                async for batch in batches:
                    for change in self._changes(queue_id, batch):
                        yield change
        self._check_age(as_of_ms)
        self._as_of_ms, self.caught_up = began_ms, True

    async def changes(self) -> AsyncGenerator[Change]:
        """Yield changes as they come; never ends. Catches up first. Raises as `catch_up`."""
        while True:
            async with aclosing(self.catch_up()) as there:
                async for change in there:
                    yield change
            async with aclosing(self._follow()) as coming:
                async for change in coming:
                    yield change

    async def _follow(self) -> AsyncGenerator[Change]:
        """Yield changes until it is time to make sure that all was read.

        A node may be behind without knowing it; and a queue in which nothing happens says nothing.
        """
        round_s = max(self._tombstone_ms / 1000 / _ROUNDS, _SHORTEST_ROUND_S)
        until_s = asyncio.get_running_loop().time() + round_s
        readers = [
            follow(self._nodes, self.topic, queue_id, **self._from(queue_id))
            for queue_id in range(len(self._offsets))
        ]
        async with aclosing(_merge(readers, until_s)) as batches:
            async for queue_id, batch in batches:
                for change in self._changes(queue_id, batch):
                    yield change

    def _from(self, queue_id: int) -> dict[str, int]:
        return {"start_offset": self._offsets[queue_id], "generation": self._generation}

    def _changes(self, queue_id: int, batch: StoredBatch) -> Iterator[Change]:
        """Yield what a batch says; the position goes behind each when the next is asked for."""
        for stored in batch.records():
            (key,) = stored.record.keys  # no node takes another number
            deleted = is_tombstone(stored.record.properties)
            yield Change(key=key, queue_id=queue_id, stored=stored, deleted=deleted)
            self._offsets[queue_id] = stored.offset + 1
        self._offsets[queue_id] = batch.end_offset

    def _check_age(self, as_of_ms: int) -> None:
        """Raise PositionTooOld if a tombstone that was not read by then may have gone."""
        certain_ms = int(self._tombstone_ms * _CERTAIN)
        if _now_ms() - as_of_ms > certain_ms:
            raise PositionTooOld(self.topic, as_of_ms=as_of_ms, certain_ms=certain_ms)

    async def _look_up(self) -> None:
        """Find the topic at any node; wait while none answers."""
        turn, backoff = 0, Backoff(_RETRY_S, _RETRY_MAX_S)
        while True:
            try:
                async with Client(self._nodes[turn % len(self._nodes)]) as client:
                    return await self._look_up_at(client)
            except Unavailable:
                turn += 1
            await asyncio.sleep(backoff.next_s())

    async def _look_up_at(self, client: Client) -> None:
        """Find the topic at a node that knows all that was acknowledged before."""
        # A follower is told at once which topic it is of, and waits here behind all messages.
        told = client.read_parts(
            self.topic, 0, start_offset=MAX_NUMBER, follow=True, linearizable=True
        )
        async with aclosing(told):
            generation, _ = await anext(told)
        found = next((each for each in await client.topics() if each.name == self.topic), None)
        if found is None:
            raise UnknownTopic(self.topic, node=client.address)
        if found.compaction is None:
            raise InvalidArgument(
                f"topic {self.topic!r} is not compacted, so it is no table: it keeps all messages "
                "for a time, and none for ever; a topic is compacted if it was made so"
            )
        if self._generation not in {0, generation}:
            raise TopicMadeAnew(self.topic)
        if self._offsets and len(self._offsets) != found.queues:
            raise InvalidArgument(
                f"the position is of {len(self._offsets)} queues, and topic {self.topic!r} has "
                f"{found.queues}"
            )
        self._offsets = self._offsets or [0] * found.queues
        self._generation, self._tombstone_ms = generation, found.compaction.tombstone_ms


async def _merge(
    readers: Sequence[AsyncGenerator[StoredBatch]], until_s: float
) -> AsyncGenerator[tuple[int, StoredBatch]]:
    """Yield what each of *readers* yields, with its number, until the loop's time is *until_s*.

    Raises what one of them raises. At most one batch of each waits here.
    """
    came: asyncio.Queue[tuple[int, StoredBatch] | Exception] = asyncio.Queue(maxsize=1)

    async def take(number: int, reader: AsyncGenerator[StoredBatch]) -> None:
        try:
            async with aclosing(reader):
                async for batch in reader:
                    await came.put((number, batch))
        except Exception as error:  # noqa: BLE001, it is raised where it is waited for
            await came.put(error)

    tasks = [asyncio.ensure_future(take(*each)) for each in enumerate(readers)]
    try:
        while True:
            try:
                async with asyncio.timeout_at(until_s):
                    each = await came.get()
            except TimeoutError:
                return
            if isinstance(each, Exception):
                raise each
            yield each
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
