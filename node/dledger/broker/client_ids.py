"""The message ids that the dedupe window remembers of one client in one topic.

Ids that count up are remembered as runs, the others one by one. Owned by `dedupe`, also in a
snapshot, where a client's ids are these columns (`columns`), an item a batch, oldest first::

    count, place      of messages; (queue offset << 16 | queue id) of the first
    strings           the prefixes of runs, by first use
    strings           all ids of batches that are no runs
    prefix, row       1 + the prefix's number, and the first row; 0, 0: no run
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise, repeat
from operator import itemgetter

from dledger.broker.columns import Reader, Writer, in_arrays
from dledger.broker.id_runs import MAX_ROW, IdRun, Ids, in_parts, run_from

QUEUE_BITS = 16
_END = 1 << 64

_Other = tuple[tuple[bytes, ...], int]
"""The ids of a batch that is no run, and its place.

A plain tuple, for the garbage collector looks at no such tuple twice, and a window may have half a
million.
"""
_Columns = tuple[bytes, "array[int]", "array[int]", "array[int]"]
"""Runs of a prefix: that, and row, count and place of each."""
_Batch = tuple[bytes | tuple[bytes, ...], int, int, int]
"""(prefix, first row, count, place) of ids that count, (ids, 0, count, place) of others.

Messages of a batch follow each other in a queue; its place is that of the first.
"""
_row, _count, _place = itemgetter(1), itemgetter(2), itemgetter(3)


class _Runs:
    """Runs of one prefix, in columns by their rows: 20 bytes each.

    The first one goes first mostly: it is passed over.
    """

    __slots__ = ("_begin", "_counts", "_rows", "_starts", "prefix")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._rows, self._counts, self._starts = array("Q"), array("I"), array("Q")
        self._begin = 0

    def __bool__(self) -> bool:
        return self._begin < len(self._rows)

    def add(self, row: int, count: int, start: int) -> None:
        """Add a run; none of its rows is there."""
        at = bisect_left(self._rows, row, self._begin)
        self._rows.insert(at, row)
        self._counts.insert(at, count)
        self._starts.insert(at, start)

    def has_any(self, row: int, end_row: int) -> bool:
        """Whether a row of [row, end_row) is there."""
        at = bisect_left(self._rows, end_row, self._begin) - 1
        return at >= self._begin and self._rows[at] + self._counts[at] > row

    def place(self, row: int) -> int | None:
        """Return the place of one row's message, if it is there."""
        at = bisect_right(self._rows, row, self._begin) - 1
        if at < self._begin or self._rows[at] + self._counts[at] <= row:
            return None
        return self._starts[at] + (row - self._rows[at] << QUEUE_BITS)

    def remove(self, row: int) -> int:
        """Remove the run that begins with *row*; return its count."""
        at = bisect_left(self._rows, row, self._begin)
        count = self._counts[at]
        if at > self._begin:
            self._cut(at, at + 1)
            return count
        self._begin += 1
        if 2 * self._begin > len(self._rows):
            self._cut(0, self._begin)
            self._begin = 0
        return count

    def _cut(self, begin: int, end: int) -> None:
        for column in (self._rows, self._counts, self._starts):
            del column[begin:end]

    def columns(self, row: int, end_row: int) -> _Columns:
        """Return a copy of the runs in [row, end_row)."""
        begin = bisect_left(self._rows, row, self._begin)
        end = bisect_left(self._rows, end_row, begin)
        part = slice(begin, end)
        return self.prefix, self._rows[part], self._counts[part], self._starts[part]


class _Stretch:
    """Runs of one prefix that came one after the other, each with the rows behind the last one."""

    __slots__ = ("end_row", "row", "runs")

    def __init__(self, runs: _Runs, row: int) -> None:
        self.runs, self.row, self.end_row = runs, row, row


