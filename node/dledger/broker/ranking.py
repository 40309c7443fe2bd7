"""The key with the lowest rank, where ranks change all the time: a heap that is corrected lazily.

Owned by `deduplication` and `replayed_lanes`. The result is the least (rank, key) of the present
keys. It depends only on what is ranked, so it is the same on a node that restored the state from a
snapshot. The heap is built on the first query and costs nothing before. It may hold a rank that has
risen since, or a key that is gone: such items are corrected when they reach the top.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Generic, TypeAlias, TypeVar

Rank: TypeAlias = tuple[int, ...]
_K = TypeVar("_K", str, bytes)

_SLACK: Final = 64
"""How many items, beyond two for each key, a heap may have before it is rebuilt."""


class Ranking(Generic[_K]):
    """Keys by rank.

    Args:
        keys: Returns the present keys.
        rank: Returns the present rank of a key; None if the key is gone.
    """

    __slots__ = ("_heap", "_keys", "_rank")

    def __init__(
        self, keys: Callable[[], Collection[_K]], rank: Callable[[_K], Rank | None]
    ) -> None:
        self._keys: Callable[[], Collection[_K]] = keys
        self._rank: Callable[[_K], Rank | None] = rank
        self._heap: list[tuple[Rank, _K]] | None = None

    def sank(self, key: _K) -> None:
        """Note that a key is new or its rank fell; a rank that rose need not be reported."""
        if self._heap is None:
            return
        rank = self._rank(key)
        if rank is not None:
            heappush(self._heap, (rank, key))
        if len(self._heap) > 2 * len(self._keys()) + _SLACK:
            self._heap = None

    def first(self) -> _K:
        """Return the key with the lowest rank; there must be at least one key."""
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
