"""Where a case of ``make growth`` works, and how large it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from e2e.harness.command import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and how large.

    Attributes:
        work: A directory for data, one below it a case.
        scale: 1 for what must be shown; less to try the drivers, and the lines mean nothing.
    """

    work: Path
    scale: float

    def size(self, full: int) -> int:
        """Return a size at this scale."""
        return max(1, round(full * self.scale))


Case: TypeAlias = Callable[[Setting], Awaitable[Outcome]]
