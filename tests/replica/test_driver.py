"""The driver on real disks: order of persistence, batching, failover, bad disks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from dledger.errors import DiskFull, LeadershipLost, NotLeader
from dledger.raft.messages import AppendResponse, VoteResponse
from dledger.raft.ready import Ready
from dledger.replica import proposer as proposer_module
from dledger.replica.driver import DriverConfig
from dledger.replica.leader_health import StallLimits
from dledger.replica.room_keeper import Measured
from dledger.types import Entry, NodeId, Role
from tests.replica.gated_files import GatedFiles
from tests.replica.group import IDS, DriverGroup, DriverNode, command, split
from tests.waiting import eventually


async def test_a_command_is_answered_with_what_applying_it_gave(group: DriverGroup) -> None:
    """Propose, replicate, commit, apply, answer."""
    group.start()
    leader = await group.leader()

    assert await leader.driver.propose(command("a"), grows=True) == "a"


async def test_nodes_that_start_together_do_not_tick_together(group: DriverGroup) -> None:
    """Seed 8923 of the simulator: two that drew the same of six timeouts split five votes."""
    loop, waits_s = asyncio.get_running_loop(), []
    for node in IDS:
        with mock.patch.object(loop, "call_later", side_effect=loop.call_later) as called:
            group.start(node)
        waits_s.append(next(c.args[0] for c in called.mock_calls if c.args[0] < 0.01))

    assert max(waits_s) - min(waits_s) > 0.001


async def test_every_node_applies_the_same_entries_in_the_same_order(group: DriverGroup) -> None:
    """State machine safety, over real disks."""
    group.start()
    leader = await group.leader()

    await asyncio.gather(*(leader.driver.propose(command(str(n)), grows=True) for n in range(200)))

    expected = leader.state.applied
    for follower in group.followers():
        await eventually(partial(_has_applied, follower, expected))


async def test_concurrent_commands_share_an_entry(group: DriverGroup) -> None:
    """Group commit: what arrives while an entry is on its way goes down with the next one."""
    group.start()
    leader = await group.leader()

    await asyncio.gather(*(leader.driver.propose(command(str(n)), grows=True) for n in range(500)))

    assert len(leader.state.applied) < 100


@pytest.mark.parametrize(
    ("command_bytes", "entries"), [(3, [1, 2, 2, 2, 2, 2]), (1 << 16, [1, 2, 3, 4, 5, 6])]
)
async def test_a_small_entry_leaves_when_the_one_before_is_applied(
    tmp_path: Path, command_bytes: int, entries: list[int]
) -> None:
    """It costs three nodes as much as a larger one, which waits for our own disk at most."""
    files: dict[NodeId, GatedFiles] = {node: GatedFiles() for node in IDS}
    group = DriverGroup(tmp_path, files=files)
    group.start()
    leader = await group.leader()
    await leader.driver.propose(command("before"), grows=True)
    before = leader.driver.core.last_index
    for follower in group.followers():
        files[follower.id].gate.clear()

    def apply(entry: Entry) -> list[object]:
        return [entry.index - before] * (len(entry.data) // command_bytes)

    with mock.patch.object(leader.state, "apply", apply):
        results = []
        for _ in entries:
            results.append(leader.driver.submit(bytes(command_bytes), grows=True))
            await asyncio.sleep(0)
            await eventually(lambda: not leader.driver.sync_running_s())
        for each in files.values():
            each.gate.set()

        assert await asyncio.gather(*results) == entries
    await group.stop()


async def test_a_command_does_not_wait_for_a_tick_behind_something_else(group: DriverGroup) -> None:
    """An idle disk takes it in the same turn of the loop in which a read or a message is served."""
    group.start()
    leader = await group.leader()
    await leader.driver.propose(command("before"), grows=True)
    last_index = leader.driver.core.last_index

    reading = asyncio.ensure_future(leader.driver.read_index())
    await asyncio.sleep(0)
    assert leader.driver.core.has_ready()
    result = leader.driver.submit(command("x"), grows=True)
    await asyncio.sleep(0)

    assert leader.driver.core.last_index == last_index + 1
    assert await result == "x"
    assert await reading >= last_index


async def test_a_follower_does_not_acknowledge_before_its_sync(tmp_path: Path) -> None:
    """Persist before you speak: no successful AppendResponse while the disk is busy."""
    files: dict[NodeId, GatedFiles] = {node: GatedFiles() for node in IDS}
    group = DriverGroup(tmp_path, files=files)
    group.start()
    leader = await group.leader()
    await leader.driver.propose(command("before"), grows=True)
    slow = group.followers()[0]
    files[slow.id].gate.clear()
    last_index = leader.driver.core.last_index
    sent_before = len(group.sent)

    await leader.driver.propose(command("x"), grows=True)
    await eventually(lambda: slow.driver.core.last_index > last_index)
    await asyncio.sleep(0.05)

    acks = [
        message
        for message in group.sent[sent_before:]
        if isinstance(message, AppendResponse) and message.success and message.sender == slow.id
    ]
    assert all(ack.match_index <= last_index for ack in acks)
    files[slow.id].gate.set()
    await eventually(lambda: slow.driver.core.durable_index > last_index)
    await group.stop()


async def test_nothing_is_acknowledged_while_a_majority_has_not_synced(tmp_path: Path) -> None:
    """P1: with both followers' disks stuck, the leader's own sync is not enough."""
    files: dict[NodeId, GatedFiles] = {node: GatedFiles() for node in IDS}
    group = DriverGroup(tmp_path, files=files)
    group.start()
    leader = await group.leader()
    for follower in group.followers():
        files[follower.id].gate.clear()

    proposal = asyncio.ensure_future(leader.driver.propose(command("x"), grows=True))
    done, _ = await asyncio.wait({proposal}, timeout=0.2)

    assert not done
    for each in files.values():
        each.gate.set()
    assert await proposal == "x"
    await group.stop()


async def test_a_vote_leaves_only_after_it_is_durable(tmp_path: Path) -> None:
    """Raft figure 2: currentTerm and votedFor are on disk before the answer is sent."""
    files: dict[NodeId, GatedFiles] = {node: GatedFiles() for node in IDS}
    group = DriverGroup(tmp_path, files=files)
    group.start()
    leader = await group.leader()
    voter, other = group.followers()
    files[voter.id].gate.clear()
    group.sent.clear()

    await group.stop(leader.id)
    for follower in (voter, other):
        follower.driver.peer_disconnected(leader.id)
    await eventually(lambda: voter.driver.core.vote == other.id or voter.driver.core.vote)
    await asyncio.sleep(0.05)

    granted = [
        message
        for message in group.sent
        if isinstance(message, VoteResponse) and message.granted and message.sender == voter.id
    ]
    assert granted == []
    files[voter.id].gate.set()
    await group.leader()
    await group.stop()


async def test_acknowledged_commands_survive_the_leader(group: DriverGroup) -> None:
    """Leader completeness: what was acknowledged is in the next leader's state."""
    group.start()
    leader = await group.leader()
    await leader.driver.propose(command("kept"), grows=True)

    await group.stop(leader.id)
    successor = await group.leader()

    assert any(b"kept" in entry.data for entry in successor.state.applied)


