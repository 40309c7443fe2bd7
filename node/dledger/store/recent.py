"""The newest entries in memory, bounded in bytes, for followers that are nearly caught up."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.types import Entry


class RecentEntries:
    """A cache of the newest entries; the oldest are evicted when it exceeds *max_bytes*.

    An entry counts with the memory it takes, so that the number of empty ones is bounded too.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[int, Entry] = {}
        self._oldest = 1
        self._bytes = 0

    def add(self, entries: Sequence[Entry]) -> None:
        """Add *entries*, which follow the newest one."""
        if not self._entries:
            self._oldest = entries[0].index
        for entry in entries:
            self._entries[entry.index] = entry
            self._bytes += entry.held_bytes
        while self._bytes > self._max_bytes:
            self._bytes -= self._entries.pop(self._oldest).held_bytes
            self._oldest += 1

    def truncate(self, last: int) -> None:
        """Forget everything after *last*."""
        for index in range(self._oldest + len(self._entries) - 1, last, -1):
            if index not in self._entries:
                break
            self._bytes -= self._entries.pop(index).held_bytes

    def forget_before(self, first: int) -> None:
        """Forget everything below *first*."""
        while self._oldest < first and self._entries:
            self._bytes -= self._entries.pop(self._oldest).held_bytes
            self._oldest += 1

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._bytes = 0

    def get(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...] | None:
        """Return the cached part of [first, last]: at most *max_bytes*, at least one entry.

        None if *first* is not cached.
        """
        if first > last or first not in self._entries:
            return None
        found = [self._entries[first]]
        room = max_bytes - found[0].size_bytes
        for index in range(first + 1, last + 1):
            entry = self._entries.get(index)
            if entry is None or entry.size_bytes > room:
                break
            room -= entry.size_bytes
            found.append(entry)
        return tuple(found)
