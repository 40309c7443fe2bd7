from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.types import Membership, NodeId, Role
from dledger_sim.alone import data_entry
from dledger_sim.checkers import (
    Acknowledgements,
    Commitment,
    ElectionSafety,
    LogMatching,
    ViolationError,
)
from dledger_sim.disk import ModelDisk
from dledger_sim.group_checkers import LogTime, MembershipHistory
from dledger_sim.rot import Atlas
from dledger_sim.scenario import founding_entry, member, members

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


def test_an_entry_of_an_earlier_time_than_the_one_before_is_a_violation() -> None:
    """The log's clock never goes back; an entry that is applied again is no news."""
    checker = LogTime()
    checker.applied(replace(data_entry(1, 5), timestamp_ms=100))
    checker.applied(replace(data_entry(2, 7), timestamp_ms=100))
    checker.applied(replace(data_entry(1, 5), timestamp_ms=100))

    with pytest.raises(ViolationError, match="entry 8 is of 99 ms, and entry 7 before it of 100"):
        checker.applied(replace(data_entry(2, 8), timestamp_ms=99))


FOUNDING = founding_entry(members(3))
GROWN = replace(FOUNDING, index=5, term=2, data=members(5).encode())


def goes_by(entry: Any, *, log_terms: dict[int, int], snapshot_index: int = 0, **core: Any) -> Any:
    """Return a node that goes by the membership in *entry*; its log has these terms."""
    state = {"role": Role.FOLLOWER, "term": 2, "applied_index": 0, "last_index": max(log_terms)}
    return SimpleNamespace(
        id="1",
        log=SimpleNamespace(first_index=1),
        snapshots=SimpleNamespace(index=snapshot_index),
        driver=SimpleNamespace(
            core=SimpleNamespace(
                **state | core,
                membership_index=entry.index,
                membership=Membership.decode(entry.data),
                term_at=log_terms.__getitem__,
            )
        ),
    )


def history() -> MembershipHistory:
    """Return a checker that knows the founding and a later membership, committed both."""
    checker = MembershipHistory()
    checker.appended([FOUNDING, data_entry(1, 2), GROWN])
    assert checker.committed(1, 1) == Membership.decode(FOUNDING.data)
    assert checker.committed(2, 1) is None
    assert checker.committed(5, 2) == Membership.decode(GROWN.data)
    return checker


def test_a_membership_that_a_leader_appended_may_be_in_force() -> None:
    """Committed or not; a leader's own is known from then on."""
    other = replace(GROWN, index=7, data=members(4).encode())
    checker = history()

    checker.check(goes_by(GROWN, log_terms={5: 2}))
    checker.check(goes_by(other, log_terms={7: 2}, role=Role.LEADER))
    checker.check(goes_by(other, log_terms={7: 2}))


def test_a_membership_that_no_leader_appended_is_a_violation() -> None:
    """Nor of its term: another entry took its place since."""
    other = replace(GROWN, data=members(4).encode())
    checker = history()

    with pytest.raises(ViolationError, match="goes by the membership 5, which no leader appended"):
        checker.check(goes_by(other, log_terms={5: 2}))
    with pytest.raises(ViolationError, match="goes by the membership 5, which no leader appended"):
        checker.check(goes_by(GROWN, log_terms={5: 3}, term=3))


def test_a_membership_behind_the_end_of_the_log_is_a_violation() -> None:
    """What was let go of came back into force."""
    with pytest.raises(ViolationError, match="goes by the membership 5 behind its log"):
        history().check(goes_by(GROWN, log_terms={4: 1}))


def test_a_membership_older_than_that_of_the_own_snapshot_is_a_violation() -> None:
    """Whoever asks for votes by it asks the wrong ones; what rotted behind it comes by repair."""
    checker, terms = history(), {1: 1, 9: 2}
    checker.check(goes_by(FOUNDING, log_terms=terms, applied_index=9, snapshot_index=4))
    checker.check(goes_by(FOUNDING, log_terms=terms, applied_index=4, snapshot_index=9))

    with pytest.raises(ViolationError, match="membership 1, and its snapshot has that of 5"):
        checker.check(goes_by(FOUNDING, log_terms=terms, applied_index=5, snapshot_index=5))


def test_the_atlas_damages_a_minority_of_the_smallest_electorate() -> None:
    """Of three at a time that decide with five, one; of two or one, none."""
    five, three = members(5), members(3)
    joint = Membership.of(three.voters, outgoing=five.voters)
    atlas = Atlas()

    assert [atlas.allows(NodeId(n), 3, [five]) for n in "123"] == [True, True, False]
    assert [atlas.allows(NodeId(n), 10, [joint]) for n in "451"] == [True, False, False]
    assert [atlas.allows(NodeId(n), 20, [three, five]) for n in "12"] == [True, False]
    assert not atlas.allows(NodeId("1"), 30, [members(2)])
    assert atlas.allows(NodeId("4"), 3, [three]) is False  # two of these three are damaged already