async def test_acknowledged_commands_survive_a_restart_of_all_nodes(group: DriverGroup) -> None:
    """Everything acknowledged is read back from disk, and applied in the order of the log."""
    group.start()
    leader = await group.leader()
    for number in range(20):
        await leader.driver.propose(command(f"kept-{number}"), grows=True)

    await group.stop()
    group.start()
    leader = await group.leader()

    applied = [text for entry in leader.state.applied for text in split(entry.data)]
    assert applied == [f"kept-{n}" for n in range(20)]


async def test_a_lost_connection_to_the_leader_starts_an_election_early(group: DriverGroup) -> None:
    """The hint saves the wait for the election timeout; the record says so."""
    group.start()
    leader = await group.leader()

    await group.stop(leader.id)
    for follower in group.followers():
        follower.driver.peer_disconnected(leader.id)
    successor = await group.leader()

    record = successor.driver.last_failover
    assert record is not None
    assert (record.cause, record.from_id, record.to_id) == (
        "ConnectionLost",
        leader.id,
        successor.id,
    )


async def test_a_transfer_hands_leadership_over_without_an_election_timeout(
    group: DriverGroup,
) -> None:
    """Raft thesis 3.10; the new leader records the cause."""
    group.start()
    leader = await group.leader()
    target = group.followers()[0]

    assert leader.driver.transfer_leadership(target.id) == target.id
    await eventually(target.driver.is_serving_leader)

    assert target.driver.last_failover is not None
    assert target.driver.last_failover.cause == "Transfer"


async def test_a_deposed_leader_says_that_the_outcome_is_unknown(group: DriverGroup) -> None:
    """A command in flight when leadership ends may or may not commit."""
    group.start()
    leader = await group.leader()
    group.cut.add(leader.id)

    with pytest.raises(LeadershipLost):
        await leader.driver.propose(command("limbo"), grows=True)

    assert leader.driver.core.role is not Role.LEADER


