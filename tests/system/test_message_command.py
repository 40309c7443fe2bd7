"""``dledger message`` against whole nodes, and what a restart keeps of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dledger.broker.key_queues import queue_of_key
from dledger.types import Record
from tests.broker.compacted import compact_topics
from tests.system.live_nodes import LiveNodes
from tests.system.test_made_command import run
from tests.waiting import eventually

pytestmark = pytest.mark.found

_KEY = "user-17"


@pytest.fixture(autouse=True)
def _compacted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        compact_topics(patch)
        yield


def _applied(live: LiveNodes, number: int) -> int:
    return live.nodes[number].engine.state.applied_index


async def test_a_key_is_erased_and_a_restart_from_a_snapshot_agrees(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked of a follower; only counted without --yes; told until when; never by its name."""
    leader = await live.leader()
    follower = next(number for number in range(3) if number != leader)
    address = ("--endpoint", live.peer_address(follower))
    asked = ("message", "erase", "--topic", "prices", "--key", _KEY, *address)
    async with live.client(follower) as client:
        await client.create_topic("prices", queues=2)
        records = [Record(body=b"%d" % row, keys=(_KEY,)) for row in range(3)]
        queue_id = queue_of_key(_KEY.encode(), 2)
        await client.append("prices", records, queue_id=queue_id)

        assert await run(*asked) == 1
        counted = capsys.readouterr().out
        assert await run(*asked, "--yes", "--json") == 0
        said = json.loads(capsys.readouterr().out)
        appended = await client.append(
            "prices", [Record(body=b"new", keys=(_KEY,))], queue_id=queue_id
        )
    assert await run("message", "erasures", *address) == 0
    listed = capsys.readouterr().out
    async with live.admin(follower) as admin:
        await eventually(lambda: _applied(live, follower) >= appended.index)
        await admin.snapshot()
    await live.stop(follower)
    await live.start(follower)
    await eventually(lambda: _applied(live, follower) >= appended.index)

    assert "topic prices has 3 messages of this key\nto erase them, add --yes" in counted
    assert (said["topic"], said["messages"], said["erased"]) == ("prices", 3, True)
    assert f"{'prices':32} {3:10} {said['erase_entry']:16}  until about 20" in listed
    assert _KEY not in counted + json.dumps(said) + listed
    states = [live.nodes[number].engine.state for number in (leader, follower)]
    assert [each.messages for each in states[1].erasures] == [3]
    assert len({state.digest() for state in states}) == 1
    async with live.client(follower) as client:
        found = [each.record.body async for each in client.read("prices", queue_id)]
        assert found == [b"new"]


async def test_what_is_refused_is_exit_code_1(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """A topic that is not compacted, one that is not there; a key that nobody has is none."""
    address = ("--endpoint", live.peer_address(await live.leader()))
    async with live.client(0) as client:
        await client.create_topic("plain", queues=1)
        await client.create_topic("prices", queues=1)
    erase = ("message", "erase", "--key", _KEY, "--yes", *address)

    assert await run(*erase, "--topic", "plain") == 1
    assert "topic 'plain' is not compacted" in capsys.readouterr().err
    assert await run(*erase, "--topic", "nowhere") == 1
    assert _KEY not in capsys.readouterr().err
    assert await run(*erase, "--topic", "prices") == 0
    said = capsys.readouterr().out
    assert "topic prices has no message of this key" in said
    assert "lies in the log for 72 hours at most" in said
