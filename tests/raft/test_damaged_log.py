"""A node whose log has damaged entries: a voter as any other, but no candidate."""

from __future__ import annotations

from collections.abc import Callable

from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.raft.progress import ProgressState
from dledger.types import NodeId, Role, SnapshotInfo
from dledger_sim.process import members
from tests.raft.bench import Alone, ModelSnapshots

MEMBERSHIPS = Alone().disk.memberships()


def test_it_does_not_campaign_until_it_is_whole() -> None:
    """A leader must be able to send what it has."""
    node = Alone()
    node.raft.log_repaired(whole=False)

    node.raft.campaign()
    assert node.role() is Role.FOLLOWER
    node.hear(TimeoutNow, term=1)
    assert node.role() is Role.FOLLOWER

    node.raft.log_repaired(whole=True)
    node.raft.campaign()
    assert node.role() is Role.PRE_CANDIDATE


def test_it_votes_by_the_log_that_it_promised() -> None:
    """A damaged entry counts as present: who lacks it does not get the vote (Raft 5.4.1)."""
    node = Alone(terms=(1, 1))
    node.raft.log_repaired(whole=False)

    node.hear(VoteRequest, term=2, last_index=2, last_term=1)
    assert [m.granted for m in node.take().after_hard_state if isinstance(m, VoteResponse)] == [
        False
    ]

    node.hear(VoteRequest, term=3, last_index=3, last_term=1)
    assert [m.granted for m in node.take().after_hard_state if isinstance(m, VoteResponse)] == [
        True
    ]


def waiting(*, lost: int, in_memory: Callable[[], bool] = lambda: False) -> Alone:
    """Return a follower of node 2 that has five entries, one applied, and has lost one."""
    node = Alone(
        terms=(1, 1, 1, 1), applied_index=1, in_memory=in_memory, snapshots=ModelSnapshots()
    )
    node.hear(HeartbeatRequest, term=1, commit_index=4, round=1)
    node.settle()
    node.do(lambda raft: raft.entry_lost(lost))
    return node


def offer(node: Alone, last_index: int) -> tuple[SnapshotInfo, list[object]]:
    """Let the leader send a snapshot in one piece; return it, and the answers."""
    leaders = ModelSnapshots()
    info = leaders.take(last_index, 1, node.disk.chain(last_index), MEMBERSHIPS)
    data = leaders.read(info, 0, 1 << 20)
    node.hear(InstallSnapshotRequest, term=1, info=info, offset=0, data=data)
    return info, list(node.settle())


def test_an_entry_that_no_peer_has_is_told_to_the_leader() -> None:
    """All have dropped it for a snapshot, so nothing else can take its place."""
    node = waiting(lost=2)

    (asked,) = node.settle()

    assert isinstance(asked, InstallSnapshotResponse)
    assert (asked.recipient, asked.last_index, asked.accepted, asked.offset) == ("2", 2, True, 0)


def test_nothing_is_asked_for_what_is_applied_already() -> None:
    """Its effects are in the state; retention will let it go."""
    node = waiting(lost=1)

    assert node.settle() == []


def test_a_snapshot_in_place_of_a_lost_entry_leaves_the_log_as_it_is() -> None:
    """We vouched for what is behind it, and still have that (Raft 7)."""
    node = waiting(lost=2)
    info, _ = offer(node, 3)
    assert node.installs == [info]

    node.do(lambda raft: raft.snapshot_finished(info, installed=True, memberships=MEMBERSHIPS))

    assert (node.raft.applied_index, node.raft.last_index, node.raft.durable_index) == (3, 5, 5)
    node.append(after=(1, 5), term=1)
    assert [m.match_index for m in node.settle() if isinstance(m, AppendResponse)] == [5]


