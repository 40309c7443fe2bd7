from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.broker.commands import Leap
from dledger.types import Entry, HardState, Membership, NodeId, Role
from dledger_sim import audit as auditing
from dledger_sim.checkers import (
    Commitment,
    ElectionSafety,
    LogTime,
    MembershipHistory,
    OneHistory,
    ViolationError,
)
from dledger_sim.clients import Prober
from dledger_sim.nemesis import Atlas
from dledger_sim.process import founding_entry, members
from tests.raft.bench import ListDisk, data_entry, log_of

A, B = NodeId("1"), NodeId("2")


class Log(ListDisk):
    """A log that is on disk as far as it goes."""

    def holds(self, index: int, term: int) -> bool:
        return index <= self.last_index and self.term(index) == term


def node(name: str, *terms: int, entries: list[Entry] | None = None) -> Any:
    """Return a node whose log is the founding entry and entries of these terms."""
    log = Log(log_of(*terms) if entries is None else entries)
    core = SimpleNamespace(
        membership=members(3),
        last_index=log.last_index,
        durable_index=log.last_index,
        term_at=log.term,
    )
    return SimpleNamespace(
        id=NodeId(name),
        lives=1,
        hard_state_on_disk=lambda: HardState(9),
        log=log,
        driver=SimpleNamespace(core=core),
        snapshots=SimpleNamespace(index=0),
    )


def commitment(*nodes: Any) -> Commitment:
    """Return a checker of a group of three, of which these are whole."""
    checker = Commitment(nodes, MembershipHistory())
    checker.wrote([founding_entry(members(3))])
    return checker


def test_two_leaders_in_a_term_are_a_violation() -> None:
    """Election safety."""
    checker = ElectionSafety()
    assert checker.elected(A, 1)
    assert checker.elected(B, 2)
    assert not checker.elected(B, 2)

    with pytest.raises(ViolationError, match="two leaders"):
        checker.elected(B, 1)


def test_same_slot_with_other_data_is_a_violation() -> None:
    """Log matching: (index, term) names an entry, wherever it is found or written."""
    founding = log_of()
    checker = OneHistory()
    checker.opened(node("1", entries=[*founding, data_entry(1, 2, b"x")]))
    other = [*founding, data_entry(1, 2, b"y")]

    with pytest.raises(ViolationError, match="another past"):
        checker.opened(node("2", entries=other))
    with pytest.raises(ViolationError, match="another past"):
        checker.wrote(node("2", entries=other), other[1:])


def test_same_entry_after_another_term_is_a_violation() -> None:
    """Log matching: what is before it is the same, too."""
    checker = OneHistory()
    checker.opened(node("1", 1, 3))

    with pytest.raises(ViolationError, match="another past"):
        checker.opened(node("2", 2, 3))


def test_applying_another_entry_than_others_is_a_violation() -> None:
    """State machine safety: by its place in the log."""
    nodes = [node("1", 1), node("2", 1), node("3", 2)]
    checker = commitment(*nodes)
    checker.advanced(nodes[0], 0, 2, term=1)
    checker.advanced(nodes[1], 0, 2, term=1)

    with pytest.raises(ViolationError, match="another entry 2"):
        checker.advanced(nodes[2], 0, 2, term=2)


def test_an_entry_with_another_effect_than_elsewhere_is_a_violation() -> None:
    """State machine safety: by what comes of it."""
    checker = commitment(node("1"))
    checker.applied(node("1"), data_entry(1, 1), ["one"])
    checker.applied(node("2"), data_entry(1, 1), ["one"])

    with pytest.raises(ViolationError, match="another effect"):
        checker.applied(node("3"), data_entry(1, 1), ["another"])


def test_applying_out_of_order_is_a_violation() -> None:
    """Every entry once, in order, in each life of a node; a snapshot stands for those before."""
    one, other, third = node("1"), node("2"), node("3")
    checker = commitment(one, other)
    for index in (2, 5, 6):
        checker.applied(one, data_entry(1, index), [])
    other.snapshots.index = 5
    checker.applied(other, data_entry(1, 6), [])

    for again in (5, 6):
        with pytest.raises(ViolationError, match=f"1 applies {again} behind 6"):
            checker.applied(one, data_entry(1, again), [])
    with pytest.raises(ViolationError, match="3 applies 5 behind 0"):
        checker.applied(third, data_entry(1, 5), [])


