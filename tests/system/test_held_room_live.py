"""Full disks of a group that holds all that it may: what is due is late, and is not lost."""

from __future__ import annotations

import asyncio
import os
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dledger.client import AdminClient, Client
from dledger.errors import DiskFull, OutcomeUnknown
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from e2e.harness.volume import Volume
from tests.waiting import eventually_async

MIB = 1 << 20
SMALL_SEGMENTS = "segment_bytes=1048576"
LATER, NOW = "later", "now"
BATCH = 64
METRICS = 300
"""The metrics' ports, behind the client ports of `dledger dev`."""
DUE_MS = 60_000
LATE_S = 10
"""From when on the alert DledgerHeldLate counts."""
PATIENCE_S = 300.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting small file systems needs root"),
]


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[list[Volume]]:
    """Return the small disks of three nodes."""
    made = [Volume(tmp_path / "data" / f"node-{n}", size_bytes=96 * MIB) for n in range(3)]
    try:
        for each in made:
            each.mount()
        yield made
    finally:
        for each in made:
            each.unmount()


@pytest.fixture
def group(tmp_path: Path, volumes: list[Volume]) -> Iterator[DevGroup]:
    """Return a running group on them."""
    assert volumes
    made = DevGroup(tmp_path / "data", free_port_range(), SMALL_SEGMENTS)
    made.announced()
    yield made
    if made.process.poll() is None:
        made.stop()


async def _hold_all(client: Client, due_ms: int) -> tuple[set[int], str]:
    """Hold messages until no more are taken; return which are held, and what it said."""
    held = set[int]()
    while True:
        numbers = range(len(held), len(held) + BATCH)
        bodies = [b"%08d" % number + os.urandom(2_000) for number in numbers]
        try:
            await client.append(LATER, bodies, deliver_at_ms=due_ms)
        except DiskFull as error:
            return held, str(error)
        held.update(numbers)


async def _send(client: Client) -> None:
    await client.append(NOW, [os.urandom(32_768)] * 8)


async def _send_until_copied(client: Client, group: DevGroup, held: int) -> None:
    """Send more than there is room for, until all that is held was copied forward.

    Older segments go for room meanwhile; a send that is faster than that is refused, for a moment.
    """
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(_metric, group, "dledger_rolled_messages_total") < held:
            try:
                await _send(client)
            except (DiskFull, OutcomeUnknown):
                await asyncio.sleep(0.1)


async def _send_until_refused(client: Client) -> str:
    while True:
        try:
            await _send(client)
        except DiskFull as error:
            return str(error)
        except OutcomeUnknown:  # with which the disk filled
            await asyncio.sleep(0.1)


def _metric(group: DevGroup, name: str) -> float:
    """Return the sum of a metric over the nodes."""
    found = 0.0
    for number in range(3):
        url = f"http://127.0.0.1:{group.client_port + METRICS + number}/metrics"
        with urllib.request.urlopen(url, timeout=20) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        found += sum(s.value for family in families for s in family.samples if s.name == name)
    return found


async def _messages(client: Client) -> int:
    return sum(each.messages for each in await client.topics() if each.name == LATER)


async def test_what_is_due_on_a_full_disk_goes_once_when_there_is_room(
    group: DevGroup, volumes: list[Volume]
) -> None:
    """Sends are refused by name; what is held is copied forward all the while, and told as late."""
    async with Client(group.leader_endpoint, timeout_s=30) as client:
        await client.create_topic(LATER, "DELAY", 1)
        await client.create_topic(NOW, queues=1)
        due_ms = time.time_ns() // 1_000_000 + DUE_MS
        held, share = await _hold_all(client, due_ms)
        await _send_until_copied(client, group, len(held))
        for each in volumes:
            each.fill(MIB)
        refused = await _send_until_refused(client)
        with pytest.raises(DiskFull):
            await client.append(LATER, [b"x"], deliver_at_ms=due_ms + DUE_MS)
        assert time.time_ns() // 1_000_000 < due_ms, "the machine is too slow for this test"

        async def is_late() -> bool:
            return await asyncio.to_thread(_metric, group, "dledger_held_overdue_seconds") > LATE_S

        await eventually_async(is_late, "the gauge tells that messages are late", PATIENCE_S)
        while_full = await _messages(client)
        async with AdminClient(group.admins[group.leader]) as admin:
            told = (await admin.status()).writes_refused_reason
        for each in volumes:
            each.empty()

        async def are_out() -> bool:
            return await _messages(client) >= len(held)

        await eventually_async(are_out, "all that is due is out", PATIENCE_S)
        await _send(client)
        stored = [each async for each in client.read(LATER, 0, linearizable=True)]

    assert len(held) > 1_000
    assert "wait for their time" in share
    assert "full" in refused + told
    assert while_full == 0
    assert sorted(int(each.record.body[:8]) for each in stored) == sorted(held)
    assert all(each.stored_at_ms >= due_ms for each in stored)
    assert group.deaths() == 0
