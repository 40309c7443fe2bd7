"""Requests are counted by method and code: each once, whichever node it came to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dledger.client import Client, Record
from dledger.errors import Refused
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, message


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Two nodes; node 0 leads."""
    async with memory_group(2) as group:
        yield group


@pytest.fixture(params=[0, 1], ids=["leader", "follower"])
def asked(request: pytest.FixtureRequest) -> int:
    """The node that the client is connected to."""
    number: int = request.param
    return number


def _counted(group: MemoryGroup, node: int) -> dict[tuple[str, str], float]:
    (family,) = group.nodes[node].parts.context.metrics.requests._counter.collect()
    counts = [sample for sample in family.samples if sample.name == "dledger_requests_total"]
    return {(each.labels["method"], each.labels["code"]): each.value for each in counts}


@pytest.mark.contract
async def test_an_answer_counts_where_it_is_made(group: MemoryGroup, asked: int) -> None:
    """A follower that passes the leader's answer on does not look into it."""
    async with RocketClient(group.nodes[asked].port) as client:
        await client.send(message(1))
        await client.send(message(2), message(3))
        await client.send(message(4, body=b""))
        await client.receive(topic="other")
        await client.call("SyncLiteSubscription")

    assert _counted(group, 0) | _counted(group, 1) == {
        ("SendMessage", "OK"): 2,
        ("SendMessage", "MESSAGE_BODY_EMPTY"): 1,
        ("ReceiveMessage", "MESSAGE_NOT_FOUND"): 1,
        ("SyncLiteSubscription", "NOT_IMPLEMENTED"): 1,
    }
    assert not _counted(group, 0).keys() & _counted(group, 1).keys()
    assert ("SyncLiteSubscription", "NOT_IMPLEMENTED") in _counted(group, asked)


async def test_messages_that_are_handed_out_count_as_one_answer(group: MemoryGroup) -> None:
    """A ReceiveMessage is one request, however many messages it brings."""
    async with RocketClient(group.nodes[0].port) as client:
        await client.send(message(1), message(2), message(3))
        _, received, _ = await client.receive()

    assert len(received) == 3
    assert _counted(group, 0)["ReceiveMessage", "OK"] == 1


async def test_a_request_that_finds_no_leader_counts_where_it_waited(group: MemoryGroup) -> None:
    """However often it was tried meanwhile."""
    group.elect(None)

    async with RocketClient(group.nodes[1].port) as client:
        await client.send(message(1), timeout_s=1.0)

    assert _counted(group, 0) == {}
    assert _counted(group, 1) == {("SendMessage", "HA_NOT_AVAILABLE"): 1}


@pytest.mark.contract
async def test_dledger_requests_are_counted_with_grpc_codes(group: MemoryGroup, asked: int) -> None:
    """An answer where it is made, an error where the client is."""
    async with Client(f"127.0.0.1:{group.nodes[asked].port}", timeout_s=3.0) as client:
        await client.append("orders", [Record(body=b"x", message_id="1")])
        with pytest.raises(Refused):
            await client.append("orders", [Record(body=b"", message_id="2")])
        await client.topics()
        assert len([stored async for stored in client.read("orders", 0)]) <= 1

    assert _counted(group, 0)["Ledger/Append", "OK"] == 1
    assert _counted(group, asked)["Ledger/Append", "FAILED_PRECONDITION"] == 1
    assert _counted(group, 1 - asked).get(("Ledger/Append", "FAILED_PRECONDITION"), 0) == 0
    assert _counted(group, asked)["Topics/ListTopics", "OK"] == 1
    assert _counted(group, asked)["Ledger/ReadBatches", "OK"] == 1
