"""The message ids that the deduplication window remembers of one client in one topic.

Ids that count up are stored as runs, others one by one. Owned by `deduplication`. In a snapshot,
several clients together are encoded as these columns (`snapshot_codec`)::

    strings           the client ids, one for each client
    strings           the topics, in order of first use
    topic, used       for each client: the topic's number, and when the client last sent
    batches           for each client: its number of batches
    count, position   number of messages; (queue offset << 16 | queue id) of the first one
    strings           the prefixes of runs, in order of first use
    strings           all ids of batches that are not runs
    prefix, row       1 + the prefix's number, and the first row; 0, 0: not a run
    digests           for each message: the digest of its body (`body_digests`)

From *count* on, a column has one item for each batch unless stated otherwise: those of the first
client, oldest first, then those of the next one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from dledger.broker.body_digests import Digests
from dledger.broker.id_runs import MAX_ROW, IdRun, Ids, has_repeats, in_parts, run_from
from dledger.broker.snapshot_codec import Reader, arrays, column, strings, text_bytes

QUEUE_BITS = 16
_END = 1 << 64
_SERIAL_SHIFT = 64
_COUNT_SHIFT = 96
_ROW_SHIFT = 128
_U32 = 0xFFFF_FFFF

_Key = bytes | tuple[bytes, ...]
"""The common prefix of a batch's ids; or the ids themselves if they do not count up."""


class Found(NamedTuple):
    """A remembered message: its position, and the digest of its body."""

    position: int
    digest: int


def _batch(row: int, count: int, serial: int, start: int) -> int:
    """Pack a batch into one number, ordered by its first row (0 if the ids are not a run).

    The messages of a batch are consecutive in a queue. *start* is the position of the first one;
    *serial* is the number of earlier messages of the client, modulo 2^32, and locates the digests.
    A number, because it takes a third of a tuple's memory and the garbage collector never visits
    it: a window may hold half a million.
    """
    return row << _ROW_SHIFT | count << _COUNT_SHIFT | serial << _SERIAL_SHIFT | start


def _row(batch: int) -> int:
    return batch >> _ROW_SHIFT


def _count(batch: int) -> int:
    return batch >> _COUNT_SHIFT & _U32


def _serial(batch: int) -> int:
    return batch >> _SERIAL_SHIFT & _U32


def _start(batch: int) -> int:
    return batch & _END - 1


