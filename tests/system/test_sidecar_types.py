"""The sidecar beside a real node: what only some types of topics know survives an outage."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from dledger.broker.key_queues import queue_of_key
from dledger.client import Client, StoredRecord, Typed
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code
from tests.sidecar.fakes import message
from tests.system.live_nodes import LiveNodes
from tests.system.test_sidecar_live import TOPIC, Beside
from tests.waiting import eventually_async

_DELAY, _FIFO = definition.MessageType.DELAY, definition.MessageType.FIFO
_PRIORITY = definition.MessageType.PRIORITY
_SOON_MS, _LATER_MS = 4_000, 3_600_000


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[LiveNodes]:
    """Return a group of one node, with a topic of each type that can be spooled."""
    made = LiveNodes(tmp_path)
    await made.found_with_topic(TOPIC)
    async with made.client(0) as client:
        await client.create_topic("reminders", "DELAY", queues=1)
        await client.create_topic("transfers", "FIFO", queues=2)
        await client.create_topic("alerts", "PRIORITY", queues=3)
    yield made
    await made.stop()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _send(beside: Beside, topic: str, number: int, **system: Any) -> service.SendResultEntry:
    """Send a message through the sidecar, which takes it."""
    one = message(topic, b"%d" % number, f"{number:06}")
    one.system_properties.MergeFrom(definition.SystemProperties(**system))
    asked = service.SendMessageRequest(messages=[one]).SerializeToString()
    answer = await beside.call("SendMessage", asked)
    assert answer.status.code == Code.OK, answer
    entry: service.SendResultEntry = answer.entries[0]
    return entry


def _at(due_ms: int) -> dict[str, Any]:
    due = Timestamp()
    due.FromMilliseconds(due_ms)
    return {"message_type": _DELAY, "delivery_timestamp": due}


async def _read(client: Client, topic: str, queue_id: int = 0) -> list[StoredRecord]:
    return [one async for one in client.read(topic, queue_id, linearizable=True)]


@pytest.mark.slow
async def test_what_was_sent_for_later_waits_behind_the_outage(
    nodes: LiveNodes, tmp_path: Path
) -> None:
    """It is spooled, held at the replay, and delivered at its time; at once, if that has passed."""
    async with (
        Beside(nodes.client_addresses, tmp_path / "spool") as beside,
        nodes.client(0) as client,
    ):
        await nodes.stop(0)
        now_ms = _now_ms()
        due_ms = {1: now_ms + _LATER_MS, 2: now_ms + _SOON_MS, 3: now_ms}
        sent = [await _send(beside, "reminders", each, **_at(due_ms[each])) for each in due_ms]
        away = beside.sidecar.counters()
        await nodes.start(0)
        await beside.drained()
        rejected = beside.sidecar.counters().rejected

        async def are_delivered() -> bool:
            return len(await _read(client, "reminders")) == 2

        await eventually_async(are_delivered)
        seen_ms = _now_ms()
        delivered = await _read(client, "reminders")
        held = nodes.nodes[0].engine.state.held
        waiting = [one for bucket in held.buckets().values() for one in bucket.messages(0)]

    assert [each.recall_handle for each in sent] == ["", "", ""]
    assert (away.depth, rejected) == (3, 0)
    assert [each.record.body for each in delivered] == [b"3", b"2"]
    assert [each.typed for each in delivered] == [
        Typed(deliver_at_ms=due_ms[3]), Typed(deliver_at_ms=due_ms[2])
    ]  # fmt: skip
    assert seen_ms >= due_ms[2]
    assert [one.due_ms for one in waiting] == [due_ms[1]]


@pytest.mark.slow
async def test_message_groups_and_priorities_keep_their_order_through_an_outage(
    nodes: LiveNodes, tmp_path: Path
) -> None:
    """Each message is in the queue that its group, or its priority, chooses."""
    groups = {number: f"account-{number % 3}" for number in range(12)}
    priorities = {number: number * 5 % 4 for number in range(12)}
    async with (
        Beside(nodes.client_addresses, tmp_path / "spool") as beside,
        nodes.client(0) as client,
    ):
        await nodes.stop(0)
        for number, name in groups.items():
            await _send(beside, "transfers", number, message_type=_FIFO, message_group=name)
        for number, priority in priorities.items():
            await _send(beside, "alerts", number, message_type=_PRIORITY, priority=priority)
        depth = beside.sidecar.counters().depth
        await nodes.start(0)
        await beside.drained()
        transfers = [await _read(client, "transfers", each) for each in range(2)]
        alerts = [await _read(client, "alerts", each) for each in range(3)]

    assert depth == 24
    for queue_id, stored in enumerate(transfers):
        expected = [n for n, name in groups.items() if queue_of_key(name.encode(), 2) == queue_id]
        assert [int(each.record.body) for each in stored] == expected
        assert [each.typed for each in stored] == [
            Typed(message_group=groups[each]) for each in expected
        ]
    for queue_id, stored in enumerate(alerts):
        expected = [n for n, priority in priorities.items() if min(priority, 2) == queue_id]
        assert [int(each.record.body) for each in stored] == expected
        assert [each.typed for each in stored] == [
            Typed(priority=priorities[each]) for each in expected
        ]
