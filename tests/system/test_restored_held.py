"""A group restored with very many timers, and with transactions that nobody ended."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dledger.client import AdminClient, Client
from dledger.rpc.rocketmq_stubs import definition
from e2e.growth.measures import MeasuredGroup
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.system.test_restored_group import records, restore
from tests.waiting import eventually_async

TIMERS, LATE_TIMERS, HALVES = 99_000, 1_000, 100
AT_ONCE = 1_000
DUE_MS = 90_000
"""Until the group that is backed up has all, and ended."""
LATER_MS = 7 * 86_400_000
PATIENCE_S = 300.0
LATER, ENDED = "later", "ended"

pytestmark = [pytest.mark.slow, pytest.mark.long]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _hold(group: DevGroup, due_ms: int) -> None:
    """Hold all of them, and begin the transactions."""
    async with Client(group.leader_endpoint, timeout_s=60) as client:
        await client.create_topic(LATER, "DELAY", 1)
        await client.create_topic(ENDED, "TRANSACTION", 1)
        for first in range(0, TIMERS + LATE_TIMERS, AT_ONCE):
            bodies = [b"%d" % number for number in range(first, first + AT_ONCE)]
            at_ms = due_ms if first < TIMERS else due_ms + LATER_MS
            await client.append(LATER, bodies, deliver_at_ms=at_ms)
    async with RocketClient(group.client_port + group.leader) as rocket:
        for number in range(HALVES):
            half = message(
                number, b"%d" % number, ENDED, message_type=definition.MessageType.TRANSACTION
            )
            assert code((await rocket.send(half)).status) == "OK"


def _command(admin: str, *words: str) -> Any:
    command = [sys.executable, "-m", "dledger", *words, "--endpoint", admin, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)


async def _stored(client: Client, topic: str) -> int:
    return sum(each.messages for each in await client.topics() if each.name == topic)


async def _numbers(client: Client, topic: str) -> list[int]:
    return sorted([int(each.record.body) async for each in client.read(topic, 0)])


async def test_timers_and_transactions_wait_for_a_word_and_come_once(tmp_path: Path) -> None:
    """They are told, none goes by itself though it is due, and after the word each does, once."""
    old = DevGroup(tmp_path / "old", free_port_range())
    old.announced()
    due_ms = _now_ms() + DUE_MS
    await _hold(old, due_ms)
    old.stop()
    assert _now_ms() < due_ms, "the machine is too slow for this test"
    restore(tmp_path / "new" / "node-0", "dev/node-0", *records(tmp_path / "old" / "node-0"))
    group = DevGroup(tmp_path / "new", free_port_range())
    try:
        group.announced()
        await group.until_whole()
        await _wait_for_a_word(group, due_ms)
        await _end(group)
    finally:
        group.stop()
    assert group.deaths() == 0


async def _wait_for_a_word(group: DevGroup, due_ms: int) -> None:
    """What is sent now goes when it is due; the rest waits, and is told."""
    admin, nodes = group.admins[group.leader], MeasuredGroup(group)
    held = TIMERS + LATE_TIMERS + HALVES
    async with Client(group.leader_endpoint, timeout_s=60) as client:
        await client.append(LATER, [b"-1"], deliver_at_ms=max(due_ms, _now_ms()) + 1_000)

        async def is_sent() -> bool:
            return bool(await _stored(client, LATER))

        async def is_told() -> bool:
            told = await asyncio.to_thread(nodes.total, "dledger_held_waiting_messages")
            return told >= held

        await eventually_async(is_sent, "what is new is delivered", PATIENCE_S)
        await eventually_async(is_told, "the gauge tells what waits", PATIENCE_S)
        assert await _numbers(client, LATER) == [-1]
    status = await asyncio.to_thread(_command, admin, "status")
    assert status["held_waiting"] == held
    told = await asyncio.to_thread(_command, admin, "held", "list")
    assert (told["messages"], told["waiting"]) == (held, held)


async def _end(group: DevGroup) -> None:
    admin = group.admins[group.leader]
    resumed = await asyncio.to_thread(_command, admin, "held", "resume", "--fire")
    async with (
        Client(group.leader_endpoint, timeout_s=60) as client,
        AdminClient(admin, timeout_s=60) as asked,
    ):
        open_ones, more = await asked.transactions(limit=None)
        ends = await asked.end_transactions([each.name for each in open_ones], True)

        async def are_out() -> bool:
            return await _stored(client, LATER) > TIMERS

        await eventually_async(are_out, "all that is due is out", PATIENCE_S)
        timers, halves = await _numbers(client, LATER), await _numbers(client, ENDED)
        left = await asked.list_held()

    assert resumed["messages"] == TIMERS + LATE_TIMERS + HALVES
    assert (len(open_ones), more, len(ends)) == (HALVES, False, HALVES)
    assert timers == [-1, *range(TIMERS)]
    assert halves == [*range(HALVES)]
    assert (left.messages, left.waiting) == (LATE_TIMERS, 0)
