"""Running nodes go by settings that change in their file: for topics, and for what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dledger.errors import UnknownTopic
from dledger.server import live_settings
from dledger.server.config import Settings
from dledger.server.live_settings import SettingsFollower
from dledger.server.node import Node
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually

said: dict[str, Any] = {}


@pytest.fixture
async def node(unfounded: LiveNodes, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """Return a node that follows what is *said*."""
    monkeypatch.setattr(live_settings, "LOOK_S", 0.05)
    said.clear()
    said.update(
        auto_create_topics=True,
        segment_bytes=1 << 20,
        storage_bytes=64 << 20,
        disk_watermark_percent=0,
    )

    def read() -> Settings:
        return unfounded.where(**said).settings(0)

    follower = SettingsFollower(read(), read)
    await unfounded.found(0)
    node = unfounded.nodes[0]
    following = asyncio.create_task(follower.run(node.take_over))
    yield node
    following.cancel()


async def test_topics_are_made_on_first_use_as_the_file_says(
    unfounded: LiveNodes, node: Node
) -> None:
    """And not, once it says so."""
    resolver = node._parts.context.resolver
    async with unfounded.client(0) as client:
        await client.append("one", [b"1"], queue_id=0)
        said["auto_create_topics"] = False
        await eventually(lambda: not resolver.auto_creates)
        with pytest.raises(UnknownTopic):
            await client.append("two", [b"2"], queue_id=0)
        said["auto_create_topics"] = True
        await eventually(lambda: resolver.auto_creates)
        await client.append("two", [b"2"], queue_id=0)


async def test_messages_go_as_the_file_says(unfounded: LiveNodes, node: Node) -> None:
    """Storage of which a hundredth may be used is above that; without a limit nothing went."""
    state = node.engine.state
    async with unfounded.client(0) as client:
        for _ in range(16):
            await client.append("one", [bytes(1 << 18)], queue_id=0)
    assert state.first_index <= 1

    said["disk_watermark_percent"] = 1
    await eventually(lambda: state.first_index > 1)
