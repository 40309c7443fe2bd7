"""A reader knows its next part while the one before is sent, and has it read from the disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dledger.broker.commands import DeleteTopic
from dledger.errors import OffsetOutOfRange, UnknownTopic
from dledger.requests.queue_followers import QueueFollowers
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.reading import BatchReading
from dledger.types import Entry
from tests.broker.log import Log
from tests.requests.part_of_engine import PartOfEngine

BODY_BYTES = 400_000
"""Two of these fit into a part."""


class Disk(PartOfEngine):
    """A node's engine with one queue of single messages, each in an entry of its own from 2 on."""

    def __init__(self, count: int) -> None:
        self.ahead: list[list[int]] = []
        self.reads: list[int] = []
        self.log = Log()
        self.state = self.log.state
        self.log.create(topic="orders")
        for _ in range(count):
            self.produce()

    def produce(self) -> None:
        self.log.produce("x" * BODY_BYTES, topic="orders")

    def read_ahead(self, indexes: Sequence[int]) -> None:
        self.ahead.append(list(indexes))

    async def read_entry(self, index: int) -> Entry:
        self.reads.append(index)
        return self.log.entries[index - 1]


def reader(disk: Disk, **request: Any) -> BatchReading:
    """Return one that reads the queue of *disk*."""
    return BatchReading(disk, QueueFollowers(), pb.ReadRequest(topic="orders", **request))


async def offsets(reading: BatchReading) -> list[int]:
    """Return the offsets of the next part; none at the end."""
    if not await reading.next_bytes():
        return []
    return [stretch.first_offset for stretch in await reading.part()]


async def test_the_next_part_is_read_while_one_is_sent() -> None:
    disk = Disk(5)
    reading = reader(disk)

    first = await offsets(reading)

    assert (first, disk.reads) == ([0, 1], [2, 3])
    assert disk.ahead == [[2, 3], [4, 5]]
    assert [await offsets(reading) for _ in range(3)] == [[2, 3], [4], []]
    assert disk.reads == [2, 3, 4, 5, 6]


async def test_no_more_is_planned_than_was_asked_for() -> None:
    disk = Disk(5)
    reading = reader(disk, max_records=3)

    assert [await offsets(reading) for _ in range(3)] == [[0, 1], [2], []]
    assert [index for indexes in disk.ahead for index in indexes if index > 4] == []


async def test_a_planned_part_that_retention_drops_is_not_sent() -> None:
    """Its reader is told the queue's offsets, also if it was slow to take the part before."""
    disk = Disk(5)
    reading = reader(disk)
    await offsets(reading)
    disk.log.retain(6)

    with pytest.raises(OffsetOutOfRange, match="2"):
        await offsets(reading)


async def test_a_planned_part_of_a_topic_that_is_deleted_is_not_sent() -> None:
    disk = Disk(5)
    reading = reader(disk)
    await offsets(reading)
    disk.log.append(DeleteTopic(name="orders", generation=1).encode())

    with pytest.raises(UnknownTopic):
        await offsets(reading)


async def test_what_is_dropped_behind_a_part_does_not_lose_that_part() -> None:
    """It was read before: only who asks for more is told."""
    disk = Disk(5)
    reading = reader(disk)
    await reading.next_bytes()
    disk.log.retain(6)

    assert [stretch.first_offset for stretch in await reading.part()] == [0, 1]
    with pytest.raises(OffsetOutOfRange):
        await reading.next_bytes()


async def test_what_has_come_since_a_part_was_planned_is_in_it() -> None:
    """A part that was not full is planned again: a follower of the end gets few large answers."""
    disk = Disk(3)
    reading = reader(disk)
    await offsets(reading)
    disk.produce()

    assert await offsets(reading) == [2, 3]
