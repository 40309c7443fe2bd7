"""What cannot be told: no door lets it in; from an older log it harms nobody beside it."""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence

import grpc.aio
import pytest

from dledger.broker.command_frame import CommandType, frame
from dledger.broker.message import Columns
from dledger.broker.produce import FLAGS, encode_produce
from dledger.checks.messages import MAX_TIMESTAMP_MS, check_record
from dledger.client import Client, Record
from dledger.common.replay_mark import ReplayMark
from dledger.errors import InvalidArgument
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.batches import checked_batch
from tests.requests.memory_group import MemoryGroup
from tests.requests.rocketmq_client import RocketClient, code, message

pytestmark = pytest.mark.found
"""found: S7."""
BAD = b"\xff\xfe\xfd"
MAX_I64 = (1 << 63) - 1


def strings(items: Sequence[bytes]) -> bytes:
    """Return a column of strings."""
    ends = [sum(map(len, items[:n])) for n in range(len(items) + 1)]
    return struct.pack(f"<{len(ends)}I", *ends) + b"".join(items)


def raw(
    ids: Sequence[bytes],
    *,
    tags: Sequence[bytes] = (),
    born_at_ms: Sequence[int] = (),
    queue_id: int = 0,
) -> bytes:
    """Return a PRODUCE command as no client of ours makes it."""
    count = len(ids)
    head = struct.pack("<BBHHHiI", 1, 2 if tags else 0, 1, 1, 0, queue_id, count)
    born = struct.pack(f"<{count}q", *(born_at_ms or [0] * count))
    bodies = strings([b"%d" % row for row in range(count)])
    return frame(
        CommandType.PRODUCE,
        head + b"ct" + born + strings(ids) + (strings(tags) if tags else b"") + bodies,
    )


def broken(group: MemoryGroup) -> float:
    """Return how often a message was left out."""
    metrics = group.nodes[0].parts.context.metrics
    labels = {"group": "orders", "node": group.nodes[0].engine.node_id}
    return metrics.registry.get_sample_value("dledger_broken_messages_total", labels) or 0.0


async def _topic(group: MemoryGroup) -> None:
    async with Client(group.addresses[0]) as client:
        await client.create_topic("t", queues=1)


# -- the doors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (raw([b"a", BAD]), "row 1: its message id is not UTF-8"),
        (raw([b"a", b"\xc3", b"\xa9"]), "row 1: its message id is not UTF-8"),
        (raw([b"a", b"b"], tags=[BAD, b""]), "row 0: its tag is not UTF-8"),
        (raw([b"a", b"b"], born_at_ms=[0, -1]), "row 1: born_at_ms must be from 0"),
        (raw([b"a"], born_at_ms=[-(1 << 63)]), "row 0: born_at_ms must be from 0"),
        (raw([b"a"], born_at_ms=[MAX_TIMESTAMP_MS + 1]), "row 0: born_at_ms must be from 0"),
    ],
    ids=["id", "cut character", "tag", "before 1970", "smallest", "after 9999"],
)
async def test_a_batch_that_could_not_be_told_is_refused(
    group: MemoryGroup, command: bytes, reason: str
) -> None:
    """By name of the row, before the log, whichever column it is in."""
    await _topic(group)
    entries = len(group.log)

    async with grpc.aio.insecure_channel(group.addresses[0]) as channel:
        call = channel.stream_stream("/dledger.v1.Ledger/Produce")()
        await call.write(
            pb.ProduceBatches(batches=[pb.ProduceBatch(id=1, command=command)]).SerializeToString()
        )
        (answer,) = pb.ProduceAnswers.FromString(await call.read()).answers
        await call.done_writing()

    assert reason in answer.refused
    assert len(group.log) == entries


def test_the_ends_of_the_range_are_let_in() -> None:
    """And ids of any script."""
    ids = ["ä".encode(), "消息".encode()]
    assert checked_batch(raw(ids, born_at_ms=[0, MAX_TIMESTAMP_MS])).count == 2
    assert FLAGS == 0xF3F, "a new column of texts is checked at the door as well"


