"""A damaged end that goes without a leader: who is asked, and that nothing of it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.broker.commands import Retain
from dledger.raft.membership import begin_change, end_change
from dledger.raft.messages import AppendRequest, VoteRequest, VoteResponse
from dledger.types import EntryKind, NodeId
from tests.raft.chains import chain_behind
from tests.replica.group import IDS, MEMBERSHIP
from tests.replica.lone_node import (
    SECOND,
    SELF,
    THIRD,
    LoneNode,
    data_entries,
    ends,
    entry,
    follow_leader,
    member,
    send_snapshot,
)
from tests.waiting import eventually


@pytest.mark.found
async def test_a_rotten_membership_that_the_snapshot_has_still_says_who_is_asked(
    tmp_path: Path,
) -> None:
    """One sector took a change to five voters: they decide about entry 12, not the first three.

    Two of the first three lack it. The other two of the five may have it, with us: committed.
    """
    bench = LoneNode(tmp_path)
    joint = begin_change(
        MEMBERSHIP, voters=[*MEMBERSHIP.voters, member("n4"), member("n5")], learners=[]
    )
    change = [
        entry(5, EntryKind.MEMBERSHIP, joint.encode()),
        entry(6, EntryKind.MEMBERSHIP, end_change(joint).encode()),
    ]
    await bench.write([*data_entries(2, 4), *change, *data_entries(7, 12)], snapshot_at=10)
    core = await bench.start(rotten=(5, 6, 12))
    assert bench.node.log.faulty == (range(5, 7), range(12, 13))
    assert core.membership.voter_ids == {"n1", "n2", "n3", "n4", "n5"}

    bench.node.driver.entries_lost(bench.node.log.faulty)
    assert await bench.ask(firm=False) == {"n2", "n3", "n4", "n5"}
    bench.lacks(SECOND, THIRD, NodeId("n4"), firm=False)
    assert await bench.ask(firm=True) == {"n2", "n3", "n4", "n5"}
    bench.lacks(SECOND, THIRD, firm=True)

    assert core.last_index == 12
    vote = VoteRequest(
        sender=SECOND,
        recipient=SELF,
        term=core.term,
        last_index=11,
        last_term=1,
        last_chain=bench.node.log.chain(11),
        transfer=False,
    )
    bench.node.driver.receive(vote)
    answer = await eventually(lambda: [m for m in bench.sent if isinstance(m, VoteResponse)])
    assert not answer[0].granted
    await bench.close()


@pytest.mark.found
async def test_a_discarded_membership_does_not_come_back_with_a_snapshot(tmp_path: Path) -> None:
    """The disk lets go of it with the core, so there is nothing for the snapshot to wake."""
    other = LoneNode(tmp_path / "2", SECOND)
    bench = LoneNode(tmp_path / "1")
    joint = begin_change(MEMBERSHIP, voters=[*MEMBERSHIP.voters, member("n9")], learners=[])
    same = data_entries(2, 12)
    await bench.write([*same, entry(13, EntryKind.MEMBERSHIP, joint.encode())], snapshot_at=10)
    core = await bench.start(rotten=(11,))
    assert core.membership_index == 13

    await bench.discard(SECOND, THIRD)
    await eventually(lambda: ends(bench.node) == (10, 10))
    assert core.membership_index == 1
    retain = entry(13, EntryKind.DATA, Retain(before_index=13).encode(), term=3)
    await other.write([*same, retain], snapshot_at=13)
    send_snapshot(other, bench, term=core.term + 1)
    await eventually(lambda: ends(bench.node) == (12, 12))

    assert core.membership_index == 1
    append = AppendRequest(
        sender=SECOND,
        recipient=SELF,
        term=core.term,
        previous_index=12,
        previous_term=1,
        previous_chain=bench.node.log.chain(12),
        last_chain=chain_behind(bench.node.log.chain(12), [retain]),
        commit_index=13,
        entries=(retain,),
    )
    bench.node.driver.receive(append)
    await eventually(lambda: bench.node.driver.applied_index == 13)
    assert (core.membership_index, core.membership.voter_ids) == (1, frozenset(IDS))
    await bench.close()
    await other.close()


async def test_what_was_discarded_does_not_come_back_with_a_restart(tmp_path: Path) -> None:
    """The disk is cut when the core lets go, and only then may the node campaign."""
    bench = LoneNode(tmp_path)
    await bench.write(data_entries(2, 12), snapshot_at=10)
    await bench.start(rotten=(11,))

    await bench.discard(SECOND, THIRD)
    await eventually(lambda: ends(bench.node) == (10, 10))

    core = await bench.start()
    assert (core.last_index, bench.node.log.is_whole) == (10, True)
    await bench.close()


async def _overruled(tmp_path: Path, *, last: int) -> LoneNode:
    """Return a node whose lost entry 11 came with a snapshot of entry 20 that begins behind 12.

    Its own entries from 13 to *last* are of a leader that was overruled; 15 would remove it.
    """
    other, node = LoneNode(tmp_path / "2", SECOND), LoneNode(tmp_path / "1")
    same, gone = data_entries(2, 12), [one for one in MEMBERSHIP.voters if one.id != SELF]
    joint = begin_change(MEMBERSHIP, voters=gone, learners=[])
    removal = [
        entry(14, EntryKind.MEMBERSHIP, joint.encode(), term=2),
        entry(15, EntryKind.MEMBERSHIP, end_change(joint).encode(), term=2),
    ]
    tail = [*data_entries(13, 13, term=2), *removal, *data_entries(16, last, term=2)]
    await node.write([*same, *tail], snapshot_at=10)
    core = await node.start(rotten=(11,))
    retain = entry(20, EntryKind.DATA, Retain(before_index=13).encode(), term=3)
    await other.write([*same, *data_entries(13, 19, term=3), retain], snapshot_at=20)
    follow_leader(node, term=core.term + 1)
    node.node.driver.entries_lost(node.node.log.faulty)
    send_snapshot(other, node, term=core.term)
    await eventually(lambda: core.applied_index == 12)
    await other.close()
    return node


async def test_entries_that_were_overruled_are_not_committed_by_a_restart(tmp_path: Path) -> None:
    """The state is ahead of the log (adr 10): what the log has up to there may be another's."""
    node = await _overruled(tmp_path, last=18)

    core = await node.start()

    assert (core.last_index, core.commit_index, core.membership_index) == (18, 12, 15)
    assert not core.is_removed
    append = AppendRequest(
        sender=SECOND,
        recipient=SELF,
        term=core.term + 1,
        previous_index=12,
        previous_term=1,
        previous_chain=node.node.log.chain(12),
        last_chain=chain_behind(node.node.log.chain(12), data_entries(13, 13, term=3)),
        commit_index=13,
        entries=tuple(data_entries(13, 13, term=3)),
    )
    node.node.driver.receive(append)
    await eventually(lambda: node.node.driver.applied_index == 13)
    assert (core.last_index, core.membership_index) == (13, 1)
    await node.close()


async def test_a_log_that_contradicts_a_snapshot_is_cut_before_that_is_installed(
    tmp_path: Path,
) -> None:
    """A start would take it for damage, and refuse the disk."""
    node = await _overruled(tmp_path, last=25)
    assert ends(node.node) == (19, 19)

    core = await node.start()

    assert (core.last_index, core.commit_index, node.node.log.is_whole) == (19, 12, True)
    await node.close()
