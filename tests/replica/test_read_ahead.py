"""Entries that are not in memory any more: read ahead, kept for a moment, then let go."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from dledger.replica import entry_cache
from dledger.replica.entry_cache import EntryCache
from dledger.types import Entry, EntryKind


class OldLog:
    """A log of ten entries, none of which is in memory."""

    last_index = 10
    truncations = 0

    def __init__(self) -> None:
        self.reads: list[int] = []

    def recent(self, first: int, last: int, max_bytes: int) -> None:
        """Say that it is not in memory."""

    def is_faulty(self, index: int) -> bool:
        """Say that it is whole."""
        return index == 7

    def reach(self, first: int, last: int, max_bytes: int) -> tuple[int, int]:
        """Say that three entries are read at a time."""
        del max_bytes
        return min(first + 2, last), 3

    def read(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...]:
        """Return three entries at a time."""
        self.reads.append(first)
        return tuple(entry(index) for index in range(first, min(first + 3, last + 1)))


def entry(index: int) -> Entry:
    return Entry(index=index, term=1, kind=EntryKind.DATA, data=b"x", crc32c=0, timestamp_ms=0)


class Viewed:
    """A view of an old log, and a way to wait for what it loads."""

    def __init__(self) -> None:
        self.log = OldLog()
        self.loaded = asyncio.Event()
        self.view = EntryCache(
            cast("Any", self.log),
            ThreadPoolExecutor(1),
            on_loaded=self.loaded.set,
            on_error=lambda error: pytest.fail(str(error)),
        )

    async def entries(self, first: int) -> tuple[Entry, ...]:
        """Return what the view has from *first* on, once it has it."""
        while (found := self.view.entries(first, self.log.last_index, 1 << 20)) is None:
            self.loaded.clear()
            await self.loaded.wait()
        return found


async def test_the_next_chunk_is_read_while_one_is_on_its_way() -> None:
    """A lagging follower waits for the disk once, not once a chunk; damage is left alone."""
    viewed = Viewed()

    first = await viewed.entries(1)
    second = await viewed.entries(4)

    assert [e.index for e in (*first, *second)] == [1, 2, 3, 4, 5, 6]
    assert viewed.log.reads == [1, 4]


async def test_chunks_that_nobody_uses_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that has caught up leaves nothing behind in its leader's memory."""
    monkeypatch.setattr(entry_cache, "_KEEP_S", 0.01)
    viewed = Viewed()

    await viewed.entries(8)
    await asyncio.sleep(0.1)
    assert viewed.view.entries(8, 10, 1 << 20) is None
    await viewed.entries(8)

    assert viewed.log.reads == [8, 8]
