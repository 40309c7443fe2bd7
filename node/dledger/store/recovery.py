"""Opening a commit log: find its records, tell a torn tail from rot, leave a clean tail.

The log ends at the first record that is not valid. At or below the durable watermark that is
rot, and refused; above it, it was never acknowledged, and is cut. Called by `CommitLog.open`;
`survey` changes nothing and serves ``dledger log verify`` too.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass, field
from pathlib import Path

from dledger.errors import CorruptRecord, WrongIdentity
from dledger.store.files import File, Files, Mode
from dledger.store.format import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Mark,
    SegmentHeader,
    SegmentIndex,
    decode_index,
    decode_record_header,
    decode_segment_header,
    encode_index,
)
from dledger.store.identity import Identity
from dledger.store.segment import (
    INDEX_SUFFIX,
    NEW_SUFFIX,
    SUFFIX,
    Scan,
    Segment,
    TermRuns,
    adopt,
    scan,
    segment_name,
    to_index,
)
from dledger.store.watermark import Watermark

_log = logging.getLogger(__name__)
_REWRITE_BYTES = 1 << 20


@dataclass(slots=True)
class Survey:
    """What a log directory holds.

    Attributes:
        mark: The durable watermark it was held against.
        firsts: First indexes of all segment files behind the mark's base, ascending.
        segments: Those that belong to the log; the last may be empty or have remains.
        fault: Why the log ends where it does; "" if it ends cleanly.
        fault_segment: The name of the segment file with the fault.
        fault_offset: The byte in it.
    """

    mark: Mark
    firsts: list[int]
    segments: list[Segment] = field(default_factory=list)
    runs: TermRuns = field(default_factory=TermRuns)
    memberships: list[int] = field(default_factory=list)
    fault: str = ""
    fault_segment: str = ""
    fault_offset: int = 0

    @property
    def last_index(self) -> int:
        """The last valid record; the log's first index - 1 if there is none."""
        return self.segments[-1].last_index if self.segments else self.mark.first_index - 1

    @property
    def last_chain(self) -> int:
        """The chain CRC of the last valid record."""
        return self.segments[-1].last_chain if self.segments else self.mark.base.chain

    def blame(self, first_index: int, offset: int, fault: str) -> None:
        """End the log at this byte of the segment that begins with *first_index*."""
        self.fault, self.fault_offset = fault, offset
        self.fault_segment = segment_name(first_index)

    def include(self, found: Scan) -> None:
        """Take in the next segment."""
        self.segments.append(found.segment)
        self.runs.extend(found.runs.within(found.segment.first_index, found.segment.last_index))
        self.memberships += found.memberships
        if found.fault:
            self.blame(found.segment.first_index, found.segment.end, found.fault)


def survey(
    files: Files, directory: Path, mark: Mark, identity: Identity | None, *, full: bool = False
) -> Survey:
    """Read the log up to its end; *full* checks all bodies and ignores the index files.

    It must be the log of *identity*; None accepts any.

    Raises:
        WrongIdentity: A segment was written by another node or for another group.
        CorruptRecord: The disk cannot read a segment back.
    """
    firsts = segment_firsts(files, directory)
    result = Survey(mark, [first for first in firsts if first >= mark.first_index])
    for first in result.firsts:
        if first != result.last_index + 1:
            _blame_gap(result)
            return result
        result.fault = ""  # remains behind a last record that the next segment continues
        if not _survey_segment(files, directory, result, identity, full=full):
            return result
    if result.last_index < mark.index:
        _blame_gap(result)
    return result


def _blame_gap(result: Survey) -> None:
    """End the log for want of a next record, unless an invalid one is known to be there."""
    if result.fault:
        return
    index, fault = result.last_index + 1, "the segment is missing"
    if result.segments:
        last = result.segments[-1]
        fault += f", or the record of index {index} at byte {last.end} of {last.name} is"
    result.blame(index, 0, fault)