class _Runs:
    """The runs of one prefix, by row.

    The first run is usually the first to be removed, so removing it only advances an index.
    """

    __slots__ = ("_begin", "_runs", "prefix")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._runs: list[int] = []
        self._begin = 0

    def __bool__(self) -> bool:
        return self._begin < len(self._runs)

    def copy(self) -> _Runs:
        """Return an independent copy."""
        other = _Runs(self.prefix)
        other._runs = self._runs[self._begin :]
        return other

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
    """One client's ids in one topic, as batches, oldest first.

    There may be a hundred thousand clients with one message each, so no deques are used: each would
    allocate room for 64 items.

    Attributes:
        key: (client id, topic).
        used_ms: When the client last sent to the topic, by the log's time, Unix milliseconds.
        edition: The edition of the state that this belongs to; see `editions`.
    """

    __slots__ = (
        "_batches",
        "_begin",
        "_count",
        "_digests",
        "_digests_begin",
        "_first_serial",
        "_keys",
        "_others",
        "_runs",
        "edition",
        "key",
        "used_ms",
    )

    def __init__(self, key: tuple[str, str], edition: int = 0) -> None:
        self.key, self.edition = key, edition
        self.used_ms = 0
        self._keys: list[_Key] = []
        self._batches: list[int] = []
        self._begin = 0
        self._runs: dict[bytes, _Runs] = {}
        self._others: dict[bytes, int] = {}
        """The serial and the position of each, as in `_batch`."""
        self._digests = array("Q")
        self._digests_begin = self._first_serial = 0
        self._count = 0

    def copy(self, edition: int) -> ClientIds:
        """Return a copy that may be changed; this object must no longer be."""
        other = ClientIds(self.key, edition)
        other._keys, other._batches = self._keys[self._begin :], self._batches[self._begin :]
        other._count, other.used_ms = self._count, self.used_ms
        other._runs = {prefix: runs.copy() for prefix, runs in self._runs.items()}
        other._others = self._others.copy()
        other._digests, other._first_serial = self.digests(), self._first_serial
        return other

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

    def find(self, message_id: bytes) -> Found | None:
        """Return what is known of one message; None if its id is not remembered."""
        wanted = run_from(message_id, 1)
        if wanted is None:
            other = self._others.get(message_id)
            return None if other is None else self._found(_start(other), _serial(other))
        runs = self._runs.get(wanted.prefix)
        run = runs.last_before(wanted.row + 1) if runs is not None else None
        if run is None or _end_row(run) <= wanted.row:
            return None
        behind = wanted.row - _row(run)
        return self._found(_start(run) + (behind << QUEUE_BITS), _serial(run) + behind)

    def _found(self, position: int, serial: int) -> Found:
        at = self._digests_begin + (serial - self._first_serial & _U32)
        return Found(position, self._digests[at])

    def remember(self, ids: Ids, digests: Digests, start: int) -> int:
        """Remember the new ids of the messages from position *start* on; return their number.

        *digests* has an item for each id; it is copied.
        """
        before = self._count
        for part in in_parts(ids):
            self._remember_part(part, start + (self._count - before << QUEUE_BITS))
        if before:
            self._digests += digests
        else:  # `+=` would allocate room for four more
            self._digests, self._digests_begin = digests[:], 0
        return self._count - before

    def _remember_part(self, ids: Ids, start: int) -> None:
        serial = self._first_serial + self._count & _U32
        if isinstance(ids, IdRun):
            count, batch = ids.length, _batch(ids.row, ids.length, serial, start)
            key: _Key = self._add_run(ids.prefix, batch)
        else:
            count, batch, key = len(ids), _batch(0, len(ids), serial, start), ids
            for number, each in enumerate(ids):
                place = start + (number << QUEUE_BITS)
                self._others[each] = _batch(0, 0, serial + number & _U32, place)
        if self._batches:
            self._keys.append(key)
            self._batches.append(batch)
        else:
            self._keys, self._batches = [key], [batch]  # `append` would allocate room for four
        self._count += count

    def _add_run(self, prefix: bytes, batch: int) -> bytes:
        """Remember a run; return its prefix, as the one object that all its runs share."""
        runs = self._runs.get(prefix)
        if runs is None:
            runs = self._runs[prefix] = _Runs(prefix)
        runs.add(batch)
        return runs.prefix

    def forget_oldest(self) -> int:
        """Forget the oldest batch; return its number of ids."""
        key, batch = self._keys[self._begin], self._batches[self._begin]
        self._keys[self._begin], self._batches[self._begin] = b"", 0
        self._begin += 1
        if 2 * self._begin > len(self._keys):
            del self._keys[: self._begin], self._batches[: self._begin]
            self._begin = 0
        if isinstance(key, bytes):
            self._forget_run(key, batch)
        else:
            for message_id in key:
                del self._others[message_id]
        self._forget_digests(_count(batch))
        self._count -= _count(batch)
        return _count(batch)

    def _forget_digests(self, count: int) -> None:
        self._first_serial = self._first_serial + count & _U32
        self._digests_begin += count
        if 2 * self._digests_begin > len(self._digests):
            del self._digests[: self._digests_begin]
            self._digests_begin = 0

    def _forget_run(self, prefix: bytes, run: int) -> None:
        runs = self._runs[prefix]
        runs.remove(run)
        if not runs:
            del self._runs[prefix]

    def batches(self) -> list[int]:
        """Return the batches as numbers, oldest first."""
        return self._batches[self._begin :]

    def in_common(self) -> list[_Key]:
        """Return the key of each batch (a prefix, or the ids), oldest first."""
        return self._keys[self._begin :]

    def digests(self) -> Digests:
        """Return the digests of all messages, oldest first, as an array of its own."""
        return self._digests[self._digests_begin :]

    def read(self, source: Reader, batches: Iterable[tuple[Ids, Digests, int]]) -> None:
        """Add *batches* (ids, digests, position) from a snapshot. Raises MalformedStateError."""
        starts = set[int]()
        for ids, digests, start in batches:
            if has_repeats(ids) or self.knows_any(ids) or start in starts:
                raise source.malformed(f"an id or a place of client {self.key[0]!r} occurs twice")
            self.remember(ids, digests, start)
            starts.add(start)

    def canonical(self) -> list[object]:
        """Return the last use, lengths of batches, ids, positions and digests, oldest first."""
        keys, batches = self.in_common(), self.batches()
        ids = chain.from_iterable(map(_spelled_out, keys, batches))
        counts = list(map(_count, batches))
        starts = map(_start, batches)
        return [
            self.used_ms,
            counts,
            [str(message_id, "latin-1") for message_id in ids],
            [*chain.from_iterable(map(_positions, counts, starts))],
            list(self.digests()),
        ]


