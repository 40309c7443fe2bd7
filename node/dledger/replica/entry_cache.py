"""The durable log as the Raft core and readers see it: never blocks, loads in the background.

The newest entries are in the commit log's memory. Older ones are read in threads, in chunks, and
cached briefly: a lagging follower or a replay neither blocks the event loop nor keeps memory. Who
walks the log gets the next chunk read ahead; who walks a queue says what comes next (`read_ahead`).
Owned by the driver.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from itertools import pairwise
from typing import Final

from dledger.errors import FaultyEntry, OffsetOutOfRange
from dledger.store.commit_log import CommitLog
from dledger.types import Entry

_KEPT_BYTES: Final = 32 << 20
_CHUNK_BYTES: Final = 4 << 20
_READ_BYTES: Final = 256 << 10
"""Read for a single entry: a reader of one queue has no use for most of its neighbours, unless
they are small."""
_AHEAD_BYTES: Final = _KEPT_BYTES // 2
"""Of chunks that `read_ahead` read and nobody has used yet: more would drive each other out."""
_KEEP_S: Final = 2.0
"""A chunk is evicted after it was unused for this long (twice this long at most)."""


class EntryCache:
    """Implements the core's ``LogStorage`` over a `CommitLog`, plus awaitable reads."""

    def __init__(
        self,
        log: CommitLog,
        executor: Executor,
        *,
        on_loaded: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._executor = executor
        self._on_loaded = on_loaded
        self._on_error = on_error
        self._chunks: OrderedDict[int, tuple[Entry, ...]] = OrderedDict()
        self._starts: list[int] = []
        self._kept_bytes = 0
        self._used: set[int] = set()
        self._ahead: dict[int, int] = {}
        self._sweeping = False
        self._loading: dict[int, tuple[int, asyncio.Future[tuple[Entry, ...]]]] = {}
        self._truncations = log.truncations

    @property
    def first_index(self) -> int:
        """The oldest index kept; a thread may drop entries covered by a snapshot at any time."""
        return max(self._log.first_index, self._log.needed_from)

    @property
    def last_index(self) -> int:
        """The newest index written."""
        return self._log.last_index

    def term(self, index: int) -> int:
        """Return the term at *index* (0 at index 0). Raises OffsetOutOfRange outside the log."""
        return self._log.term(index)

    def chain(self, index: int) -> int:
        """Return the chain CRC at *index* (0 at index 0). Raises OffsetOutOfRange outside."""
        return self._log.chain(index)

    def membership_indexes(self) -> Collection[int]:
        """Return the indexes of the log's membership entries, damaged ones included."""
        return self._log.membership_indexes()

    def entries(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...] | None:
        """Return entries of [first, last] from memory, or None and start loading them.

        A damaged entry is not loaded: it becomes available once it is repaired.
        """
        recent = self._log.recent(first, last, max_bytes)
        if recent is not None:
            return recent
        chunk = self._cached(first)
        if chunk is None:
            if not self._log.is_faulty(first) and self._under_way(first) is None:
                self._load(first, self._reach(first, _CHUNK_BYTES))
            return None
        self._load_behind(chunk, last)
        return _cut(chunk, first, last, max_bytes)

    def _load_behind(self, chunk: tuple[Entry, ...], last: int) -> None:
        """Read ahead the chunk after *chunk*, unless it is in memory or damaged."""
        following = chunk[-1].index + 1
        if following <= last and not self._log.recent(following, following, 1):
            self._load_missing(following, self._reach(following, _CHUNK_BYTES))

    def read_ahead(self, indexes: Sequence[int]) -> None:
        """Begin to read entries that are asked for soon, in this order; what lies near in one go.

        Never waits, and fails only once they are asked for. What is far ahead of its reader already
        is not driven out by more of it: then nothing happens. A queue's messages were stored in
        ascending entries, but those that were copied lie in later ones.
        """
        at = 0
        for end in _ends_of_rises(indexes):
            self._read_rise_ahead(indexes, at, end)
            at = end

    def _read_rise_ahead(self, indexes: Sequence[int], at: int, end: int) -> None:
        """Begin to read those at ``[at, end)``, which ascend."""
        while at < end and sum(self._ahead.values()) < _AHEAD_BYTES:
            first = indexes[at]
            if first > self.last_index or self._log.recent(first, first, 1):
                return  # and so is what follows
            reach, size_bytes = self._log.reach(first, indexes[end - 1], _READ_BYTES)
            at = bisect_right(indexes, reach, at + 1, end)
            if self._load_missing(first, indexes[at - 1]):
                self._ahead[first] = size_bytes

    def _reach(self, first: int, max_bytes: int) -> int:
        return self._log.reach(first, self.last_index, max_bytes)[0]

    def _load_missing(self, first: int, last: int) -> bool:
        """Begin to read [first, last], unless *first* is there, on its way, or damaged."""
        is_there = self._start_of(first) is not None or self._under_way(first) is not None
        if is_there or self._log.is_faulty(first):
            return False
        self._load(first, last)
        return True

    async def entry(self, index: int) -> Entry:
        """Return one entry, from memory or disk.

        For a reader that has read the preceding entries, the log is read ahead in chunks.

        Raises:
            OffsetOutOfRange: The entry is not in the log.
            FaultyEntry: It is damaged, and being fetched from a peer.
            CorruptRecord: It cannot be read back.
        """
        recent = self._log.recent(index, index, 1)
        if recent is not None:
            return recent[0]
        chunk = self._cached(index)
        if chunk is None:
            chunk = await self._loaded_with(index)
        if self._start_of(chunk[0].index - 1) is not None:
            self._load_behind(chunk, self.last_index)
        return chunk[index - chunk[0].index]

    async def _loaded_with(self, index: int) -> tuple[Entry, ...]:
        """Return a chunk with *index*: of a read that is on its way, or else of one for it."""
        # One that is over, and not heard of yet, would be awaited again without a turn of the loop.
        while (under_way := self._under_way(index)) is not None and not under_way.done():
            with suppress(FaultyEntry, OffsetOutOfRange):  # of its first entry: another one's
                chunk = await asyncio.shield(under_way)
                if index <= chunk[-1].index:
                    self._ahead.pop(chunk[0].index, None)
                    return chunk
        return await asyncio.shield(self._load(index, self._reach(index, _READ_BYTES)))

    def _cached(self, index: int) -> tuple[Entry, ...] | None:
        """Return the chunk with *index*, unless it was read before the log's last truncation."""
        self._forget_stale()
        start = self._start_of(index)
        if start is None:
            return None
        self._chunks.move_to_end(start)
        self._used.add(start)
        self._ahead.pop(start, None)
        return self._chunks[start]

    def _forget_stale(self) -> None:
        if self._truncations != self._log.truncations:
            self._truncations = self._log.truncations
            for start in list(self._chunks):
                self._evict(start)

    def _start_of(self, index: int) -> int | None:
        at = bisect_right(self._starts, index) - 1
        if at < 0 or index > self._chunks[self._starts[at]][-1].index:
            return None
        return self._starts[at]

    def _under_way(self, index: int) -> asyncio.Future[tuple[Entry, ...]] | None:
        loads = self._loading.items()
        return next((load for first, (last, load) in loads if first <= index <= last), None)

    def _keep(self, chunk: tuple[Entry, ...]) -> None:
        """Keep a chunk for a while, in place of those unused for longest.

        None lies within another one, so the last that begins before an entry has it, if any has.
        """
        self._forget_stale()
        first, last = chunk[0].index, chunk[-1].index
        if self._start_of(first) is not None and self._start_of(first) == self._start_of(last):
            self._ahead.pop(first, None)
            return
        at = bisect_left(self._starts, first)
        while at < len(self._starts) and self._chunks[self._starts[at]][-1].index <= last:
            self._evict(self._starts[at])
        self._chunks[first] = chunk
        insort(self._starts, first)
        self._kept_bytes += _size_bytes(chunk)
        self._used.add(first)
        while self._kept_bytes > _KEPT_BYTES and len(self._chunks) > 1:
            self._evict(next(iter(self._chunks)))
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(_KEEP_S, self._sweep)

    def _evict(self, start: int) -> None:
        self._kept_bytes -= _size_bytes(self._chunks.pop(start))
        self._starts.remove(start)
        self._ahead.pop(start, None)

    def _sweep(self) -> None:
        """Evict the chunks that were not used since the last sweep."""
        for start in self._chunks.keys() - self._used:
            self._evict(start)
        self._used.clear()
        self._sweeping = bool(self._chunks)
        if self._sweeping:
            asyncio.get_running_loop().call_later(_KEEP_S, self._sweep)

    def _load(self, first: int, last: int) -> asyncio.Future[tuple[Entry, ...]]:
        loop = asyncio.get_running_loop()
        truncations = self._log.truncations
        future = loop.run_in_executor(self._executor, self._log.read, first, last, _CHUNK_BYTES)
        self._loading[first] = last, future
        future.add_done_callback(lambda done: self._loaded(first, done, truncations))
        return future

    def _loaded(
        self, first: int, done: asyncio.Future[tuple[Entry, ...]], truncations: int
    ) -> None:
        if done.cancelled():
            return
        self._loading.pop(first, None)
        error = done.exception()
        if error is not None or truncations != self._log.truncations:
            self._ahead.pop(first, None)
        if truncations != self._log.truncations:
            self._on_loaded()  # read before a truncation, perhaps: it may differ from the log now
            return
        if isinstance(error, FaultyEntry):
            if not self._log.is_faulty(first):
                self._on_loaded()  # repaired before this read reported the damage
            return
        if isinstance(error, OffsetOutOfRange):
            self._on_loaded()  # dropped, or replaced by a snapshot, before it was read
            return
        if error is not None:
            self._on_error(error)
            return
        self._keep(done.result())
        self._on_loaded()


def _ends_of_rises(indexes: Sequence[int]) -> Iterator[int]:
    """Yield where each part of them that ascends ends."""
    yield from (at for at, (one, other) in enumerate(pairwise(indexes), 1) if other < one)
    yield len(indexes)


def _size_bytes(chunk: tuple[Entry, ...]) -> int:
    return sum([entry.size_bytes for entry in chunk])


def _cut(chunk: tuple[Entry, ...], first: int, last: int, max_bytes: int) -> tuple[Entry, ...]:
    start = first - chunk[0].index
    stop = start
    size = 0
    for entry in chunk[start : last - chunk[0].index + 1]:
        size += entry.size_bytes
        if stop > start and size > max_bytes:
            break
        stop += 1
    return chunk[start:stop]
