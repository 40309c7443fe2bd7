"""``dledger topic`` of a compacted topic: made, listed and described, in words and in JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from dledger.cli import main as command_line
from dledger.client import Client, Compaction, Record
from tests.requests.memory_group import MemoryGroup, memory_group

_HOUR_MS = 3_600_000


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """A node that leads."""
    async with memory_group() as group:
        yield group


async def _run(*words: str) -> int:
    """Run the command in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(command_line.main, words)


async def test_a_compacted_topic_is_made_listed_and_described(
    group: MemoryGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the times that are asked for, or by default; a topic of others says what it was."""
    client = ("--endpoint", group.addresses[0])
    peer = ("--endpoint", f"127.0.0.1:{group.nodes[0].peer_port}")
    create = ("topic", "create", "--queues", "2", *client)

    assert await _run(*create, "prices", "--compacted", "--tombstone-hours", "48") == 0
    assert await _run(*create, "rates", "--compacted", "--min-lag-hours", "2") == 0
    assert await _run(*create, "orders") == 0
    async with Client(group.addresses[0]) as producer:
        await producer.append("prices", [Record(body=b"1", keys=("x",))])
    capsys.readouterr()
    assert await _run("topic", "list", *client) == 0
    table = capsys.readouterr().out
    assert await _run("topic", "list", "--json", *client) == 0
    listed = json.loads(capsys.readouterr().out)
    assert await _run("topic", "describe", "prices", *peer) == 0
    described = capsys.readouterr().out
    assert await _run("topic", "describe", "orders", *peer) == 0
    plain = capsys.readouterr().out
    assert await _run("topic", "describe", "prices", "--json", *peer) == 0
    view = json.loads(capsys.readouterr().out)

    assert [line.split()[-1] for line in table.splitlines()] == [
        "KEPT",
        "group",
        "compacted",
        "compacted",
    ]
    assert [each["compaction"] for each in listed] == [
        None,
        {"min_lag_ms": _HOUR_MS, "tombstone_ms": 48 * _HOUR_MS},
        {"min_lag_ms": 2 * _HOUR_MS, "tombstone_ms": 24 * _HOUR_MS},
    ]
    assert described == (
        "topic prices: type NORMAL, 2 queues, 1 messages\n"
        "  compacted: the newest message of each key is kept for ever, any message for at least "
        "1 h, a tombstone for at least 48 h\n"
    )
    assert plain == (
        "topic orders: type NORMAL, 2 queues, 0 messages\n"
        "  its messages are kept as long as the group does\n"
    )
    assert view["compaction"] == {"min_lag_ms": _HOUR_MS, "tombstone_ms": 48 * _HOUR_MS}
    assert (view["name"], view["messages"], view["retention_hours"]) == ("prices", 1, 0)


async def test_times_without_compaction_are_refused(
    group: MemoryGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rather than ignored: whoever gives them believes that he has a table."""
    client = ("--endpoint", group.addresses[0])

    assert await _run("topic", "create", "t", "--min-lag-hours", "2", *client) == 1

    assert "are of a --compacted topic" in capsys.readouterr().err
    assert group.nodes[0].engine.state.topics.get("t") is None
    assert Compaction() == Compaction(min_lag_ms=_HOUR_MS, tombstone_ms=24 * _HOUR_MS)
