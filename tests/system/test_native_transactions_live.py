"""Transactions of our own client on three processes, while the leader is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.client import Client, Record
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.waiting import eventually_async

pytestmark = pytest.mark.slow

TOPIC = "payments"
MESSAGES = 12


@pytest.fixture
def group(tmp_path: Path) -> Iterator[DevGroup]:
    """Return a running group of three."""
    made = DevGroup(tmp_path / "data", free_port_range())
    made.announced()
    yield made
    if made.process.poll() is None:
        made.stop()


async def test_each_transaction_has_one_end_though_the_leader_is_killed(group: DevGroup) -> None:
    """Of three, one is committed, one is rolled back, and one is left to a check."""
    state, leader = group.state(), group.leader
    first, second = (group.endpoints[number] for number in range(3) if number != leader)
    async with Client(first) as client, Client(second) as other:
        await client.create_topic(TOPIC, "TRANSACTION", 1)
        records = [Record(body=b"%d" % n, message_id=f"{n}") for n in range(MESSAGES)]
        ids = [await client.append_half(TOPIC, each) for each in records]
        await client.end_transaction(TOPIC, ids[0], commits=True)
        os.kill(state["pids"][leader], signal.SIGKILL)
        again = [await client.append_half(TOPIC, each) for each in records]
        for number in range(MESSAGES):
            if number % 3 < 2:
                await other.end_transaction(TOPIC, ids[number], commits=number % 3 == 0)
        left = {f"{number}" for number in range(2, MESSAGES, 3)}
        async for check in other.transaction_checks(TOPIC):
            await other.end_transaction(TOPIC, check.transaction_id, commits=True)
            left.discard(check.record.message_id)
            if not left:
                break

        async def bodies() -> list[int]:
            read = client.read(TOPIC, 0, linearizable=True)
            return sorted([int(each.record.body) async for each in read])

        async def is_complete() -> bool:
            return await bodies() == [n for n in range(MESSAGES) if n % 3 != 1]

        await eventually_async(is_complete)

    assert again == ids
