"""Snapshots: what a leader sends in place of compacted entries, and what a follower does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    PreVoteRequest,
    TimeoutNow,
)
from dledger.raft.progress import ProgressState
from dledger.types import NodeId, Role, SnapshotInfo
from tests.raft.bench import Alone, ModelSnapshots, log_of
from tests.raft.chains import chain_behind

MEMBERSHIPS = Alone().disk.memberships()
BYTES = 218
TIMEOUT = 20


def snapshots(index: int = 5, term: int = 2) -> ModelSnapshots:
    """Return a node's snapshots with one that ends in (term, index)."""
    kept = ModelSnapshots()
    log = log_of(1, 1) if term == 1 else log_of(1, 2, 2, 2)
    kept.take(index, term, chain_behind(0, log[:index]), MEMBERSHIPS)
    return kept


def newest(kept: ModelSnapshots) -> SnapshotInfo:
    info = kept.newest()
    assert info is not None
    return info


def hear_piece(node: Alone, info: SnapshotInfo, offset: int, data: bytes, term: int = 3) -> None:
    node.hear(InstallSnapshotRequest, term=term, info=info, offset=offset, data=data)


def answers(node: Alone) -> list[InstallSnapshotResponse]:
    return [m for m in node.settle() if isinstance(m, InstallSnapshotResponse)]


def compacted_leader(**settings: Any) -> tuple[Alone, ModelSnapshots]:
    """Return the leader of term 2 that has entries from 4 on only; 2 has its log, 3 has nothing."""
    kept = snapshots(3, 1)
    node = Alone(terms=(1, 1), snapshots=kept, **settings)
    node.become_leader()
    node.ack(node.raft.last_index)
    node.settle()
    node.disk.begin_behind(3, 1, node.disk.chain(3), MEMBERSHIPS)
    node.hear(AppendResponse, sender="3", term=2, success=False, match_index=3, conflict_index=0)
    return node, kept


def pieces(node: Alone, to: str = "3") -> list[InstallSnapshotRequest]:
    return [m for m in node.settle() if isinstance(m, InstallSnapshotRequest) and m.recipient == to]


# The leader


def test_follower_that_lacks_compacted_entries_gets_a_snapshot() -> None:
    """7: when the leader has already discarded the next log entry that it needs to send."""
    node, kept = compacted_leader()

    sent = pieces(node)

    assert [(m.info, m.offset, len(m.data)) for m in sent] == [(kept.newest(), 0, BYTES)]
    assert node.raft.progress()[NodeId("3")].state is ProgressState.SNAPSHOT


def test_follower_whose_entries_go_while_they_are_read_gets_a_snapshot() -> None:
    """7: a damaged entry is read in vain until it is repaired; retention may come first."""
    kept = snapshots(3, 1)
    node = Alone(terms=(1, 1), snapshots=kept, in_memory=lambda: False)
    node.become_leader()
    node.ack(node.raft.last_index)
    node.hear(AppendResponse, sender="3", term=2, success=False, match_index=3, conflict_index=1)
    node.settle()
    assert node.raft.progress()[NodeId("3")].fetching

    node.disk.begin_behind(3, 1, node.disk.chain(3), MEMBERSHIPS)
    node.hear(HeartbeatResponse, sender="3", term=2, round=1)

    assert [(m.info, m.offset) for m in pieces(node)] == [(kept.newest(), 0)]


def test_snapshot_travels_in_bounded_pieces_one_at_a_time() -> None:
    """7: in chunks, in order; the next leaves when the one before is here."""
    node, _kept = compacted_leader(max_append_bytes=100)
    seen = [(m.offset, len(m.data)) for m in pieces(node)]

    for offset in (100, 200):
        node.hear(
            InstallSnapshotResponse, sender="3", term=2, last_index=3, accepted=True, offset=offset
        )
        seen += [(m.offset, len(m.data)) for m in pieces(node)]

    assert seen == [(0, 100), (100, 100), (200, 18)]


def test_lost_piece_is_sent_again_when_the_follower_is_heard() -> None:
    """From where it goes on; and only once nothing has moved for a heartbeat."""
    node, _ = compacted_leader(max_append_bytes=100)
    pieces(node)

    node.hear(HeartbeatResponse, sender="3", term=2, round=1)
    assert pieces(node) == []
    node.hear(HeartbeatResponse, sender="3", term=2, round=1)

    assert [m.offset for m in pieces(node)] == [0]


