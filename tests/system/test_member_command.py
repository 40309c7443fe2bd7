"""``dledger member`` against whole nodes: what it prints and how it ends."""

from __future__ import annotations

import asyncio
import json

import pytest
from live_nodes import GROUP_ID, LiveNodes

from dledger import __main__ as command_line


async def run(*words: str) -> int:
    """Run the command in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(command_line.main, ["member", *words])


async def test_members_are_listed_added_and_removed(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """By any member's peer port and by name; JSON for programs."""
    await live.start(3)
    endpoint = ("--endpoint", live.peer_address(1))

    assert await run("add", live.peer_address(3), "--wait", "--json", *endpoint) == 0
    added = json.loads(capsys.readouterr().out)
    assert await run("list", "--json", *endpoint) == 0
    rows = json.loads(capsys.readouterr().out)
    assert await run("list", *endpoint) == 0
    table = capsys.readouterr().out
    assert await run("remove", "orders-3", *endpoint) == 0
    said = capsys.readouterr().out

    assert added["added"] == live.nodes[3].node_id
    assert [(row["member"]["name"], row["voter"]) for row in rows] == [
        (f"orders-{number}", True) for number in range(4)
    ]
    assert table.splitlines()[0].split() == ["NAME", "ROLE", "VOTER", "MATCH", "LAG", "ID"]
    assert said == "orders-3 removed; members: orders-0, orders-1, orders-2\n"


@pytest.mark.found
@pytest.mark.parametrize(
    ("told", "why"), [("", "no group to join"), ("another", "to join 'another'")]
)
async def test_a_node_that_would_refuse_the_group_is_not_added(
    live: LiveNodes, capsys: pytest.CaptureFixture[str], told: str, why: str
) -> None:
    """It would be a member that never comes; the sentence says how to start it."""
    await live.where(group_id=told).start(3)

    assert await run("add", live.peer_address(3), "--endpoint", live.peer_address(1)) == 1

    said = capsys.readouterr().err
    assert f"'orders-3' was told {why}: start it with DLEDGER_GROUP_ID={GROUP_ID}" in said
    assert len(live.status(0).members) == 3


async def test_a_wiped_node_is_replaced_by_its_name(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --replace the refusal says what to do."""
    number = ((await live.leader()) + 1) % 3
    asked = ("--endpoint", live.peer_address(await live.leader()))
    await live.stop(number)
    live.wipe(number)
    await live.start(number)

    assert await run("add", live.peer_address(number), *asked) == 1
    assert "remove that id" in capsys.readouterr().err
    again = ("add", live.peer_address(number), "--replace", f"orders-{number}", "--wait", *asked)
    assert await run(*again) == 0

    assert capsys.readouterr().out.startswith(f"orders-{number} ({live.nodes[number].node_id})")


async def test_nobody_at_the_endpoint_is_exit_code_4(capsys: pytest.CaptureFixture[str]) -> None:
    """As for the other commands."""
    assert await run("list", "--endpoint", "127.0.0.1:1", "--timeout", "1") == 4

    assert "127.0.0.1:1" in capsys.readouterr().err


async def test_only_a_leader_says_how_far_the_others_are(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """A follower does not know; zeros would read as "nothing is replicated"."""
    leader = await live.leader()
    asked = {}
    for number in range(3):
        words = ["status", "--endpoint", live.peer_address(number)]
        assert await asyncio.to_thread(command_line.main, words) == 0
        asked[number] = capsys.readouterr().out

    assert {number for number, said in asked.items() if " lag " in said} == {leader}
