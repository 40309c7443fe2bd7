"""Scanning a log directory: which records are intact, which are faulty, where the log ends.

An invalid record is *faulty* if a second copy of its identity shows that it was synced: the index
file of a sealed segment, or the identity rows of the last one. Otherwise the log ends there.
Changes nothing on disk; called by `CommitLog.open` and by ``dledger log verify``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dledger.errors import CorruptRecord, WrongIdentity
from dledger.files.files import File, Files, Mode
from dledger.store.faulty_ranges import FaultyRanges
from dledger.store.format import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Mark,
    SegmentHeader,
    SegmentIndex,
    decode_index,
    decode_record_header,
    decode_segment_header,
)
from dledger.store.identity import Identity
from dledger.store.segment import SUFFIX, Segment, TermRuns, index_name, segment_name
from dledger.store.segment_scan import Known, Scan, adopt, nothing_known, scan
from dledger.store.shadow_index import IndexIdentities, RecordIdentity, RowIdentities

_PIECE_BYTES = 1 << 16


@dataclass(slots=True)
class LogScan:
    """What a log directory holds.

    Attributes:
        mark: The durable watermark that the log was checked against.
        firsts: First indexes of all segment files after the mark's base, ascending.
        segments: The segments of the log; the last may be empty or end in a torn write.
        faulty: Records that are known to be in the log but are damaged.
        damages: What is damaged, one line for each segment with faulty records.
        lost: Segments whose file is missing; all their records are faulty.
        headerless: Segments whose header page is damaged.
        fault: Why the log ends where it does; "" if it ends cleanly.
        fault_segment: The name of the segment file with the fault.
        fault_offset: The offset of the fault in that file.
    """

    mark: Mark
    firsts: list[int]
    segments: list[Segment] = field(default_factory=list)
    runs: TermRuns = field(default_factory=TermRuns)
    memberships: list[int] = field(default_factory=list)
    faulty: FaultyRanges = field(default_factory=FaultyRanges)
    damages: list[str] = field(default_factory=list)
    lost: list[Segment] = field(default_factory=list)
    headerless: list[Segment] = field(default_factory=list)
    fault: str = ""
    fault_segment: str = ""
    fault_offset: int = 0

    @property
    def last_index(self) -> int:
        """The last record; the log's first index - 1 if there is none."""
        return self.segments[-1].last_index if self.segments else self.mark.base.index

    @property
    def last_chain(self) -> int:
        """The chain CRC of the last record."""
        return self.segments[-1].last_chain if self.segments else self.mark.base.chain

    def blame(self, first_index: int, offset: int, fault: str) -> None:
        """End the log at this byte of the segment that begins with *first_index*."""
        self.fault, self.fault_offset = fault, offset
        self.fault_segment = segment_name(first_index)

    def include(self, found: Scan) -> None:
        """Add the next segment's records."""
        self.segments.append(found.segment)
        self.runs.extend(found.runs.within(found.segment.first_index, found.segment.last_index))
        self.memberships += found.memberships
        self.faulty.update(found.faulty)
        if found.damage:
            self.damages.append(found.damage)
        if found.fault:
            self.blame(found.segment.first_index, found.segment.end, found.fault)


