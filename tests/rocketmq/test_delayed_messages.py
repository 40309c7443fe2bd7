"""Messages of DELAY topics: held until they are due, then delivered once, or recalled before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from dledger.broker.commands import CreateTopic, DeleteTopic
from dledger.broker.topics import DELAY
from dledger.client import Client
from dledger.common.metrics import NodeMetrics
from dledger.errors import Refused
from dledger.replica.firing import Firing
from dledger.requests.delivery_times import MAX_DELAY_MS
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.types import Entry, Record, Typed
from tests.requests.memory_group import MemoryGroup
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

HOUR_MS = 3_600_000
TOPIC = "d"


@pytest.fixture
async def firing(group: MemoryGroup) -> AsyncIterator[Firing]:
    """The loop of the one node, which has a DELAY topic with one queue."""
    await _make(group, TOPIC)
    firing, task = _started(group)
    yield firing
    await _stopped(task)


def _started(group: MemoryGroup) -> tuple[Firing, asyncio.Task[None]]:
    engine = group.nodes[0].engine
    firing = Firing(engine, NodeMetrics("orders", "orders-0"))
    return firing, asyncio.get_running_loop().create_task(firing.run())


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))


async def _make(group: MemoryGroup, name: str, kind: str = DELAY.name) -> None:
    await group.commit(CreateTopic(name=name, type=kind, queues=1).encode())


def _at(due_ms: int, number: int = 1, *, topic: str = TOPIC, **fields: Any) -> definition.Message:
    """Return a message that is to be delivered at a time, Unix ms."""
    system: dict[str, Any] = {"message_type": definition.MessageType.DELAY}
    if due_ms >= 0:
        due = Timestamp()
        due.FromMilliseconds(due_ms)
        system["delivery_timestamp"] = due
    return message(number, topic=topic, **(system | fields))


async def _recall(client: RocketClient, handle: str, topic: str = TOPIC) -> Any:
    resource = definition.Resource(name=topic)
    request = service.RecallMessageRequest(topic=resource, recall_handle=handle)
    return await client.call("RecallMessage", request)


async def _bodies(client: RocketClient, topic: str = TOPIC) -> list[bytes]:
    _, messages, _ = await client.receive(topic)
    return [each.body for each in messages]


async def _let_pass(group: MemoryGroup, ms: int) -> None:
    """Let the group's date go on, and return when all that is due by then has gone."""
    group.clock_skew_ms += ms
    held, date_ms = group.nodes[0].engine.state.held, group.now_ms()

    def is_done() -> bool:
        return not any(
            each.due_ms <= date_ms
            for bucket in held.buckets().values()
            for piece in range(bucket.pieces)
            for each in bucket.messages(piece)
        )

    await eventually(is_done)


@pytest.mark.usefixtures("firing")
async def test_a_message_is_delivered_when_it_is_due(
    group: MemoryGroup, client: RocketClient
) -> None:
    """With its time, as its producer gave it, and its own id; not before."""
    due_ms = group.now_ms() + HOUR_MS
    sent = await client.send(_at(due_ms, body=b"later"))
    before = await _bodies(client)

    await _let_pass(group, HOUR_MS)
    status, (got,), _ = await client.receive(TOPIC)

    assert code(sent.status) == code(sent.entries[0].status) == "OK"
    assert sent.entries[0].recall_handle
    assert before == []
    assert code(status) == "OK"
    assert got.body == b"later"
    system = got.system_properties
    assert system.delivery_timestamp.ToMilliseconds() == due_ms
    assert system.message_id == sent.entries[0].message_id
    assert system.message_type == definition.MessageType.DELAY
    assert system.born_host == "10.0.0.9"


@pytest.mark.usefixtures("firing")
async def test_messages_are_delivered_by_their_times(
    group: MemoryGroup, client: RocketClient
) -> None:
    """Whatever the order in which they were sent."""
    now_ms = group.now_ms()
    for number in (3, 1, 2):
        await client.send(_at(now_ms + number * 60_000, number, body=b"%d" % number))

    await _let_pass(group, HOUR_MS)

    assert await _bodies(client) == [b"1", b"2", b"3"]


