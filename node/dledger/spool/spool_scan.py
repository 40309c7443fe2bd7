"""Scans a spool when it is opened: finds intact records, damage, and torn writes.

The spool ends at its last intact record. Other bytes are **damage** if an intact record follows
them, or if accepted messages should be there. Otherwise they are a **torn tail**, a write that was
never acknowledged, and `settle` overwrites it with zeros. Called by `opening`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Set
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from dledger.errors import CorruptSpool, WrongIdentity
from dledger.files.checked_json import VersionError
from dledger.files.files import Files, Mode
from dledger.spool.format import FILE_HEADER_BYTES, Found, Gap, Scan, decode_file_header, scan
from dledger.spool.identity import SpoolIdentity
from dledger.spool.lanes import Ages, LaneBook
from dledger.spool.payload import Head, head_of
from dledger.spool.spool_files import SpoolFile, file_name, first_sequences, read_file

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SpoolScan:
    """The contents of a spool directory.

    Attributes:
        replayed: No message up to this sequence needs a replay.
        accepted: The last sequence in use.
        files: The spool files in order.
        damage: The lost messages, in order.
        depth: Messages to replay, by topic.
        size_bytes: The bytes of their records.
        lanes: Their lanes.
        ages: Since when they wait.
        tried: How many of them the group may have already.
        tried_since_ms: When the oldest of these came, Unix milliseconds; 0: there are none.
    """

    replayed: int
    accepted: int
    files: list[SpoolFile] = field(default_factory=list)
    damage: list[CorruptSpool] = field(default_factory=list)
    depth: Counter[str] = field(default_factory=Counter)
    size_bytes: int = 0
    lanes: LaneBook = field(default_factory=LaneBook)
    ages: Ages = field(default_factory=Ages)
    tried: int = 0
    tried_since_ms: int = 0


def damage_of(path: Path, gap: Gap, replayed: int) -> CorruptSpool | None:
    """Return what is lost in *gap*; None if all of it was replayed before."""
    first = max(gap.first, replayed + 1)
    if gap.first <= gap.last < first:
        return None
    return CorruptSpool(
        str(path),
        offset=gap.offset,
        size_bytes=gap.end - gap.offset,
        first=first,
        last=max(gap.last, first - 1),
        reason=gap.reason,
    )


class SpoolScanner:
    """Reads all spool files of a directory once.

    Args:
        files: The file system.
        directory: The spool's directory.
        identity: The spool's identity.
        rejected: Sequences that need no replay.
        certain: Whether the last accepted sequence is known; if not, bytes after the last record
            count as damage, not as a torn tail.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        identity: SpoolIdentity,
        *,
        rejected: Set[int],
        certain: bool,
    ) -> None:
        self._files, self._directory, self._identity = files, directory, identity
        self._rejected, self._certain = rejected, certain

    def survey(self, *, replayed: int, accepted: int) -> SpoolScan:
        """Scan the directory, given the sequences in the state file.

        Raises:
            WrongIdentity: A file belongs to another spool.
            VersionError: A file has another format version.
        """
        result = SpoolScan(replayed=replayed, accepted=accepted)
        firsts = first_sequences(self._files, self._directory)
        self._blame_missing_front(result, firsts)
        for number, first in enumerate(firsts, start=1):
            self._include(result, first, firsts[number] if number < len(firsts) else None)
        if result.files:
            result.accepted = max(result.accepted, result.files[-1].last)
        return result

    def _blame_missing_front(self, result: SpoolScan, firsts: list[int]) -> None:
        """Report missing files: those before the first one, or all of them."""
        last = firsts[0] - 1 if firsts else result.accepted
        if last > result.replayed:
            path = self._directory / file_name(result.replayed + 1)
            gap = Gap(0, 0, result.replayed + 1, last, "the file is missing")
            self._blame(result, path, [gap])
            result.replayed = last

    def _include(self, result: SpoolScan, first: int, successor: int | None) -> None:
        """Add the next file; its messages end where the successor's begin."""
        path = self._directory / file_name(first)
        promised = result.accepted if successor is None else successor - 1
        data, found = self._scanned(path, first, successor)
        last = found.records[-1].sequence if found.records else first - 1
        if last < promised or (found.fault and successor is None and not self._certain):
            end = max(found.end, len(data.rstrip(b"\0")))
            reason = found.fault or "the rest of the file is missing"
            found.gaps.append(Gap(found.end, end, last + 1, max(last, promised), reason))
        self._blame(result, path, found.gaps)
        self._count(result, found)
        result.files.append(
            SpoolFile(
                path=path,
                first=first,
                last=max(last, promised),
                end=found.end,
                capacity=len(data),
                damaged=bool(found.gaps),
            )
        )

    def _scanned(self, path: Path, first: int, successor: int | None) -> tuple[bytes, Scan]:
        """Read and scan a file; an unreadable file counts as damaged completely."""
        try:
            data = read_file(self._files, path)
        except OSError as error:
            return b"", Scan(end=FILE_HEADER_BYTES, fault=f"cannot be read: {error}")
        stamp = self._identity.stamp
        found = scan(data, stamp=stamp, first=first, limit=successor, start=FILE_HEADER_BYTES)
        if fault := self._header_fault(data):
            found.gaps.insert(0, Gap(0, FILE_HEADER_BYTES, first, first - 1, fault))
        return data, found

    def _header_fault(self, data: bytes) -> str:
        try:
            header = decode_file_header(data)
        except VersionError:
            raise
        except ValueError as error:
            return str(error)
        if header.stamp != self._identity.stamp:
            ours = self._identity.client_id
            raise WrongIdentity("client id", expected=ours, found=header.client_id)
        return ""

    def _blame(self, result: SpoolScan, path: Path, gaps: list[Gap]) -> None:
        found = (damage_of(path, gap, result.replayed) for gap in gaps)
        result.damage.extend(damage for damage in found if damage is not None)

    def _count(self, result: SpoolScan, found: Scan) -> None:
        for record in found.records:
            if record.sequence > result.replayed and record.sequence not in self._rejected:
                head = _head(record)
                result.depth[head.topic] += 1
                result.lanes.add_found(head)
                if head.tried:
                    result.tried += 1
                    oldest_ms = result.tried_since_ms or head.born_at_ms
                    result.tried_since_ms = min(oldest_ms, head.born_at_ms)
                result.ages.add(record.sequence, head.born_at_ms)
                result.size_bytes += record.end - record.offset


def _head(record: Found) -> Head:
    """Return the head; an empty one of a malformed message, which the replay reports."""
    try:
        return head_of(record.payload, record.version)
    except ValueError:
        return Head("", 0)


def settle(files: Files, file: SpoolFile, *, accepted: int, stamp: bytes) -> None:
    """Zero everything after the last record of the last file, durably.

    Records above *accepted* are written again before the sync: after a failed sync the page cache
    may hold, as clean, bytes that never reached the disk.

    Raises:
        OSError: A write or sync failed.
    """
    with closing(files.open(file.path, Mode.UPDATE)) as handle:
        data = handle.pread(file.capacity, 0)
        records = scan(data, stamp=stamp, first=file.first, start=FILE_HEADER_BYTES).records
        unsure = next((r.offset for r in records if r.sequence > accepted), file.end)
        torn = max(0, len(data.rstrip(b"\0")) - file.end)
        if torn:
            _log.info("cut a torn tail of %d bytes at byte %d of %s", torn, file.end, file.path)
        if file.end + torn > unsure:
            handle.pwritev([data[unsure : file.end], bytes(torn)], unsure)
            handle.fdatasync()
