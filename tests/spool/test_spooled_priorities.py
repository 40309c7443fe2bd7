"""Messages for PRIORITY topics through a spool: while the group is there, and afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dledger.client import Client, Record, SpoolingProducer, Typed
from dledger.errors import MessageRejected, Refused
from tests.requests.memory_group import WAIT_S, MemoryGroup, memory_group

_QUEUES = 4
_SENT = [(number * 5) % 7 for number in range(40)]


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Two nodes, and the topic p."""
    async with memory_group(2) as group:
        async with Client(group.addresses[0]) as client:
            assert await client.create_topic("p", type="PRIORITY", queues=_QUEUES)
        yield group


def _record(priority: int) -> Record:
    return Record(body=b"%d" % priority, typed=Typed(priority=priority))


def _expected() -> list[list[bytes]]:
    return [
        [b"%d" % each for each in _SENT if min(each, _QUEUES - 1) == queue_id]
        for queue_id in range(_QUEUES)
    ]


async def _stored(group: MemoryGroup) -> list[list[bytes]]:
    return [await group.bodies("p", queue_id) for queue_id in range(_QUEUES)]


async def test_a_spooling_producer_sends_by_priority(group: MemoryGroup, tmp_path: Path) -> None:
    """Each message is told its own place; what no node would take is refused at once."""
    async with SpoolingProducer(group.addresses, tmp_path / "spool", patience_s=WAIT_S) as producer:
        sent = await producer.send_batch("p", [_record(each) for each in _SENT])
        with pytest.raises(Refused, match="takes PRIORITY messages, not NORMAL"):
            await producer.send("p", b"without")
        with pytest.raises(Refused, match="a priority is from 0"):
            await producer.send("p", _record(-2))

    assert [each.queue_id for each in sent] == [min(each, _QUEUES - 1) for each in _SENT]
    assert await _stored(group) == _expected()


async def test_a_spool_is_replayed_by_priority(group: MemoryGroup, tmp_path: Path) -> None:
    """Those of a queue keep their order; one without a priority is rejected, and blocks nothing."""
    rejected = list[object]()
    group.elect(None)
    async with SpoolingProducer(
        group.addresses, tmp_path / "spool", patience_s=0.05, report=rejected.append
    ) as producer:
        records: list[Record | bytes] = [_record(each) for each in _SENT]
        sent = await producer.send_batch("p", [*records[:20], b"without", *records[20:]])
        assert all(each.spooled for each in sent)
        group.elect(0)
        assert await producer.drained(WAIT_S)

    (one,) = rejected
    assert isinstance(one, MessageRejected)
    assert await _stored(group) == _expected()
    async with Client(group.addresses[0]) as client:
        read = [each.typed async for each in client.read("p", 3)]
    assert read == [Typed(priority=each) for each in _SENT if each >= _QUEUES - 1]
