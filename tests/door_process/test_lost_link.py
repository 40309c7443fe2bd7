"""A door that is gone has given up all that it had under way: nothing of it is left at the node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from dledger.requests.config import RequestConfig
from tests.requests import memory_group as made
from tests.requests.linked_door import LinkedDoor
from tests.requests.memory_group import MemoryGroup
from tests.requests.rocketmq_client import RocketClient, message
from tests.waiting import eventually


@asynccontextmanager
async def served(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[MemoryGroup, LinkedDoor, RocketClient]]:
    """A node, its one door, and a client of that, whose first message is stored."""
    monkeypatch.setattr(made, "client_server", made.DOOR)
    async with (
        made.memory_group(config=RequestConfig(default_queues=1)) as group,
        RocketClient(group.nodes[0].port) as client,
    ):
        (door,) = [each for each in group.nodes[0].servers if isinstance(each, LinkedDoor)]
        await client.send(message(0))
        yield group, door, client


async def ended(call: asyncio.Task[Any]) -> None:
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
        await call


async def test_a_batch_of_a_lost_door_gives_its_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, not when it is committed, which may be never."""
    async with served(monkeypatch) as (group, door, client):
        stuck: list[None] = []
        monkeypatch.setattr(group, "_commit_batch", lambda: stuck.append(None))
        sending = asyncio.ensure_future(client.send(message(1)))
        await eventually(lambda: bool(stuck))
        admission = group.nodes[0].parts.context.admission
        taken = admission.taken
        door.node_end.link.abort("lost")
        await eventually(lambda: admission.taken == 0)
        await ended(sending)

    assert taken > 0
    assert not len(door.node_end)


async def test_a_poll_through_a_lost_door_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must take no message for a client that is gone."""
    async with served(monkeypatch) as (group, door, client):
        await client.receive(queue_id=0)
        polling = asyncio.ensure_future(client.receive(queue_id=0, wait_s=60))
        await group.polls(1)
        door.node_end.link.abort("lost")
        async with asyncio.timeout(5):  # by itself it would end later
            await group.polls(0)
        await ended(polling)

    assert not len(door.node_end)