async def test_a_follower_refuses_proposals_and_names_the_leader(group: DriverGroup) -> None:
    """Only the leader takes writes."""
    group.start()
    leader = await group.leader()
    follower = group.followers()[0]
    await eventually(lambda: follower.driver.core.leader == leader.id)

    with pytest.raises(NotLeader) as refusal:
        await follower.driver.propose(command("x"), grows=True)

    assert refusal.value.leader == leader.id


async def test_a_full_disk_refuses_data_but_not_acknowledgements(group: DriverGroup) -> None:
    """Writes are refused with a typed error; what frees consumers still passes; it recovers."""
    group.start()
    leader = await group.leader()

    look = Measured(
        total_bytes=1 << 30,
        free_bytes=10,
        own_bytes=1 << 20,
        allocated_bytes=leader.log.allocated_bytes,
    )
    leader.driver.measured(look)
    with pytest.raises(DiskFull, match="10 bytes free"):
        await leader.driver.propose(command("data"), grows=True)

    assert await leader.driver.propose(command("ack"), grows=False) == "ack"
    leader.driver.measured(replace(look, free_bytes=1 << 29))
    assert await leader.driver.propose(command("data"), grows=True) == "data"


async def test_a_send_for_which_room_is_made_waits_and_the_rest_passes_it(
    group: DriverGroup,
) -> None:
    """Acknowledgements, and the command that makes the room, never stand behind it."""
    group.start()
    leader = await group.leader()
    leader.driver.room.configure(budget_bytes=0, percent=85)
    look = _short_of_room(leader)
    leader.driver.measured(look)

    sent = leader.driver.submit(command("data"), grows=True)

    assert await leader.driver.propose(command("ack"), grows=False) == "ack"
    assert not sent.done()
    assert leader.driver.room.wanted.is_set()
    leader.driver.measured(replace(look, free_bytes=1 << 29, own_bytes=1 << 28))
    assert await sent == "data"
    assert leader.driver.room.decision().drop_bytes == 0


async def test_a_leader_without_room_hands_over_to_a_member_with_room(group: DriverGroup) -> None:
    """By the members' reports; who leads now knows whom it came from, and hands nothing back."""
    group.start()
    leader = await group.leader()
    await leader.driver.propose(command("a"), grows=True)
    for node in group.followers():
        node.driver.measured(replace(_short_of_room(node), free_bytes=1 << 29, own_bytes=1 << 28))
    await eventually(lambda: len(leader.driver.reports.heard()) == 2)
    leader.driver.measured(_short_of_room(leader))
    await eventually(lambda: _handed_over(leader))

    await eventually(lambda: leader.driver.core.role is not Role.LEADER)
    successor = await group.leader()
    assert successor.driver.room._led_before == leader.id


def _handed_over(leader: DriverNode) -> bool:
    """Look once more, as maintenance does: reports come once a second, and may be older."""
    leader.driver.measured(_short_of_room(leader))
    return leader.driver.hand_over_for_room()