class ClientIds:
    """One client's ids in one topic, as batches, oldest first."""

    __slots__ = ("_batches", "_count", "_order", "_others", "_runs")

    def __init__(self) -> None:
        self._order: deque[_Stretch | _Other] = deque()
        self._runs: dict[bytes, _Runs] = {}
        self._others: dict[bytes, _Other] = {}
        self._count = self._batches = 0

    def __len__(self) -> int:
        return self._count

    def knows_any(self, ids: Ids) -> bool:
        """Whether one of *ids* is remembered."""
        return any(map(self._knows_any_of_part, in_parts(ids)))

    def _knows_any_of_part(self, ids: Ids) -> bool:
        if not isinstance(ids, IdRun):
            return not self._others.keys().isdisjoint(ids)
        runs = self._runs.get(ids.prefix)
        return runs is not None and runs.has_any(ids.row, ids.row + ids.length)

    def place(self, message_id: bytes) -> int | None:
        """Return the place of one message; None: its id is not remembered."""
        wanted = run_from(message_id, 1)
        if wanted is None:
            return self._place_of_other(message_id)
        runs = self._runs.get(wanted.prefix)
        return runs.place(wanted.row) if runs is not None else None

    def _place_of_other(self, message_id: bytes) -> int | None:
        batch = self._others.get(message_id)
        if batch is None:
            return None
        ids, start = batch
        row = ids.index(message_id) if len(ids) > 1 else 0
        return start + (row << QUEUE_BITS)

    def remember(self, ids: Ids, start: int) -> int:
        """Remember new ids as those of the messages from place *start* on; return how many."""
        before = self._count
        for part in in_parts(ids):
            self._remember_part(part, start + (self._count - before << QUEUE_BITS))
        return self._count - before

    def _remember_part(self, ids: Ids, start: int) -> None:
        if isinstance(ids, IdRun):
            self._remember_run(ids, start)
            self._count += ids.length
        else:
            batch = (ids, start)
            self._others.update(dict.fromkeys(ids, batch))
            self._order.append(batch)
            self._count += len(ids)
        self._batches += 1

    def _remember_run(self, ids: IdRun, start: int) -> None:
        prefix, row, length = ids
        runs = self._runs.get(prefix)
        if runs is None:
            runs = self._runs[prefix] = _Runs(prefix)
        runs.add(row, length, start)
        newest = self._order[-1] if self._order else None
        if not isinstance(newest, _Stretch) or newest.runs is not runs or newest.end_row != row:
            newest = _Stretch(runs, row)
            self._order.append(newest)
        newest.end_row += length

    def forget_oldest(self) -> int:
        """Forget the oldest batch, or the part of it that is one run; return how many ids."""
        oldest = self._order[0]
        if isinstance(oldest, _Stretch):
            count = self._forget_run(oldest)
        else:
            self._order.popleft()
            count = len(oldest[0])
            for message_id in oldest[0]:
                del self._others[message_id]
        self._count -= count
        self._batches -= 1
        return count

    def _forget_run(self, stretch: _Stretch) -> int:
        count = stretch.runs.remove(stretch.row)
        stretch.row += count
        if stretch.row == stretch.end_row:
            self._order.popleft()
        if not stretch.runs:
            del self._runs[stretch.runs.prefix]
        return count

    def write(self, out: Writer) -> None:
        """Add the ids to a snapshot; columns are copied now, and looked at later."""
        copied, count = self._copied(), self._batches
        out.pieces(count, lambda: in_arrays("I", map(_count, _each(copied))))
        out.pieces(count, lambda: in_arrays("Q", map(_place, _each(copied))))
        out.strings(len(self._runs), partial(_prefixes, copied))
        out.strings(len(self._others), partial(_other_ids, copied))
        out.pieces(count, lambda: in_arrays("I", _prefix_numbers(copied)))
        out.pieces(count, lambda: in_arrays("Q", map(_row, _each(copied))))

    def canonical(self) -> list[object]:
        """Return lengths of batches, ids and places as plain values, oldest first."""
        batches = list(_each(self._copied()))
        ids = chain.from_iterable(map(_spelled_out, batches))
        return [
            [count for _, _, count, _ in batches],
            [str(message_id, "latin-1") for message_id in ids],
            [place for _, _, count, start in batches for place in _places(count, start)],
        ]

    def _copied(self) -> list[_Columns | _Other]:
        return [
            each.runs.columns(each.row, each.end_row) if isinstance(each, _Stretch) else each
            for each in self._order
        ]


def _each(copied: Iterable[_Columns | _Other]) -> Iterator[_Batch]:
    """Return the batches, oldest first."""
    for part in copied:
        if len(part) == 4:
            prefix, rows, counts, starts = part
            yield from zip(repeat(prefix), rows, counts, starts, strict=False)
        else:
            ids, start = part
            yield ids, 0, len(ids), start


def _spelled_out(batch: _Batch) -> tuple[bytes, ...]:
    key, row, count, _ = batch
    return IdRun(key, row, count).spelled_out() if isinstance(key, bytes) else key


def _places(count: int, start: int) -> range:
    """Return the places of *count* messages that follow each other in a queue."""
    return range(start, start + (count << QUEUE_BITS), 1 << QUEUE_BITS)


def _prefixes(copied: Iterable[_Columns | _Other]) -> Iterable[bytes]:
    return dict.fromkeys(part[0] for part in copied if len(part) == 4)


def _other_ids(copied: Iterable[_Columns | _Other]) -> Iterable[bytes]:
    return chain.from_iterable(part[0] for part in copied if len(part) == 2)


def _prefix_numbers(copied: Sequence[_Columns | _Other]) -> Iterator[int]:
    numbers = {prefix: 1 + number for number, prefix in enumerate(_prefixes(copied))}
    for part in copied:
        if len(part) == 4:
            yield from repeat(numbers[part[0]], len(part[1]))
        else:
            yield 0


def read_batches(source: Reader) -> Iterator[tuple[Ids, int]]:
    """Return what `ClientIds.write` wrote: ids and place of each batch.

    Raises:
        MalformedStateError: The columns contradict each other.
    """
    counts = source.column("I")
    starts = source.column("Q", len(counts))
    prefixes, others = source.strings(), source.strings()
    numbers = source.column("I", len(counts))
    rows = source.column("Q", len(counts))
    taken = 0
    for count, start, number, row in zip(counts, starts, numbers, rows, strict=True):
        if not count or start + (count << QUEUE_BITS) > _END:
            raise source.malformed(f"a batch of {count} messages at place {start}")
        if number > len(prefixes) or (row + count - 1 if number else row) > MAX_ROW:
            raise source.malformed(f"rows from {row} on of prefix {number} of {len(prefixes)}")
        if number:
            yield IdRun(prefixes[number - 1], row, count), start
        else:
            yield tuple(others[taken : taken + count]), start
            taken += count
    if taken != len(others):
        raise source.malformed(f"{len(others)} ids in batches of {taken}")


def read_batches_of_format_1(source: Reader) -> Iterator[tuple[Ids, int]]:
    """Do as `read_batches` with a snapshot that has every id and every place by itself."""
    lengths = source.column("I")
    ids = source.strings(sum(lengths))
    places = source.column("Q", len(ids))
    for a, b in pairwise(accumulate(lengths, initial=0)):
        if a == b or list(places[a:b]) != list(_places(b - a, places[a])):
            raise source.malformed(f"a batch of {b - a} messages is not in one place")
        yield tuple(ids[a:b]), places[a]