def _end_row(run: int) -> int:
    return _row(run) + _count(run)


def _spelled_out(key: _Key, batch: int) -> tuple[bytes, ...]:
    if isinstance(key, bytes):
        return IdRun(key, _row(batch), _count(batch)).spelled_out()
    return key


def _positions(count: int, start: int) -> range:
    """Return the positions of *count* consecutive messages of a queue."""
    return range(start, start + (count << QUEUE_BITS), 1 << QUEUE_BITS)


def encoded(clients: Sequence[ClientIds]) -> Iterator[bytes]:
    """Yield the bytes of some clients' ids for a snapshot; they must not change meanwhile."""
    topics = {topic: number for number, topic in enumerate(_topics(clients))}
    keys = [key for client in clients for key in client.in_common()]
    batches = [batch for client in clients for batch in client.batches()]
    prefixes = {key: 1 + number for number, key in enumerate(_prefixes(keys))}
    others = [*chain.from_iterable(key for key in keys if not isinstance(key, bytes))]
    count = len(batches)
    yield from strings([text_bytes(client.key[0]) for client in clients])
    yield from strings([text_bytes(topic) for topic in topics])
    yield from column("I", len(clients), (topics[client.key[1]] for client in clients))
    yield from column("q", len(clients), (client.used_ms for client in clients))
    yield from column("I", len(clients), (len(client.batches()) for client in clients))
    yield from column("I", count, map(_count, batches))
    yield from column("Q", count, map(_start, batches))
    yield from strings(list(prefixes))
    yield from strings(others)
    yield from column("I", count, (prefixes[k] if isinstance(k, bytes) else 0 for k in keys))
    yield from column("Q", count, map(_row, batches))
    yield from arrays([client.digests() for client in clients])


def _topics(clients: Sequence[ClientIds]) -> Iterable[str]:
    return dict.fromkeys(client.key[1] for client in clients)


def _prefixes(keys: Sequence[_Key]) -> Iterable[bytes]:
    return dict.fromkeys(key for key in keys if isinstance(key, bytes))


def read_clients(source: Reader) -> Iterator[ClientIds]:
    """Yield the clients that `encoded` wrote. Raises MalformedStateError."""
    names, topics = source.strings(), list(map(source.text_of, source.strings()))
    numbers = source.column("I", len(names))
    used_ms = source.column("q", len(names))
    lengths = source.column("I", len(names))
    if max(numbers, default=-1) >= len(topics):
        raise source.malformed(f"a client of another than {len(topics)} topics")
    batches = _read_batches(source, sum(lengths))
    for name, number, at_ms, length in zip(names, numbers, used_ms, lengths, strict=True):
        client = ClientIds((source.text_of(name), topics[number]))
        client.used_ms = at_ms
        client.read(source, islice(batches, length))
        yield client
    if next(batches, None) is not None:
        raise source.malformed("ids of no client")


def _read_batches(source: Reader, batches: int) -> Iterator[tuple[Ids, Digests, int]]:
    """Yield the ids, digests and position of each batch."""
    counts = source.column("I", batches)
    starts = source.column("Q", batches)
    prefixes, others = source.strings(), source.strings()
    numbers = source.column("I", batches)
    rows = source.column("Q", batches)
    digests = source.column("Q", sum(counts))
    taken = told = 0
    for count, start, number, row in zip(counts, starts, numbers, rows, strict=True):
        if not count or start + (count << QUEUE_BITS) > _END:
            raise source.malformed(f"a batch of {count} messages at position {start}")
        if number > len(prefixes) or (row + count - 1 if number else row) > MAX_ROW:
            raise source.malformed(f"rows from {row} on of prefix {number} of {len(prefixes)}")
        told += count
        some = digests[told - count : told]
        if number:
            yield IdRun(prefixes[number - 1], row, count), some, start
        else:
            yield tuple(others[taken : taken + count]), some, start
            taken += count
    if taken != len(others):
        raise source.malformed(f"{len(others)} ids in batches of {taken}")
