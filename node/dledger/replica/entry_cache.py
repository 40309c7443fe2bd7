"""The durable log as the Raft core and readers see it: never waits, loads in the background.

The newest entries are in the commit log's memory. Older ones are read in a thread, in chunks, the
next one ahead, and kept for a moment: a lagging follower or a replay neither stalls the event loop
nor leaves memory behind.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from typing import Final

from dledger.errors import FaultyEntry, OffsetOutOfRange
from dledger.store.commit_log import CommitLog
from dledger.types import Entry

_CHUNKS: Final = 8
_CHUNK_BYTES: Final = 4 << 20
_READ_BYTES: Final = 256 << 10
"""For one entry: a reader of one queue skips most of what is beside it, unless it is small."""
_KEEP_S: Final = 2.0
"""A chunk that nobody used for so long goes, or twice as long at most."""


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
        self._used: set[int] = set()
        self._sweeping = False
        self._loading: dict[int, asyncio.Future[tuple[Entry, ...]]] = {}
        self._truncations = log.truncations

    @property
    def first_index(self) -> int:
        """The oldest index that is kept: what a snapshot covers, a thread may drop any moment."""
        return max(self._log.first_index, self._log.needed_from)

    @property
    def last_index(self) -> int:
        """The newest index that was written."""
        return self._log.last_index

    def term(self, index: int) -> int:
        """Return the term at *index* (0 at index 0). Raises OffsetOutOfRange outside the log."""
        return self._log.term(index)

    def chain(self, index: int) -> int:
        """Return the chain CRC at *index* (0 at index 0). Raises OffsetOutOfRange outside."""
        return self._log.chain(index)

    def membership_indexes(self) -> Collection[int]:
        """Return where the log has memberships of the group, those too that are damaged."""
        return self._log.membership_indexes()

    def entries(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...] | None:
        """Return entries of [first, last] from memory, or None and start loading them.

        A damaged entry is not loaded: it comes with its repair.
        """
        recent = self._log.recent(first, last, max_bytes)
        if recent is not None:
            return recent
        chunk = self._cached(first)
        if chunk is None:
            if not self._log.is_faulty(first):
                self._load(first)
            return None
        self._load_behind(chunk, last)
        return _cut(chunk, first, last, max_bytes)

    def _load_behind(self, chunk: tuple[Entry, ...], last: int) -> None:
        """Load what comes next while *chunk* is on its way, unless it is in memory or damaged."""
        following = chunk[-1].index + 1
        if (
            following <= last
            and self._start_of(following) is None
            and self._log.recent(following, following, 1) is None
            and not self._log.is_faulty(following)
        ):
            self._load(following)

    async def entry(self, index: int) -> Entry:
        """Return one entry, from memory or disk.

        To a reader that came here from the entries before, the log is on its way by chunks.

        Raises:
            OffsetOutOfRange: It is not in the log.
            FaultyEntry: It is damaged, and being fetched from a peer.
            CorruptRecord: It cannot be read back.
        """
        recent = self._log.recent(index, index, 1)
        if recent is not None:
            return recent[0]
        chunk = self._cached(index)
        if chunk is None:
            chunk = await asyncio.shield(self._load(index, _READ_BYTES))
        if self._start_of(chunk[0].index - 1) is not None:
            self._load_behind(chunk, self.last_index)
        return chunk[index - chunk[0].index]

    def _cached(self, index: int) -> tuple[Entry, ...] | None:
        """Return the chunk with *index*; none that was read before the log's last truncation."""
        if self._truncations != self._log.truncations:
            self._truncations = self._log.truncations
            self._chunks.clear()
        start = self._start_of(index)
        if start is None:
            return None
        self._chunks.move_to_end(start)
        self._used.add(start)
        return self._chunks[start]

    def _start_of(self, index: int) -> int | None:
        chunks = self._chunks.items()
        return next((start for start, chunk in chunks if start <= index <= chunk[-1].index), None)

    def _sweep(self) -> None:
        """Let go of the chunks that nobody used since the last time."""
        for start in self._chunks.keys() - self._used:
            del self._chunks[start]
        self._used.clear()
        self._sweeping = bool(self._chunks)
        if self._sweeping:
            asyncio.get_running_loop().call_later(_KEEP_S, self._sweep)

    def _load(
        self, first: int, size_bytes: int = _CHUNK_BYTES
    ) -> asyncio.Future[tuple[Entry, ...]]:
        under_way = self._loading.get(first)
        if under_way is not None:
            return under_way
        loop = asyncio.get_running_loop()
        truncations = self._log.truncations
        future = loop.run_in_executor(
            self._executor, self._log.read, first, self._log.last_index, size_bytes
        )
        self._loading[first] = future
        future.add_done_callback(lambda done: self._loaded(first, done, truncations))
        return future

    def _loaded(
        self, first: int, done: asyncio.Future[tuple[Entry, ...]], truncations: int
    ) -> None:
        if done.cancelled():
            return
        self._loading.pop(first, None)
        error = done.exception()
        if truncations != self._log.truncations:
            self._on_loaded()  # perhaps read before a truncation: it may be no longer the log
            return
        if isinstance(error, FaultyEntry):
            if not self._log.is_faulty(first):
                self._on_loaded()  # its repair came before we heard that it was needed
            return
        if isinstance(error, OffsetOutOfRange):
            self._on_loaded()  # dropped, or replaced by a snapshot, before it was read
            return
        if error is not None:
            self._on_error(error)
            return
        self._chunks[first] = done.result()
        self._used.add(first)
        while len(self._chunks) > _CHUNKS:
            self._chunks.popitem(last=False)
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(_KEEP_S, self._sweep)
        self._on_loaded()


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