def test_transfer_resumes_where_the_follower_is() -> None:
    """After a break of the connection or a change of leader it names what it has."""
    node, _ = compacted_leader(max_append_bytes=100)
    pieces(node)
    node.do(lambda raft: raft.peer_disconnected(NodeId("3")))
    for _ in range(3):
        node.hear(HeartbeatResponse, sender="3", term=2, round=1)
        pieces(node)

    node.hear(InstallSnapshotResponse, sender="3", term=2, last_index=3, accepted=True, offset=150)

    assert [m.offset for m in pieces(node)] == [150]


def test_entries_follow_an_installed_snapshot() -> None:
    """7: the follower says that it has all up to there; then ordinary replication."""
    node, _ = compacted_leader()
    pieces(node)

    node.ack(3, sender="3")

    appends = [m for m in node.settle() if isinstance(m, AppendRequest) and m.recipient == "3"]
    assert [(m.previous_index, m.previous_term) for m in appends] == [(3, 1)]
    assert node.raft.progress()[NodeId("3")].state is ProgressState.PROBE


def test_refusing_follower_gets_no_bytes() -> None:
    """It is asked again with each heartbeat, for nothing."""
    node, _ = compacted_leader()
    pieces(node)

    node.hear(InstallSnapshotResponse, sender="3", term=2, last_index=3, accepted=False, offset=0)
    for _ in range(3):
        node.hear(HeartbeatResponse, sender="3", term=2, round=1)

    assert [m.data for m in pieces(node)] == [b""]


def test_leader_without_a_snapshot_sends_nothing_and_goes_on() -> None:
    """A follower that lags too far stays behind; the others do not notice."""
    node = Alone(terms=(1, 1))
    node.become_leader()
    node.disk.begin_behind(3, 1, node.disk.chain(3), MEMBERSHIPS)
    node.hear(AppendResponse, sender="3", term=2, success=False, match_index=3, conflict_index=0)

    assert pieces(node) == []
    node.ack(node.raft.last_index)
    assert node.raft.commit_index == node.raft.last_index


def test_snapshot_that_was_deleted_gives_way_to_a_newer_one() -> None:
    """The transfer starts anew with that."""
    node, kept = compacted_leader(max_append_bytes=100)
    pieces(node)
    old = newest(kept)
    kept.take(4, 2, 0, MEMBERSHIPS)

    node.hear(
        InstallSnapshotResponse,
        sender="3",
        term=2,
        last_index=old.last_index,
        accepted=True,
        offset=100,
    )

    assert [(m.info.last_index, m.offset) for m in pieces(node)] == [(4, 0)]


# The follower


def test_pieces_are_taken_in_order_and_answered_with_where_to_go_on() -> None:
    """7: offset by offset; what is out of order is not kept."""
    node = Alone(snapshots=ModelSnapshots())
    info = newest(snapshots())

    hear_piece(node, info, 0, b"x" * 50)
    hear_piece(node, info, 100, b"x" * 50)
    hear_piece(node, info, 50, b"x" * 50)

    assert [m.offset for m in answers(node)] == [50, 50, 100]
    assert [(c.offset, len(c.data)) for c in node.chunks] == [(0, 50), (50, 50)]


def test_other_snapshot_begins_anew() -> None:
    """Bytes of two snapshots are never mixed, even if they end in the same entry."""
    node = Alone(snapshots=ModelSnapshots())
    info = newest(snapshots())
    other = replace(info, crc32c=info.crc32c ^ 1)

    hear_piece(node, info, 0, b"x" * 50)
    hear_piece(node, other, 50, b"y" * 50)

    assert [m.offset for m in answers(node)] == [50, 0]


def installing() -> tuple[Alone, SnapshotInfo]:
    """Return a follower that has all of a snapshot up to (term 2, index 5), not yet installed."""
    node = Alone(terms=(1, 1), snapshots=ModelSnapshots())
    kept = snapshots()
    info = newest(kept)
    hear_piece(node, info, 0, kept.read(info, 0, BYTES) or b"")
    node.settle()
    return node, info


def test_whole_snapshot_is_handed_over_to_be_installed() -> None:
    """It is the caller's to check it, and to replace log and state in one step."""
    node, info = installing()

    assert node.installs == [info]
    assert node.raft.last_index == 3


def test_nothing_is_appended_while_a_snapshot_is_being_installed() -> None:
    """The log is about to be replaced."""
    node, _ = installing()

    node.append(after=(1, 3), term=3)

    assert not [m for m in node.settle() if isinstance(m, AppendResponse)]


