"""SQL92 filters of consumers: found by the leader in one scan, however many ask."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dledger.broker.command_frame import CommandType, split
from dledger.broker.commands import CreateGroup, ReceiveAt, decode
from dledger.broker.group_filters import FILTER_GONE_MS, USE_IS_SAID_MS
from dledger.broker.message import Columns, Message
from dledger.broker.produce import encode_produce
from dledger.rocketmq import expression_scans
from dledger.rpc.rocketmq_stubs import definition
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

_SQL = definition.FilterType.SQL
_NUMBERS = itertools.count(1)
_WAIT_S = 20.0


def _scans(group: MemoryGroup, node: int = 0) -> expression_scans.ExpressionScans:
    return group.nodes[node].parts.messaging.receiver._scans


async def _store(group: MemoryGroup, *prices: int, queue_id: int = 0, tag: str = "") -> None:
    """Store one payload, without the door."""
    batch = [
        Message(message_id="", body=b"%d" % n, tag=tag, properties={"price": str(n)})
        for n in prices
    ]
    command = encode_produce(Columns.of(batch), client_id="", topic="t", queue_id=queue_id)
    await group.commit(command)


def _commands(group: MemoryGroup) -> Iterator[ReceiveAt]:
    for entry in group.log:
        for kind, start, end in split(entry.data):
            if kind == CommandType.RECEIVE_AT:
                found = decode(kind, entry.data[start:end])
                assert isinstance(found, ReceiveAt)
                yield found


async def _receive(client: RocketClient, sql: str, **more: Any) -> list[definition.Message]:
    status, messages, _ = await client.receive(expression=sql, kind=_SQL, **more)
    assert code(status) in {"OK", "MESSAGE_NOT_FOUND"}, status
    return list(messages)


def _bodies(messages: list[definition.Message]) -> list[int]:
    return [int(each.body) for each in messages]


async def test_a_consumer_gets_what_matches(client: RocketClient, group: MemoryGroup) -> None:
    """The rest counts as done."""
    await client.route("t")
    await _store(group, *range(10))

    received = await _receive(client, "price BETWEEN 3 AND 5 OR price = 8", batch=32)

    assert _bodies(received) == [3, 4, 5, 8]
    await client.ack(*received)
    backlog = group.nodes[0].engine.state.groups.backlog("g", "t")
    assert (backlog.unread, backlog.held) == (0, 0)


async def test_properties_and_tag_of_a_clients_message(client: RocketClient) -> None:
    """As it sent them."""
    await client.route("t")
    for tag, region in (("a", "eu"), ("b", "eu"), ("a", "us")):
        sent = message(next(_NUMBERS), tag=tag)
        sent.user_properties["region"] = region
        await client.send(sent)

    received = []
    for _ in range(3):
        received += await _receive(client, "TAGS = 'a' AND region = 'eu'", batch=32)

    assert [(m.system_properties.tag, m.user_properties["region"]) for m in received] == [
        ("a", "eu")
    ]


async def test_a_waiting_poll_gets_the_first_match(
    client: RocketClient, group: MemoryGroup
) -> None:
    """What comes before it is passed."""
    await client.route("t")
    waiting = asyncio.create_task(_receive(client, "price > 5", wait_s=_WAIT_S))
    await group.polls()
    for price in (1, 2, 3):
        await _store(group, price)
        await eventually(lambda: group.nodes[0].engine.state.groups.backlog("g", "t").unread == 0)
    await _store(group, 9)

    assert _bodies(await waiting) == [9]


async def test_what_is_not_acked_comes_again_to_the_expression(
    client: RocketClient, group: MemoryGroup
) -> None:
    """And counts its attempts."""
    await client.route("t")
    await _store(group, 1, 9)
    assert _bodies(await _receive(client, "price > 5", invisible_s=1)) == [9]
    group.clock_skew_ms += 1_001

    (again,) = await _receive(client, "price > 5", batch=32)

    assert (int(again.body), again.system_properties.delivery_attempt) == (9, 2)


async def test_another_filter_is_refused_by_name(client: RocketClient, group: MemoryGroup) -> None:
    """Until nobody asks with the first for ten minutes; nothing is passed over meanwhile."""
    await client.route("t")
    await _receive(client, "price > 5")
    await _store(group, 3)

    for expression, kind in (("price > 2", _SQL), ("*", definition.FilterType.TAG)):
        status, _, _ = await client.receive(expression=expression, kind=kind)
        assert code(status) == "ILLEGAL_FILTER_EXPRESSION"
        assert "'price > 5'" in status.message
    for _ in range(-(-FILTER_GONE_MS // USE_IS_SAID_MS)):
        group.clock_skew_ms += USE_IS_SAID_MS
        await group.commit(CreateGroup(name="h").encode())

    assert _bodies(await _receive(client, "price > 2")) == [3]


async def test_polls_that_are_refused_write_nothing(
    client: RocketClient, group: MemoryGroup
) -> None:
    """A service with the wrong filter asks all the time."""
    await client.route("t")
    await _receive(client, "price > 5")
    entries = len(group.log)

    for _ in range(5):
        await client.receive(expression="price > 2", kind=_SQL)
        await client.receive(expression="price > 5", kind=_SQL)

    assert len(group.log) == entries


@pytest.mark.parametrize("expression", ["price >", "", "price LIKE 'x'", "(" * 99, "a = 1" * 999])
async def test_what_is_no_expression_is_refused(client: RocketClient, expression: str) -> None:
    """ILLEGAL_FILTER_EXPRESSION, and a sentence."""
    status, _, _ = await client.receive(expression=expression, kind=_SQL)

    assert code(status) == "ILLEGAL_FILTER_EXPRESSION"
    assert "SQL92 filter" in status.message


async def test_fifty_consumers_evaluate_each_message_once(
    client: RocketClient, group: MemoryGroup
) -> None:
    """While producers go on: 1.2 evaluations a message at most, each match once."""
    await client.route("t")
    got: Counter[int] = Counter()

    async def consume() -> None:
        while sum(got.values()) < 300:
            got.update(_bodies(await _receive(client, "price > 899", batch=4, wait_s=0.5)))

    consumers = [asyncio.create_task(consume()) for _ in range(50)]
    for _ in range(30):
        await _store(group, *range(1_000)[::10])  # ten of each hundred match
        await asyncio.sleep(0)
    await asyncio.gather(*consumers)

    assert got == Counter(dict.fromkeys(range(900, 1000, 10), 30))
    assert _scans(group).evaluations <= 1.2 * 3_000


async def test_a_backlog_without_a_match_is_passed_in_bounded_steps(
    client: RocketClient, group: MemoryGroup
) -> None:
    """100,000 messages: a command for each 4,096, each evaluated once, and no slice above 256."""
    await client.route("t")
    await _receive(client, "price > 5")
    for _ in range(100):
        await _store(group, *([1] * 1_000))
    slices: list[int] = []
    evaluate = expression_scans.ExpressionScans._matching

    async def counted(self, stretches, wanted):  # type: ignore[no-untyped-def]
        slices.append(sum(each.length for each in stretches))
        return await evaluate(self, stretches, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expression_scans.ExpressionScans, "_matching", counted)
        waiting = asyncio.create_task(_receive(client, "price > 5", wait_s=_WAIT_S))
        await eventually(lambda: group.nodes[0].engine.state.groups.backlog("g", "t").unread == 0)
        await _store(group, 9)

    assert _bodies(await waiting) == [9]
    assert max(slices) <= expression_scans.SLICE
    assert _scans(group).evaluations == 100_001
    passing = [each for each in _commands(group) if not each.take]
    assert len(passing) <= 100_000 // expression_scans.MOST_PASSED + 2


async def test_a_new_leader_goes_on_where_the_group_is(pauses: list[float]) -> None:
    """And the old one, when it leads again, knows that others were there meanwhile."""
    async with memory_group(3) as group:
        clients = [RocketClient(node.port) for node in group.nodes]
        try:
            await clients[0].route("t")
            got: list[int] = []
            price = itertools.count()
            for leader in (0, 1, 0, 2, 1):
                group.elect(leader)
                await group.linked()
                await _store(group, *(next(price) for _ in range(10)))
                got += _bodies(await _receive(clients[leader], "price <> 5", batch=7))
            while messages := _bodies(await _receive(clients[1], "price <> 5", batch=7)):
                got += messages
        finally:
            for each in clients:
                await each.channel.close()

    assert got == [each for each in range(50) if each != 5]


async def test_a_lost_answer_passes_nothing(client: RocketClient, group: MemoryGroup) -> None:
    """Its attempt, asked again, gets what it holds; the scan begins anew at the group's offset."""
    await client.route("t")
    await _receive(client, "price > 5")
    await _store(group, 7, 8, 9)
    group.lose_outcomes = 1

    first = await _receive(client, "price > 5", batch=1, attempt_id="x")
    rest = await _receive(client, "price > 5", batch=32)

    assert (_bodies(first), _bodies(rest)) == ([7], [8, 9])


async def test_a_simple_consumer_finds_a_match_in_any_queue(
    client: RocketClient, group: MemoryGroup
) -> None:
    """Though another queue has much that is passed over."""
    await client.route("t")
    queues = group.nodes[0].engine.state.topics.named("t").queues
    for _ in range(10):
        await _store(group, *([1] * 1_000), queue_id=0)
    await _store(group, 9, queue_id=queues - 1)

    received: list[int] = []
    while not received:
        received = _bodies(await _receive(client, "price > 5", queue_id=-1, wait_s=_WAIT_S))

    assert received == [9]