@pytest.mark.found
@pytest.mark.usefixtures("firing")
async def test_messages_that_are_scattered_read_no_entry_for_each_of_them(
    group: MemoryGroup, client: RocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of eight entries was read 64 times, once for each message of it: 570 us a message."""
    now_ms, engine = group.now_ms(), group.nodes[0].engine
    reads, read_entry = list[int](), engine.read_entry
    for first in range(8):
        numbers = range(first, 512, 8)
        await client.send(
            *(_at(now_ms + HOUR_MS + each, each, body=bytes(16 << 10)) for each in numbers)
        )

    async def counted(index: int) -> Entry:
        reads.append(index)
        return await read_entry(index)

    monkeypatch.setattr(engine, "read_entry", counted)
    await _let_pass(group, 2 * HOUR_MS)

    assert len(set(reads)) == 8
    assert len(reads) <= 3 * 8


@pytest.mark.usefixtures("firing")
@pytest.mark.parametrize("ago_ms", [0, 1, 10 * HOUR_MS, 1 << 62])
async def test_a_past_time_is_delivered_at_once(
    group: MemoryGroup, client: RocketClient, ago_ms: int
) -> None:
    """It is stored as any other, so there is nothing to recall."""
    sent = await client.send(_at(max(0, group.now_ms() - ago_ms)))

    assert code(sent.status) == "OK"
    assert sent.entries[0].offset == 0
    assert not sent.entries[0].recall_handle
    assert await _bodies(client) == [b"body"]


@pytest.mark.usefixtures("firing")
async def test_a_time_beyond_forty_days_is_refused(
    group: MemoryGroup, client: RocketClient
) -> None:
    """ILLEGAL_DELIVERY_TIME; what is not beyond is held."""
    now_ms = group.now_ms()

    refused = await client.send(_at(now_ms + MAX_DELAY_MS + HOUR_MS, 1))
    held = await client.send(_at(now_ms + MAX_DELAY_MS - HOUR_MS, 2))

    assert code(refused.status) == "ILLEGAL_DELIVERY_TIME"
    assert "40 " in refused.status.message
    assert code(held.status) == "OK"
    assert group.nodes[0].engine.state.held.count == 1


@pytest.mark.usefixtures("firing")
async def test_a_topic_takes_messages_of_its_type(group: MemoryGroup, client: RocketClient) -> None:
    """MESSAGE_PROPERTY_CONFLICT_WITH_TYPE for all others, as RocketMQ 5.5 has it."""
    await _make(group, "n", "NORMAL")
    due_ms = group.now_ms() + HOUR_MS

    refused = [
        await client.send(message(1, topic=TOPIC)),
        await client.send(_at(-1, 2)),
        await client.send(_at(due_ms, 3, topic="n")),
        await client.send(_at(due_ms, 4, message_type=definition.MessageType.NORMAL)),
        await client.send(_at(due_ms, 5), message(6, topic=TOPIC)),
        await client.send(_at(due_ms, 7, message_group="g")),
    ]

    assert {code(each.status) for each in refused} == {"MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"}
    assert group.nodes[0].engine.state.held.count == 0


@pytest.mark.usefixtures("firing")
async def test_a_retry_gets_the_same_handle(group: MemoryGroup, client: RocketClient) -> None:
    """Before it is due and after, when it would be stored at once; it is delivered once."""
    sent = _at(group.now_ms() + HOUR_MS)

    first = await client.send(sent)
    again = await client.send(sent)
    await _let_pass(group, 2 * HOUR_MS)
    late = await client.send(sent)

    assert first.entries[0].recall_handle == again.entries[0].recall_handle
    assert first.entries[0].recall_handle == late.entries[0].recall_handle
    assert await _bodies(client) == [b"body"]


@pytest.mark.usefixtures("firing")
async def test_an_id_with_another_time_is_another_message(
    group: MemoryGroup, client: RocketClient
) -> None:
    """Guessed or made twice: both are held."""
    now_ms = group.now_ms()

    first = await client.send(_at(now_ms + HOUR_MS))
    other = await client.send(_at(now_ms + HOUR_MS + 1))

    assert first.entries[0].recall_handle != other.entries[0].recall_handle
    assert group.nodes[0].engine.state.held.count == 2


@pytest.mark.usefixtures("firing")
async def test_a_recalled_message_is_not_delivered(
    group: MemoryGroup, client: RocketClient
) -> None:
    """A repeated recall has the same answer; so has one when its time has passed."""
    sent = (await client.send(_at(group.now_ms() + HOUR_MS))).entries[0]

    first = await _recall(client, sent.recall_handle)
    again = await _recall(client, sent.recall_handle)
    await _let_pass(group, HOUR_MS)
    late = await _recall(client, sent.recall_handle)

    for answer in (first, again, late):
        assert code(answer.status) == "OK"
        assert answer.message_id == sent.message_id
    assert await _bodies(client) == []


@pytest.mark.usefixtures("firing")
async def test_a_delivered_message_cannot_be_recalled(
    group: MemoryGroup, client: RocketClient
) -> None:
    """And whoever tries is told so."""
    sent = (await client.send(_at(group.now_ms() + HOUR_MS))).entries[0]
    await _let_pass(group, HOUR_MS)

    answer = await _recall(client, sent.recall_handle)

    assert code(answer.status) == "NOT_FOUND"
    assert "was delivered" in answer.status.message
    assert await _bodies(client) == [b"body"]


@pytest.mark.usefixtures("firing")
async def test_hours_later_nobody_knows_what_became_of_a_message(
    group: MemoryGroup, client: RocketClient
) -> None:
    """And that is said, too."""
    sent = (await client.send(_at(group.now_ms() + HOUR_MS))).entries[0]
    for number in (2, 3):  # an hour after it went, and not before
        await _let_pass(group, 4 * HOUR_MS)
        await client.send(_at(group.now_ms() + HOUR_MS, number))

    answer = await _recall(client, sent.recall_handle)

    assert code(answer.status) == "NOT_FOUND"
    assert "not known any more" in answer.status.message


@pytest.mark.usefixtures("firing")
@pytest.mark.parametrize("handle", ["", "nonsense", "AAAA", "ä", "x" * 5000, "A" * 60])
async def test_a_malformed_recall_handle_is_refused(client: RocketClient, handle: str) -> None:
    """BAD_REQUEST: RocketMQ says INTERNAL_SERVER_ERROR, which is nobody's fault here."""
    assert code((await _recall(client, handle)).status) == "BAD_REQUEST"


@pytest.mark.usefixtures("firing")
async def test_a_handle_is_good_for_its_topic(group: MemoryGroup, client: RocketClient) -> None:
    """Not for another, nor for one that was made anew, nor where nothing is held."""
    await _make(group, "other")
    await _make(group, "n", "NORMAL")
    handle = (await client.send(_at(group.now_ms() + HOUR_MS))).entries[0].recall_handle

    assert code((await _recall(client, handle, "other")).status) == "BAD_REQUEST"
    normal = await _recall(client, handle, "n")
    assert code(normal.status) == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    assert code((await _recall(client, handle, "nowhere")).status) == "TOPIC_NOT_FOUND"

    await group.commit(DeleteTopic(name=TOPIC, generation=1).encode())
    await _make(group, TOPIC)
    assert code((await _recall(client, handle)).status) == "BAD_REQUEST"


@pytest.mark.usefixtures("firing")
async def test_two_leaders_deliver_a_message_once(group: MemoryGroup, client: RocketClient) -> None:
    """One may not know yet that it leads no more: whatever it proposes is done once."""
    now_ms = group.now_ms()
    sent = [_at(now_ms + HOUR_MS + number, number, body=b"%d" % number) for number in range(30)]
    for first in range(0, len(sent), 10):
        await client.send(*sent[first : first + 10])
    _, other = _started(group)

    await _let_pass(group, HOUR_MS + 1000)
    got = [body for _ in range(4) for body in await _bodies(client)]
    await _stopped(other)

    assert got == [b"%d" % number for number in range(30)]


@pytest.mark.usefixtures("firing")
async def test_messages_of_a_deleted_topic_go_with_it(
    group: MemoryGroup, client: RocketClient
) -> None:
    """They are not delivered to one that is made anew under its name."""
    await client.send(_at(group.now_ms() + HOUR_MS))
    await group.commit(DeleteTopic(name=TOPIC, generation=1).encode())
    await _make(group, TOPIC)

    await _let_pass(group, HOUR_MS)

    assert await _bodies(client) == []
    assert group.nodes[0].engine.state.held.count == 0


@pytest.mark.usefixtures("firing")
async def test_no_more_is_held_where_there_is_no_room(
    group: MemoryGroup, client: RocketClient
) -> None:
    """By name; what is due at once is taken. Before the group's secret is drawn and after."""
    held = group.nodes[0].engine.state.held
    held.full = "7 messages wait for their time"

    refused = await client.send(_at(group.now_ms() + HOUR_MS))
    taken = await client.send(_at(group.now_ms(), 2))
    refused_again = await client.send(_at(group.now_ms() + HOUR_MS, 3))

    for each in (refused, refused_again):
        assert code(each.status) == "INTERNAL_SERVER_ERROR"
        assert "7 messages wait" in each.status.message
    assert code(taken.status) == "OK"


async def test_nothing_goes_while_the_date_is_not_known(
    group: MemoryGroup,
    client: RocketClient,
    firing: Firing,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Too few clocks are heard: a message may be late then, and is never early."""
    await client.send(_at(group.now_ms() + HOUR_MS))
    dates: list[int | None] = []

    def unknown() -> int | None:
        dates.append(None)
        return None

    monkeypatch.setattr(group, "date_ms", unknown)
    group.clock_skew_ms += 2 * HOUR_MS
    await eventually(lambda: len(dates) > 1)
    before = group.nodes[0].engine.state.held.count
    monkeypatch.undo()
    await _let_pass(group, 0)

    assert before == 1
    assert firing.overdue_ms == 0 or firing.overdue_ms >= HOUR_MS
    assert await _bodies(client) == [b"body"]


@pytest.mark.usefixtures("firing")
async def test_our_own_client_sends_for_later_and_recalls(group: MemoryGroup) -> None:
    """A batch has a handle for each record; a repeated one has the same."""
    due_ms = group.now_ms() + HOUR_MS
    records = [Record(body=b"one", message_id="1"), Record(body=b"two", message_id="2")]
    async with Client(group.addresses[0]) as client:
        appended = await client.append(TOPIC, records, deliver_at_ms=due_ms)
        again = await client.append(TOPIC, records, deliver_at_ms=due_ms)
        recalled = await client.recall(TOPIC, appended.recall_handles[0])
        await _let_pass(group, HOUR_MS)
        stored = [each async for each in client.read(TOPIC, 0)]
        with pytest.raises(Refused, match="was delivered"):
            await client.recall(TOPIC, appended.recall_handles[1])

    assert appended.offsets == (-1, -1)
    assert again.recall_handles == appended.recall_handles
    assert recalled == "1"
    assert [each.record.body for each in stored] == [b"two"]
    assert [each.typed for each in stored] == [Typed(deliver_at_ms=due_ms)]


@pytest.mark.usefixtures("firing")
async def test_our_own_client_is_told_what_cannot_wait(group: MemoryGroup) -> None:
    """Records with a time for another type of topic, without one for this, or for too late."""
    await _make(group, "n", "NORMAL")
    now_ms = group.now_ms()
    async with Client(group.addresses[0]) as client:
        with pytest.raises(Refused, match="NORMAL messages, not DELAY"):
            await client.append("n", [b"x"], deliver_at_ms=now_ms + HOUR_MS)
        with pytest.raises(Refused, match="DELAY messages, not NORMAL"):
            await client.append(TOPIC, [b"x"])
        with pytest.raises(Refused, match="40 days"):
            await client.append(TOPIC, [b"x"], deliver_at_ms=now_ms + 2 * MAX_DELAY_MS)
        past = await client.append(TOPIC, [b"x"], deliver_at_ms=now_ms - 1)

    assert (past.offsets, past.recall_handles) == ((0,), ())
