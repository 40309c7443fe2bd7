"""Lines that a run keeps or not, or that nobody can tell of. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

BROKEN: Final = 1
UNMEASURED: Final = 2
"""Exit codes: what is broken goes before what is not known."""


class Verdict(Enum):
    """What became of a line; a run has passed when all of its lines are `KEPT`."""

    KEPT = "yes"
    BROKEN = "no"
    UNMEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure beside its bound.

    Attributes:
        what: In words.
        value: None if it was not measured, or if what was measured is no number.
        most: What it may be.
    """

    what: str
    value: float | None
    most: float

    @property
    def verdict(self) -> Verdict:
        """Whether it is kept; what nobody measured is not."""
        if self.value is None or math.isnan(self.value):
            return Verdict.UNMEASURED
        return Verdict.KEPT if self.value <= self.most else Verdict.BROKEN

    def __str__(self) -> str:
        mark = {Verdict.KEPT: "ok ", Verdict.BROKEN: "NO ", Verdict.UNMEASURED: "?? "}[self.verdict]
        unknown = self.value is None or self.verdict is Verdict.UNMEASURED
        value = "not measured" if unknown else f"{self.value:,.1f}"
        return f"{mark} {self.what}: {value} (at most {self.most:g})"


def judged(figures: Mapping[str, float], bounds: Mapping[str, tuple[str, float]]) -> list[Line]:
    """Return a line for each bound: figure name -> (what it is in words, the most it may be)."""
    return [
        Line(what=what, value=figures.get(name), most=most) for name, (what, most) in bounds.items()
    ]


def exit_code(verdicts: Collection[Verdict]) -> int:
    """Return 0 if all are kept, 1 if one is broken, else 2: also where nothing was judged."""
    if Verdict.BROKEN in verdicts:
        return BROKEN
    return UNMEASURED if Verdict.UNMEASURED in verdicts or not verdicts else 0


def keeps(lines: Sequence[Line], *, allowed: Collection[str] = ()) -> bool:
    """Whether a run belongs into the history: all is measured, and kept but for *allowed* lines."""
    return bool(lines) and all(
        line.verdict is Verdict.KEPT or (line.verdict is Verdict.BROKEN and line.what in allowed)
        for line in lines
    )
