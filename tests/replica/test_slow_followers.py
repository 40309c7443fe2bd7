"""Whom a leader waits for before it takes the next snapshot and drops its log."""

from __future__ import annotations

from dledger.raft.progress import Progress
from dledger.replica.slow_followers import MAX_ROUNDS, SlowFollowers
from dledger.types import NodeId, SnapshotInfo

PEER = NodeId("2")
INFO = SnapshotInfo(last_index=9, last_term=1, last_chain=0, size_bytes=1000, crc32c=0)


def follower(match_index: int) -> Progress:
    return Progress(next_index=match_index + 1, match_index=match_index)


def receiving(offset: int, match_index: int = 3) -> Progress:
    one = follower(match_index)
    one.needs_snapshot(INFO)
    one.snapshot_offset = offset
    return one


def test_a_follower_that_takes_a_snapshot_is_waited_for_as_long_as_it_gets_on() -> None:
    """Each piece counts; one that stands still for a round does not hold the disk."""
    slow = SlowFollowers()

    waits = [slow.get_on({PEER: receiving(at)}, 10) for at in (0, 100, 200, 200, 300)]

    assert waits == [False, True, True, False, True]


def test_a_follower_is_waited_for_until_it_has_what_retention_let_go() -> None:
    """Or the log behind its new snapshot would be gone when it asks."""
    slow = SlowFollowers()

    waits = [slow.get_on({PEER: follower(match)}, 10) for match in (5, 7, 8, 9, 20)]

    assert waits == [False, True, True, False, False]


def test_a_follower_that_gets_a_snapshot_for_a_lost_entry_is_waited_for() -> None:
    """Though it has acknowledged everything."""
    slow = SlowFollowers()

    waits = [slow.get_on({PEER: receiving(at, match_index=50)}, 10) for at in (0, 100)]

    assert waits == [False, True]


def test_nobody_is_waited_for_without_end() -> None:
    """A follower that is slower than the producers would fill the disk."""
    slow = SlowFollowers()

    waits = [slow.get_on({PEER: receiving(at)}, 10) for at in range(MAX_ROUNDS + 3)]

    assert waits == [False, *[True] * MAX_ROUNDS, False, False]


def test_a_node_that_does_not_lead_waits_for_nobody() -> None:
    """It knows of no followers."""
    assert not SlowFollowers().get_on({}, 10)
