"""Who sends to a topic that is not there is told how to make it, of the type of his messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dledger.client import AppendStream, Client, Record, Typed
from dledger.errors import Refused, UnknownTopic
from dledger.requests.config import RequestConfig
from dledger.rpc.rocketmq_stubs import definition
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message

_TYPES: dict[str, dict[str, Any]] = {
    "FIFO": {"message_group": "account-1"},
    "DELAY": {"delivery_timestamp": {"seconds": 1}},
    "TRANSACTION": {},
    "PRIORITY": {"priority": 1},
}


@pytest.fixture(params=[True, False], ids=["made on first use", "made by hand"])
async def group(request: pytest.FixtureRequest) -> AsyncIterator[MemoryGroup]:
    async with memory_group(config=RequestConfig(auto_create_topics=request.param)) as group:
        yield group


def _how(group: MemoryGroup, kind: str) -> str:
    return f"`dledger topic create nowhere --type {kind} --endpoint {group.addresses[0]}`"


@pytest.mark.parametrize("kind", _TYPES)
async def test_a_message_with_a_type_says_of_which_its_topic_is_to_be(
    group: MemoryGroup, kind: str
) -> None:
    """As it is without `--type`, who follows the sentence makes one that refuses the message."""
    system = {**_TYPES[kind], "message_type": definition.MessageType.Value(kind)}
    async with RocketClient(group.nodes[0].port) as client:
        status = (await client.send(message(topic="nowhere", **system))).status

    assert code(status) == "TOPIC_NOT_FOUND"
    assert _how(group, kind) in status.message
    assert "its first use makes it" not in status.message


async def test_so_does_a_record_of_our_own_client(group: MemoryGroup) -> None:
    """Alone, in a stream, and with a delivery time."""
    urgent = [Record(body=b"x", typed=Typed(priority=1))]
    async with Client(group.addresses[0]) as client, AppendStream(group.addresses[0]) as stream:
        with pytest.raises(UnknownTopic, match="--type PRIORITY"):
            await client.append("nowhere", urgent)
        with pytest.raises(Refused, match="--type PRIORITY"):
            await stream.append("nowhere", urgent)
        with pytest.raises(UnknownTopic, match="--type DELAY"):
            await client.append("nowhere", [b"x"], deliver_at_ms=1)
