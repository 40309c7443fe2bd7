"""Reading what a topic has kept for longer: each message with its own offset, time and entry."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from dledger.client.stored_batch import StoredBatch
from dledger.errors import DledgerError, OffsetOutOfRange
from dledger.requests.queue_followers import QueueFollowers
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.reading import BatchReading, encoded
from dledger.types import StoredRecord
from tests.services.kept_disk import BODY, Disk


async def _batches(disk: Disk, **request: Any) -> tuple[list[StoredBatch], int]:
    """Return all batches as a client gets them, and the bytes of the answers."""
    asked = pb.ReadRequest(topic="orders", **request)
    reading = BatchReading(disk, QueueFollowers(), asked)
    reading.check()
    found, size_bytes = list[StoredBatch](), 0
    while await reading.next_bytes():
        response = encoded(await reading.part(), asked)
        size_bytes += len(response)
        answer = pb.ReadBatchesResponse.FromString(response)
        found += map(StoredBatch.of, answer.batches)
        assert answer.next_offset == found[-1].end_offset
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


@pytest.mark.parametrize("with_gaps", [False, True])
async def test_a_reader_goes_on_behind_a_gap(with_gaps: bool) -> None:
    """It gets what there is, in order, with the offsets that it had."""
    gone = [0, 1, 2, 7, 8, 20, 39]
    disk = Disk(without=gone)

    batches, _ = await _batches(disk, start_offset=3, with_gaps=with_gaps)

    left = [o for o in range(40) if o not in gone]
    assert [r.offset for r in _records(batches)] == left
    assert [r.record.body.decode() for r in _records(batches)] == [f"{BODY} {o}" for o in left]
    assert [r.index for r in _records(batches)] == [3 + o // 10 for o in left]


async def test_a_reader_that_knows_of_gaps_gets_a_block_as_it_lies() -> None:
    """One batch, with the offset of each message; from within one, only what it asked for."""
    disk = Disk(without=range(1, 40, 2))

    (whole,), _ = await _batches(disk, with_gaps=True)
    (rest,), _ = await _batches(disk, with_gaps=True, start_offset=21)
    (some,), _ = await _batches(disk, with_gaps=True, start_offset=21, max_records=3)

    assert whole.payload in disk.log.entries[-1].data
    assert [list(each.offsets) for each in (whole, rest, some)] == [
        list(range(0, 40, 2)),
        list(range(22, 40, 2)),
        [22, 24, 26],
    ]
    assert len(some.payload) < len(rest.payload) < len(whole.payload)


async def test_a_reader_that_asks_for_no_gaps_is_told_none() -> None:
    """One batch for each stretch without a gap, as older clients of any language read it."""
    disk = Disk(without=[5, 6, 20])

    batches, _ = await _batches(disk)

    assert [(b.first_offset, b.count, b.gapped) for b in batches] == [
        (0, 5, ()),
        (7, 13, ()),
        (21, 19, ()),
    ]


@pytest.mark.parametrize(
    ("with_gaps", "body", "most"), [(True, 200, 1.2), (True, 1_000, 1.1), (False, 200, 2.0)]
)
async def test_half_empty_blocks_cost_what_is_left_of_them(
    with_gaps: bool, body: int, most: float
) -> None:
    """Bytes on the wire for a byte of messages; a whole block for each gap would be 350."""
    disk = Disk(without=range(0, 700, 2), entries=70, body="x" * body)

    batches, size_bytes = await _batches(disk, start_offset=1, with_gaps=with_gaps)

    records = [record.record for record in _records(batches)]
    assert len(records) == 350
    assert size_bytes <= most * sum(len(one.body) + len(one.message_id) for one in records)


async def test_blocks_are_planned_by_what_they_have() -> None:
    """A megabyte of them is one answer, however many gaps there are: not one for each."""
    disk = Disk(entries=0)
    for _ in range(200):
        disk.produce(10, BODY)
    for before in (183, 203):  # of 180 entries, and of 20, which is too little to join those
        disk.roll(range(0, 2_000, 2), before=before)
    reading = BatchReading(
        disk, QueueFollowers(), pb.ReadRequest(topic="orders", start_offset=1, with_gaps=True)
    )
    old = BatchReading(disk, QueueFollowers(), pb.ReadRequest(topic="orders", start_offset=1))

    assert (await _parts(reading), await _parts(old)) == ([1_000], [256, 256, 256, 232])


async def _parts(reading: BatchReading) -> list[int]:
    """Return how many messages each part has."""
    found = []
    while await reading.next_bytes():
        found.append(sum(each.count for each in await reading.part()))
    return found


async def test_what_was_copied_since_it_was_planned_is_read_where_it_lies_now() -> None:
    """A reader that was slow to take a part is told of no offset that is there all the same."""
    disk = Disk(entries=0)
    for _ in range(3):
        disk.produce(10, "x" * 30_000)
    reading = BatchReading(disk, QueueFollowers(), pb.ReadRequest(topic="orders"))
    assert await reading.next_bytes()
    disk.roll()
    disk.roll(range(3, 30))
    disk.retain()

    found = list[int]()
    while await reading.next_bytes():
        found += [offset for each in await reading.part() for offset in each.own_offsets()]

    assert found == [0, 1, 2]


@pytest.mark.parametrize("seed", range(12))
async def test_every_reader_gets_what_is_left_at_its_offset(seed: int) -> None:
    """Random blocks with gaps before the log's runs; from any offset on, so many, either way."""
    rng = Random(seed)
    disk, left = Disk(entries=0), dict[int, bytes]()
    for _ in range(rng.randint(2, 12)):
        count, body = rng.randint(1, 40), "x" * rng.randint(1, 2_000)
        end = disk.state.topics.queue("orders", 0).end
        disk.produce(count, body)
        left |= {end + row: f"{body} {end + row}".encode() for row in range(count)}
        if rng.random() < 0.7:
            gone = {o for o in left if o > 0 and rng.random() < rng.choice((0.0, 0.3, 0.9))}
            decided = disk.roll(sorted(gone))
            for offset in gone.intersection(decided):
                del left[offset]
        if rng.random() < 0.3:
            disk.retain()

    for _ in range(20):
        start, most = rng.randint(0, end), rng.choice((0, 1, rng.randint(1, 60)))
        asked = {"start_offset": start, "max_records": most, "joined": rng.random() < 0.5}
        wanted = [(o, left[o]) for o in sorted(left) if o >= start][: most or None]
        for with_gaps in (False, True):
            batches, _ = await _batches(disk, with_gaps=with_gaps, **asked)
            assert [(r.offset, r.record.body) for r in _records(batches)] == wanted
            assert with_gaps or not any(batch.gapped for batch in batches)


@pytest.mark.parametrize("offsets", [[3], [4, 5], [3, 3], [5, 3]])
def test_offsets_that_are_not_a_batchs_are_no_nodes(offsets: list[int]) -> None:
    """No message is told an offset that was made up."""
    with pytest.raises(DledgerError):
        StoredBatch.of(pb.StoredBatch(first_offset=3, count=2, offsets=offsets))


async def test_what_went_from_the_front_is_told_and_a_gap_is_not() -> None:
    """As retention's: who asks below the first message has missed some."""
    disk = Disk(without=[0, 1, 5])

    with pytest.raises(OffsetOutOfRange):
        await _batches(disk, start_offset=1)
    batches, _ = await _batches(disk, start_offset=5)
    assert _records(batches)[0].offset == 6