def test_a_membership_beyond_the_log_is_not_in_force_with_a_snapshot() -> None:
    """In force is the newest in the log (Raft 6), whatever else is known of."""
    node = waiting(lost=2)
    info, _ = offer(node, 3)
    beyond = [*MEMBERSHIPS, (6, members(4))]

    node.do(lambda raft: raft.snapshot_finished(info, installed=True, memberships=beyond))

    assert (node.raft.membership_index, len(node.raft.membership.voters)) == (1, 3)


def test_entries_that_a_snapshot_overrules_go_with_it() -> None:
    """Where its state is, another entry was committed: ours, and what is behind it, are dead."""
    node = waiting(lost=2)
    info, _ = offer(node, 3)
    node.disk.cut_behind(4)

    node.do(
        lambda raft: raft.snapshot_finished(
            info, installed=True, memberships=MEMBERSHIPS, last_index=4
        )
    )

    assert (node.raft.last_index, node.raft.durable_index, node.raft.applied_index) == (4, 4, 3)
    assert node.take().cut_behind is None


def test_nothing_is_applied_while_a_snapshot_replaces_a_lost_entry() -> None:
    """A late repair would take the state further, and the snapshot would take it back."""
    readable: list[bool] = []
    node = waiting(lost=2, in_memory=lambda: bool(readable))
    info, _ = offer(node, 3)

    readable.append(True)
    node.do(lambda raft: raft.log_repaired(whole=True))
    node.settle()
    assert node.raft.applied_index == 1

    node.do(lambda raft: raft.snapshot_finished(info, installed=False))
    node.settle()
    assert node.raft.applied_index == 4


def test_a_snapshot_that_ends_before_the_lost_entry_is_not_installed() -> None:
    """It would not help; we have all that it has."""
    node = waiting(lost=4)

    _, answers = offer(node, 3)

    assert node.installs == []
    assert [m.match_index for m in answers if isinstance(m, AppendResponse)] == [3]


def compacted_leader() -> Alone:
    """Return the leader of term 2 that has entries from 4 on only; the others have all."""
    snapshots = ModelSnapshots()
    snapshots.take(3, 1, 0, MEMBERSHIPS)
    node = Alone(terms=(1, 1), snapshots=snapshots)
    node.become_leader()
    for peer in ("2", "3"):
        node.ack(node.raft.last_index, sender=peer)
    node.settle()
    node.disk.begin_behind(3, 1, node.disk.chain(3), MEMBERSHIPS)
    return node


def lose(node: Alone, index: int) -> None:
    node.hear(
        InstallSnapshotResponse, sender="3", term=2, last_index=index, accepted=True, offset=0
    )


def test_a_follower_that_lost_what_the_leader_dropped_gets_a_snapshot() -> None:
    """Though it has acknowledged the whole log; then entries follow as ever."""
    node = compacted_leader()
    lose(node, 2)
    pieces = [m for m in node.settle() if isinstance(m, InstallSnapshotRequest)]
    assert [(m.recipient, m.info.last_index) for m in pieces] == [("3", 3)]

    node.ack(3, sender="3")
    node.propose()

    appends = [m for m in node.settle() if isinstance(m, AppendRequest) and m.recipient == "3"]
    assert [m.previous_index for m in appends] == [4]


def test_what_a_follower_synced_meanwhile_does_not_end_the_snapshot_that_it_asked_for() -> None:
    """An acknowledgement waits for the disk, so the question overtakes those under way."""
    node = compacted_leader()
    _, under_way = node.propose()
    node.settle()
    lose(node, 2)
    node.settle()

    node.ack(under_way, sender="3")

    assert node.raft.progress()[NodeId("3")].state is ProgressState.SNAPSHOT
    node.ack(3, sender="3")
    assert node.raft.progress()[NodeId("3")].state is ProgressState.PROBE


def test_a_leader_that_has_the_entry_sends_no_snapshot() -> None:
    """The follower fetches it, from whoever it is."""
    node = compacted_leader()

    lose(node, 4)

    assert node.raft.progress()[NodeId("3")].state is ProgressState.REPLICATE
    assert node.settle() == []
