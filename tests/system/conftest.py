"""What tests of whole nodes begin with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dledger.client import Client
from dledger.server import node
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.system.live_nodes import LiveNodes


@pytest.fixture
async def unfounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LiveNodes]:
    """Return nodes of no group yet; they end at once, without waiting for calls or a successor."""
    made = LiveNodes(tmp_path)
    monkeypatch.setattr(node, "_CALLS_GRACE_S", 0)
    yield made
    monkeypatch.setattr(node, "_TRANSFER_DEADLINE_S", 0)
    await made.stop()


@pytest.fixture
async def live(unfounded: LiveNodes) -> LiveNodes:
    """Return a group of three."""
    await unfounded.found(0, 1, 2)
    return unfounded


@pytest.fixture
def group(tmp_path: Path) -> Iterator[DevGroup]:
    """Return a running, writable group of three processes, with the topic `orders` of one queue."""
    made = DevGroup(tmp_path / "data", free_port_range(), "segment_bytes=8388608")
    endpoint = made.announced()["endpoints"][0]

    async def create_topic() -> None:
        async with Client(endpoint) as client:
            await client.create_topic("orders", queues=1)

    asyncio.run(create_topic())
    yield made
    if made.process.poll() is None:
        made.stop()
