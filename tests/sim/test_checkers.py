import pytest

from dledger.types import Membership, NodeId
from dledger_sim.alone import data_entry
from dledger_sim.checkers import (
    Acknowledgements,
    Commitment,
    ElectionSafety,
    LogMatching,
    ViolationError,
)
from dledger_sim.disk import ModelDisk
from dledger_sim.scenario import founding_entry, member

A, B, C = (NodeId(name) for name in "abc")


def commitment(*holders: NodeId) -> Commitment:
    """Return a checker of three nodes, of which *holders* have entry 1 on disk."""
    disks = {node: ModelDisk([data_entry(1, 1)] if node in holders else []) for node in (A, B, C)}
    checker = Commitment(disks)
    checker.wrote([founding_entry(Membership.of(member(node) for node in disks))])
    for node in disks:
        checker.started(node)
    return checker


def test_two_leaders_in_a_term_are_a_violation() -> None:
    """Election safety."""
    checker = ElectionSafety()
    checker.elected(A, 1)
    checker.elected(B, 2)

    with pytest.raises(ViolationError, match="two leaders"):
        checker.elected(B, 1)


def test_same_slot_with_other_data_is_a_violation() -> None:
    """Log matching: (index, term) names an entry."""
    checker = LogMatching()
    checker.started(A, [data_entry(1, 1, b"x")])

    with pytest.raises(ViolationError, match="differs"):
        checker.started(B, [data_entry(1, 1, b"y")])


def test_same_entry_after_another_term_is_a_violation() -> None:
    """Log matching: what is before it is the same, too."""
    checker = LogMatching()
    checker.started(A, [data_entry(1, 1), data_entry(3, 2)])

    with pytest.raises(ViolationError, match="differs"):
        checker.started(B, [data_entry(2, 1), data_entry(3, 2)])


def test_applying_another_entry_than_others_is_a_violation() -> None:
    """State machine safety."""
    checker = commitment(A, B, C)
    checker.applied(A, [data_entry(1, 1)], term=1)

    with pytest.raises(ViolationError, match="another entry"):
        checker.applied(B, [data_entry(2, 1)], term=1)


def test_applying_out_of_order_is_a_violation() -> None:
    """Every entry once, in order, in each life of a node."""
    checker = commitment(A, B, C)

    with pytest.raises(ViolationError, match="applies 2 after 0"):
        checker.applied(A, [data_entry(1, 2)], term=1)


def test_leader_without_a_committed_entry_is_a_violation() -> None:
    """Leader completeness."""
    checker = commitment(A, B)
    checker.applied(A, [data_entry(1, 1)], term=1)

    with pytest.raises(ViolationError, match="lacks"):
        checker.elected(C, [], term=2)


def test_leader_elected_late_may_lack_what_later_terms_committed() -> None:
    """Its votes took so long that it is deposed already; it can commit nothing."""
    checker = commitment(A, B)
    checker.applied(A, [data_entry(1, 1)], term=2)

    checker.elected(C, [], term=2)


def test_applying_what_a_minority_has_on_disk_is_a_violation() -> None:
    """Committed means durable on a majority."""
    checker = commitment(A)

    with pytest.raises(ViolationError, match="have it on disk"):
        checker.applied(A, [data_entry(1, 1)], term=1)


def test_lost_and_doubled_acknowledged_entries_are_violations() -> None:
    """What a client was told is there, is there, once."""
    checker = Acknowledgements()
    checker.acknowledged(data_entry(1, 1, b"x"))

    checker.check([data_entry(1, 1, b"x")])
    with pytest.raises(ViolationError, match="lost"):
        checker.check([data_entry(1, 1, b"y")])
    with pytest.raises(ViolationError, match="twice"):
        checker.check([data_entry(1, 1, b"x"), data_entry(1, 2, b"x")])
