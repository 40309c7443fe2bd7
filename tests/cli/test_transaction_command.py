"""``dledger transaction``, as people run it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dledger.broker.commands import CreateTopic, DeleteTopic
from dledger.cli.main import main
from dledger.rpc.rocketmq_stubs import definition
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """One node with three open transactions of topic tx."""
    async with memory_group() as group, RocketClient(group.nodes[0].port) as client:
        await group.commit(CreateTopic(name="tx", type="TRANSACTION", queues=1).encode())
        for number in range(3):
            half = message(
                number, topic="tx", message_type=definition.MessageType.TRANSACTION, body=b"x" * 7
            )
            assert code((await client.send(half)).status) == "OK"
        yield group


async def _run(group: MemoryGroup, *words: str) -> int:
    endpoint = f"127.0.0.1:{group.nodes[0].peer_port}"
    return await asyncio.to_thread(main, ["transaction", *words, "--endpoint", endpoint])


def _stored(group: MemoryGroup) -> int:
    return group.nodes[0].engine.state.topics.messages("tx")


async def _listed(
    group: MemoryGroup, capsys: pytest.CaptureFixture[str], *words: str
) -> dict[str, Any]:
    assert await _run(group, "list", *words, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


async def test_open_transactions_are_listed(
    group: MemoryGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what helps to find their producer."""
    found = await _listed(group, capsys, "--topic", "tx")

    assert len(found["transactions"]) == 3
    first = found["transactions"][0]
    assert (first["topic"], first["client_id"], first["size_bytes"]) == ("tx", "client-1", 7)
    assert first["message_id"] == message(0).system_properties.message_id
    assert not found["more"]
    assert (await _listed(group, capsys, "--limit", "2"))["more"]
    assert await _run(group, "list") == 0
    assert "3 transactions are open" in capsys.readouterr().out


async def test_named_ones_are_ended_and_that_may_be_said_again(
    group: MemoryGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first end counts."""
    found = await _listed(group, capsys)
    one, two, _ = (each["name"] for each in found["transactions"])

    assert await _run(group, "commit", one) == 0
    assert await _run(group, "rollback", two) == 0
    assert await _run(group, "commit", one) == 0
    capsys.readouterr()
    assert await _run(group, "rollback", one, two) == 1

    assert "was committed before" in capsys.readouterr().out
    assert _stored(group) == 1
    assert len((await _listed(group, capsys))["transactions"]) == 1


async def test_all_of_a_topic_are_ended_if_that_is_said_twice(
    group: MemoryGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --yes it only counts."""
    assert await _run(group, "commit", "--all", "--topic", "tx") == 1
    assert "3 would be ended" in capsys.readouterr().out
    assert _stored(group) == 0

    assert await _run(group, "commit", "--all", "--topic", "tx", "--yes") == 0

    capsys.readouterr()
    assert _stored(group) == 3
    assert not (await _listed(group, capsys))["transactions"]


@pytest.mark.parametrize(
    "words",
    [
        ["commit"],
        ["commit", "--all"],
        ["commit", "1-1", "--all", "--topic", "tx"],
        ["commit", "x"],
        ["commit", "1048576-0"],
        ["rollback", "1-268435456"],
        ["list", "--limit", "0"],
        ["list", "--topic", "none"],
    ],
)
async def test_what_names_no_transaction_is_refused(group: MemoryGroup, words: list[str]) -> None:
    assert await _run(group, *words) == 1


async def test_what_is_unknown_is_told(
    group: MemoryGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await _run(group, "commit", "1-1") == 1
    assert "is not open" in capsys.readouterr().out


async def test_one_of_a_deleted_topic_says_so_and_can_be_rolled_back(
    group: MemoryGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = group.nodes[0].engine.state.topics.get("tx")
    assert topic is not None
    await group.commit(DeleteTopic(name="tx", generation=topic.generation).encode())
    found = (await _listed(group, capsys))["transactions"]

    assert {each["topic"] for each in found} == {""}
    assert await _run(group, "rollback", *(each["name"] for each in found)) == 0
