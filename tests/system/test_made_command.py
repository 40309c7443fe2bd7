"""``dledger topic delete`` and ``dledger group`` against whole nodes, and what a restart keeps."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dledger.cli import main as command_line
from dledger.errors import UnknownTopic
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually

pytestmark = pytest.mark.found


async def run(*words: str) -> int:
    """Run the command in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(command_line.main, words)


async def test_a_topic_is_deleted_and_made_anew_and_a_restart_agrees(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked of a follower; only shown without --yes; a snapshot and the log say the same after."""
    leader = await live.leader()
    follower, other = (number for number in range(3) if number != leader)
    asked = ("orders", "--endpoint", live.peer_address(follower))
    port = live.settings(leader).client_port
    async with live.client(follower) as client, RocketClient(port) as rocket:
        await client.create_topic("orders", queues=1)
        await client.append("orders", [b"old", b"older", b"oldest"])
        _, held, _ = await rocket.receive("orders", group="billing", batch=1)

        assert await run("topic", "delete", *asked) == 1
        shown = capsys.readouterr().out
        assert await run("topic", "delete", "--yes", "--json", *asked) == 0
        said = json.loads(capsys.readouterr().out)
        assert await run("topic", "delete", "--yes", *asked) == 1
        refused = capsys.readouterr().err
        await client.create_topic("orders", queues=2)
        appended = await client.append("orders", [b"new"], queue_id=0)
        late = await rocket.ack(*held, topic="orders", group="billing")

    async with live.admin(other) as admin:
        await eventually(lambda: _applied(live, other, appended.index))
        await admin.snapshot()
    await live.stop(other)
    await live.start(other)
    await eventually(lambda: _applied(live, other, appended.index))
    states = [live.nodes[number].engine.state for number in (leader, other)]
    topic = states[1].topics.named("orders")

    assert "queues and 3 messages" in shown
    assert "consumer group billing: 2 unread, 1 not acknowledged" in shown
    assert "clients used it in the last two minutes: their next use makes it again, with 8" in shown
    assert (said["deleted"], said["messages"], said["generation"]) == (True, 3, 1)
    assert (said["in_use"], said["made_again_queues"]) == (True, 8)
    assert "'orders' does not exist" in refused
    assert appended.offsets == (0,)
    assert code(late.status) == "INVALID_RECEIPT_HANDLE"
    assert (topic.queues, topic.generation) == (2, 2)
    assert states[0].secret
    assert states[0].digest() == states[1].digest()


async def test_a_topic_grows_while_it_is_used(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every node's routes have the new queues; a client sends to one, and a restart agrees."""
    leader = await live.leader()
    follower, other = (number for number in range(3) if number != leader)
    asked = ("orders", "--endpoint", live.peer_address(follower))
    async with live.client(follower) as client:
        await client.create_topic("orders", queues=1)
        await client.append("orders", [b"old"])

        assert await run("topic", "grow", *asked, "--queues", "3", "--json") == 0
        said = json.loads(capsys.readouterr().out)
        assert await run("topic", "grow", *asked, "--queues", "2") == 1
        refused = capsys.readouterr().err
        appended = await client.append("orders", [b"new"], queue_id=2)

    await eventually(lambda: all(_applied(live, n, appended.index) for n in range(3)))
    for number in range(3):
        async with RocketClient(live.settings(number).client_port) as rocket:
            route = await rocket.route("orders")
            assert {queue.id for queue in route.message_queues} == {0, 1, 2}
    async with RocketClient(live.settings(other).client_port) as rocket:
        _, received, _ = await rocket.receive("orders", group="billing", batch=10)
    await live.stop(other)
    await live.start(other)
    await eventually(lambda: _applied(live, other, appended.index))

    assert said == {"name": "orders", "queues": 3, "before": 1}
    assert "'orders' has 3 queues" in refused
    assert appended.offsets == (0,)
    assert sorted(each.body for each in received) == [b"new", b"old"]
    assert live.nodes[other].engine.state.topics.named("orders").queues == 3


def _applied(live: LiveNodes, number: int, index: int) -> bool:
    return live.status(number).applied_index >= index


async def test_groups_are_listed_made_and_deleted(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """By any member's peer port; what a group would lose is said before."""
    asked = ("--timeout", "30", "--endpoint", live.peer_address((await live.leader() + 1) % 3))
    port = live.settings(await live.leader()).client_port
    async with RocketClient(port) as rocket:
        await rocket.send(message(1), message(2))
        await rocket.receive("t", group="billing", batch=1)

    assert await run("group", "create", "audit", *asked) == 0
    assert await run("group", "list", "--json", *asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert await run("group", "delete", "billing", *asked) == 1
    shown = capsys.readouterr().out
    assert await run("group", "delete", "billing", "--yes", *asked) == 0
    assert await run("group", "delete", "billing", "--yes", *asked) == 1
    refused = capsys.readouterr().err
    assert await run("group", "list", *asked) == 0
    table = capsys.readouterr().out

    groups: list[dict[str, Any]] = json.loads(lines[1])
    assert lines[0] == "consumer group audit created"
    assert [group["name"] for group in groups] == ["audit", "billing"]
    assert [(b["topic"], b["unread"], b["held"]) for b in groups[1]["backlogs"]] == [("t", 1, 1)]
    assert "t: 1 unread, 1 not acknowledged" in shown
    assert "dledger group create billing" in refused
    assert table.split() == ["NAME", "TOPIC", "UNREAD", "HELD", "audit", "-", "-", "-"]


async def test_the_log_tool_shows_no_secret(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Receipt handles are signed with it; who reads a dump must not be able to make any."""
    leader = await live.leader()
    async with RocketClient(live.settings(leader).client_port) as rocket:
        await rocket.send(message(1))
        await rocket.receive("t")
    secret = live.nodes[leader].engine.state.secret.hex()

    assert await run("log", "dump", str(live.data(leader))) == 0
    dump = capsys.readouterr().out

    assert len(secret) == 64
    assert dump.count("\n") >= 4
    assert secret not in dump


async def test_a_topic_that_is_not_there_is_exit_code_1(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the Admin call raises what the command says."""
    asked = ("--endpoint", live.peer_address(0))

    assert await run("topic", "delete", "nowhere", "--yes", *asked) == 1
    async with live.admin(0) as admin:
        with pytest.raises(UnknownTopic):
            await admin.describe_topic("nowhere")

    assert "'nowhere' does not exist" in capsys.readouterr().err


async def test_a_topic_is_kept_longer_by_command(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """At any node; a shorter time than the group's is refused, and all nodes know it at once."""
    leader = await live.leader()
    follower = next(number for number in range(3) if number != leader)
    asked = ("orders", "--endpoint", live.peer_address(follower))
    async with live.client(follower) as client:
        await client.create_topic("orders", queues=1)

        assert await run("topic", "retain", *asked, "--hours", "0", "--json") == 0
        said = json.loads(capsys.readouterr().out)
        assert await run("topic", "retain", *asked, "--hours", "71") == 1
        refused = capsys.readouterr().err
        assert await run("topic", "list", *asked[1:]) == 0
        listed = capsys.readouterr().out
        appended = await client.append("orders", [b"new"])
    await eventually(lambda: all(_applied(live, n, appended.index) for n in range(3)))
    states = [live.nodes[number].engine.state for number in range(3)]

    assert said == {"name": "orders", "hours": 0, "before": None}
    assert "the group keeps all for 72 hours" in refused
    assert "for ever" in listed
    assert {state.topics.named("orders").retention_hours for state in states} == {0}
    assert len({state.digest() for state in states}) == 1
