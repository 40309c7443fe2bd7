"""Runs of message ids that count up, as most clients' do, stored as the first id and a length.

An id *counts* if it ends with `ROW_DIGITS` decimal digits: they are its row, the rest is its
prefix. So an id has one prefix and one row, or neither, and runs can be compared without expanding
their ids. Used by `deduplication`, and by `produce`, whose frames feed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

ROW_DIGITS: Final = 12
MAX_ROW: Final = 10**ROW_DIGITS - 1
_BLOCK: Final = 1000
_LAST_DIGITS: Final = [b"%03d" % number for number in range(_BLOCK)]


class IdRun(NamedTuple):
    """*length* ids: *prefix* and the rows *row*, *row* + 1, ..., each of `ROW_DIGITS` digits."""

    prefix: bytes
    row: int
    length: int

    def joined(self) -> bytes:
        """Return all the ids, concatenated."""
        end, ids = self.row + self.length, list[bytes]()
        for block in range(self.row // _BLOCK, (end - 1) // _BLOCK + 1):
            head = b"%b%09d" % (self.prefix, block)
            low, high = self.row - block * _BLOCK, end - block * _BLOCK
            ids += (head, head.join(_LAST_DIGITS[max(low, 0) : high]))
        return b"".join(ids)

    def spelled_out(self) -> tuple[bytes, ...]:
        """Return the ids."""
        rows = range(self.row, self.row + self.length)
        return tuple([b"%b%012d" % (self.prefix, row) for row in rows])


Ids = IdRun | tuple[bytes, ...]
"""The ids of consecutive messages: as a run, or each by itself."""


def run_from(message_id: bytes, count: int) -> IdRun | None:
    """Return the run of *count* ids that begins with this one; None if they do not count."""
    if not _counts(message_id):
        return None
    row = int(message_id[-ROW_DIGITS:])
    return IdRun(message_id[:-ROW_DIGITS], row, count) if row + count - 1 <= MAX_ROW else None


def has_repeats(ids: Ids) -> bool:
    """Whether one of them occurs twice."""
    return not isinstance(ids, IdRun) and len(set(ids)) < len(ids)


def in_parts(ids: Ids) -> Sequence[Ids]:
    """Return the same ids in order, in parts: those that count as runs, the others as tuples."""
    if isinstance(ids, IdRun) or not any(map(_counts, ids)):
        return (ids,)
    return tuple(_parts(ids))


def _counts(message_id: bytes) -> bool:
    return len(message_id) >= ROW_DIGITS and message_id[-ROW_DIGITS:].isdigit()


def _parts(ids: tuple[bytes, ...]) -> Iterator[Ids]:
    """Split ids into runs, each with one prefix and consecutive rows, and the ids between them."""
    runs = [run_from(message_id, 1) for message_id in ids]

    def run_of(at: int) -> tuple[bytes, int] | None:
        run = runs[at]
        return (run.prefix, run.row - at) if run is not None else None

    for _, group in groupby(range(len(ids)), run_of):
        positions = list(group)
        first = runs[positions[0]]
        if first is None:
            yield ids[positions[0] : positions[-1] + 1]
        else:
            yield first._replace(length=len(positions))