def segment_firsts(files: Files, directory: Path) -> list[int]:
    """Return the first indexes of the segment files, ascending."""
    stems = (name.removesuffix(SUFFIX) for name in files.list(directory) if name.endswith(SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def survey(
    files: Files,
    directory: Path,
    mark: Mark,
    identity: Identity | None,
    *,
    rows: bytes = b"",
    full: bool = False,
) -> LogScan:
    """Read the log up to its end.

    Args:
        files: The file system.
        directory: The ``log`` directory.
        mark: The durable watermark.
        identity: Whose log it must be; None accepts any.
        rows: The identity rows of the last segment.
        full: Check all bodies, even in segments that have an index file.

    Raises:
        WrongIdentity: A segment was written by another node or for another group.
        CorruptRecord: The disk cannot read a segment, and no second copy describes its records.
    """
    firsts = segment_firsts(files, directory)
    result = LogScan(mark, [first for first in firsts if first >= mark.first_index])
    surveyor = _LogScanner(files, directory, result, identity, rows, full=full)
    pending = set(result.firsts)
    while surveyor.take(pending):
        pass
    if pending or result.last_index < mark.index:
        _blame_gap(result)
    return result


def _blame_gap(result: LogScan) -> None:
    """End the log where the next segment is missing, unless a fault is noted there already."""
    if result.fault:
        return
    index, fault = result.last_index + 1, "the segment is missing"
    if result.segments:
        last = result.segments[-1]
        fault += f", or the record of index {index} at byte {last.end} of {last.name} is"
    result.blame(index, 0, fault)


class _LogScanner:
    """Scans one segment after the other and adds it to the result."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        result: LogScan,
        identity: Identity | None,
        rows: bytes,
        *,
        full: bool,
    ) -> None:
        self._files = files
        self._directory = directory
        self._result = result
        self._identity = identity
        self._rows = rows
        self._full = full
        self._names = frozenset(files.list(directory))

    def take(self, pending: set[int]) -> bool:
        """Add the segment that continues the log, even if its file is lost; False at the end."""
        first = self._result.last_index + 1
        if first in pending:
            pending.remove(first)
            self._result.fault = ""  # a torn write after the record that this segment continues
            return self._take_file(first)
        return first not in self._result.firsts and self._take_lost(first)

    def _take_file(self, first: int) -> bool:
        result = self._result
        file = self._files.open(self._directory / segment_name(first), Mode.READ)
        try:
            index, known = self._known(first)
            damage = self._header_damage(file, first)
            if damage and known(first) is None:
                result.blame(first, 0, damage)
                return False
            segment = Segment(self._directory, first, result.last_chain, file.size())
            if damage:
                result.headerless.append(segment)
                result.damages.append(f"header of {segment.name}: {damage}")
            result.include(self._found(file, segment, index, known))
        except OSError as error:
            raise CorruptRecord(segment_name(first), 0, f"cannot be read: {error}") from error
        finally:
            file.close()
        return True

    def _found(
        self, file: File, segment: Segment, index: SegmentIndex | None, known: Known
    ) -> Scan:
        if index and not self._full and _ends_so(file, segment, index):
            return adopt(index, segment)
        empty = (segment.directory, segment.first_index, segment.previous_chain)
        data = _contents(file, piecemeal=known(segment.first_index) is not None)
        found = scan(data, segment, known, prefer_known=index is not None)
        if not self._agrees(segment):  # the disk returned an older write, or the rows are torn
            again = scan(data, Segment(*empty, segment.capacity_bytes), known, prefer_known=True)
            found = again if self._agrees(again.segment) else found
        found.segment.capacity_bytes = max(found.segment.capacity_bytes, found.segment.end)
        return found

    def _agrees(self, segment: Segment) -> bool:
        mark = self._result.mark
        if not segment.first_index <= mark.index <= segment.last_index:
            return True
        return segment.chain(mark.index) == mark.chain

    def _take_lost(self, first: int) -> bool:
        """Add a segment that was synced, but has no file."""
        result = self._result
        _, known = self._known(first)
        found = scan(b"", Segment(self._directory, first, result.last_chain, 0), known)
        segment = found.segment
        if not segment.positions:
            return False
        segment.capacity_bytes = segment.end
        found.fault, found.damage = "", f"{segment.name}: the segment is missing"
        result.lost.append(segment)
        result.include(found)
        return True

    def _header_damage(self, file: File, first: int) -> str:
        """Return what is wrong with the header page; "" if nothing is."""
        try:
            header = decode_segment_header(file.pread(SEGMENT_HEADER_BYTES, 0))
            _check_owner(header, self._identity)
            _check_continues(header, first, self._result.last_chain)
        except (ValueError, OSError) as error:
            return str(error)
        return ""

    def _known(self, first: int) -> tuple[SegmentIndex | None, Known]:
        """Return the segment's index file if it is valid, and its second copy of identities."""
        index = self._index(first)
        if index is None and first > self._result.mark.index:
            return None, nothing_known
        copy = IndexIdentities(index) if index else RowIdentities(self._rows, first)
        return index, _up_to(self._result.mark.index, copy)

    def _index(self, first: int) -> SegmentIndex | None:
        if first == max(self._result.firsts, default=0):
            return None
        index = load_index(self._files, self._directory / index_name(first))
        if index is None or not index.positions or index.first_index != first:
            return None
        holds = index.previous_chain == self._result.last_chain
        return index if holds and self._has_more(first + len(index.positions)) else None

    def _has_more(self, first: int) -> bool:
        """Whether a segment begins, or began, with this index; else the index file is stale."""
        if {segment_name(first), index_name(first)} & self._names:
            return True
        return RowIdentities(self._rows, first)(first) is not None


def _up_to(last: int, known: Known) -> Known:
    def synced(index: int) -> RecordIdentity | None:
        return known(index) if index <= last else None

    return synced


def load_index(files: Files, path: Path, mode: Mode = Mode.READ) -> SegmentIndex | None:
    """Return an index file's contents; None if it is missing, damaged or cannot be read."""
    try:
        file = files.open(path, mode)
    except OSError:
        return None
    try:
        return decode_index(file.pread(file.size(), 0))
    except (ValueError, OSError):
        return None
    finally:
        file.close()


def _ends_so(file: File, segment: Segment, index: SegmentIndex) -> bool:
    """Whether the header of the segment's last record agrees with the index file."""
    if file.size() < index.end:
        return False
    last = IndexIdentities(index)(segment.first_index + len(index.positions) - 1)
    before = index.chains[-2] if len(index.chains) > 1 else index.previous_chain
    try:
        header = decode_record_header(
            file.pread(RECORD_HEADER_BYTES, last.start if last else 0),
            0,
            chain=before,
            index=last.entry_index if last else 0,
        )
    except (ValueError, OSError):
        return False
    return header.chain == index.chains[-1]


def _contents(file: File, *, piecemeal: bool) -> bytes:
    """Return the whole file; *piecemeal*: with zeros where the disk cannot read it."""
    try:
        return file.pread(file.size(), 0)
    except OSError:
        if not piecemeal:
            raise
    offsets = range(0, file.size(), _PIECE_BYTES)
    return b"".join(_piece(file, offset) for offset in offsets)


def _piece(file: File, offset: int) -> bytes:
    size = min(_PIECE_BYTES, file.size() - offset)
    try:
        return file.pread(size, offset)
    except OSError:
        return bytes(size)


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
