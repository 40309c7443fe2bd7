"""The register checker finds each kind of fault that is planted, and agrees with the search."""

from __future__ import annotations

import random

from e2e.chaos.history import Operation
from e2e.chaos.linearizability import Agreement, check_keys
from e2e.chaos.register_checker import RegisterFault, check_registers
from tests.chaos.registers import cas, random_history, read, refused, unanswered, write


def faults(*operations: Operation) -> list[RegisterFault]:
    """Return the faults found in one history."""
    return [finding.fault for finding in check_registers(operations)]


def test_a_chain_of_new_values_has_no_findings() -> None:
    """Each compare-and-set goes on from the one before."""
    assert faults(cas(0, 1, 0, 7), read(2, 3, 7), cas(4, 5, 7, 8), read(6, 7, 8)) == []


def test_operations_that_overlap_may_be_seen_in_either_order() -> None:
    """The read may be before or after the compare-and-set."""
    assert faults(cas(0, 5, 0, 7), read(1, 2, 0), read(3, 4, 7)) == []


def test_a_value_that_nobody_wrote_is_a_phantom() -> None:
    """It came from nowhere."""
    assert faults(read(0, 1, 9)) == [RegisterFault.PHANTOM]


def test_a_value_whose_writer_was_refused_is_a_phantom() -> None:
    """Refused means: it did not take effect."""
    assert faults(refused(cas(0, 1, 0, 7)), read(2, 3, 7)) == [RegisterFault.PHANTOM]


def test_two_that_replaced_the_same_value_are_a_fork() -> None:
    """One of the two updates is lost."""
    assert faults(cas(0, 1, 0, 7), cas(2, 3, 0, 8)) == [RegisterFault.FORK]


def test_an_unanswered_one_forks_when_its_value_was_seen() -> None:
    """It took effect, since somebody read it."""
    operations = (cas(0, 1, 0, 7), unanswered(cas(0, 1, 0, 8)), read(2, 3, 8))

    assert faults(*operations) == [RegisterFault.FORK]


def test_an_unanswered_one_may_have_taken_effect_or_not() -> None:
    """Both are consistent with what was seen."""
    maybe = unanswered(cas(0, 1, 0, 7))

    assert faults(maybe, read(2, 3, 0)) == []
    assert faults(maybe, cas(2, 3, 7, 8)) == []


def test_values_that_come_from_each_other_are_a_cycle() -> None:
    """None of them can have been the first."""
    assert faults(cas(0, 1, 8, 7), cas(2, 3, 7, 8)) == [RegisterFault.CYCLE]


def test_a_read_of_a_replaced_value_is_stale() -> None:
    """The compare-and-set had been answered before the read began."""
    assert faults(cas(0, 1, 0, 7), read(2, 3, 0)) == [RegisterFault.STALE]


def test_a_read_of_a_value_before_it_was_written_is_found() -> None:
    """Seen from the future: the writer comes after the read and yet before it."""
    assert faults(read(0, 1, 7), cas(2, 3, 0, 7)) == [RegisterFault.STALE]


def test_two_reads_must_not_go_back() -> None:
    """Even while the compare-and-set has no answer yet."""
    assert faults(cas(0, 9, 0, 7), read(1, 2, 7), read(3, 4, 0)) == [RegisterFault.STALE]


def test_a_refusal_while_the_register_held_what_was_expected_is_found() -> None:
    """Nobody changed it meanwhile."""
    assert faults(cas(0, 1, 0, 7), refused(cas(2, 3, 7, 8))) == [RegisterFault.REFUSAL]


def test_a_refusal_while_the_value_was_being_replaced_is_right() -> None:
    """The other one may have come first."""
    assert faults(cas(0, 4, 0, 7), refused(cas(2, 3, 0, 8))) == []


def test_a_history_with_a_value_written_twice_cannot_be_judged() -> None:
    """It says so rather than guess; the search can judge it."""
    assert faults(cas(0, 1, 0, 7), cas(2, 3, 7, 7)) == [RegisterFault.REUSE]
    assert faults(write(0, 1, 7)) == [RegisterFault.REUSE]


def test_registers_are_judged_by_themselves() -> None:
    """A fault in one says nothing of the other, and names its key."""
    operations = [cas(0, 1, 0, 7, key="good"), read(2, 3, 5, key="bad")]

    assert [finding.key for finding in check_registers(operations)] == ["bad"]


def test_what_it_finds_is_no_linearizable_history() -> None:
    """On histories of a real register, half of them altered, it never contradicts the search.

    Several operations together may exclude each other though none of its rules is broken, so only
    this direction holds for altered ones.
    """
    for seed in range(300):
        wrong = 0.1 if seed % 2 else 0.0
        history = random_history(random.Random(seed), count=25, fresh=True, wrong=wrong)
        (judgement,) = check_keys(history)

        found = check_registers(history)

        assert not (found and judgement.verdict is Agreement.LINEARIZABLE), f"seed {seed}"
        assert wrong or judgement.verdict is Agreement.LINEARIZABLE, f"seed {seed}"


def test_it_finds_most_of_what_the_search_finds() -> None:
    """Two independent checkers agree on nine of ten altered histories at least."""
    agreed = violations = 0
    for seed in range(300):
        history = random_history(random.Random(seed), count=25, fresh=True, wrong=0.1)
        (judgement,) = check_keys(history)
        if judgement.verdict is Agreement.VIOLATION:
            violations += 1
            agreed += bool(check_registers(history))

    assert violations > 100
    assert agreed >= 0.9 * violations
