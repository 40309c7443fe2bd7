"""Rebuilding a segment's record positions from its bytes and the second copy of its identities.

Pure: bytes in, `Scan` out. Called by `log_scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dledger.store.faulty_ranges import FaultyRanges
from dledger.store.format import (
    ALIGNMENT_BYTES,
    RECORD_HEADER_BYTES,
    RecordHeader,
    SegmentIndex,
    decode_body,
    decode_record_header,
    record_size,
)
from dledger.store.segment import ZEROS, Segment, TermRuns
from dledger.store.shadow_index import RecordIdentity
from dledger.types import EntryKind

Known = Callable[[int], RecordIdentity | None]
"""Returns the identity that a second copy has for an index; None if it has no valid one."""


def nothing_known(index: int) -> None:
    """Return None: there is no second copy."""


@dataclass(slots=True)
class Scan:
    """What one segment holds.

    Attributes:
        segment: The records up to the first one that is neither valid nor known.
        faulty: The records that are known from the second copy, but not valid.
        fault: Why the scan ended at `segment.end`; "" if only zeros follow.
        damage: Why the first faulty record is not valid; "" if there is none.
    """

    segment: Segment
    runs: TermRuns = field(default_factory=TermRuns)
    memberships: list[int] = field(default_factory=list)
    faulty: FaultyRanges = field(default_factory=FaultyRanges)
    fault: str = ""
    damage: str = ""


def scan(
    data: bytes, segment: Segment, known: Known = nothing_known, *, prefer_known: bool = False
) -> Scan:
    """Fill the empty *segment* from the file's bytes, checking every header and body.

    An invalid record that is *known* is faulty, and the scan continues after it. Bytes of an old or
    torn write after the last record set `dirty_end`.

    Args:
        data: The whole file, or as much as could be read.
        segment: Gives the first record's index and the chain CRC that it continues.
        known: The second copy, limited to records that were synced.
        prefer_known: Treat a valid record that differs from the known one as faulty: the disk
            returned an older write.
    """
    result = Scan(segment)
    view = memoryview(data)
    while True:
        reason = _take(view, result, known if prefer_known else nothing_known)
        if reason is not None and not _take_known(result, known, reason):
            result.fault = reason
            break
    segment.dirty_end = _remains_end(data, segment.end)
    if segment.dirty_end > segment.end and not result.fault:
        result.fault = "bytes that are not zero follow the last record"
    return result


def _take(view: memoryview, result: Scan, expected: Known) -> str | None:
    """Add the record at the end; return why it is not valid ("" if only zeros are there)."""
    segment = result.segment
    at, index = segment.end, segment.last_index + 1
    if not any(view[at : at + RECORD_HEADER_BYTES]):
        return ""
    try:
        header = decode_record_header(view, at, chain=segment.last_chain, index=index)
        _check_expected(header, expected(index))
        decode_body(view, at, header)
    except ValueError as error:
        return str(error)
    _add(
        result,
        RecordIdentity(
            entry_index=index,
            term=header.term,
            chain=header.chain,
            start=at,
            end=min(at + record_size(header.length), len(view)),
            is_membership=header.kind is EntryKind.MEMBERSHIP,
        ),
    )
    return None


def _check_expected(header: RecordHeader, identity: RecordIdentity | None) -> None:
    if identity is not None and identity.chain != header.chain:
        raise ValueError(
            f"chain CRC is {header.chain:#010x}, the second copy says {identity.chain:#010x}"
        )


def _take_known(result: Scan, known: Known, reason: str) -> bool:
    segment = result.segment
    identity = known(segment.last_index + 1)
    if identity is None or identity.start != segment.end:
        return False
    result.faulty.add(identity.entry_index, identity.entry_index)
    result.damage = result.damage or (
        f"record of index {identity.entry_index} at byte {identity.start} of {segment.name}: "
        f"{reason or 'zeros'}"
    )
    _add(result, identity)
    return True


def _add(result: Scan, identity: RecordIdentity) -> None:
    segment = result.segment
    segment.positions.append(identity.start // ALIGNMENT_BYTES)
    segment.chains.append(identity.chain)
    segment.end = identity.end
    result.runs.append(identity.entry_index, identity.term)
    if identity.is_membership:
        result.memberships.append(identity.entry_index)


def _remains_end(data: bytes, end: int) -> int:
    for stop in range(len(data), end, -len(ZEROS)):
        start = max(end, stop - len(ZEROS))
        if data[start:stop] != ZEROS[: stop - start]:
            return stop
    return end


def adopt(index: SegmentIndex, segment: Segment) -> Scan:
    """Fill the empty *segment* from its index file, without reading the records."""
    segment.positions, segment.chains = index.positions, index.chains
    segment.end = segment.dirty_end = index.end
    return Scan(segment, TermRuns(index.runs), list(index.memberships))


def to_index(segment: Segment, runs: TermRuns, memberships: Iterable[int]) -> SegmentIndex:
    """Return the contents of the index file for a segment that is complete."""
    first, last = segment.first_index, segment.last_index
    return SegmentIndex(
        first_index=first,
        previous_chain=segment.previous_chain,
        end=segment.end,
        positions=segment.positions,
        chains=segment.chains,
        runs=runs.within(first, last),
        memberships=tuple(sorted(i for i in memberships if first <= i <= last)),
    )
