"""``dledger member``, and what all commands share, against whole nodes: output and exit codes."""

from __future__ import annotations

import asyncio
import json

import pytest

from dledger.cli import main as command_line
from tests.system.live_nodes import GROUP_ID, LiveNodes


async def run(*words: str) -> int:
    """Run ``dledger member``."""
    return await dledger("member", *words)


async def dledger(*words: str) -> int:
    """Run the command in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(command_line.main, list(words))


async def test_members_are_listed_added_and_removed(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """By any member's peer port and by name; JSON for programs."""
    await live.start(3)
    endpoint = ("--endpoint", live.peer_address(1))

    assert await run("add", live.peer_address(3), "--wait", "--json", *endpoint) == 0
    added = json.loads(capsys.readouterr().out)
    assert await run("add", live.peer_address(3), *endpoint) == 0
    again = capsys.readouterr().out
    assert await run("list", "--json", *endpoint) == 0
    rows = json.loads(capsys.readouterr().out)
    assert await run("list", *endpoint) == 0
    table = capsys.readouterr().out
    assert await run("remove", "orders-3", *endpoint) == 0
    said = capsys.readouterr().out

    assert added["added"] == live.nodes[3].node_id
    assert again.startswith(f"orders-3 ({live.nodes[3].node_id}) is a member already; members: ")
    assert [(row["member"]["name"], row["voter"]) for row in rows] == [
        (f"orders-{number}", True) for number in range(4)
    ]
    assert table.splitlines()[0].split() == ["NAME", "ROLE", "VOTER", "MATCH", "LAG", "ID"]
    assert said == "orders-3 removed; members: orders-0, orders-1, orders-2\n"


@pytest.mark.found
@pytest.mark.parametrize(("told", "why"), [("", "no group id"), ("another", "group id 'another'")])
async def test_a_node_that_would_refuse_the_group_is_not_added(
    live: LiveNodes, capsys: pytest.CaptureFixture[str], told: str, why: str
) -> None:
    """It would be a member that never comes; the sentence says how to start it."""
    await live.where(group_id=told).start(3)

    assert await run("add", live.peer_address(3), "--endpoint", live.peer_address(1)) == 1

    said = capsys.readouterr().err
    assert f"'orders-3' is configured with {why}; start it with DLEDGER_GROUP_ID={GROUP_ID}" in said
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

    assert capsys.readouterr().err == (
        "dledger: 127.0.0.1:1: no connection (Connection refused); does a node run there, and is "
        "that its port?\n"
    )


async def test_only_a_leader_says_how_far_the_others_are(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """A follower does not know; zeros would read as "nothing is replicated"."""
    leader = await live.leader()
    asked = {}
    for number in range(3):
        assert await dledger("status", "--endpoint", live.peer_address(number)) == 0
        asked[number] = capsys.readouterr().out

    assert {number for number, said in asked.items() if " lag " in said} == {leader}
    told = {number for number, said in asked.items() if "only the leader knows" in said}
    assert told == {0, 1, 2} - {leader}


async def test_every_command_takes_any_peer_port(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """One endpoint is enough to know, whoever leads."""
    for number in range(3):
        asked = ("--endpoint", live.peer_address(number), "--json")
        assert await dledger("status", *asked) == 0
        assert await dledger("member", "list", *asked) == 0
        assert await dledger("topic", "create", f"topic-{number}", *asked) == 0
        assert await dledger("topic", "list", *asked) == 0
        assert await dledger("topic", "delete", f"topic-{number}", "--yes", *asked) == 0
        assert await dledger("group", "create", f"group-{number}", *asked) == 0
        assert await dledger("group", "list", *asked) == 0

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "words",
    [("status",), ("member", "list"), ("topic", "delete", "x"), ("group", "list")],
    ids=" ".join,
)
async def test_a_client_port_is_told_from_the_peer_port(
    live: LiveNodes, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """In one sentence, which names the port to ask; programs get it as JSON."""
    address = live.client_addresses[0]

    assert await dledger(*words, "--endpoint", address, "--json") == 1

    said = capsys.readouterr()
    assert said.err.startswith(f"dledger: {address} is not a node's peer port; use that, 20911")
    assert said.err.count("\n") == 1
    assert json.loads(said.out)["error"]["type"] == "NotServed"


@pytest.mark.parametrize("text", ["127.0.0.1", "", ":20911", "localhost:0", "a:65536", "a:b", "a:"])
async def test_an_endpoint_without_its_port_is_wrong_usage(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be port 443, unsaid."""
    with pytest.raises(SystemExit) as ended:
        command_line.main(["status", "--endpoint", text])

    assert ended.value.code == 2
    assert f"{text!r} is not HOST:PORT" in capsys.readouterr().err


async def test_no_topic_has_no_queues(capsys: pytest.CaptureFixture[str]) -> None:
    """On the wire 0 is the default number; a person who writes 0 means something else."""
    words = ["topic", "create", "x", "--queues", "0", "--endpoint", "127.0.0.1:1"]
    with pytest.raises(SystemExit) as ended:
        command_line.main(words)

    assert ended.value.code == 2
    assert "'0' is not a whole number above 0" in capsys.readouterr().err