def test_node_does_not_campaign_while_a_snapshot_is_being_installed() -> None:
    """It could not lead with a log that is being replaced."""
    node, _ = installing()

    node.tick(3 * TIMEOUT)
    node.hear(TimeoutNow, term=3)

    assert node.raft.role is Role.FOLLOWER
    assert not [m for m in node.settle() if isinstance(m, PreVoteRequest)]


def test_installed_snapshot_replaces_the_log() -> None:
    """7, figure 13: discard the entire log, reset the state machine, take its configuration."""
    node, info = installing()
    node.disk.begin_behind(5, 2, info.last_chain, MEMBERSHIPS)

    node.do(lambda raft: raft.snapshot_finished(info, installed=True, memberships=MEMBERSHIPS))

    raft = node.raft
    assert (raft.last_index, raft.last_term) == (5, 2)
    assert (raft.commit_index, raft.applied_index, raft.durable_index) == (5, 5, 5)
    assert raft.membership.voter_ids == {"1", "2", "3"}
    hear_piece(node, info, BYTES, b"")
    assert [m.match_index for m in node.settle() if isinstance(m, AppendResponse)] == [5]


def test_write_that_a_snapshot_replaced_does_not_count() -> None:
    """Its completion may come after the installation."""
    node = Alone(terms=(1,), snapshots=ModelSnapshots())
    node.append(*log_of(1, 1, 1, 1, 1, 1)[2:], after=(1, 2), term=1)
    node.take()
    kept = snapshots()
    info = newest(kept)
    hear_piece(node, info, 0, kept.read(info, 0, BYTES) or b"")
    node.disk.begin_behind(5, 2, info.last_chain, MEMBERSHIPS)

    node.do(lambda raft: raft.snapshot_finished(info, installed=True, memberships=MEMBERSHIPS))
    node.do(lambda raft: raft.persisted(term=1, index=7))

    assert (node.raft.durable_index, node.raft.last_index) == (5, 5)


def test_bad_snapshot_changes_nothing() -> None:
    """The next request is answered with: from the beginning."""
    node, info = installing()

    node.do(lambda raft: raft.snapshot_finished(info, installed=False))
    hear_piece(node, info, BYTES, b"")

    assert node.raft.last_index == 3
    assert [m.offset for m in answers(node)] == [0]


def test_snapshot_of_what_is_there_is_not_installed() -> None:
    """7: if it describes a prefix of the log, the entries behind it stay; it is acknowledged."""
    node = Alone(terms=(1, 2, 2, 2, 2), snapshots=ModelSnapshots())
    info = newest(snapshots(5, 2))

    hear_piece(node, info, 0, b"x")

    sent = node.settle()
    assert [m.match_index for m in sent if isinstance(m, AppendResponse)] == [5]
    assert (node.raft.last_index, node.installs) == (6, [])


@pytest.mark.parametrize(("size", "offset"), [(0, 0), (10, 5), (10, 11)])
def test_impossible_pieces_are_ignored(size: int, offset: int) -> None:
    """What a peer sends is input."""
    node = Alone(snapshots=ModelSnapshots())
    info = SnapshotInfo(last_index=5, last_term=2, last_chain=0, size_bytes=size, crc32c=0)

    hear_piece(node, info, offset, b"x" * 6)

    assert answers(node) == []


def test_leader_of_a_later_term_is_followed_by_its_snapshot() -> None:
    """5.1: as by any request of a leader; one of an earlier term learns the later one."""
    node = Alone(snapshots=ModelSnapshots(), term=4)
    info = newest(snapshots())

    hear_piece(node, info, 0, b"x", term=3)
    hear_piece(node, info, 0, b"x", term=5)

    assert [(m.term, m.accepted) for m in answers(node)] == [(4, False), (5, True)]
    assert node.raft.leader == "2"


def test_follower_that_compacted_tells_a_leader_that_probes_below() -> None:
    """What was compacted was committed, so it is the same in the leader's log."""
    node = Alone(terms=(1, 1), applied_index=3)
    node.disk.begin_behind(3, 1, node.disk.chain(3), MEMBERSHIPS)

    node.append(after=(1, 1), term=2)

    assert [m.match_index for m in node.settle() if isinstance(m, AppendResponse)] == [3]


def test_heartbeats_are_answered_while_a_snapshot_is_being_installed() -> None:
    """The node is there, and its leader keeps its quorum."""
    node, _ = installing()

    node.hear(HeartbeatRequest, term=3, commit_index=0, round=9)

    assert [m.round for m in node.settle() if isinstance(m, HeartbeatResponse)] == [9]
