"""Reading what a topic has kept for longer: each message with its own offset, time and entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dledger.broker.commands import SetRetention
from dledger.broker.results import Rekept
from dledger.client.stored_batch import StoredBatch
from dledger.errors import OffsetOutOfRange
from dledger.replica.rolling import Due, next_roll, rekeep_of
from dledger.requests.queue_followers import QueueFollowers
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.reading import BatchReading, encoded
from dledger.types import Entry, StoredRecord
from tests.broker.log import Log
from tests.requests.part_of_engine import PartOfEngine

_BODY = "x" * 200


class Disk(PartOfEngine):
    """A node's engine with a queue of 40 messages, ten an entry, that was rolled whole."""

    def __init__(self, *, without: Sequence[int] = ()) -> None:
        self.log = Log()
        self.state = self.log.state
        self.log.create(topic="orders")
        self.log.append(SetRetention(name="orders", hours=0).encode())
        for number in range(4):
            self.log.now_ms += 1_000
            self.log.produce(*(f"{_BODY} {10 * number + row}" for row in range(10)), topic="orders")
        self._roll([])
        if without:
            self._roll(without)

    def _roll(self, without: Sequence[int]) -> None:
        topic = self.state.topics.named("orders")
        queue = self.state.topics.queue("orders", 0)
        roll = next_roll(topic, 0, queue, Due.below(len(self.log.entries) + 1))
        assert roll is not None
        if without:
            (each,) = roll.stretches
            left = [o for o in range(40) if o not in without]
            stretches = tuple(each._replace(first=o, row=o, length=1) for o in left)
            roll = replace(roll, stretches=stretches)
        command, _ = rekeep_of(roll, lambda index: self.log.entries[index - 1], lambda *_: True)
        (result,) = self.log.append(command)
        assert result == Rekept(len(without))

    def read_ahead(self, indexes: Sequence[int]) -> None:
        """Nothing is slow here."""

    async def read_entry(self, index: int) -> Entry:
        return self.log.entries[index - 1]


async def _batches(disk: Disk, **request: Any) -> tuple[list[StoredBatch], int]:
    """Return all batches as a client gets them, and the bytes of the answers."""
    asked = pb.ReadRequest(topic="orders", **request)
    reading = BatchReading(disk, QueueFollowers(), asked)
    reading.check()
    found, size_bytes = list[StoredBatch](), 0
    while await reading.next_bytes():
        answer = encoded(await reading.part(), asked)
        size_bytes += len(answer)
        found += map(StoredBatch.of, pb.ReadBatchesResponse.FromString(answer).batches)
    return found, size_bytes


def _records(batches: Sequence[StoredBatch]) -> list[StoredRecord]:
    return [record for batch in batches for record in batch.records()]


async def test_what_was_copied_has_the_times_and_entries_of_then() -> None:
    """A batch names the entry of each of its messages, as one that was joined does."""
    disk = Disk()

    (batch,), _ = await _batches(disk, joined=True)

    assert [(r.offset, r.index, r.stored_at_ms) for r in batch.records()] == [
        (o, 3 + o // 10, 1_001_000 + 1_000 * (o // 10)) for o in range(40)
    ]


async def test_a_reader_goes_on_behind_a_gap() -> None:
    """It gets what there is, in order, with the offsets that it had."""
    gone = [0, 1, 2, 7, 8, 20, 39]
    disk = Disk(without=gone)

    batches, _ = await _batches(disk, start_offset=3)

    left = [o for o in range(40) if o not in gone]
    assert [r.offset for r in _records(batches)] == left
    assert [r.record.body.decode() for r in _records(batches)] == [f"{_BODY} {o}" for o in left]
    assert [r.index for r in _records(batches)] == [3 + o // 10 for o in left]


async def test_of_a_block_with_gaps_only_what_is_left_is_sent() -> None:
    """Not the whole of it for each slice: that was a thousand bytes for each of a message."""
    disk = Disk(without=range(0, 40, 2))

    batches, size_bytes = await _batches(disk, start_offset=1)

    bodies = sum(len(r.record.body) for r in _records(batches))
    assert len(_records(batches)) == 20
    assert size_bytes < 2 * bodies


async def test_what_went_from_the_front_is_told_and_a_gap_is_not() -> None:
    """As retention's: who asks below the first message has missed some."""
    disk = Disk(without=[0, 1, 5])

    with pytest.raises(OffsetOutOfRange):
        await _batches(disk, start_offset=1)
    batches, _ = await _batches(disk, start_offset=5)
    assert _records(batches)[0].offset == 6