def segment_firsts(files: Files, directory: Path) -> list[int]:
    """Return the first indexes of the segment files, ascending."""
    stems = (name.removesuffix(SUFFIX) for name in files.list(directory) if name.endswith(SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _survey_segment(
    files: Files, directory: Path, result: Survey, identity: Identity | None, *, full: bool
) -> bool:
    """Take in the segment that continues the log; False if it does not."""
    first = result.last_index + 1
    file = files.open(directory / segment_name(first), Mode.READ)
    try:
        header = decode_segment_header(file.pread(SEGMENT_HEADER_BYTES, 0))
        _check_owner(header, identity)
        _check_continues(header, first, result.last_chain)
        segment = Segment(directory, first, header.previous_chain, file.size())
        index = None if full or first == result.firsts[-1] else _sealed(files, file, segment)
        result.include(adopt(index, segment) if index else scan(_contents(file), segment))
    except ValueError as error:
        result.blame(first, 0, str(error))
        return False
    except OSError as error:
        raise CorruptRecord(segment_name(first), 0, f"cannot be read: {error}") from error
    finally:
        file.close()
    return True


def _contents(file: File) -> bytes:
    return file.pread(file.size(), 0)


def _check_owner(header: SegmentHeader, identity: Identity | None) -> None:
    if identity is None or identity.owns(
        group_id=header.group_id, node_id=header.node_id, first_index=header.first_index
    ):
        return
    if header.group_id == identity.group_id:
        raise WrongIdentity("node", expected=identity.node_id, found=header.node_id)
    raise WrongIdentity("group", expected=identity.group_id, found=header.group_id)


def _check_continues(header: SegmentHeader, first: int, chain: int) -> None:
    if header.first_index != first:
        raise ValueError(f"first index is {header.first_index}, the name says {first}")
    if header.previous_chain != chain:
        raise ValueError(
            f"continues chain CRC {header.previous_chain:#010x}, the log has {chain:#010x}"
        )


def _sealed(files: Files, file: File, segment: Segment) -> SegmentIndex | None:
    """Return the segment's index file if it is whole and agrees with the last record."""
    try:
        index = _load_index(files, segment)
        if not index.positions or not _same_start(index, segment):
            return None
        last = adopt(index, Segment(segment.directory, index.first_index, 0, 0)).segment
        position = last.position(last.last_index)
        header = decode_record_header(
            file.pread(RECORD_HEADER_BYTES, position),
            0,
            chain=last.chain(last.last_index - 1),
            index=last.last_index,
        )
        return index if header.chain == last.last_chain else None
    except (ValueError, FileNotFoundError):
        return None


def _same_start(index: SegmentIndex, segment: Segment) -> bool:
    expected = (segment.first_index, segment.previous_chain)
    return (index.first_index, index.previous_chain) == expected


def _load_index(files: Files, segment: Segment) -> SegmentIndex:
    file = files.open(segment.index_path, Mode.READ)
    try:
        return decode_index(_contents(file))
    finally:
        file.close()


def check(found: Survey) -> None:
    """Refuse a log that lacks anything it ever promised to have.

    Raises:
        CorruptRecord: A record at or below the watermark is not what was synced.
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


def repair(files: Files, directory: Path, found: Survey, watermark: Watermark) -> None:
    """Cut what follows the last valid record and make the rest durable.

    Everything above the watermark is written again before it is synced: after an earlier failed
    sync the page cache may hold, as clean, bytes that never reached the disk.

    Raises:
        OSError: A write or sync failed.
    """
    if found.fault:
        _log.warning(
            "cut the log behind index %d at %s byte %d, above the synced index %d: %s",
            found.last_index,
            found.fault_segment,
            found.fault_offset,
            found.mark.index,
            found.fault,
        )
    watermark.settle()
    _remove_leftovers(files, directory, found)
    for segment in found.segments:
        if segment.last_index > found.mark.index or segment is found.segments[-1]:
            _settle(files, segment, found.mark.index)
    if found.last_index > found.mark.index:
        watermark.advance(index=found.last_index, chain=found.last_chain)
    for segment in found.segments[:-1]:
        write_index(files, segment, found.runs, found.memberships, replace=False)


def _remove_leftovers(files: Files, directory: Path, found: Survey) -> None:
    """Remove what is not the log's, and make all names durable: those, too, that were found.

    The process before may have been killed between a rename or removal and its directory fsync.
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
        file.fdatasync()  # also what was zeroed by a process that was killed before its sync
    finally:
        file.close()


def write_index(
    files: Files, segment: Segment, runs: TermRuns, memberships: list[int], *, replace: bool = True
) -> None:
    """Write the index file of a sealed segment, atomically. A full disk goes without.

    Raises:
        OSError: It failed for another reason than lack of space.
    """
    path = segment.index_path
    if not replace and path.name in files.list(segment.directory):
        return
    temporary = path.with_name(path.name + NEW_SUFFIX)
    file = files.open(temporary, Mode.CREATE)
    try:
        file.pwritev([encode_index(to_index(segment, runs, memberships))], 0)
        file.fdatasync()
        files.rename(temporary, path)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        files.remove(temporary)
    finally:
        file.close()
