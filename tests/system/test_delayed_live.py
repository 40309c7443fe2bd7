"""Messages that wait for their time while the leader is killed, and after a restore."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from dledger.client import AdminClient, Client
from dledger.rpc.rocketmq_stubs import definition, service
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.system.test_restored_group import records, restore
from tests.waiting import eventually_async

pytestmark = pytest.mark.slow

TOPIC = "d"
MESSAGES = 60
LAST = "the last one"
DUE_SOON_MS = 10_000
"""Longer than a group takes to stop."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[DevGroup]:
    """Return a running group of three."""
    made = DevGroup(tmp_path / "data", free_port_range())
    made.announced()
    yield made
    if made.process.poll() is None:
        made.stop()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _at(due_ms: int, number: int, body: bytes = b"") -> definition.Message:
    due = Timestamp()
    due.FromMilliseconds(due_ms)
    return message(
        number,
        body or b"%d" % number,
        TOPIC,
        message_type=definition.MessageType.DELAY,
        delivery_timestamp=due,
    )


async def _make(endpoint: str) -> None:
    async with Client(endpoint) as client:
        await client.create_topic(TOPIC, "DELAY", 1)


async def _sent(client: RocketClient, one: definition.Message) -> Any:
    """Send a message, again and again until the group has it; return its entry."""
    while True:
        response = await client.send(one)
        if code(response.status) == "OK":
            return response.entries[0]


async def _recalled(client: RocketClient, handle: str) -> Any:
    resource = definition.Resource(name=TOPIC)
    request = service.RecallMessageRequest(topic=resource, recall_handle=handle)
    while True:
        answer = await client.call("RecallMessage", request)
        if code(answer.status) in ("OK", "NOT_FOUND"):
            return answer


async def _received(client: RocketClient) -> AsyncGenerator[definition.Message]:
    """Yield messages as they come, and acknowledge them."""
    while True:
        _, messages, _ = await client.receive(TOPIC, wait_s=20, batch=32)
        for each in messages:
            yield each
        if messages:
            await client.ack(*messages, topic=TOPIC)


async def test_each_message_is_delivered_once_though_the_leader_is_killed(
    group: DevGroup,
) -> None:
    """None before its time, none twice, and none that was recalled; the handles stay good."""
    state, leader = group.state(), group.leader
    others = [number for number in range(3) if number != leader]
    await _make(group.endpoints[others[0]])
    client = RocketClient(group.client_port + others[0])
    begun_ms = _now_ms()
    due_ms = {number: begun_ms + 1_500 + 50 * number for number in range(MESSAGES)}
    entries = {number: await _sent(client, _at(due_ms[number], number)) for number in due_ms}
    recalled = [number for number in due_ms if number % 5 == 4]
    told = {number: await _recalled(client, entries[number].recall_handle) for number in recalled}

    os.kill(state["pids"][leader], signal.SIGKILL)
    again = {number: await _sent(client, _at(due_ms[number], number)) for number in due_ms}
    await _sent(client, _at(max(due_ms.values()) + 500, MESSAGES, LAST.encode()))
    got: list[tuple[bytes, int]] = []
    async for each in _received(client):
        got.append((each.body, _now_ms()))
        if each.body == LAST.encode():
            break
    late = {number: await _recalled(client, entries[number].recall_handle) for number in recalled}
    delivered = await _recalled(client, entries[0].recall_handle)
    await client.channel.close()

    bodies = [body for body, _ in got]
    was_recalled = {number for number in recalled if code(told[number].status) == "OK"}
    expected = [b"%d" % number for number in due_ms if number not in was_recalled]
    assert sorted(bodies[:-1]) == sorted(expected)
    assert all(at_ms >= due_ms[int(body)] for body, at_ms in got[:-1])
    assert {code(told[each].status) for each in recalled} == {"OK"}
    assert {code(late[each].status) for each in recalled} == {"OK"}
    assert code(delivered.status) == "NOT_FOUND"
    handles = [entries[each].recall_handle for each in due_ms]
    assert [again[each].recall_handle for each in due_ms] == handles


def test_restored_messages_wait_for_a_word(tmp_path: Path) -> None:
    """The group that was backed up may deliver them: so the new one does not, until it is told.

    What is sent to the new group is delivered meanwhile; then each of the others is, once.
    """
    old = DevGroup(tmp_path / "old", free_port_range())
    endpoint = old.announced()["endpoints"][0]
    asyncio.run(_hold(endpoint, old.client_port))
    old.stop()
    old_group_id, entries = records(tmp_path / "old" / "node-0")

    restore(tmp_path / "new" / "node-0", "dev/node-0", old_group_id, entries)
    group = DevGroup(tmp_path / "new", free_port_range())
    try:
        asyncio.run(_resume(group, group.announced()["adminEndpoints"][0]))
    finally:
        group.stop()


async def _hold(endpoint: str, port: int) -> None:
    await _make(endpoint)
    client = RocketClient(port)
    for number in range(3):
        await _sent(client, _at(_now_ms() + 3_600_000, number))
    await _sent(client, _at(_now_ms() + DUE_SOON_MS, 3))
    await client.channel.close()


async def _resume(group: DevGroup, admin_endpoint: str) -> None:
    client = RocketClient(group.client_port)
    await _sent(client, _at(_now_ms() + 1_500, 10, b"new"))
    received = _received(client)
    first = (await anext(received)).body
    async with AdminClient(admin_endpoint) as admin:

        async def is_told() -> bool:
            return bool((await admin.status()).held_waiting == len(waiting.first))

        waiting = await admin.list_held()
        await eventually_async(is_told)
        resumed = await admin.resume_held(drops=False)
    second = (await anext(received)).body
    await received.aclose()
    await client.channel.close()

    assert waiting.waiting == resumed == 4
    assert (first, second) == (b"new", b"3")
