"""One node in memory and a RocketMQ client of it, for the files that need no more."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.rpc.memory_group import MemoryGroup, memory_group
from tests.rpc.rocketmq_client import RocketClient


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """One node, which leads."""
    async with memory_group() as group:
        yield group


@pytest.fixture
async def client(group: MemoryGroup) -> AsyncIterator[RocketClient]:
    """A client of that node."""
    async with RocketClient(group.nodes[0].port) as client:
        yield client
