"""One node in memory and a RocketMQ client of it, for the files that need no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from dledger.calls import caller as callers
from dledger.calls.caller import Caller
from dledger.requests import forward
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """One node, which leads."""
    async with memory_group() as group:
        yield group


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits, in seconds, of requests that found no leader, each from when it begins."""
    waits: list[float] = []
    pause = forward.Relay.pause

    async def noted(relay: forward.Relay, caller: Caller, wait_s: float) -> None:
        waits.append(wait_s)
        await pause(relay, caller, wait_s)

    monkeypatch.setattr(forward.Relay, "pause", noted)
    return waits


@pytest.fixture
def hold_for_a_second(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have nodes answer after a second at the latest; clients wait for long, and do not miss it."""

    def soon_s(_: float | None) -> float:
        return asyncio.get_running_loop().time() + 1.0

    return lambda: monkeypatch.setattr(callers, "answer_by_s", soon_s)


@pytest.fixture
async def client(group: MemoryGroup) -> AsyncIterator[RocketClient]:
    """A client of that node."""
    async with RocketClient(group.nodes[0].port) as client:
        yield client