def test_leader_without_a_committed_entry_is_a_violation() -> None:
    """Leader completeness: it is not there, or another is in its place, not even on disk yet."""
    nodes = [node("1", 1), node("2", 1), node("3")]
    checker = commitment(*nodes)
    checker.advanced(nodes[0], 0, 2, term=1)
    unsynced = node("3", 2)
    unsynced.driver.core.durable_index = 1

    with pytest.raises(ViolationError, match="lacks"):
        checker.elected(nodes[2], 2)
    with pytest.raises(ViolationError, match="lacks"):
        checker.elected(unsynced, 3)


def test_leader_elected_late_may_lack_what_later_terms_committed() -> None:
    """Its votes took so long that it is deposed already; it can commit nothing."""
    nodes = [node("1", 1), node("2", 1), node("3")]
    checker = commitment(*nodes)
    checker.advanced(nodes[0], 0, 2, term=2)

    checker.elected(nodes[2], 2)


def test_applying_what_a_minority_has_on_disk_is_a_violation() -> None:
    """Committed means durable on a majority."""
    nodes = [node("1", 1), node("2"), node("3")]

    with pytest.raises(ViolationError, match="have it on disk"):
        commitment(*nodes).advanced(nodes[0], 0, 2, term=1)


def test_a_message_that_is_stored_twice_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its producer sent it until it was acknowledged: once is what it was promised."""
    found = [((0, at), "p", "1", b"body") for at in (3, 5)]
    monkeypatch.setattr(auditing, "_messages", lambda *_: found)

    with pytest.raises(ViolationError, match=r"p's 1 is at \(0, 3\) and at \(0, 5\)"):
        auditing.stored([node("1", entries=[])])


def test_a_read_that_misses_what_was_acknowledged_before_is_a_violation() -> None:
    """Thesis 6.4: what came later may be seen or not."""
    asked: list[Any] = []
    cluster: Any = SimpleNamespace(
        clock=SimpleNamespace(after=lambda _, __: None),
        options=SimpleNamespace(storm=False),
        calm=False,
        random=lambda _: SimpleNamespace(randint=lambda *_: 1),
        producers=[SimpleNamespace(highest_index=7)],
        leaders=lambda: [node("1")],
        call=lambda _, __, answer: asked.append(answer),
    )
    Prober(cluster)._ask()
    cluster.producers[0].highest_index = 9

    asked[0](7)
    with pytest.raises(ViolationError, match="a read at 6 misses entry 7"):
        asked[0](6)


def test_an_entry_of_an_earlier_time_than_the_one_before_is_a_violation() -> None:
    """The log's clock never goes back; an entry that is applied again is no news."""
    checker = LogTime()
    checker.applied(replace(data_entry(1, 5), timestamp_ms=100), 9)
    checker.applied(replace(data_entry(2, 7), timestamp_ms=100), 9)
    checker.applied(replace(data_entry(1, 5), timestamp_ms=100), 9)

    with pytest.raises(ViolationError, match="entry 8 is of 99 ms, and entry 7 before it of 100"):
        checker.applied(replace(data_entry(2, 8), timestamp_ms=99), 9)


def test_time_that_was_lived_and_never_was_is_a_violation() -> None:
    """A wall clock's jump that is no leap would age messages; one that is a leap does not."""
    checker = LogTime()
    leap = Leap(from_ms=600, to_ms=90_600).encode()
    checker.applied(replace(data_entry(1, 5), timestamp_ms=100, data=b""), 1_000)
    checker.applied(replace(data_entry(1, 6), timestamp_ms=90_600, data=leap), 1_000)
    checker.applied(replace(data_entry(1, 7), timestamp_ms=91_100, data=b""), 1_000)

    with pytest.raises(ViolationError, match="entry 8: 1001 ms were lived since the first one"):
        checker.applied(replace(data_entry(1, 8), timestamp_ms=91_101, data=b""), 1_000)


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
