"""What the log view serves when the log is truncated while entries are read in the background."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from dledger.errors import DledgerError, FaultyEntry
from dledger.files.memory_files import MemoryFiles
from dledger.replica.entry_cache import EntryCache
from dledger.store.commit_log import CommitLog
from dledger.store.identity import LOG_DIRECTORY, join, load_or_format
from dledger.types import Entry, EntryKind

DATA = Path("/data")


class SteppedExecutor(Executor):
    """A thread that does its next job when the test says so."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.append(lambda: _settle(future, lambda: fn(*args, **kwargs)))
        return future

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        return len(self._jobs)

    def run_unheard(self, *, newest_first: bool = False) -> None:
        """Do the oldest job; the loop has not heard of it yet."""
        (self._jobs.pop if newest_first else self._jobs.popleft)()()

    async def run_next(self, *, newest_first: bool = False) -> None:
        """Do the oldest job, and let the loop hear of it."""
        self.run_unheard(newest_first=newest_first)
        await hear()


def _settle(future: Future[Any], job: Callable[[], Any]) -> None:
    try:
        future.set_result(job())
    except DledgerError as error:
        future.set_exception(error)


async def hear() -> None:
    """Let the loop hear of what threads have done."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


class Viewed:
    """A log whose entries have all left its memory, and the view of it."""

    def __init__(self, *, cache_bytes: int = 0) -> None:
        files = MemoryFiles()
        empty = load_or_format(files, DATA, "orders-0", new_id=lambda: "1")
        identity = join(files, DATA, empty, "group")
        self.log = CommitLog.open(
            files, DATA / LOG_DIRECTORY, identity=identity, cache_bytes=cache_bytes
        )
        self.executor = SteppedExecutor()
        self.loaded = 0
        self.view = EntryCache(
            self.log, self.executor, on_loaded=self._on_loaded, on_error=self._on_error
        )

    def _on_loaded(self) -> None:
        self.loaded += 1

    def _on_error(self, error: BaseException) -> None:
        pytest.fail(str(error))

    def write(self, term: int, first: int, last: int, *, size: int = 0) -> None:
        """Have entries of one term from *first* on, in place of what was there."""
        self.log.append([_entry(term, index, size) for index in range(first, last + 1)])
        self.log.sync()

    async def read_all(self, *readings: asyncio.Future[Entry]) -> list[Entry | BaseException]:
        """Do what there is to do until all of them have ended."""
        ended = asyncio.gather(*readings, return_exceptions=True)
        while not ended.done():
            await hear()
            if self.executor.waiting:
                await self.executor.run_next()
        return await ended

    def terms(self, first: int, last: int) -> list[int] | None:
        """Return the terms of what the view serves; None if it has to load it."""
        found = self.view.entries(first, last, 1 << 20)
        return None if found is None else [entry.term for entry in found]


def _entry(term: int, index: int, size: int = 0) -> Entry:
    data = f"{term}:{index}".encode().ljust(size)
    return Entry(
        term=term,
        index=index,
        kind=EntryKind.DATA,
        timestamp_ms=1,
        crc32c=crc32c(data),
        data=data,
    )


async def test_entries_read_before_a_truncation_are_not_served_after_it() -> None:
    """The write that truncates had been handed to its thread, but had not begun (seed 421)."""
    viewed = Viewed()
    viewed.write(1, 1, 4)
    assert viewed.terms(2, 2) is None
    await viewed.executor.run_next()
    assert viewed.terms(2, 4) == [1, 1, 1]

    viewed.write(2, 3, 4)
    before = viewed.terms(2, 4)
    await viewed.executor.run_next()

    assert before is None
    assert viewed.terms(2, 4) == [1, 2, 2]


async def test_entries_that_a_truncation_overtook_while_they_were_read_are_read_again() -> None:
    """What the reader found is dropped, and who waits is told to ask once more."""
    viewed = Viewed()
    viewed.write(1, 1, 4)
    assert viewed.terms(2, 4) is None
    viewed.write(2, 3, 4)
    await viewed.executor.run_next()
    told, before = viewed.loaded, viewed.terms(2, 4)

    await viewed.executor.run_next()

    assert (told, before) == (1, None)
    assert viewed.terms(2, 4) == [1, 2, 2]


async def test_an_entry_repaired_before_its_damage_was_heard_of_is_read_again() -> None:
    """Seed 522: the repair told its waiters while the read that found the damage was on its way.

    Whoever asked meanwhile waited for that read, whose failure told nobody: a follower applied
    nothing any more.
    """
    viewed = Viewed()
    viewed.write(1, 1, 4)
    assert viewed.terms(2, 4) is None
    viewed.log.mark_faulty(2, 2, "test")
    viewed.executor.run_unheard()
    viewed.log.repair([_entry(1, 2)])
    assert viewed.terms(2, 4) is None
    await hear()
    told, again = viewed.loaded, viewed.terms(2, 4)

    await viewed.executor.run_next()

    assert (told, again) == (1, None)
    assert viewed.terms(2, 4) == [1, 1, 1]


async def test_a_damaged_entry_is_not_asked_for_again_before_its_repair() -> None:
    """Its repair tells who waits; until then a read would only find the damage again."""
    viewed = Viewed()
    viewed.write(1, 1, 4)
    assert viewed.terms(2, 4) is None
    viewed.log.mark_faulty(2, 2, "test")
    await viewed.executor.run_next()

    assert (viewed.loaded, viewed.terms(2, 4)) == (0, None)
    viewed.log.repair([_entry(1, 2)])
    assert viewed.terms(2, 4) is None
    await viewed.executor.run_next()
    assert viewed.terms(2, 4) == [1, 1, 1]


async def test_a_reader_of_one_entry_does_not_read_what_is_far_behind_it() -> None:
    """A follower gets what comes next as well; a reader of one queue skips most of that."""
    viewed = Viewed()
    viewed.write(1, 1, 8, size=200_000)
    reading = asyncio.ensure_future(viewed.view.entry(2))
    await asyncio.sleep(0)
    await viewed.executor.run_next()

    assert (await reading).index == 2
    assert viewed.terms(4, 4) is None
    await viewed.executor.run_next()
    assert viewed.terms(4, 8) == [1, 1, 1, 1, 1]


async def test_a_reader_that_walks_the_log_does_not_wait_for_each_piece() -> None:
    """What is behind the second piece in a row is read while that one is used."""
    viewed = Viewed()
    viewed.write(1, 1, 20, size=100_000)
    walked = []
    for index in (1, 2, 3, 4):
        reading = asyncio.ensure_future(viewed.view.entry(index))
        await asyncio.sleep(0)
        if not reading.done():
            await viewed.executor.run_next()
        walked.append((await reading).index)
    await viewed.executor.run_next()

    assert walked == [1, 2, 3, 4]
    assert viewed.terms(5, 20) is not None


def _reading(viewed: Viewed, index: int) -> asyncio.Future[Entry]:
    return asyncio.ensure_future(viewed.view.entry(index))


async def test_what_a_reader_announces_is_read_before_it_asks() -> None:
    """Entries of its queue, each by itself where much of others is between, near ones in one go."""
    viewed = Viewed()
    viewed.write(1, 1, 12, size=100_000)

    viewed.view.read_ahead([2, 3, 9])
    first, near, far = (_reading(viewed, index) for index in (2, 3, 9))
    await asyncio.sleep(0)
    assert viewed.executor.waiting == 2
    await viewed.executor.run_next()
    await viewed.executor.run_next()

    assert [(await each).index for each in (first, near, far)] == [2, 3, 9]
    assert viewed.terms(4, 4) is None


async def test_what_is_in_memory_or_on_its_way_is_not_read_ahead() -> None:
    viewed = Viewed(cache_bytes=250_000)
    viewed.write(1, 1, 8, size=100_000)

    for _ in range(2):
        viewed.view.read_ahead([3, 7, 8, 20])

    assert viewed.executor.waiting == 1


async def test_what_was_copied_into_a_later_entry_is_read_ahead_in_its_readers_order() -> None:
    """Blocks lie in the entries that copied them, behind those of the messages that follow them."""
    viewed = Viewed()
    viewed.write(1, 1, 12, size=100_000)

    viewed.view.read_ahead([11, 12, 2, 3, 7])
    announced = viewed.executor.waiting
    readings = [_reading(viewed, index) for index in (11, 12, 2, 3, 7)]
    read = await viewed.read_all(*readings)

    assert announced == 3
    assert read == [_entry(1, index, 100_000) for index in (11, 12, 2, 3, 7)]


async def test_what_is_in_memory_hides_nothing_that_was_stored_before_it() -> None:
    """A block was just copied; what follows it in its queue lies where it was stored long ago."""
    viewed = Viewed(cache_bytes=250_000)
    viewed.write(1, 1, 8, size=100_000)

    viewed.view.read_ahead([8, 3])

    assert viewed.executor.waiting == 1


async def test_damage_in_front_of_an_entry_is_not_taken_for_its_own() -> None:
    """One read was to bring both: the first is damaged, the other is read by itself."""
    viewed = Viewed()
    viewed.write(1, 1, 8)
    viewed.view.read_ahead([2, 6])
    viewed.log.mark_faulty(2, 2, "test")
    damaged, whole = await viewed.read_all(_reading(viewed, 2), _reading(viewed, 6))

    assert isinstance(damaged, FaultyEntry)
    assert whole == _entry(1, 6)


async def test_damage_between_two_entries_costs_another_read() -> None:
    """The read that was to bring both ends in front of it."""
    viewed = Viewed()
    viewed.write(1, 1, 8)
    viewed.view.read_ahead([2, 6])
    viewed.log.mark_faulty(4, 4, "test")

    assert await viewed.read_all(_reading(viewed, 6)) == [_entry(1, 6)]


@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_chunk_within_another_hides_nothing_of_it(newest_first: bool) -> None:
    """A reader's entries and a lagging follower's, whichever the disk brings first."""
    viewed = Viewed()
    viewed.write(1, 1, 8)
    viewed.view.read_ahead([3, 4])
    assert viewed.terms(1, 8) is None
    await viewed.executor.run_next(newest_first=newest_first)
    await viewed.executor.run_next()

    assert [viewed.terms(index, 8) for index in range(1, 9)] == [[1] * n for n in range(8, 0, -1)]
    assert viewed.executor.waiting == 0


async def test_no_more_is_read_ahead_than_waits_for_its_readers() -> None:
    """It would drive out what they have not come to yet."""
    viewed = Viewed()
    viewed.write(1, 1, 12, size=3 << 20)

    viewed.view.read_ahead(range(1, 13))
    announced = viewed.executor.waiting
    for _ in range(announced):
        await viewed.executor.run_next()
    viewed.view.read_ahead(range(1, 13))
    refused = viewed.executor.waiting
    read = await viewed.view.entry(1)
    viewed.view.read_ahead(range(1, 13))

    assert (announced, refused, read.index) == (6, 0, 1)
    assert viewed.executor.waiting == 1


async def test_chunks_are_kept_up_to_a_bound() -> None:
    """The one that was unused for longest goes first."""
    viewed = Viewed()
    viewed.write(1, 1, 14, size=3 << 20)

    for index in (*range(1, 11), 1, 11):
        await viewed.read_all(_reading(viewed, index))

    assert [viewed.terms(index, index) for index in (1, 2, 11)] == [[1], None, [1]]


async def test_a_chunk_that_was_read_before_a_truncation_is_not_kept_for_later() -> None:
    """Also if somebody asked for other entries in between, who saw that the log was cut."""
    viewed = Viewed()
    viewed.write(1, 1, 4)
    assert viewed.terms(2, 4) is None
    viewed.executor.run_unheard()
    viewed.write(2, 3, 4)
    assert viewed.terms(4, 4) is None

    await hear()
    assert viewed.terms(2, 4) is None
    await viewed.executor.run_next()

    assert viewed.terms(2, 4) == [1, 2, 2]


async def test_the_log_begins_where_no_snapshot_covers_it() -> None:
    """A thread removes what is before at any moment; nobody is to begin to read there."""
    viewed = Viewed()
    viewed.write(1, 1, 4)

    viewed.log.need_from(3)

    assert viewed.log.first_index == 1
    assert viewed.view.first_index == 3


async def test_a_read_that_is_over_but_not_heard_of_is_not_waited_for_without_end() -> None:
    """It ends in front of damage; who asks in the turn in which it ends reads by itself."""
    viewed = Viewed()
    viewed.write(1, 1, 8)
    viewed.view.read_ahead([2, 6])
    viewed.log.mark_faulty(4, 4, "test")
    viewed.executor.run_unheard()

    assert await viewed.read_all(_reading(viewed, 6)) == [_entry(1, 6)]
