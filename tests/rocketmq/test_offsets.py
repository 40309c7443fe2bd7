"""GetOffset, UpdateOffset, QueryOffset and PullMessage, at a leader and through a follower."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dledger.broker.commands import CreateTopic, Retain
from dledger.rocketmq import pulling
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message

pytestmark = pytest.mark.contract


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Two nodes, of which the first leads, and a topic t of one queue."""
    async with memory_group(2) as group:
        await group.nodes[0].engine.propose(CreateTopic(name="t", type="NORMAL", queues=1).encode())
        yield group


@pytest.fixture(params=[0, 1], ids=["leader", "follower"])
async def client(request: Any, group: MemoryGroup) -> AsyncIterator[RocketClient]:
    """A client of one of them."""
    async with RocketClient(group.nodes[request.param].port) as client:
        yield client


def _queue(queue_id: int = 0, topic: str = "t") -> definition.MessageQueue:
    return definition.MessageQueue(topic=definition.Resource(name=topic), id=queue_id)


def _group(name: str = "g") -> definition.Resource:
    return definition.Resource(name=name)


async def _committed(client: RocketClient, queue_id: int = 0, group: str = "g") -> Any:
    request = service.GetOffsetRequest(group=_group(group), message_queue=_queue(queue_id))
    return await client.call("GetOffset", request)


async def _update(client: RocketClient, offset: int, queue_id: int = 0) -> Any:
    request = service.UpdateOffsetRequest(
        group=_group(), message_queue=_queue(queue_id), offset=offset
    )
    return await client.call("UpdateOffset", request)


async def _query(client: RocketClient, policy: Any, at_ms: int | None = None) -> Any:
    request = service.QueryOffsetRequest(message_queue=_queue(), query_offset_policy=policy)
    if at_ms is not None:
        request.timestamp.FromMilliseconds(at_ms)
    return await client.call("QueryOffset", request)


async def _pull(
    client: RocketClient,
    offset: int,
    *,
    batch: int = 10,
    wait_s: float = 0.0,
    expression: str = "*",
    queue: definition.MessageQueue | None = None,
    is_sql: bool = False,
) -> tuple[definition.Status, list[definition.Message], int, list[str]]:
    """Return the status, the messages, the offset to go on from, and the order they came in."""
    request = service.PullMessageRequest(
        group=_group(),
        message_queue=queue or _queue(),
        offset=offset,
        batch_size=batch,
        filter_expression=definition.FilterExpression(
            type=definition.FilterType.SQL if is_sql else definition.FilterType.TAG,
            expression=expression,
        ),
    )
    request.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
    method = client.channel.unary_stream(
        f"/{SERVICE_NAME}/PullMessage",
        request_serializer=service.PullMessageRequest.SerializeToString,
        response_deserializer=service.PullMessageResponse.FromString,
    )
    status, messages, after, order = definition.Status(), list[definition.Message](), -1, []
    async for response in method(request, metadata=client.metadata, timeout=60):
        order.append(response.WhichOneof("content"))
        if response.HasField("status"):
            status = response.status
        elif response.HasField("message"):
            messages.append(response.message)
        else:
            after = response.next_offset
    return status, messages, after, order


async def _fill(client: RocketClient, *tags: str) -> None:
    for number, tag in enumerate(tags):
        await client.send(message(number, body=b"%d" % number, **({"tag": tag} if tag else {})))


async def test_a_groups_offset_is_what_it_has_consumed(client: RocketClient) -> None:
    """Held messages are not consumed; a group that there is not has none."""
    await client.send(*(message(number) for number in range(4)))
    assert code((await _committed(client)).status) == "CONSUMER_GROUP_NOT_FOUND"

    _, got, _ = await client.receive(batch=4, auto_renew=True)
    await client.ack(*got[:2])

    found = await _committed(client, got[0].system_properties.queue_id)
    assert (code(found.status), found.offset) == ("OK", 2)


async def test_an_offset_that_is_set_is_where_the_group_goes_on(client: RocketClient) -> None:
    """Back and forth; and handles of before acknowledge nothing."""
    await client.send(*(message(number) for number in range(4)))
    _, before, _ = await client.receive(batch=4, auto_renew=True)

    assert code((await _update(client, 1)).status) == "OK"

    assert (await _committed(client)).offset == 1
    refused = await client.ack(*before)
    assert [code(each.status) for each in refused.entries[1:]] == ["INVALID_RECEIPT_HANDLE"] * 3
    _, again, _ = await client.receive(batch=4, auto_renew=True)
    assert [each.system_properties.queue_offset for each in again] == [1, 2, 3]
    assert [each.system_properties.delivery_attempt for each in again] == [1, 1, 1]
    refused = await client.ack(*before[1:])
    assert [code(each.status) for each in refused.entries] == ["INVALID_RECEIPT_HANDLE"] * 3
    assert code((await client.ack(*again)).status) == "OK"


async def test_the_ends_of_a_queue_are_told_and_its_offset_at_a_time(
    client: RocketClient, group: MemoryGroup
) -> None:
    """A time between two messages is the later one's; behind the last it is the end."""
    times = []
    for number in range(4):
        await client.send(message(number))
        times.append(group.log[-1].timestamp_ms)
        group.clock_skew_ms += 1_000

    policies = definition.QueryOffsetPolicy
    assert (await _query(client, policies.BEGINNING)).offset == 0
    assert (await _query(client, policies.END)).offset == 4
    found = [(await _query(client, policies.TIMESTAMP, at)).offset for at in times]
    between = [(await _query(client, policies.TIMESTAMP, at + 1)).offset for at in times]
    assert (found, between) == ([0, 1, 2, 3], [1, 2, 3, 4])
    assert (await _query(client, policies.TIMESTAMP, 0)).offset == 0


