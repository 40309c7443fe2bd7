"""Which clock is believed: all cases of up to seven voters, however a minority of them is wrong."""

from __future__ import annotations

from itertools import product

import pytest

from dledger.replica.group_date import group_date
from dledger.types import NodeId

_RIGHT = 1_000
_AHEAD, _BEHIND = _RIGHT + 99_999, _RIGHT - 999


def _ids(count: int) -> list[NodeId]:
    return [NodeId(f"n{number}") for number in range(count)]


def _date(heard: tuple[int, ...], voters: int) -> int | None:
    ids = _ids(voters)
    return group_date(dict(zip(ids, heard, strict=False)), [ids])


@pytest.mark.parametrize("voters", range(1, 8))
def test_no_minority_of_wrong_clocks_pushes_the_date_ahead(voters: int) -> None:
    """Whichever majority is heard, and whoever of it is wrong."""
    minority = (voters - 1) // 2
    for heard in range(voters // 2 + 1, voters + 1):
        for clocks in product((_RIGHT, _AHEAD, _BEHIND), repeat=heard):
            wrong = heard - clocks.count(_RIGHT)
            if wrong <= minority:
                date = _date(clocks, voters)
                assert date is not None
                assert date <= _RIGHT, clocks
                if heard == voters:
                    assert date == _RIGHT, clocks


@pytest.mark.parametrize("voters", range(1, 8))
def test_without_a_majority_there_is_no_date(voters: int) -> None:
    """The rest may be the wrong ones."""
    for heard in range(voters // 2 + 1):
        assert _date((_RIGHT,) * heard, voters) is None


def test_right_clocks_differ_a_little_and_the_date_is_among_them() -> None:
    """Never above the middle of those that were heard."""
    assert _date((5, 1, 3, 2, 4), 5) == 3
    assert _date((4, 1, 3, 2), 5) == 2
    assert _date((3, 1, 2), 5) == 1
    assert _date((2, 1), 2) == 1


def test_learners_do_not_count() -> None:
    """They are not voters, however many there are."""
    voters, clocks = _ids(3), {NodeId("n0"): 5, NodeId("n1"): 7, NodeId("n2"): 6}
    learners = {NodeId(f"l{number}"): 99_999 for number in range(4)}

    assert group_date(clocks | learners, [voters]) == 6


def test_while_the_membership_changes_the_earlier_date_of_both_halves_counts() -> None:
    """And both must be known: each may be the one that is wrong."""
    old, new = _ids(3), [NodeId(f"m{number}") for number in range(3)]
    clocks = dict.fromkeys(old, 50) | dict.fromkeys(new, 40)

    assert group_date(clocks, [old, new]) == group_date(clocks, [new, old]) == 40
    assert group_date(dict.fromkeys(old, 50), [old, new]) is None
    assert group_date({}, []) is None
