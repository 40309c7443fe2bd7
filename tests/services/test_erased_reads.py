"""Reading a queue of which messages were erased: neither shown, nor sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dledger.broker.commands import SetRetention
from dledger.broker.erase import Erase
from dledger.broker.results import Erased
from dledger.client.stored_batch import StoredBatch
from dledger.replica.rolling import Due, next_roll, rekeep_of
from dledger.requests.queue_followers import QueueFollowers
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.reading import BatchReading, encoded
from dledger.types import Entry
from tests.broker.compacted import compact_topics
from tests.broker.log import Log
from tests.requests.part_of_engine import PartOfEngine


class Disk(PartOfEngine):
    """A node's engine with a queue of 12 messages: one of six, and six alone, in seven entries."""

    def __init__(self, *, copied: bool = False) -> None:
        self.log = Log()
        self.state = self.log.state
        self.log.create(topic="orders")
        self.log.append(SetRetention(name="orders", hours=0).encode())
        bodies, ids = zip(*((f"body {n};", f"id {n}") for n in range(6)), strict=True)
        self.log.produce(*bodies, ids=ids, topic="orders")
        for number in range(6, 12):
            self.log.produce(f"body {number};", topic="orders")
        if copied:
            topics, behind = self.state.topics, len(self.log.entries) + 1
            roll = next_roll(
                topics.named("orders"),
                0,
                topics.queue("orders", 0),
                Due.below(behind),
            )
            assert roll is not None
            entries = self.log.entries
            command, _ = rekeep_of(roll, lambda index: entries[index - 1], lambda *_: True)
            self.log.append(command)

    def erase(self, *rows: int) -> None:
        """Commit an ERASE of messages that are there."""
        command = Erase(generation=1, queue_id=0, first_entry=1, offsets=rows)
        assert self.log.append(command.encode()) == [Erased(len(rows), len(self.log.entries))]

    def read_ahead(self, indexes: Sequence[int]) -> None:
        """Nothing is slow here."""

    async def read_entry(self, index: int) -> Entry:
        return self.log.entries[index - 1]


@pytest.fixture(autouse=True)
def _compacted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        compact_topics(patch)
        yield


async def _sent(disk: Disk, **request: Any) -> tuple[list[int], bytes]:
    """Return the offsets that a client is shown, and all bytes that it is sent."""
    asked = pb.ReadRequest(topic="orders", **request)
    reading = BatchReading(disk, QueueFollowers(), asked)
    reading.check()
    return await _rest(reading, asked)


async def _rest(reading: BatchReading, asked: pb.ReadRequest) -> tuple[list[int], bytes]:
    found, sent = list[int](), b""
    while await reading.next_bytes():
        part = await reading.part()
        answer = encoded(part, asked) if part else b""
        batches = map(StoredBatch.of, pb.ReadBatchesResponse.FromString(answer).batches)
        records = [record for batch in batches for record in batch.records()]
        assert [r.record.body for r in records] == [b"body %d;" % r.offset for r in records]
        found += [record.offset for record in records]
        sent += answer
    return found, sent


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("with_gaps", [False, True])
async def test_what_was_erased_is_not_sent(with_gaps: bool, joined: bool, copied: bool) -> None:
    """Not as a row of a payload either, that a client would only not look at."""
    disk = Disk(copied=copied)
    gone = (0, 2, 3, 8, 11)
    disk.erase(*gone)

    found, sent = await _sent(disk, joined=joined, with_gaps=with_gaps)

    assert found == [o for o in range(12) if o not in gone]
    assert [o for o in range(12) if b"body %d;" % o in sent] == found


async def test_what_is_erased_after_it_was_planned_is_not_sent() -> None:
    """A reader may wait for room in between, for as long as its neighbours are slow."""
    disk = Disk()
    asked = pb.ReadRequest(topic="orders", max_records=9)
    reading = BatchReading(disk, QueueFollowers(), asked)
    assert await reading.next_bytes()

    disk.erase(0, 1, 2, 7)

    first = await reading.part()
    assert [each.first_offset for each in first] == [3, 6, 8, 9, 10, 11]
    assert await _rest(reading, asked) == ([], b"")


async def test_a_reader_of_which_all_was_erased_comes_to_an_end() -> None:
    """The part that was planned is empty by then."""
    disk = Disk()
    asked = pb.ReadRequest(topic="orders")
    reading = BatchReading(disk, QueueFollowers(), asked)
    assert await reading.next_bytes()

    disk.erase(*range(12))

    assert await reading.part() == []
    assert await reading.next_bytes() == 0


async def test_a_row_that_cannot_be_decoded_takes_no_erased_one_with_it() -> None:
    """Its payload is not sent as it lies for that: the rows that can be read go on alone."""
    disk = Disk()
    entry = disk.log.entries[2]
    disk.log.entries[2] = replace(entry, data=entry.data.replace(b"id 4", b"\xff\xff 4"))
    disk.erase(0)

    found, sent = await _sent(disk)

    assert found == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    assert b"body 0;" not in sent
