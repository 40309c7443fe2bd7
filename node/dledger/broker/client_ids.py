"""The message ids that the dedupe window remembers of one client in one topic.

Ids that count up are remembered as runs, the others one by one. Owned by `dedupe`, also in a
snapshot, where a client's ids are these columns (`columns`), an item a batch, oldest first::

    count, place      of messages; (queue offset << 16 | queue id) of the first
    strings           the prefixes of runs, by first use
    strings           all ids of batches that are no runs
    prefix, row       1 + the prefix's number, and the first row; 0, 0: no run
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from typing import cast

from dledger.broker.columns import Reader, Writer, in_arrays
from dledger.broker.id_runs import MAX_ROW, IdRun, Ids, in_parts, run_from

QUEUE_BITS = 16
_END = 1 << 64

_Batch = tuple[bytes | tuple[bytes, ...], int, int, int]
"""(prefix, first row, count, place) of ids that count, (ids, 0, count, place) of others.

Messages of a batch follow each other in a queue; its place is that of the first. A plain tuple, for
the garbage collector looks at no such tuple twice, and a window may have half a million.
"""
_GONE: _Batch = (b"", 0, 0, 0)
_row = itemgetter(1)


class _Runs:
    """Runs of one prefix, by their rows. The first one goes first mostly: it is passed over."""

    __slots__ = ("_begin", "_runs", "prefix")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._runs: list[_Batch] = []
        self._begin = 0

    def __bool__(self) -> bool:
        return self._begin < len(self._runs)

    def add(self, run: _Batch) -> None:
        insort(self._runs, run, self._begin, key=_row)

    def last_before(self, row: int) -> _Batch | None:
        """Return the last run that begins below *row*."""
        at = bisect_left(self._runs, row, self._begin, key=_row)
        return self._runs[at - 1] if at > self._begin else None

    def remove(self, row: int) -> None:
        """Remove the run that begins with *row*."""
        at = bisect_left(self._runs, row, self._begin, key=_row)
        if at > self._begin:
            del self._runs[at]
            return
        self._runs[at] = _GONE
        self._begin += 1
        if 2 * self._begin > len(self._runs):
            del self._runs[: self._begin]
            self._begin = 0


class ClientIds:
    """One client's ids in one topic, as batches, oldest first."""

    __slots__ = ("_count", "_others", "_runs", "batches")

    def __init__(self) -> None:
        self.batches: deque[_Batch] = deque()
        self._runs: dict[bytes, _Runs] = {}
        self._others: dict[bytes, _Batch] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def knows_any(self, ids: Ids) -> bool:
        """Whether one of *ids* is remembered."""
        return any(map(self._knows_any_of_part, in_parts(ids)))

    def _knows_any_of_part(self, ids: Ids) -> bool:
        if isinstance(ids, IdRun):
            return self._knows_any_row(ids)
        return not self._others.keys().isdisjoint(ids)

    def _knows_any_row(self, ids: IdRun) -> bool:
        runs = self._runs.get(ids.prefix)
        last = runs.last_before(ids.row + ids.length) if runs is not None else None
        return last is not None and _end_row(last) > ids.row

    def place(self, message_id: bytes) -> int | None:
        """Return the place of one message; None: its id is not remembered."""
        wanted = run_from(message_id, 1)
        if wanted is None:
            return self._place_of_other(message_id)
        runs = self._runs.get(wanted.prefix)
        run = runs.last_before(wanted.row + 1) if runs is not None else None
        if run is None or _end_row(run) <= wanted.row:
            return None
        _, row, _, start = run
        return start + (wanted.row - row << QUEUE_BITS)

    def _place_of_other(self, message_id: bytes) -> int | None:
        batch = self._others.get(message_id)
        if batch is None:
            return None
        ids, _, count, start = batch
        row = cast("tuple[bytes, ...]", ids).index(message_id) if count > 1 else 0
        return start + (row << QUEUE_BITS)

    def remember(self, ids: Ids, start: int) -> int:
        """Remember new ids as those of the messages from place *start* on; return how many."""
        before = self._count
        for part in in_parts(ids):
            self._remember_part(part, start + (self._count - before << QUEUE_BITS))
        return self._count - before

    def _remember_part(self, ids: Ids, start: int) -> None:
        if isinstance(ids, IdRun):
            prefix, row, length = ids
            runs = self._runs.get(prefix)
            if runs is None:
                runs = self._runs[prefix] = _Runs(prefix)
            batch: _Batch = (runs.prefix, row, length, start)  # one object for all its runs
            runs.add(batch)
        else:
            batch = (ids, 0, len(ids), start)
            self._others.update(dict.fromkeys(ids, batch))
        self.batches.append(batch)
        self._count += batch[2]

    def forget_oldest(self) -> int:
        """Forget the oldest batch, or the part of it that is one run; return how many ids."""
        batch = self.batches.popleft()
        key, row, count, _ = batch
        if isinstance(key, bytes):
            self._forget_run(key, row)
        else:
            for message_id in key:
                del self._others[message_id]
        self._count -= count
        return count

    def _forget_run(self, prefix: bytes, row: int) -> None:
        runs = self._runs[prefix]
        runs.remove(row)
        if not runs:
            del self._runs[prefix]

    def write(self, out: Writer) -> None:
        """Add the ids to a snapshot; batches are copied now, and looked at later."""
        batches = tuple(self.batches)
        count = len(batches)
        out.pieces(count, lambda: in_arrays("I", map(itemgetter(2), batches)))
        out.pieces(count, lambda: in_arrays("Q", map(itemgetter(3), batches)))
        out.strings(len(self._runs), partial(_prefixes, batches))
        out.strings(len(self._others), partial(_others, batches))
        out.pieces(count, lambda: in_arrays("I", _prefix_numbers(batches)))
        out.pieces(count, lambda: in_arrays("Q", map(_row, batches)))

    def canonical(self) -> list[object]:
        """Return lengths of batches, ids and places as plain values, oldest first."""
        ids = chain.from_iterable(map(_spelled_out, self.batches))
        return [
            [count for _, _, count, _ in self.batches],
            [str(message_id, "latin-1") for message_id in ids],
            [place for _, _, count, start in self.batches for place in _places(count, start)],
        ]


def _end_row(run: _Batch) -> int:
    return run[1] + run[2]


def _spelled_out(batch: _Batch) -> tuple[bytes, ...]:
    key, row, count, _ = batch
    return IdRun(key, row, count).spelled_out() if isinstance(key, bytes) else key


def _places(count: int, start: int) -> range:
    """Return the places of *count* messages that follow each other in a queue."""
    return range(start, start + (count << QUEUE_BITS), 1 << QUEUE_BITS)


def _prefixes(batches: Iterable[_Batch]) -> Iterable[bytes]:
    return dict.fromkeys(key for key, _, _, _ in batches if isinstance(key, bytes))


def _others(batches: Iterable[_Batch]) -> Iterable[bytes]:
    return chain.from_iterable(key for key, _, _, _ in batches if not isinstance(key, bytes))


def _prefix_numbers(batches: Sequence[_Batch]) -> Iterator[int]:
    numbers = {prefix: 1 + number for number, prefix in enumerate(_prefixes(batches))}
    return (numbers[key] if isinstance(key, bytes) else 0 for key, _, _, _ in batches)


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
