"""``dledger group`` and ``message show`` against whole nodes: seeks while a leader dies."""

from __future__ import annotations

import asyncio
import json

import pytest

from dledger.rpc.rocketmq_stubs import definition
from dledger.types import Record
from tests.requests.rocketmq_client import RocketClient, code
from tests.system.live_nodes import LiveNodes
from tests.system.test_made_command import run
from tests.waiting import eventually_async

_MESSAGES = 200


def _offsets(got: list[definition.Message]) -> list[int]:
    return [each.system_properties.queue_offset for each in got]


async def _drain(live: LiveNodes, number: int, seen: set[int]) -> None:
    """Receive and acknowledge until all that there is was consumed."""
    async with RocketClient(int(live.client_address(number).rpartition(":")[2])) as client:
        while len(seen) < _MESSAGES:
            status, got, _ = await client.receive("orders", batch=32, wait_s=1)
            if code(status) == "OK":
                await client.ack(*got, topic="orders")
                seen.update(_offsets(got))


async def test_a_group_reads_again_and_a_leader_that_dies_keeps_its_place(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost of what is read again; handles of before ack nothing, at the next leader."""
    leader = await live.leader()
    other = next(number for number in range(3) if number != leader)
    address = ("--endpoint", live.peer_address(other))
    asked = ("group", "reset", "g", "--topic", "orders", *address)
    async with live.client(other) as client:
        await client.create_topic("orders", queues=1)
        records = [Record(body=b"%d" % row) for row in range(_MESSAGES)]
        await client.append("orders", records, queue_id=0)
    seen: set[int] = set()
    await _drain(live, other, seen)

    port = int(live.client_address(other).rpartition(":")[2])
    async with RocketClient(port) as client:
        assert await run(*asked, "--to", "50", "--dry-run", "--json") == 0
        (would,) = json.loads(capsys.readouterr().out)["queues"]
        assert await run(*asked, "--to", "50", "--json") == 0
        (done,) = json.loads(capsys.readouterr().out)["queues"]
        _, before, _ = await client.receive("orders", batch=32, invisible_s=60)
        assert await run(*asked, "--to", "oldest") == 0
        await live.stop(leader)
        seen = set()
        await asyncio.gather(_drain(live, other, seen), _ack_late(client, before))

    assert would == done
    assert (done["before"], done["offset"], done["unread"]) == (_MESSAGES, 50, 150)
    assert _offsets(before) == list(range(50, 82))
    assert seen == set(range(_MESSAGES))
    assert f"{0:5} {50:12} {0:12} {_MESSAGES:12} {32:12}" in capsys.readouterr().out
    assert await run("group", "show", "g", *address) == 0
    assert f"{'orders':32} {0:5} {_MESSAGES:12} {_MESSAGES:12} {0:12} {0:8}" in (
        capsys.readouterr().out
    )


async def _ack_late(client: RocketClient, before: list[definition.Message]) -> None:
    """Acknowledge what was given before the seek, again and again, until a leader has answered."""

    async def acked() -> bool:
        answer = await client.ack(*before, topic="orders")
        return code(answer.status) != "HA_NOT_AVAILABLE"

    for _ in range(5):
        await eventually_async(acked)


async def test_a_group_is_made_where_it_is_to_begin(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says so; what is no place is refused before anything is asked."""
    address = ("--endpoint", live.peer_address(await live.leader()))
    async with live.client(0) as client:
        await client.create_topic("orders", queues=1)
        await client.append("orders", [Record(body=b"old")], queue_id=0)
        assert await run("group", "create", "late", "--from", "newest", *address) == 0
        assert await run("group", "create", "late", "--from", "newest", *address) == 0
        await client.append("orders", [Record(body=b"new")], queue_id=0)
    said = capsys.readouterr().out
    port = int(live.client_address(0).rpartition(":")[2])
    async with RocketClient(port) as client:
        _, got, _ = await client.receive("orders", group="late", wait_s=10)

    assert [each.body for each in got] == [b"new"]
    assert "existed already; it goes on where it is: dledger group reset moves it" in said
    assert await run("group", "create", "few", "--max-attempts", "3", *address) == 0
    assert await run("group", "create", "few", "--max-attempts", "5", *address) == 0
    assert "its attempts stay as they are: dledger group set" in capsys.readouterr().out
    assert await run("group", "set", "few", "--max-attempts", "4", *address) == 0
    assert "delivers a message 4 times at most, before 3 times" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        await run("group", "create", "bad", "--from", "yesterday", *address)
    assert "is not oldest, newest or a time" in capsys.readouterr().err


async def test_messages_are_shown_by_offset_id_and_key(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """In whichever queue; one that was stored without an id by what its consumers are told."""
    address = ("--endpoint", live.peer_address(await live.leader()))
    show = ("message", "show", "--topic", "orders", *address)
    async with live.client(0) as client:
        await client.create_topic("orders", queues=2)
        await client.append("orders", [Record(body=b"a", keys=("k", "l"))], queue_id=0)
        records = [Record(body=b"b", message_id="mine"), Record(body=b"\xff", keys=("k",))]
        await client.append("orders", records, queue_id=1)

    assert await run(*show, "--queue", "1", "--offset", "0") == 0
    assert "queue 1, offset 0, stored 20" in (by_offset := capsys.readouterr().out)
    assert "  id mine\n  b\n" in by_offset
    assert await run(*show, "--key", "k", "--json") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["queue"], each["offset"], each["keys"]) for each in found] == [
        (0, 0, ["k", "l"]),
        (1, 1, ["k"]),
    ]
    assert (found[0]["body"], found[1]["body_base64"]) == ("a", "/w==")
    assert await run(*show, "--id", "mine", "--json") == 0
    assert json.loads(capsys.readouterr().out)["offset"] == 0
    assert await run(*show, "--id", "nobody's") == 1
    assert await run(*show, "--offset", "0") == 1
