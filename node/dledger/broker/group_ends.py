"""When each busy message group of a queue may come again: at the end of the last of its leases.

Like the ends of `deliveries`, but by the group's code: an end is in `_expiry` until `count_due`
counts it, then in `_due`. So a look costs only what has ended since the one before, and counts no
further than asked. Both heaps may hold stale ends, which are skipped; `pop_due` uses both together,
so that looks, which only a leader has, do not change what any node delivers.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

_SORTED_OUT_AT: Final = 64
"""Stale ends beside the current ones, before they are removed."""


class GroupEnds:
    """The end of each busy group, by its code; in lived time."""

    __slots__ = ("_counted", "_due", "_ends", "_expiry", "_looked_ms")

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._expiry: list[tuple[int, int]] = []
        self._due: list[tuple[int, int]] = []
        self._counted: set[int] = set()
        self._looked_ms = 0

    def set(self, code: int, end_ms: int) -> None:
        """Note when a group may come again."""
        if self._ends.get(code) == end_ms:
            return
        self._ends[code] = end_ms
        self._counted.discard(code)
        heappush(self._expiry, (end_ms, code))
        if len(self._expiry) + len(self._due) > 2 * len(self._ends) + _SORTED_OUT_AT:
            self._sort_out()

    def _sort_out(self) -> None:
        for ends in (self._expiry, self._due):
            ends[:] = {each for each in ends if self._is_current(*each)}
            heapify(ends)

    def remove(self, code: int) -> None:
        """Note that a group has no end any more."""
        self._ends.pop(code, None)
        self._counted.discard(code)

    def first(self) -> float:
        """Return when the first group may come again; infinity if none is busy."""
        return min(self._first_of(self._due), self._first_of(self._expiry))

    def pop_due(self, now_ms: int) -> int | None:
        """Return the group that has waited longest since its end, which it has no more; or None."""
        due, expiry = self._first_of(self._due), self._first_of(self._expiry)
        if min(due, expiry) > now_ms:
            return None
        if due < expiry or (due == expiry and self._due[0] <= self._expiry[0]):
            _, code = heappop(self._due)
        else:
            _, code = heappop(self._expiry)
        self.remove(code)
        return code

    def count_due(self, now_ms: int, enough: int) -> int:
        """Return how many groups may come again at *now_ms*; counting stops at *enough*."""
        while len(self._counted) < enough and self._first_of(self._expiry) <= now_ms:
            end_ms, code = heappop(self._expiry)
            heappush(self._due, (end_ms, code))
            self._counted.add(code)
        if now_ms >= self._looked_ms:
            self._looked_ms = now_ms
            return len(self._counted)
        # The clock is behind that of an earlier call, as can happen after two changes of leader.
        return len({c for t, c in self._due if t <= now_ms and self._is_current(t, c)})

    def _first_of(self, ends: list[tuple[int, int]]) -> float:
        while ends and not self._is_current(*ends[0]):
            heappop(ends)
        return ends[0][0] if ends else float("inf")

    def _is_current(self, end_ms: int, code: int) -> bool:
        return self._ends.get(code) == end_ms
