"""The phases of a failover, from instants to a record."""

from __future__ import annotations

from dledger.common.failover import FailoverTimer, failover_line
from dledger.types import NodeId

SELF, OLD = NodeId("new"), NodeId("old")


def test_the_three_phases_are_told_apart() -> None:
    """Detected, elected, first ack, in milliseconds."""
    timer = FailoverTimer(SELF)
    timer.heard_from_leader(OLD, 10.0)
    timer.leader_lost("ConnectionLost", 10.2)
    timer.elected(7, 10.5, at_ms=1234)

    record = timer.first_commit(10.6)

    assert record is not None
    assert (record.from_id, record.to_id, record.term) == ("old", "new", 7)
    assert (record.detected_ms, record.elected_ms, record.first_ack_ms) == (200, 300, 100)
    assert (record.cause, record.at_ms) == ("ConnectionLost", 1234)


def test_the_first_sign_of_loss_counts() -> None:
    """An election timeout after a broken connection is the same loss."""
    timer = FailoverTimer(SELF)
    timer.heard_from_leader(OLD, 10.0)
    timer.leader_lost("ConnectionLost", 10.2)
    timer.leader_lost("ElectionTimeout", 11.0)
    timer.elected(2, 12.0, at_ms=0)

    record = timer.first_commit(12.0)

    assert record is not None
    assert record.cause == "ConnectionLost"


def test_a_leader_that_is_heard_again_was_not_lost() -> None:
    """A false alarm leaves no trace in the next failover."""
    timer = FailoverTimer(SELF)
    timer.leader_lost("ConnectionLost", 1.0)
    timer.heard_from_leader(OLD, 2.0)
    timer.leader_lost("ElectionTimeout", 5.0)
    timer.elected(2, 5.5, at_ms=0)

    record = timer.first_commit(5.5)

    assert record is not None
    assert (record.cause, record.detected_ms, record.elected_ms) == ("ElectionTimeout", 3000, 500)


def test_only_the_first_commit_of_a_term_makes_a_record() -> None:
    """Later commits are ordinary."""
    timer = FailoverTimer(SELF)
    timer.elected(2, 1.0, at_ms=0)

    assert timer.first_commit(1.1) is not None
    assert timer.first_commit(1.2) is None


def test_a_record_is_shown_in_one_line() -> None:
    """As `dledger status` prints it: from whom, why, and each phase."""
    timer = FailoverTimer(SELF)
    timer.heard_from_leader(OLD, 10.0)
    timer.leader_lost("ConnectionLost", 10.2)
    timer.elected(7, 10.5, at_ms=1234)
    record = timer.first_commit(10.6)

    assert record is not None
    assert failover_line(record) == (
        "won term 7 from old (ConnectionLost): "
        "detected in 200 ms, elected in 300 ms, first ack in 100 ms"
    )
