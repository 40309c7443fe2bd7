"""Lines that a run keeps or not. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
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

    def __str__(self) -> str:
        return f"{'kept    ' if self.kept else 'NOT KEPT'} {self.what}: {self.value} ({self.asked})"


def at_most(what: str, value: float | None, most: float, unit: str) -> Line:
    """Return the line of a figure with a bound; what was not measured is not kept."""
    seen = "not measured" if value is None else f"{value:,.6g} {unit}".rstrip()
    kept = value is not None and value <= most
    return Line(what=what, value=seen, asked=f"at most {most:g} {unit}".rstrip(), kept=kept)


def none_of(what: str, count: int | None) -> Line:
    """Return the line of something that must not happen."""
    seen = "not measured" if count is None else str(count)
    return Line(what=what, value=seen, asked="none", kept=count == 0)


def refused(what: str, said: str, *names: str) -> Line:
    """Return the line of a bound: beyond it the refusal *said* has one of *names* in it."""
    kept = any(name in said for name in names)
    return Line(what=what, value=said or "taken", asked="refused by name", kept=kept)


def failed(what: str, error: BaseException) -> Line:
    """Return the line of a case that came to no figures."""
    value = f"{type(error).__name__}: {error}"
    return Line(what=what, value=value, asked="runs to its end", kept=False)


def table(lines: Sequence[Line]) -> str:
    """Return all lines below each other, and how many are kept."""
    rows = [("", "what", "seen", "asked")]
    rows += [("kept" if x.kept else "NOT KEPT", x.what, x.value[:60], x.asked) for x in lines]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*text, f"{sum(line.kept for line in lines)} of {len(lines)} lines kept"])


def longest_turn_s(before: dict[float, float], after: dict[float, float]) -> float | None:
    """Return the upper bound of the highest bucket of a histogram that has grown.

    Args:
        before: Bucket by its upper bound, cumulative, as a scrape gives them; empty: from nothing.
        after: The same later. Where it counts less than *before*, the process was started anew.

    Returns:
        None without any observation in between.
    """
    last = max(after, default=0.0)
    restarted = bool(after) and after[last] < before.get(last, 0)
    longest, below = None, 0.0
    for bound in sorted(after):
        seen = after[bound] - (0 if restarted else before.get(bound, 0))
        if seen > below:
            longest = bound
        below = seen
    return longest
