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

from dledger.broker.columns import Reader, Writer, in_arrays
from dledger.broker.id_runs import MAX_ROW, IdRun, Ids, in_parts, run_from

QUEUE_BITS = 16
_END = 1 << 64
_COUNT_SHIFT = 64
_ROW_SHIFT = 96

_Key = bytes | tuple[bytes, ...]
"""What the ids of a batch have in common, their prefix; or the ids, which do not count."""


def _batch(row: int, count: int, start: int) -> int:
    """Return a batch as one number, ordered by its first row; that of other ids is 0.

    Messages of a batch follow each other in a queue; *start* is the place of the first. A number
    takes a third of the tuple, the garbage collector never looks at it, and a window may have half
    a million.
    """
    return row << _ROW_SHIFT | count << _COUNT_SHIFT | start


def _row(batch: int) -> int:
    return batch >> _ROW_SHIFT


def _count(batch: int) -> int:
    return batch >> _COUNT_SHIFT & 0xFFFF_FFFF


def _start(batch: int) -> int:
    return batch & _END - 1


class _Runs:
    """Runs of one prefix, by their rows. The first one goes first mostly: it is passed over."""

    __slots__ = ("_begin", "_runs", "prefix")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._runs: list[int] = []
        self._begin = 0

    def __bool__(self) -> bool:
        return self._begin < len(self._runs)

    def add(self, run: int) -> None:
        insort(self._runs, run, self._begin)

    def last_before(self, row: int) -> int | None:
        """Return the last run that begins below *row*."""
        at = bisect_left(self._runs, row << _ROW_SHIFT, self._begin)
        return self._runs[at - 1] if at > self._begin else None

    def remove(self, run: int) -> None:
        """Remove a run that is there."""
        at = bisect_left(self._runs, run, self._begin)
        if at > self._begin:
            del self._runs[at]
            return
        self._runs[at] = 0
        self._begin += 1
        if 2 * self._begin > len(self._runs):
            del self._runs[: self._begin]
            self._begin = 0


class ClientIds:
    """One client's ids in one topic, as batches, oldest first."""

    __slots__ = ("_batches", "_count", "_keys", "_others", "_runs")

    def __init__(self) -> None:
        self._keys: deque[_Key] = deque()
        self._batches: deque[int] = deque()
        self._runs: dict[bytes, _Runs] = {}
        self._others: dict[bytes, int] = {}
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
            return self._others.get(message_id)
        runs = self._runs.get(wanted.prefix)
        run = runs.last_before(wanted.row + 1) if runs is not None else None
        if run is None or _end_row(run) <= wanted.row:
            return None
        return _start(run) + (wanted.row - _row(run) << QUEUE_BITS)

    def remember(self, ids: Ids, start: int) -> int:
        """Remember new ids as those of the messages from place *start* on; return how many."""
        before = self._count
        for part in in_parts(ids):
            self._remember_part(part, start + (self._count - before << QUEUE_BITS))
        return self._count - before

    def _remember_part(self, ids: Ids, start: int) -> None:
        if isinstance(ids, IdRun):
            prefix, row, count = ids
            runs = self._runs.get(prefix)
            if runs is None:
                runs = self._runs[prefix] = _Runs(prefix)
            batch = _batch(row, count, start)
            runs.add(batch)
            self._keys.append(runs.prefix)  # one object for all its runs
        else:
            count = len(ids)
            batch = _batch(0, count, start)
            self._others.update(zip(ids, _places(count, start), strict=True))
            self._keys.append(ids)
        self._batches.append(batch)
        self._count += count

    def forget_oldest(self) -> int:
        """Forget the oldest batch, or the part of it that is one run; return how many ids."""
        key, batch = self._keys.popleft(), self._batches.popleft()
        if isinstance(key, bytes):
            self._forget_run(key, batch)
        else:
            for message_id in key:
                del self._others[message_id]
        self._count -= _count(batch)
        return _count(batch)

    def _forget_run(self, prefix: bytes, run: int) -> None:
        runs = self._runs[prefix]
        runs.remove(run)
        if not runs:
            del self._runs[prefix]

    def write(self, out: Writer) -> None:
        """Add the ids to a snapshot; batches are copied now, and looked at later."""
        keys, batches = tuple(self._keys), tuple(self._batches)
        count = len(batches)
        out.pieces(count, lambda: in_arrays("I", map(_count, batches)))
        out.pieces(count, lambda: in_arrays("Q", map(_start, batches)))
        out.strings(len(self._runs), partial(_prefixes, keys))
        out.strings(len(self._others), partial(_other_ids, keys))
        out.pieces(count, lambda: in_arrays("I", _prefix_numbers(keys)))
        out.pieces(count, lambda: in_arrays("Q", map(_row, batches)))

    def canonical(self) -> list[object]:
        """Return lengths of batches, ids and places as plain values, oldest first."""
        ids = chain.from_iterable(map(_spelled_out, self._keys, self._batches))
        counts = list(map(_count, self._batches))
        starts = map(_start, self._batches)
        return [
            counts,
            [str(message_id, "latin-1") for message_id in ids],
            [*chain.from_iterable(map(_places, counts, starts))],
        ]


def _end_row(run: int) -> int:
    return _row(run) + _count(run)


def _spelled_out(key: _Key, batch: int) -> tuple[bytes, ...]:
    if isinstance(key, bytes):
        return IdRun(key, _row(batch), _count(batch)).spelled_out()
    return key


def _places(count: int, start: int) -> range:
    """Return the places of *count* messages that follow each other in a queue."""
    return range(start, start + (count << QUEUE_BITS), 1 << QUEUE_BITS)


def _prefixes(keys: Iterable[_Key]) -> Iterable[bytes]:
    return dict.fromkeys(key for key in keys if isinstance(key, bytes))


def _other_ids(keys: Iterable[_Key]) -> Iterable[bytes]:
    return chain.from_iterable(key for key in keys if not isinstance(key, bytes))


def _prefix_numbers(keys: Sequence[_Key]) -> Iterator[int]:
    numbers = {prefix: 1 + number for number, prefix in enumerate(_prefixes(keys))}
    return (numbers[key] if isinstance(key, bytes) else 0 for key in keys)


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
