"""What was refused lately, so that the same is not asked for every second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger_operator.observed.observed import Ref

RETRY_S: Final = 15.0
"""What was refused is tried again after this long, or when the spec changes."""


class Refusals:
    """Answers of the API server or the nodes, kept for a while."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._now_s = monotonic_s
        self._kept: dict[Ref, tuple[str, int, float]] = {}

    def add(self, ref: Ref, answer: str, *, generation: int) -> None:
        """Keep the answer to a request that came from this generation of the spec."""
        self._kept[ref] = (answer, generation, self._now_s() + RETRY_S)

    def standing(self, generation: int) -> dict[Ref, str]:
        """Return the answers that still stand."""
        now_s = self._now_s()
        self._kept = {
            ref: kept
            for ref, kept in self._kept.items()
            if kept[1] == generation and kept[2] > now_s
        }
        return {ref: answer for ref, (answer, _, _) in self._kept.items()}
