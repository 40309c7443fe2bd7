"""Whether one tree is slower than another, from figures taken in turns. Pure.

On shared machines a figure wanders by tens of percent from minute to minute, and now and then a
round is lost to something else. So the two trees' figures of one round are compared with each
other, and a line is broken only if the median of these ratios says so, nearly all of them do, *and*
it is a larger step than any that one tree took by itself. One round of five may disagree,
and each tree's best and worst do not count as its spread.

By lognormal noise of 10 to 30 % a round, with one round in ten at 40 % of its pace, five rounds
call a line broken that is not in 0.2 to 3 % of cases, and one that was halved in 87 to 62 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Final

LEAST_RATIO: Final = 0.85
"""Below this a line is broken, if the spread allows to say so."""
_SPARES: Final = 5
"""One round in so many may be an outlier."""
LEAST_ROUNDS: Final = 3
"""Fewer have no median to speak of."""


class Change(Enum):
    """What became of a line."""

    BROKEN = "broken"
    WITHIN = "within spread"
    """Worse by so much that it would be broken, but so are rounds of one tree among themselves."""
    KEPT = "kept"
    BETTER = "better"
    """As much better as a broken one is worse."""
    UNMEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One line of two trees.

    Attributes:
        ours: Median of the rounds that both trees have; NaN without any, as are the others.
        theirs: The same of the other tree.
        our_spread: Largest round through smallest; of five, without the best and the worst.
        their_spread: The same of the other tree.
        ratio: Median of the rounds' ratios; above 1 ours is better, whatever is measured.
        rounds: How many count.
        verdict: What that comes to.
    """

    ours: float
    theirs: float
    our_spread: float
    their_spread: float
    ratio: float
    rounds: int
    verdict: Change


def compared(
    ours: Sequence[float | None], theirs: Sequence[float | None], *, less_is_better: bool = False
) -> Comparison:
    """Compare two trees.

    A figure that is missing, or not a number above zero, excludes its whole round. A line that has
    fewer than three rounds left, or fewer than half of them, is not measured.

    Args:
        ours: A figure for each round; None where it could not be taken.
        theirs: Those of the other tree, in the same rounds.
        less_is_better: As of latencies; else more is.
    """
    pairs = _pairs(ours, theirs)
    own, other = ([pair[side] for pair in pairs] for side in (0, 1))
    ratios = [other / own if less_is_better else own / other for own, other in pairs]
    spreads = _spread(own), _spread(other)
    is_enough = len(pairs) >= max(LEAST_ROUNDS, len(ours) / 2)
    return Comparison(
        ours=_median(own),
        theirs=_median(other),
        our_spread=spreads[0],
        their_spread=spreads[1],
        ratio=_median(ratios),
        rounds=len(pairs),
        verdict=_verdict(ratios, max(spreads)) if is_enough else Change.UNMEASURED,
    )


def _verdict(ratios: Sequence[float], own_spread: float) -> Change:
    """Return what the ratios of all rounds say, of trees that differ so far from themselves."""
    if median(ratios) < LEAST_RATIO:
        return Change.BROKEN if _is_step(ratios, own_spread) else Change.WITHIN
    inverse = [1 / ratio for ratio in ratios]
    is_better = median(inverse) < LEAST_RATIO and _is_step(inverse, own_spread)
    return Change.BETTER if is_better else Change.KEPT


def _pairs(
    ours: Sequence[float | None], theirs: Sequence[float | None]
) -> list[tuple[float, float]]:
    """Return the rounds of which both trees have a figure."""
    return [
        (own, other)
        for own, other in zip(ours, theirs, strict=True)
        if own is not None and other is not None and _is_figure(own) and _is_figure(other)
    ]


def _is_figure(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _median(figures: Sequence[float]) -> float:
    return median(figures) if figures else math.nan


def _spread(figures: Sequence[float]) -> float:
    """Return how far a tree was from itself, without its best and worst round of each five."""
    if not figures:
        return math.nan
    spared = len(figures) // _SPARES
    ordered = sorted(figures)[spared : len(figures) - spared]
    return ordered[-1] / ordered[0]


def _is_step(ratios: Sequence[float], own_spread: float) -> bool:
    """Whether nearly all rounds say so, and by more than a tree differs from itself."""
    agreeing = sum(ratio < LEAST_RATIO for ratio in ratios)
    enough = len(ratios) - len(ratios) // _SPARES
    return agreeing >= enough and median(ratios) < 1 / own_spread
