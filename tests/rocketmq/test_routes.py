"""Which addresses a client is told: each SDK those that it can use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dledger.calls.caller import FORWARDED_KEY
from dledger.rpc.rocketmq_stubs import definition, service
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient

TLS_PORT = 50_000


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Three nodes; node 0 leads."""
    async with memory_group(3) as group:
        for number, node in enumerate(group.nodes):
            node.tls_port = TLS_PORT + number
        yield group


async def _queues(
    group: MemoryGroup, language: str, *, tls: bool = False, node: int = 0, assigned: bool = False
) -> list[Any]:
    """Return a topic's queues as *node* tells them to a client of that language."""
    topic = definition.Resource(name="t")
    async with RocketClient(group.nodes[node].peer_port) as client:
        client.metadata = (
            ("x-mq-client-id", "client-1"),
            ("x-mq-language", language),
            (FORWARDED_KEY, "tls" if tls else "plain"),
        )
        if not assigned:
            request = service.QueryRouteRequest(topic=topic)
            return list((await client.call("QueryRoute", request)).message_queues)
        asked = service.QueryAssignmentRequest(topic=topic, group=definition.Resource(name="g"))
        answer = await client.call("QueryAssignment", asked)
    return [each.message_queue for each in answer.assignments]


def _ports(queue: Any) -> list[int]:
    endpoints = queue.broker.endpoints
    assert endpoints.scheme == definition.AddressScheme.IPv4
    return [address.port for address in endpoints.addresses]


@pytest.mark.parametrize("language", ["PYTHON", "JAVA", "GO", "RUST", "CPP", ""])
async def test_every_queue_names_every_node_in_a_stable_order(
    group: MemoryGroup, language: str
) -> None:
    """The SDKs key a channel by this set, and find the next node in it when one dies."""
    group.silent = {2}
    ports = [node.port for node in group.nodes]

    queues = await _queues(group, language)

    assert [_ports(queue) for queue in queues] == [ports] * 8
    assert {queue.broker.name for queue in queues} == {"orders"}


@pytest.mark.parametrize("language", ["JAVA", "GO", "RUST"])
async def test_a_route_names_the_kind_of_port_it_was_asked_through(
    group: MemoryGroup, language: str
) -> None:
    """Also when a follower passes the question on; TLS clients are shown the TLS ports."""
    queues = await _queues(group, language, tls=True)

    assert _ports(queues[0]) == [TLS_PORT, TLS_PORT + 1, TLS_PORT + 2]


@pytest.mark.found
@pytest.mark.parametrize(("language", "tls"), [("HTTP", False), ("HTTP", True), ("PYTHON", True)])
@pytest.mark.parametrize("assigned", [False, True])
async def test_an_sdk_of_one_address_finds_each_queue_at_each_node(
    group: MemoryGroup, language: str, tls: bool, assigned: bool
) -> None:
    """So a consumer misses none of them while a node is away; the node that answers is first."""
    await _queues(group, "JAVA")

    queues = await _queues(group, language, tls=tls, node=1, assigned=assigned)

    names = ["orders-1", "orders-0", "orders-2"]
    ports = [TLS_PORT + number if tls else group.nodes[number].port for number in (1, 0, 2)]
    assert [(queue.id, queue.broker.name, _ports(queue)) for queue in queues] == [
        (queue_id, name, [port])
        for queue_id in range(8)
        for name, port in zip(names, ports, strict=True)
    ]


@pytest.mark.found
async def test_a_node_that_is_not_heard_has_no_turn_with_an_sdk_of_one_address(
    group: MemoryGroup,
) -> None:
    """Each of its turns would be an error to a caller: this SDK does not ask the next node."""
    group.silent = {2}

    queues = await _queues(group, "HTTP")

    assert {queue.broker.name for queue in queues} == {"orders-0", "orders-1"}
    assert len(queues) == 16


async def test_who_hears_nobody_names_everybody(group: MemoryGroup) -> None:
    """It is the one that is cut off, and the others may well be there."""
    group.silent = {1, 2}

    queues = await _queues(group, "HTTP")

    assert {queue.broker.name for queue in queues} == {"orders-0", "orders-1", "orders-2"}


@pytest.mark.parametrize(("leader", "calls"), [(0, 1), (None, 0)])
async def test_who_lacks_an_address_asks_the_leader(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch, leader: int | None, calls: int
) -> None:
    """A client keeps to what it is told; without a leader something is better than nothing."""
    await _queues(group, "JAVA")
    group.elect(leader)
    follower = group.nodes[1]
    monkeypatch.setattr(follower.engine, "knows_members", lambda: False)
    asked: list[str] = []
    begin = follower.parts.context.relay.begin

    def noted(path: str, *rest: Any) -> Any:
        asked.append(path)
        return begin(path, *rest)

    monkeypatch.setattr(follower.parts.context.relay, "begin", noted)
    async with RocketClient(follower.port) as client:
        answer = await client.route("t")

    assert len(answer.message_queues) == 8
    assert len(asked) == calls
