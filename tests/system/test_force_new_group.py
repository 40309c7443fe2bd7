"""A majority's disks are lost: whole nodes on real disks and ports, forced by Admin.

With whole processes, whose disks are deleted after SIGKILL: `test_lost_majority.py`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from functools import partial
from typing import Any

import pytest

from dledger.cli import main as command_line
from dledger.client import ForcedGroup
from dledger.errors import NodeRemoved, Refused
from dledger.files.files import RealFiles
from dledger.store.hard_state import HardStateFile
from dledger.types import NodeId
from tests.system.live_nodes import GROUP_ID, LiveNodes
from tests.waiting import eventually, eventually_works


@pytest.fixture
def live(unfounded: LiveNodes) -> LiveNodes:
    """Return nodes of no group yet, whose election timeout is short."""
    return unfounded.where(tick_ms=20)


async def force(live: LiveNodes, number: int) -> ForcedGroup:
    """Force the group on a node, once it has heard no leader for long enough."""

    async def ask() -> ForcedGroup:
        status = live.status(number)
        async with live.admin(number) as admin:
            return await admin.force_new_group(
                GROUP_ID,
                status.node_id,
                expected_last_term=status.last_term,
                expected_last_index=status.last_index,
            )

    return await eventually_works(ask, 30)


async def write(live: LiveNodes, number: int, *bodies: bytes) -> None:
    async with live.client(number) as client:
        await client.append("topic", list(bodies), queue_id=0)


async def read(live: LiveNodes, number: int) -> list[bytes]:
    async with live.client(number) as client:
        return [stored.record.body async for stored in client.read("topic", 0)]


async def lose_two_of_three(live: LiveNodes) -> None:
    """Found a group, write, and lose the disks of 1 and 2; they are kept aside as 11 and 12."""
    await live.found(0, 1, 2)
    await write(live, 0, b"before")
    await live.stop(1, 2)
    for number in (1, 2):
        live.data(number).rename(live.data(10 + number))


def bring_back(live: LiveNodes, number: int) -> None:
    """Put a lost disk back where it was."""
    shutil.rmtree(live.data(number), ignore_errors=True)
    live.data(10 + number).rename(live.data(number))


async def is_buried(live: LiveNodes, *numbers: int) -> None:
    """Wait until these nodes have stopped because they were left out, and stay so."""
    for number in numbers:
        reason = await eventually(partial(live.ended.get, number))
        assert isinstance(reason, NodeRemoved)
    await live.stop(*numbers)
    for number in numbers:
        with pytest.raises(NodeRemoved):
            await live.start(number)


async def test_one_survivor_goes_on_and_its_group_grows_again(live: LiveNodes) -> None:
    """Writes come back with all that it had; two empty disks make the group three again."""
    await live.found(0, 1, 2)
    await write(live, 0, b"before")
    lost = {live.member(1), live.member(2)}
    await live.stop(1, 2)
    live.wipe(1)
    live.wipe(2)

    forced = await force(live, 0)

    assert (forced.epoch, set(forced.removed)) == (1, lost)
    status = live.status(0)
    assert (status.role, status.epoch, status.term) == ("leader", 1, forced.term)
    await write(live, 0, b"after")
    assert await read(live, 0) == [b"before", b"after"]
    await live.start(1, 2)
    async with live.admin(0) as admin:
        await admin.change_members(add=[live.member(1), live.member(2)])
    await live.voters(3)
    await eventually(lambda: live.status(1).epoch == live.status(2).epoch == 1 or None)


async def test_an_old_disk_that_comes_back_is_refused_for_good(live: LiveNodes) -> None:
    """Also after the survivor has a snapshot, and was started again."""
    await lose_two_of_three(live)
    await force(live, 0)
    async with live.admin(0) as admin:
        await admin.snapshot()
    await live.stop(0)
    await live.start(0)
    await live.leader()

    bring_back(live, 1)
    await live.start(1)

    await is_buried(live, 1)
    assert live.status(0).epoch == 1


async def test_the_old_pair_together_does_not_go_on_beside_the_forced_group(
    live: LiveNodes,
) -> None:
    """A majority of the members that they know: each is stopped at its first contact."""
    await lose_two_of_three(live)
    await force(live, 0)
    bring_back(live, 1)
    bring_back(live, 2)

    await live.start(1, 2)

    await is_buried(live, 1, 2)
    await write(live, 0, b"after")
    assert await read(live, 0) == [b"before", b"after"]


async def test_a_pair_that_had_a_leader_already_is_stopped_when_the_survivor_comes(
    live: LiveNodes,
) -> None:
    """Without contact nothing stops them: only the operator can, by starting no such pods.

    The survivor, which has just started and does not know what is committed, hears none of it.
    """
    await lose_two_of_three(live)
    await force(live, 0)
    await write(live, 0, b"after")
    await live.stop(0)
    bring_back(live, 1)
    bring_back(live, 2)
    await live.start(1, 2)
    assert await live.leader() in (1, 2)

    await live.start(0)

    await is_buried(live, 1, 2)
    await live.leader()
    assert await read(live, 0) == [b"before", b"after"]


async def test_an_old_disk_is_stopped_by_any_disk_at_an_address_that_it_knows(
    live: LiveNodes,
) -> None:
    """The survivor is replaced meanwhile; new disks have the names, as pods would."""
    await lose_two_of_three(live)
    await force(live, 0)
    await live.start(1)
    async with live.admin(0) as admin:
        await admin.add_learner(live.member(1))
    await live.voters(2)
    survivor = live.nodes[0].node_id
    async with live.admin(1) as admin:
        await admin.change_members(remove=[survivor])
    await eventually(lambda: live.ended.get(0))
    await live.stop(0)
    await live.leader()

    bring_back(live, 2)
    await live.start(2)

    await is_buried(live, 2)


async def test_the_survivor_is_not_removed_by_those_that_it_left_out(live: LiveNodes) -> None:
    """They may have removed it from the group of an earlier epoch, which has no say any more."""
    await lose_two_of_three(live)
    await force(live, 0)

    live.nodes[0].removed(99, epoch=0)
    await write(live, 0, b"after")

    assert not live.ended
    live.nodes[0].removed(99, epoch=1)
    assert isinstance(await eventually(lambda: live.ended.get(0)), NodeRemoved)


async def test_a_group_with_a_majority_is_never_forced(live: LiveNodes) -> None:
    """Whoever leads or hears a leader refuses, whatever is asked for."""
    leader = await live.found(0, 1, 2)

    for number in range(3):
        status = live.status(number)
        async with live.admin(number) as admin:
            with pytest.raises(Refused, match="leads the group" if number == leader else "heard"):
                await admin.force_new_group(
                    GROUP_ID,
                    status.node_id,
                    expected_last_term=status.last_term,
                    expected_last_index=status.last_index,
                )


async def test_a_request_that_names_something_else_is_refused_with_what_there_is(
    live: LiveNodes,
) -> None:
    """Another group, another node, another last entry."""
    await lose_two_of_three(live)
    own = await eventually(lambda: s if (s := live.status(0)).role != "leader" else None)
    right: dict[str, Any] = {
        "group_id": GROUP_ID,
        "node_id": own.node_id,
        "expected_last_term": own.last_term,
        "expected_last_index": own.last_index,
    }
    wrong = [
        ("group_id", "another", f"belongs to group '{GROUP_ID}', not 'another'"),
        ("node_id", "another", f"this is node {own.node_id}, not 'another'"),
        ("expected_last_term", 7, f"is {own.last_index} of term {own.last_term}, not "),
        ("expected_last_index", 1, f"is {own.last_index} of term {own.last_term}, not "),
    ]

    for name, value, why in wrong:
        async with live.admin(0) as admin:
            with pytest.raises(Refused, match=why):
                await admin.force_new_group(**{**right, name: value})

    assert live.status(0).epoch == 0


async def test_two_of_five_that_can_be_reached_do_not_hold_it_up_and_are_left_out(
    live: LiveNodes,
) -> None:
    """The one that is asked has as much of the log as the other; that one stops."""
    await live.found(0, 1, 2, 3, 4)
    await write(live, 0, b"before")
    await eventually(lambda: live.status(0).last_index == live.status(1).last_index or None)
    await live.stop(2, 3, 4)

    forced = await force(live, 0)

    assert len(forced.removed) == 4
    await is_buried(live, 1)


async def test_a_crash_after_the_vote_alone_leaves_the_old_group(live: LiveNodes) -> None:
    """Its term is higher, and with the others' disks it goes on as if nothing was asked."""
    await lose_two_of_three(live)
    await live.stop(0)
    files = HardStateFile(RealFiles(), live.data(0))
    state = files.load()
    files.save(type(state)(term=state.term + (1 << 20), vote=live_id(live)))
    bring_back(live, 1)
    bring_back(live, 2)

    await live.start(0, 1, 2)

    await live.leader()
    await write(live, 0, b"after")
    assert [live.status(number).epoch for number in range(3)] == [0, 0, 0]
    await eventually(lambda: live.status(0).term > 1 << 20 or None)