def test_a_batch_brings_no_mark_of_a_replay() -> None:
    """Who encodes one knows no key of a lane, or should not: the edge makes them of tokens."""
    batch = Columns(message_ids=["1"], bodies=[b"x"], born_at_ms=[0])
    mark = ReplayMark(bytes(16), 1)

    with pytest.raises(InvalidArgument, match="replay"):
        checked_batch(encode_produce(batch, client_id="c", topic="t", replay=mark))


async def test_an_append_has_times_that_can_be_told(group: MemoryGroup) -> None:
    """The row is named; a record is looked at before it is sent, too."""
    async with Client(group.addresses[0]) as client:
        records = [Record(body=b"x"), Record(body=b"y", born_at_ms=-1)]
        with pytest.raises(InvalidArgument, match="row 1: born_at_ms"):
            await client.append("t", records)
    with pytest.raises(InvalidArgument, match="born_at_ms"):
        check_record(Record(body=b"x", born_at_ms=MAX_I64))
    with pytest.raises(InvalidArgument, match="not Unicode"):
        check_record(Record(body=b"x", message_id="\ud800"))
    with pytest.raises(InvalidArgument, match="not Unicode"):
        check_record(Record(body=b"x", properties={"a": "\ud800"}))


async def test_a_send_has_a_time_that_can_be_told(client: RocketClient) -> None:
    """BAD_REQUEST."""
    sent = message(1)
    sent.system_properties.born_timestamp.seconds = -(1 << 62)

    answer = await client.send(sent)

    assert code(answer.status) == "BAD_REQUEST"
    assert "born_at_ms" in answer.status.message


# -- what lies in an older log --------------------------------------------------------------------


async def test_neighbours_of_a_broken_message_are_delivered(
    group: MemoryGroup, client: RocketClient, caplog: pytest.LogCaptureFixture
) -> None:
    """It is acknowledged as broken, logged once with its place, counted each time."""
    await _topic(group)
    await group.commit(raw([b"a", BAD, b"c", b"\xc3\xa9"]))

    with caplog.at_level(logging.WARNING):
        status, got, _ = await client.receive(batch=32)
        await client.receive(group="other", batch=32)

    assert code(status) == "OK"
    assert [one.body for one in got] == [b"0", b"2", b"3"]
    assert got[2].system_properties.message_id == "é"
    assert code((await client.ack(*got)).status) == "OK"
    group.clock_skew_ms += 3_600_000
    assert (await client.receive(batch=32))[1] == []
    assert broken(group) == 2
    lines = [line for line in caplog.messages if "left out" in line]
    assert len(lines) == 1
    assert "offset 1 of queue 0 of topic t" in lines[0]
    assert "Traceback" not in caplog.text


async def test_a_clock_beyond_all_time_is_told_as_far_as_it_can_be(
    group: MemoryGroup, client: RocketClient
) -> None:
    """An SDK makes a date of it."""
    await _topic(group)
    await group.commit(raw([b"a", b"b"], born_at_ms=[-(1 << 63), MAX_I64]))

    _, got, _ = await client.receive(batch=32)

    times = [one.system_properties.born_timestamp for one in got]
    assert [each.ToMilliseconds() for each in times] == [0, MAX_TIMESTAMP_MS]
    assert [each.ToDatetime().year for each in times] == [1970, 9999]


async def test_readers_go_on_behind_a_broken_message(
    group: MemoryGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """Read leaves it out, a batch is as it lies, and the client leaves it out of that."""
    await _topic(group)
    await group.commit(raw([b"a", BAD, b"c"]))
    await group.commit(raw([b"d"]))

    async with grpc.aio.insecure_channel(group.addresses[0]) as channel:
        read = channel.unary_stream("/dledger.v1.Ledger/Read")
        request = pb.ReadRequest(topic="t", queue_id=0).SerializeToString()
        answers = [pb.ReadResponse.FromString(raw) async for raw in read(request)]
    async with Client(group.addresses[0]) as client:
        with caplog.at_level(logging.WARNING):
            found = [(one.offset, one.record.body) async for one in client.read("t", 0)]

    assert [r.offset for answer in answers for r in answer.records] == [0, 2, 3]
    assert answers[-1].next_offset == 4
    assert found == [(0, b"0"), (2, b"2"), (3, b"0")]
    assert "offset 1 is skipped" in caplog.text
    assert broken(group) == 1