async def test_a_pull_reads_from_an_offset_and_takes_nothing(client: RocketClient) -> None:
    """Status, messages, and where to go on; who receives gets the same messages."""
    await _fill(client, *[""] * 5)

    status, got, after, order = await _pull(client, 1, batch=2)

    assert code(status) == "OK"
    assert order == ["status", "message", "message", "next_offset"]
    assert [(each.body, each.system_properties.queue_offset) for each in got] == [
        (b"1", 1),
        (b"2", 2),
    ]
    assert after == 3
    assert got[0].topic.name == "t"
    assert not got[0].system_properties.receipt_handle
    _, received, _ = await client.receive(batch=9)
    assert len(received) == 5
    assert (await _pull(client, 3))[2] == 5


async def test_a_pull_passes_over_what_its_filter_does_not_name(
    client: RocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over more than one look sees; then it says how far it came."""
    monkeypatch.setattr(pulling, "MAX_RUNS_SCANNED", 3)
    await _fill(client, *"ababcaaaba")

    status, got, after, _ = await _pull(client, 0, expression="b || c", batch=2, wait_s=10)
    assert ([each.body for each in got], after) == ([b"1"], 3)
    _, got, after, _ = await _pull(client, 3, expression="b || c", batch=2, wait_s=10)
    assert ([each.body for each in got], after) == ([b"3", b"4"], 5)
    status, got, after, _ = await _pull(client, 5, expression="c", wait_s=0)
    assert (code(status), got, after) == ("MESSAGE_NOT_FOUND", [], 8)
    _, got, after, _ = await _pull(client, 5, expression="b", wait_s=10)
    assert ([each.body for each in got], after) == ([b"8"], 10)


async def test_a_pull_waits_for_what_comes(client: RocketClient, group: MemoryGroup) -> None:
    """At the end of the queue; without a message it says so and where it was."""
    status, got, after, _ = await _pull(client, 0)
    assert (code(status), got, after) == ("MESSAGE_NOT_FOUND", [], 0)

    waits = asyncio.ensure_future(_pull(client, 0, wait_s=30))
    await group.polls(at=0)
    await client.send(message(1))

    status, got, after, _ = await waits
    assert (code(status), len(got), after) == ("OK", 1, 1)


async def test_a_pull_of_what_is_gone_is_told_where_to_go_on(
    client: RocketClient, group: MemoryGroup
) -> None:
    """Retention has passed it; or it is beyond the end."""
    await _fill(client, *[""] * 3)
    await group.nodes[0].engine.propose(Retain(before_index=len(group.log)).encode())

    status, got, after, order = await _pull(client, 0)

    assert (code(status), got, after) == ("ILLEGAL_OFFSET", [], 2)
    assert order == ["status", "next_offset"]
    assert "[2, 3)" in status.message
    status, _, after, _ = await _pull(client, 99)
    assert (code(status), after) == ("ILLEGAL_OFFSET", 3)
    updated = await _update(client, 0)
    assert (code(updated.status), updated.status.message) == (
        "OK",
        "moved up to offset 2: what was before is not kept any more",
    )
    assert (await _committed(client)).offset == 2


async def test_what_cannot_be_is_refused_by_name(client: RocketClient) -> None:
    """Queues, offsets, policies and times that there are not."""
    await client.send(message(1))
    policies = definition.QueryOffsetPolicy

    assert code((await _committed(client, 9)).status) == "BAD_REQUEST"
    assert code((await _update(client, 2)).status) == "ILLEGAL_OFFSET"
    assert code((await _update(client, -1)).status) == "ILLEGAL_OFFSET"
    assert code((await _update(client, 0, -1)).status) == "BAD_REQUEST"
    assert code((await _query(client, 77)).status) == "BAD_REQUEST"
    assert code((await _query(client, policies.TIMESTAMP)).status) == "BAD_REQUEST"
    assert code((await _query(client, policies.TIMESTAMP, -5)).status) == "BAD_REQUEST"
    assert code((await _pull(client, 0, batch=0))[0]) == "BAD_REQUEST"
    assert code((await _pull(client, 0, expression="a |"))[0]) == "ILLEGAL_FILTER_EXPRESSION"
    refused, *_ = await _pull(client, 0, expression="a = 1", is_sql=True)
    assert code(refused) == "ILLEGAL_FILTER_EXPRESSION"
    assert refused.message == "PullMessage takes no SQL92 filter: use tags, or ReceiveMessage"
    assert code((await _pull(client, 0, queue=_queue(7)))[0]) == "BAD_REQUEST"
    assert code((await _pull(client, 0, queue=_queue(0, "nowhere")))[0]) == "TOPIC_NOT_FOUND"


async def test_a_pull_goes_on_at_the_next_leader(group: MemoryGroup) -> None:
    """It has sent nothing yet, and takes nothing."""
    async with RocketClient(group.nodes[1].port) as client:
        waits = asyncio.ensure_future(_pull(client, 0, wait_s=30))
        await group.polls(at=0)
        group.elect(1)
        await group.linked()
        await client.send(message(1))

        status, got, after, _ = await waits

    assert (code(status), len(got), after) == ("OK", 1, 1)


async def test_a_poll_that_waits_gets_what_a_seek_brings_back(
    client: RocketClient, group: MemoryGroup
) -> None:
    """Nothing new is stored; the group went back."""
    await client.send(message(1))
    _, got, _ = await client.receive(auto_renew=True)
    await client.ack(*got)
    waits = asyncio.ensure_future(client.receive(wait_s=30, auto_renew=True))
    await group.polls(at=0)

    await _update(client, 0)

    _, again, _ = await waits
    assert [each.body for each in again] == [got[0].body]