def live_id(live: LiveNodes) -> NodeId:
    return NodeId(json.loads((live.data(0) / "identity.json").read_text())["node_id"])


async def run(*words: str) -> int:
    return await asyncio.to_thread(command_line.main, ["force-new-group", *words])


async def test_the_command_shows_what_it_found_and_does_nothing_unconfirmed(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then it does it, and a repeated one does nothing more."""
    await lose_two_of_three(live)
    own = live.status(0)
    asked = ("--endpoint", live.peer_address(0), "--group-id", GROUP_ID)

    assert await run(*asked) == 1
    shown = capsys.readouterr().out
    assert await run(*asked, "--confirm", "another", "--json") == 1
    unconfirmed = json.loads(capsys.readouterr().out)

    async def confirmed() -> int:
        if (code := await run(*asked, "--confirm", GROUP_ID)) != 0:
            raise Refused("not yet")
        return code

    await eventually_works(confirmed, 30)
    done = capsys.readouterr().out.splitlines()[-2:]

    assert f"last entry {own.last_index} of term {own.last_term}" in shown
    assert shown.count("does not answer") == 2
    assert "not confirmed; nothing was done" in shown
    assert unconfirmed["forced"] is None
    assert unconfirmed["survivor"]["lastIndex"] == own.last_index
    assert done[0].startswith(f"orders-0 is the group now: entry {own.last_index + 1}, term ")
    assert "epoch 1; removed: orders-1 (" in done[0]


async def test_the_command_is_not_fooled_by_another_group(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """The address may lead elsewhere than the administrator thinks."""
    await live.found(0)

    code = await run("--endpoint", live.peer_address(0), "--group-id", "g", "--confirm", "g")

    assert code == 1
    assert f"belongs to group {GROUP_ID}, not g" in capsys.readouterr().err
