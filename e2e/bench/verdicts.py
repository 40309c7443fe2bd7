"""Lines that a run keeps or not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure beside its bound.

    Attributes:
        what: In words.
        value: None if it was not measured, which is no failure.
        most: What it may be.
    """

    what: str
    value: float | None
    most: float

    @property
    def holds(self) -> bool:
        """Whether it is kept, as far as it was measured."""
        return self.value is None or self.value <= self.most

    def __str__(self) -> str:
        value = "not measured" if self.value is None else f"{self.value:,.1f}"
        return f"{'ok ' if self.holds else 'NO '} {self.what}: {value} (at most {self.most:g})"


def judged(figures: Mapping[str, float], bounds: Mapping[str, tuple[str, float]]) -> list[Line]:
    """Return a line for each bound: figure name -> (what it is in words, the most it may be)."""
    return [
        Line(what=what, value=figures.get(name), most=most) for name, (what, most) in bounds.items()
    ]
