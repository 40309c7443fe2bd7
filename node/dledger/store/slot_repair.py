"""Repairing faulty slots with entries from peers, checked against the identities kept here.

The chain CRC covers term, index, type, timestamp and body CRC, so an entry that matches is byte for
byte what was lost, whichever peer sent it (ADR 11). Called by `CommitLog.repair`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from crc32c import crc32c

from dledger.files.full import telling_full_disk
from dledger.store.format import encode_records
from dledger.store.log_index import LogIndex
from dledger.store.segment import Segment
from dledger.store.segment_files import SegmentFiles
from dledger.types import Entry, EntryKind, Membership


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """A faulty slot and the record that belongs there."""

    entry: Entry
    segment: Segment
    start: int
    record: bytes
    membership: Membership | None


def fitting(log: LogIndex, entries: Iterable[Entry]) -> list[Mended]:
    """Return a `Mended` for each of *entries* that matches a faulty slot exactly."""
    found = (_mended(log, entry) for entry in entries if entry.index in log.faulty)
    return [each for each in found if each is not None]


def _mended(log: LogIndex, entry: Entry) -> Mended | None:
    index = entry.index
    segment = log.segment_of(index)
    start, end = segment.position(index), segment.position(index + 1)
    encoded = encode_records([entry], chain=segment.chain(index - 1), position=start)
    if encoded.chains != [segment.chain(index)] or start + encoded.size_bytes != end:
        return None
    if crc32c(entry.data) != entry.crc32c:
        return None
    try:
        is_membership = entry.kind is EntryKind.MEMBERSHIP
        membership = Membership.decode(entry.data) if is_membership else None
    except ValueError:
        return None
    return Mended(
        entry=entry,
        segment=segment,
        start=start,
        record=b"".join(encoded.buffers),
        membership=membership,
    )


def write_back(disk: SegmentFiles, slots: Iterable[Mended]) -> list[Mended]:
    """Write the records in place, durably; return those that read back as written.

    Raises:
        DiskFull: A copy-on-write file system has no room.
        OSError: A write or sync failed.
    """
    slots = list(slots)
    files = {slot.segment.first_index: disk.open(slot.segment) for slot in slots}
    for slot in slots:
        with telling_full_disk(f"repair segment {slot.segment.name}"):
            files[slot.segment.first_index].pwritev([slot.record], slot.start)
    for file in files.values():
        file.fdatasync()
    return [slot for slot in slots if _reads_back(disk, slot)]


def _reads_back(disk: SegmentFiles, slot: Mended) -> bool:
    try:
        return disk.open(slot.segment).pread(len(slot.record), slot.start) == slot.record
    except OSError:
        return False
