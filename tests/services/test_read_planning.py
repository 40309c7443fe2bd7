"""A reader knows its next part while the one before is sent, and has it read from the disk."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from crc32c import crc32c

from dledger.broker.consume_queue import ConsumeQueue, Payload
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.topics import Topic
from dledger.errors import OffsetOutOfRange, UnknownTopic
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.reading import BatchReading
from dledger.types import Entry, EntryKind

BODY = b"x" * 400_000
"""Two of these fit into a part."""


class Disk:
    """A node's engine with one queue of single messages, each in an entry of its own."""

    def __init__(self, count: int) -> None:
        self.ahead: list[list[int]] = []
        self.reads: list[int] = []
        self.queue = ConsumeQueue()
        self.is_there = True
        columns = Columns(bodies=[BODY], message_ids=[""], born_at_ms=[0])
        self.data = encode_produce(columns, client_id="c", topic="orders")
        for index in range(1, count + 1):
            self.queue.append(Payload(index, 0, len(self.data)), range(1), None)
        self.state = SimpleNamespace(
            topics=SimpleNamespace(named=self._named, queue=lambda *_: self.queue)
        )

    def _named(self, name: str) -> Topic:
        if not self.is_there:
            raise UnknownTopic(name)
        return Topic(name=name, type="NORMAL", queues=1, generation=1)

    def read_ahead(self, indexes: Sequence[int]) -> None:
        self.ahead.append(list(indexes))

    async def read_entry(self, index: int) -> Entry:
        self.reads.append(index)
        data = self.data
        return Entry(
            index=index,
            term=1,
            kind=EntryKind.DATA,
            data=data,
            crc32c=crc32c(data),
            timestamp_ms=0,
        )


def reader(disk: Disk, **request: Any) -> BatchReading:
    """Return one that reads the queue of *disk*."""
    context = SimpleNamespace(engine=disk, queue_followers=None)
    return BatchReading(cast("Any", context), pb.ReadRequest(topic="orders", **request))


async def offsets(reading: BatchReading) -> list[int]:
    """Return the offsets of the next part; none at the end."""
    if not await reading.next_bytes():
        return []
    return [stretch.first_offset for stretch in await reading.part()]


async def test_the_next_part_is_read_while_one_is_sent() -> None:
    disk = Disk(5)
    reading = reader(disk)

    first = await offsets(reading)

    assert (first, disk.reads) == ([0, 1], [1, 2])
    assert disk.ahead == [[1, 2], [3, 4]]
    assert [await offsets(reading) for _ in range(3)] == [[2, 3], [4], []]
    assert disk.reads == [1, 2, 3, 4, 5]


async def test_no_more_is_planned_than_was_asked_for() -> None:
    disk = Disk(5)
    reading = reader(disk, max_records=3)

    assert [await offsets(reading) for _ in range(3)] == [[0, 1], [2], []]
    assert [index for indexes in disk.ahead for index in indexes if index > 3] == []


async def test_a_planned_part_that_retention_drops_is_not_sent() -> None:
    """Its reader is told the queue's offsets, also if it was slow to take the part before."""
    disk = Disk(5)
    reading = reader(disk)
    await offsets(reading)
    disk.queue.drop_before(5)

    with pytest.raises(OffsetOutOfRange, match="2"):
        await offsets(reading)


async def test_a_planned_part_of_a_topic_that_is_deleted_is_not_sent() -> None:
    disk = Disk(5)
    reading = reader(disk)
    await offsets(reading)
    disk.is_there = False

    with pytest.raises(UnknownTopic):
        await offsets(reading)


async def test_what_is_dropped_behind_a_part_does_not_lose_that_part() -> None:
    """It was read before: only who asks for more is told."""
    disk = Disk(5)
    reading = reader(disk)
    await reading.next_bytes()
    disk.queue.drop_before(5)

    assert [stretch.first_offset for stretch in await reading.part()] == [0, 1]
    with pytest.raises(OffsetOutOfRange):
        await reading.next_bytes()


async def test_what_has_come_since_a_part_was_planned_is_in_it() -> None:
    """A part that was not full is planned again: a follower of the end gets few large answers."""
    disk = Disk(3)
    reading = reader(disk)
    await offsets(reading)
    disk.queue.append(Payload(4, 0, len(disk.data)), range(1), None)

    assert await offsets(reading) == [2, 3]
