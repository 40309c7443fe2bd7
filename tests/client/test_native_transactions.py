"""Transactions of our own client: halves, their ends, and the questions about those without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dledger.broker.commands import CreateTopic
from dledger.broker.topics import TRANSACTION
from dledger.client import Client, Record, Typed
from dledger.errors import InvalidArgument, MessageIdConflict, Refused, Unavailable, UnknownTopic
from dledger.rocketmq import half_checks
from dledger.rpc.rocketmq_stubs import definition, service
from tests.requests.memory_group import WAIT_S, MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message

TOPIC = "tx"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at once what is due, and do not spread what is overdue."""
    monkeypatch.setattr(half_checks, "_LOOK_S", 0.001)
    monkeypatch.setattr(half_checks, "_SPREAD_MS", 1)


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Two nodes; node 0 leads. There is a topic for transactions, of one queue."""
    async with memory_group(2) as group:
        await group.commit(CreateTopic(name=TOPIC, type=TRANSACTION.name, queues=1).encode())
        yield group


@pytest.fixture(params=[0, 1], ids=["leader", "follower"])
async def client(request: pytest.FixtureRequest, group: MemoryGroup) -> AsyncIterator[Client]:
    async with Client(group.addresses[request.param], timeout_s=WAIT_S) as client:
        yield client


def _open(group: MemoryGroup) -> int:
    return len(group.nodes[0].engine.state.held.open_halves)


async def test_leaving_the_block_commits(client: Client, group: MemoryGroup) -> None:
    """Nobody gets the message before; then it is as it was sent."""
    async with client.transaction(TOPIC) as transaction:
        record = Record(body=b"paid", tag="a", keys=("k",), properties={"p": "q"})
        await transaction.append(record)
        before, opened = await group.bodies(TOPIC), _open(group)

    (stored,) = [each async for each in client.read(TOPIC, 0, linearizable=True)]
    assert (before, opened, _open(group)) == ([], 1, 0)
    assert stored.record.message_id == transaction.message_id
    assert (stored.record.body, stored.record.tag, stored.record.keys) == (b"paid", "a", ("k",))
    assert stored.record.properties == {"p": "q"}


async def test_an_exception_rolls_back(client: Client, group: MemoryGroup) -> None:
    """And is what the caller sees."""
    transaction = client.transaction(TOPIC)

    async def work() -> None:
        async with transaction:
            await transaction.append(b"unpaid")
            raise LookupError

    with pytest.raises(LookupError):
        await work()

    assert _open(group) == 0
    with pytest.raises(Refused, match="was rolled back before, and that is its end"):
        await transaction.commit()
    assert await group.bodies(TOPIC) == []


async def test_a_block_that_sends_nothing_ends_nothing(client: Client) -> None:
    async with client.transaction(TOPIC) as transaction:
        pass

    assert transaction.id == ""
    with pytest.raises(InvalidArgument, match="no message yet"):
        await transaction.commit()


async def test_a_commit_that_fails_is_not_rolled_back(group: MemoryGroup) -> None:
    """The work is done by then: a check has to say how it ends, or a repeated commit."""
    async with Client(group.addresses[0], timeout_s=WAIT_S) as client:
        transaction = client.transaction(TOPIC)

        async def work() -> None:
            async with transaction:
                await transaction.append(b"paid")
                group.elect(None)
                client.timeout_s = 0.1
                try:
                    await transaction.commit()
                finally:
                    group.elect(0)
                    client.timeout_s = WAIT_S

        with pytest.raises(Unavailable):
            await work()
        still_open = _open(group)
        await transaction.commit()

    assert still_open == 1
    assert await group.bodies(TOPIC) == [b"paid"]


async def test_the_first_end_counts_and_may_be_repeated(client: Client, group: MemoryGroup) -> None:
    transaction = client.transaction(TOPIC)
    transaction_id = await transaction.append(b"paid")
    for _ in range(2):
        await client.end_transaction(TOPIC, transaction_id, commits=True)

    with pytest.raises(Refused, match="was committed before, and that is its end"):
        await transaction.roll_back()

    assert await group.bodies(TOPIC) == [b"paid"]


async def test_a_half_that_is_sent_again_is_the_same_transaction(
    client: Client, group: MemoryGroup
) -> None:
    """Also where its first answer was lost, and after its end; another one with its id is not."""
    record = Record(body=b"paid", message_id="1")
    group.lose_outcomes = 1
    first = await client.append_half(TOPIC, record)
    group.elect(1)
    again = await client.append_half(TOPIC, record)
    await client.end_transaction(TOPIC, first, commits=True)
    late = await client.append_half(TOPIC, record)

    assert first == again == late
    with pytest.raises(MessageIdConflict):
        await client.append_half(TOPIC, Record(body=b"other", message_id="1"))
    assert await group.bodies(TOPIC) == [b"paid"]


async def test_what_is_no_half_is_refused(client: Client, group: MemoryGroup) -> None:
    """A topic of another type, a record of another type, a check too late, a second message."""
    await client.create_topic("n")
    with pytest.raises(Refused, match="takes NORMAL messages, not TRANSACTION"):
        await client.transaction("n").append(b"x")
    with pytest.raises(Refused, match="takes TRANSACTION messages, not NORMAL"):
        await client.append(TOPIC, [b"x"])
    with pytest.raises(Refused, match="have no priority"):
        await client.transaction(TOPIC).append(Record(body=b"x", typed=Typed(priority=1)))
    with pytest.raises(Refused, match="after 0 to 3600000 ms, not 3600001"):
        await client.transaction(TOPIC, check_after_ms=3_600_001).append(b"x")
    with pytest.raises(UnknownTopic):
        await client.end_transaction("nowhere", "x", commits=True)
    with pytest.raises(Refused, match="malformed transaction id"):
        await client.end_transaction(TOPIC, "x", commits=True)
    with pytest.raises(Refused, match="of no transaction"):
        await client.end_transaction("n", "x", commits=True)
    async with client.transaction(TOPIC) as transaction:
        await transaction.append(b"one")
        with pytest.raises(InvalidArgument, match="one message"):
            await transaction.append(b"two")

    assert await group.bodies(TOPIC) == [b"one"]


@pytest.mark.parametrize("commits", [True, False])
async def test_whoever_is_asked_decides(
    client: Client, group: MemoryGroup, *, commits: bool
) -> None:
    """The half's own producer, or another one of the topic, at whichever node; with all of it."""
    record = Record(body=b"paid", tag="a", keys=("k",), properties={"p": "q"}, born_at_ms=7)
    async with Client(group.addresses[0]) as gone:
        transaction = gone.transaction(TOPIC, check_after_ms=60_000)
        await transaction.append(record)
    questions = client.transaction_checks(TOPIC)
    asked = asyncio.ensure_future(anext(questions))
    await asyncio.sleep(0.01)
    early = asked.done()
    group.clock_skew_ms += 60_001

    async with asyncio.timeout(WAIT_S):
        check = await asked
    await client.end_transaction(check.topic, check.transaction_id, commits=commits)
    await questions.aclose()

    assert not early
    assert (check.topic, check.transaction_id) == (TOPIC, transaction.id)
    assert check.record.message_id == transaction.message_id
    assert (check.record.body, check.record.tag, check.record.keys) == (b"paid", "a", ("k",))
    assert (check.record.properties, check.record.born_at_ms) == ({"p": "q"}, 7)
    assert await group.bodies(TOPIC) == [b"paid"] * commits


async def test_either_protocol_ends_what_the_other_began(
    client: Client, group: MemoryGroup
) -> None:
    """A half of RocketMQ's is asked about here, and ended; one of ours is ended there."""
    half = message(1, b"theirs", TOPIC, message_type=definition.MessageType.TRANSACTION)
    async with RocketClient(group.nodes[0].port, "gone") as theirs:
        await theirs.send(half)
        ours = await client.append_half(TOPIC, Record(body=b"ours"), check_after_ms=3_600_000)
        request = service.EndTransactionRequest(
            topic=definition.Resource(name=TOPIC),
            transaction_id=ours,
            resolution=definition.TransactionResolution.COMMIT,
        )
        ended = await theirs.call("EndTransaction", request)
    questions = client.transaction_checks(TOPIC)
    asked = asyncio.ensure_future(anext(questions))
    group.clock_skew_ms += 6_001

    async with asyncio.timeout(WAIT_S):
        check = await asked
    await client.end_transaction(check.topic, check.transaction_id, commits=True)
    await questions.aclose()

    assert code(ended.status) == "OK"
    assert await group.bodies(TOPIC) == [b"ours", b"theirs"]
