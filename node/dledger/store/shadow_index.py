"""The second copy of the last segment's record identities, as pure functions.

The rows follow the two slots in the watermark file, from byte 8192 on: row *n* belongs to record
*n* of the last segment, counted from 0. Owned by `watermark`, read by `log_scan`. A sealed segment
has its second copy in its index file instead, so the next segment overwrites its rows. ADR 11 says
why a second copy exists: with it, a damaged record can be fetched from a peer and verified.

Row, 32 bytes, so that none straddles a sector::

    0     7    index (u56)
    7     1    1 for a MEMBERSHIP entry, else 0
    8     8    term (u64)
    16    4    chain CRC (u32)
    20    4    where the record begins in the segment (u32), in units of 8 bytes
    24    4    size of the record with header and padding (u32), in units of 8 bytes
    28    4    CRC of bytes [0, 28)

A row is valid if its CRC matches, its index is the one expected in that row, and that index is at
or below the watermark. So rows of an earlier segment or of truncated records are never valid.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import NamedTuple

from crc32c import crc32c

from dledger.store.format import ALIGNMENT_BYTES, SegmentIndex
from dledger.store.segment import Segment, TermRuns

ROW_BYTES = 32
_ROW = struct.Struct("<QQIII")
_U32 = struct.Struct("<I")
_MEMBERSHIP = 1 << 56


class RecordIdentity(NamedTuple):
    """Everything about a record but its bytes: enough to verify a copy that a peer sends.

    Attributes:
        start: The byte of the segment file at which it begins.
        end: The byte after it and its padding.
    """

    entry_index: int
    term: int
    chain: int
    start: int
    end: int
    is_membership: bool


def identities(
    segment: Segment,
    runs: TermRuns,
    memberships: Collection[int],
    *,
    first: int = 0,
    last: int | None = None,
) -> list[RecordIdentity]:
    """Return the identities of those records of [first, last] that the segment holds."""
    newest = segment.last_index
    first, stop = max(first, segment.first_index), newest if last is None else min(last, newest)
    found: list[RecordIdentity] = []
    end = segment.position(first)
    for index in range(first, stop + 1):
        start, end = end, segment.position(index + 1)
        term, chain = runs.term(index), segment.chain(index)
        found.append(RecordIdentity(index, term, chain, start, end, index in memberships))
    return found


def encode_rows(identities: Iterable[RecordIdentity]) -> bytes:
    """Return the rows of consecutive records."""
    rows: list[bytes] = []
    for identity in identities:
        fields = _ROW.pack(
            identity.entry_index | (_MEMBERSHIP if identity.is_membership else 0),
            identity.term,
            identity.chain,
            identity.start // ALIGNMENT_BYTES,
            (identity.end - identity.start) // ALIGNMENT_BYTES,
        )
        rows += (fields, _U32.pack(crc32c(fields)))
    return b"".join(rows)


class RowIdentities:
    """The identities in *rows*, which belong to the segment that begins with *first_index*."""

    def __init__(self, rows: bytes, first_index: int) -> None:
        self._rows = rows
        self._first_index = first_index

    def __call__(self, index: int) -> RecordIdentity | None:
        """Return the identity of the record at *index*; None if its row is not valid."""
        at = (index - self._first_index) * ROW_BYTES
        row = self._rows[at : at + ROW_BYTES]
        if len(row) < ROW_BYTES or crc32c(row[: _ROW.size]) != _U32.unpack_from(row, _ROW.size)[0]:
            return None
        tagged, term, chain, start, size = _ROW.unpack_from(row)
        if tagged & ~_MEMBERSHIP != index:
            return None
        return RecordIdentity(
            entry_index=index,
            term=term,
            chain=chain,
            start=start * ALIGNMENT_BYTES,
            end=(start + size) * ALIGNMENT_BYTES,
            is_membership=bool(tagged & _MEMBERSHIP),
        )


class IndexIdentities:
    """The identities that a sealed segment's index file holds."""

    def __init__(self, index: SegmentIndex) -> None:
        self._index = index
        self._runs = TermRuns(index.runs)
        self._memberships = frozenset(index.memberships)

    def __call__(self, index: int) -> RecordIdentity | None:
        """Return the identity of the record at *index*; None if it is not in the segment."""
        number, positions = index - self._index.first_index, self._index.positions
        if not 0 <= number < len(positions):
            return None
        following = positions[number + 1] if number + 1 < len(positions) else None
        return RecordIdentity(
            entry_index=index,
            term=self._runs.term(index),
            chain=self._index.chains[number],
            start=positions[number] * ALIGNMENT_BYTES,
            end=self._index.end if following is None else following * ALIGNMENT_BYTES,
            is_membership=index in self._memberships,
        )
