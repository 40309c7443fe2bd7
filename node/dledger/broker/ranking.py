"""Who comes first by a rank that changes all the time: a heap that is set right when it is asked.

Owned by `dedupe`. The answer is the least of (rank, key) among those that are there, so it follows
from what is ranked alone, and is the same on a node that has the state from a snapshot. A heap is
made when the first question comes, and costs nothing before. It may hold a rank that has risen
since, or one of a key that is gone: these are put right once they come up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, TypeAlias

Rank: TypeAlias = tuple[int, ...]

_SLACK: Final = 64
"""Entries beyond two a key that a heap may have before it is made anew."""


class Ranking:
    """Keys by rank.

    Args:
        keys: Returns the keys that are there.
        rank: Returns the rank of one of them now; None if it is not there.
    """

    __slots__ = ("_heap", "_keys", "_rank")

    def __init__(
        self, keys: Callable[[], Collection[str]], rank: Callable[[str], Rank | None]
    ) -> None:
        self._keys, self._rank = keys, rank
        self._heap: list[tuple[Rank, str]] | None = None

    def sank(self, key: str) -> None:
        """Take note that a key is new, or comes earlier than before; not so where it rose."""
        if self._heap is None:
            return
        rank = self._rank(key)
        if rank is not None:
            heappush(self._heap, (rank, key))
        if len(self._heap) > 2 * len(self._keys()) + _SLACK:
            self._heap = None

    def first(self) -> str:
        """Return who comes first; there is at least one key."""
        heap = self._heap
        if heap is None:
            heap = self._heap = [(rank, k) for k in self._keys() if (rank := self._rank(k))]
            heapify(heap)
        while True:
            rank, key = heap[0]
            now = self._rank(key)
            if now == rank:
                return key
            if now is None:
                heappop(heap)
            else:
                heapreplace(heap, (now, key))
