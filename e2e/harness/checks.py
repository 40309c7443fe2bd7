"""The lines of a run, kept, broken or not measured; their table and exit code. Pure."""

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
class Check:
    """One thing that must be shown.

    Attributes:
        what: In words.
        value: What was seen, as it is printed.
        asked: What it has to be, in words.
        kept: Whether it is.
    """

    what: str
    value: str
    asked: str
    kept: bool

    @property
    def verdict(self) -> Verdict:
        """Whether it is kept; what was not measured is not."""
        return Verdict.KEPT if self.kept else Verdict.BROKEN

    def __str__(self) -> str:
        return f"{'kept    ' if self.kept else 'NOT KEPT'} {self.what}: {self.value} ({self.asked})"


def at_most(what: str, value: float | None, most: float, unit: str) -> Check:
    """Return the line of a figure with a bound; what was not measured is not kept."""
    seen = "not measured" if value is None else f"{value:,.6g} {unit}".rstrip()
    kept = value is not None and value <= most
    return Check(what=what, value=seen, asked=f"at most {most:g} {unit}".rstrip(), kept=kept)


def none_of(what: str, count: int | None) -> Check:
    """Return the line of something that must not happen."""
    seen = "not measured" if count is None else str(count)
    return Check(what=what, value=seen, asked="none", kept=count == 0)


def refused(what: str, said: str, *names: str) -> Check:
    """Return the line of a bound: beyond it the refusal *said* has one of *names* in it."""
    kept = any(name in said for name in names)
    return Check(what=what, value=said or "taken", asked="refused by name", kept=kept)


def failed(what: str, error: BaseException) -> Check:
    """Return the line of a case that came to no figures."""
    value = f"{type(error).__name__}: {error}"
    return Check(what=what, value=value, asked="runs to its end", kept=False)


def table(checks: Sequence[Check]) -> str:
    """Return all checks below each other, and how many are kept."""
    rows = [("", "what", "seen", "asked")]
    rows += [("kept" if x.kept else "NOT KEPT", x.what, x.value[:60], x.asked) for x in checks]
    return f"{columns(rows)}\n{sum(x.kept for x in checks)} of {len(checks)} lines kept"


def columns(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Return rows of cells below each other; the columns *right* are aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
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


def judged(figures: Mapping[str, float], bounds: Mapping[str, tuple[str, float]]) -> list[Bound]:
    """Return a line for each bound: figure name -> (what it is in words, the most it may be)."""
    return [
        Bound(what=what, value=figures.get(name), most=most)
        for name, (what, most) in bounds.items()
    ]


def exit_code(verdicts: Collection[Verdict]) -> int:
    """Return 0 if all are kept, 1 if one is broken, else 2: also where nothing was judged."""
    if Verdict.BROKEN in verdicts:
        return BROKEN
    return UNMEASURED if Verdict.UNMEASURED in verdicts or not verdicts else 0


def keeps(lines: Sequence[Bound], *, allowed: Collection[str] = ()) -> bool:
    """Whether a run belongs into the history: all is measured, and kept but for *allowed* lines."""
    return bool(lines) and all(
        line.verdict is Verdict.KEPT or (line.verdict is Verdict.BROKEN and line.what in allowed)
        for line in lines
    )
