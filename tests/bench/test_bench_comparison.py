"""When one tree is called slower than another: by its rounds' ratios, and outside both spreads."""

from __future__ import annotations

import math

import pytest

from e2e.bench.comparison import Change, compared

STEADY = [100.0, 102.0, 98.0, 101.0, 99.0]


def _times(factor: float) -> list[float]:
    return [factor * figure for figure in STEADY]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (STEADY, STEADY, Change.KEPT),
        (_times(0.86), STEADY, Change.KEPT),
        (_times(0.84), STEADY, Change.BROKEN),
        (_times(1.16), STEADY, Change.KEPT),
        (_times(1.5), STEADY, Change.BETTER),
        ([100.0, 70.0, 60.0, 75.0, 65.0], [100.0, 90.0, 95.0, 60.0, 92.0], Change.WITHIN),
        ([50.0, 50.0, 50.0, 50.0, 110.0], STEADY, Change.BROKEN),
        ([50.0, 50.0, 50.0, 100.0, 110.0], STEADY, Change.WITHIN),
        ([50.0, 50.0, 50.0], [100.0, 40.0, 100.0], Change.WITHIN),
        (_times(0.5), [100.0, 100.0, 40.0, 100.0, 100.0], Change.BROKEN),
        ([50.0, 90.0, 45.0, 84.0, 65.0], [60.0, 110.0, 54.0, 100.0, 78.0], Change.WITHIN),
        ([70.0, 20.0, 70.0, 70.0, 70.0], [100.0, 100.0, 20.0, 20.0, 100.0], Change.WITHIN),
    ],
    ids=[
        *("same", "86 %", "84 %", "116 %", "150 %", "noise", "one good round", "two good rounds"),
        *("one of three lost", "one of five lost", "no more than a tree's own spread"),
        "two of five disagree",
    ],
)
def test_a_rate_is_broken_below_85_percent_and_outside_both_spreads(
    ours: list[float], theirs: list[float], expected: Change
) -> None:
    """Neither a small difference nor one that a tree has with itself is a broken line.

    Of five rounds one may be lost to the machine, of three none.
    """
    assert compared(ours, theirs).verdict is expected


def test_of_latencies_less_is_better() -> None:
    """The inverse: what takes 1.3 times as long is broken, not better."""
    assert compared(_times(1.3), STEADY, less_is_better=True).verdict is Change.BROKEN
    assert compared(_times(1.1), STEADY, less_is_better=True).verdict is Change.KEPT
    assert compared(_times(0.5), STEADY, less_is_better=True).verdict is Change.BETTER


def test_a_round_is_compared_with_its_own() -> None:
    """A machine that halves its pace in the middle does it to both."""
    pace = [1.0, 1.0, 0.5, 0.5, 0.5]
    ours = [0.95 * 100 * each for each in pace]
    theirs = [100 * each for each in pace]

    found = compared(ours, theirs)

    assert found.ratio == pytest.approx(0.95)
    assert [found.ours, found.theirs] == pytest.approx([47.5, 50])
    assert [found.our_spread, found.their_spread] == pytest.approx([2, 2])
    assert found.verdict is Change.KEPT


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, 0.0, -1.0])
def test_a_figure_that_is_none_takes_its_round_away(missing: float | None) -> None:
    """Missing, no number, nothing at all: never better, never kept."""
    ours = [*_times(0.5)[:4], missing]

    assert compared(ours, STEADY).verdict is Change.BROKEN
    assert compared(ours, STEADY).rounds == 4
    assert compared([missing] * 5, STEADY).verdict is Change.UNMEASURED
    assert compared(STEADY, [missing] * 5).verdict is Change.UNMEASURED


def test_too_few_rounds_are_no_measure() -> None:
    """Two are an anecdote; so are three of eight that did not fail; none has no median."""
    assert compared([10.0, 10.0], [100.0, 100.0]).verdict is Change.UNMEASURED
    assert (
        compared([*_times(0.5)[:3], *[None] * 5], [*STEADY, *STEADY[:3]]).verdict
        is Change.UNMEASURED
    )
    assert compared([10.0] * 3, [100.0] * 3).verdict is Change.BROKEN

    nothing = compared([], [])

    assert (nothing.verdict, nothing.rounds) == (Change.UNMEASURED, 0)
    assert all(math.isnan(figure) for figure in (nothing.ours, nothing.ratio, nothing.our_spread))
