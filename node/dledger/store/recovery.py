"""Recovery of a commit log: refuse damage, truncate a torn tail, restore the second copies.

The log ends at the first record that is neither valid nor known from a second copy (`log_scan`).
At or below the durable watermark both copies are damaged, so the log is refused. Above it the
record was never acknowledged, so the log is truncated there. Called by `CommitLog.open`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import closing, suppress
from pathlib import Path

from dledger.errors import CorruptRecord, DiskFull
from dledger.files.files import Files, Mode
from dledger.files.full import making
from dledger.store.format import SegmentHeader, encode_index, encode_segment_header
from dledger.store.identity import Identity
from dledger.store.log_scan import LogScan, load_index
from dledger.store.segment import INDEX_SUFFIX, NEW_SUFFIX, SUFFIX, Segment, TermRuns
from dledger.store.segment_scan import to_index
from dledger.store.shadow_index import encode_rows, identities
from dledger.store.watermark import Watermark

_log = logging.getLogger(__name__)
_REWRITE_BYTES = 1 << 20


def check(found: LogScan) -> None:
    """Refuse a log that lacks a record that was synced.

    Raises:
        CorruptRecord: A record at or below the watermark is missing or differs from what was
            synced.
    """
    mark = found.mark
    if found.last_index < mark.index:
        raise CorruptRecord(
            found.fault_segment,
            found.fault_offset,
            f"{found.fault}; entries up to {mark.index} were synced",
        )
    if mark.index < mark.first_index:
        return
    segment = next(s for s in reversed(found.segments) if s.first_index <= mark.index)
    chain = segment.chain(mark.index)
    if chain != mark.chain:
        raise CorruptRecord(
            segment.name,
            segment.position(mark.index),
            f"chain CRC is {chain:#010x}, the watermark says {mark.chain:#010x}",
        )


def repair(
    files: Files, directory: Path, found: LogScan, watermark: Watermark, identity: Identity
) -> bool:
    """Truncate the log after its last record, sync the rest, and restore the second copies.

    Everything above the watermark is written again before it is synced: after an earlier failed
    sync the page cache may hold, as clean, bytes that never reached the disk. The watermark and
    the identity rows are written again for the same reason. Faulty records stay as they are.

    Returns:
        True if the identity rows of the last segment are on disk; False if the disk is full.

    Raises:
        OSError: A write or sync failed.
    """
    _tell(found)
    watermark.settle()
    _remove_leftovers(files, directory, found)
    _restore_files(files, directory, found, identity)
    for segment in found.segments:
        if segment.last_index > found.mark.index or segment is found.segments[-1]:
            _settle(files, segment, found.mark.index)
    free = _restore_indexes(files, directory, found)
    return _renew_watermark(found, watermark, with_rows=free)


def _tell(found: LogScan) -> None:
    for damage in found.damages:
        _log.error("rot: %s; it will be fetched from the peers", damage)
    if found.fault:
        _log.warning(
            "cut the log behind index %d at %s byte %d, above the synced index %d: %s",
            found.last_index,
            found.fault_segment,
            found.fault_offset,
            found.mark.index,
            found.fault,
        )


def _restore_files(files: Files, directory: Path, found: LogScan, identity: Identity) -> None:
    """Rewrite damaged headers, and create the missing files, whose records are all faulty."""
    for segment in found.headerless:
        file = files.open(segment.path, Mode.UPDATE)
        file.pwritev([header_of(segment, identity)], 0)
        file.fdatasync()
        file.close()
    for segment in found.lost:
        temporary = segment.path.with_name(segment.name + NEW_SUFFIX)
        file = files.open(temporary, Mode.CREATE)
        file.preallocate(segment.capacity_bytes)
        file.pwritev([header_of(segment, identity)], 0)
        file.fdatasync()
        file.close()
        files.rename(temporary, segment.path)
    if found.lost:
        files.fsync_dir(directory)


def header_of(segment: Segment, identity: Identity) -> bytes:
    """Return the header page of a segment on this disk."""
    return encode_segment_header(
        SegmentHeader(
            group_id=identity.group_of(segment.first_index),
            node_id=identity.node_id,
            first_index=segment.first_index,
            previous_chain=segment.previous_chain,
        )
    )


def _restore_indexes(files: Files, directory: Path, found: LogScan) -> bool:
    """Write missing and damaged index files; return True if all of them are now durable.

    Until then the identity rows of a segment without an index file are its only second copy, so
    they must not be overwritten.
    """
    lacking = [
        segment
        for segment in found.segments[:-1]
        if load_index(files, segment.index_path) != to_index(segment, found.runs, found.memberships)
    ]
    written = 0
    with suppress(DiskFull):
        for each in lacking:
            write_index(files, each, found.runs, found.memberships)
            written += 1
    if written:
        files.fsync_dir(directory)
    return written == len(lacking)


def _renew_watermark(found: LogScan, watermark: Watermark, *, with_rows: bool) -> bool:
    """Write the watermark again, and the last segment's identity rows if there is room."""
    rows = b""
    for last in found.segments[-1:]:
        with_rows = with_rows and has_room_for_rows(watermark, last)
        if with_rows:
            rows = encode_rows(identities(last, found.runs, frozenset(found.memberships)))
    watermark.advance(index=found.last_index, chain=found.last_chain, rows=rows)
    return with_rows


def has_room_for_rows(watermark: Watermark, segment: Segment) -> bool:
    """Make room for the identity rows of a segment's records; False if the disk is full.

    Raises:
        OSError: The disk failed.
    """
    try:
        watermark.reserve(len(segment.positions))
    except DiskFull:
        return False
    return True


def _remove_leftovers(files: Files, directory: Path, found: LogScan) -> None:
    """Remove files that are not part of the log, and make all file names durable.

    The names found need the fsync too: the previous process may have been killed between a rename
    or removal and the directory fsync after it.
    """
    kept = {segment.name for segment in found.segments}
    kept |= {segment.index_path.name for segment in found.segments[:-1]}
    names = [
        name
        for name in files.list(directory)
        if name.endswith((SUFFIX, INDEX_SUFFIX, NEW_SUFFIX)) and name not in kept
    ]
    for name in reversed(names):
        files.remove(directory / name)
    files.fsync_dir(directory)


def _settle(files: Files, segment: Segment, synced: int) -> None:
    file = files.open(segment.path, Mode.UPDATE)
    try:
        segment.scrub(file)
        start = segment.position(max(synced + 1, segment.first_index))
        for position in range(start, segment.end, _REWRITE_BYTES):
            size = min(_REWRITE_BYTES, segment.end - position)
            file.pwritev([file.pread(size, position)], position)
        file.fdatasync()  # zeros, too: a killed process may not have synced them
    finally:
        file.close()


def write_index(
    files: Files, segment: Segment, runs: TermRuns, memberships: Collection[int]
) -> None:
    """Write the index file of a sealed segment, atomically.

    Raises:
        DiskFull: The disk has no room for it; there is nothing of it.
        OSError: It failed for another reason.
    """
    path = segment.index_path
    temporary = path.with_name(path.name + NEW_SUFFIX)
    with making(files, temporary, f"write the index file of segment {segment.name}"):
        with closing(files.open(temporary, Mode.CREATE)) as file:
            file.pwritev([encode_index(to_index(segment, runs, memberships))], 0)
            file.fdatasync()
        files.rename(temporary, path)