async def test_a_send_that_waited_for_room_for_too_long_is_refused_by_name(
    group: DriverGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not stored, and later ones are, once there is room."""
    monkeypatch.setattr(proposer_module, "ROOM_WAIT_S", 0.05)
    group.start()
    leader = await group.leader()
    leader.driver.room.configure(budget_bytes=0, percent=85)
    look = _short_of_room(leader)
    leader.driver.measured(look)

    with pytest.raises(DiskFull, match="no room was made"):
        await leader.driver.propose(command("data"), grows=True)

    leader.driver.measured(replace(look, free_bytes=1 << 29, own_bytes=1 << 28))
    assert await leader.driver.propose(command("more"), grows=True) == "more"


def _short_of_room(leader: DriverNode) -> Measured:
    """Return a look at a disk that is full of messages, which may go."""
    return Measured(
        total_bytes=1 << 30,
        free_bytes=1 << 20,
        own_bytes=1000 << 20,
        droppable_bytes=900 << 20,
        allocated_bytes=leader.log.allocated_bytes,
    )


async def test_a_leader_whose_disk_is_full_hands_over_to_a_voter_that_has_everything(
    group: DriverGroup,
) -> None:
    """It has room; those that wait here are told that the outcome is unknown."""
    group.start()
    leader = await group.leader()
    await leader.driver.propose(command("a"), grows=True)
    await eventually(lambda: _has_everything(leader, *group.followers()))

    leader.driver.disk_full(DiskFull("no room"))

    await eventually(lambda: leader.driver.core.role is not Role.LEADER)
    assert (await group.leader()).id != leader.id


async def test_a_leader_whose_disk_is_full_stays_where_only_learners_have_everything(
    tmp_path: Path,
) -> None:
    """There was nobody to hand over to, and the node failed over it (seed 1297)."""
    group = DriverGroup(tmp_path, promote_learners=False)
    group.start()
    leader = await group.leader()
    members = leader.driver.core.membership.voters
    alone = [member for member in members if member.id == leader.id]
    others = [member for member in members if member.id != leader.id]
    leader.driver.change_membership(voters=alone, learners=others)
    await eventually(lambda: leader.driver.core.membership.voter_ids == {leader.id})
    await leader.driver.propose(command("a"), grows=True)
    await eventually(lambda: _has_everything(leader, *group.followers()))

    leader.driver.disk_full(DiskFull("no room"))

    assert leader.driver.core.transfer_target is None
    assert leader.driver.core.role is Role.LEADER
    await group.stop()


def _has_applied(node: DriverNode, expected: list[Entry]) -> bool:
    return node.state.applied == expected


def _has_everything(leader: DriverNode, *followers: DriverNode) -> bool:
    progress, last_index = leader.driver.core.progress(), leader.driver.core.last_index
    return all(progress[node.id].match_index == last_index for node in followers)


async def test_a_failed_sync_stops_the_node(tmp_path: Path) -> None:
    """P7: after a failed sync the node says nothing more; the others go on."""
    files: dict[NodeId, GatedFiles] = {node: GatedFiles() for node in IDS}
    group = DriverGroup(tmp_path, files=files)
    group.start()
    leader = await group.leader()
    files[leader.id].fails = True

    proposal = asyncio.ensure_future(leader.driver.propose(command("x"), grows=True))
    await eventually(lambda: leader.fatal)

    with pytest.raises(LeadershipLost):
        await proposal
    await group.stop(leader.id)
    successor = await group.leader()
    assert await successor.driver.propose(command("y"), grows=True) == "y"
    await group.stop()


async def test_a_leader_whose_disk_stalls_gives_way(tmp_path: Path) -> None:
    """A leader that cannot sync for a second steps down; writes go on elsewhere."""
    files: dict[NodeId, GatedFiles] = {node: GatedFiles() for node in IDS}
    config = DriverConfig(tick_s=0.01, stall=StallLimits(stall_s=0.2, behind_s=0.2))
    group = DriverGroup(tmp_path, files=files, config=config)
    group.start()
    leader = await group.leader()
    files[leader.id].gate.clear()

    stuck = asyncio.ensure_future(leader.driver.propose(command("x"), grows=True))
    successor = await eventually(
        lambda: next(
            (n for n in group.nodes.values() if n is not leader and n.driver.is_serving_leader()),
            None,
        )
    )

    assert await successor.driver.propose(command("y"), grows=True) == "y"
    files[leader.id].gate.set()
    with pytest.raises(LeadershipLost):
        await stuck
    await group.stop()


async def test_votes_come_between_what_is_applied(group: DriverGroup) -> None:
    """A backlog is applied in turns of the event loop, one Ready each, and ends all the same."""
    group.start()
    leader = await group.leader()
    behind = group.followers()[0]
    group.cut.add(behind.id)
    for number in range(20):
        await leader.driver.propose(command(str(number)), grows=True)
    turns: list[int] = []
    run, handle = behind.driver._run, behind.driver._handle

    def counted_run() -> None:
        turns.append(0)
        run()

    def counted_handle(ready: Ready) -> None:
        turns[-1] += bool(ready.committed)
        handle(ready)

    behind.driver._run = counted_run
    behind.driver._handle = counted_handle
    behind.driver.core._config = replace(behind.driver.core.config, max_apply_bytes=1)
    group.cut.clear()

    await eventually(lambda: len(behind.state.applied) == 20)
    assert max(turns) == 1
    assert sum(turns) >= 20


async def test_the_log_clock_does_not_go_back_with_the_wall_clock(group: DriverGroup) -> None:
    """A wall clock set back by an hour on the next leader does not move the log's time."""
    group.start()
    leader = await group.leader()
    await leader.driver.propose(command("a"), grows=True)
    for follower in group.followers():
        follower.clock.jump_ms = -3_600_000

    await group.stop(leader.id)
    successor = await group.leader()
    await successor.driver.propose(command("b"), grows=True)

    times = [entry.timestamp_ms for entry in successor.state.applied]
    assert times == sorted(times)


async def test_a_wait_for_change_can_be_cancelled_while_the_change_comes(
    group: DriverGroup,
) -> None:
    """Shutdown cancels waiters just when leadership moves; none may live on."""
    group.start()
    leader = await group.leader()
    waiting = asyncio.create_task(leader.driver.wait_change(60))
    await asyncio.sleep(0)

    leader.driver._changes.notify()
    waiting.cancel()
    await asyncio.wait({waiting})

    assert waiting.cancelled()
