"""Checking the disk for bit rot: the records, and the second copies of their identities.

`CommitLog.scrubber`, for one thread beside its readers and its writer. It reads from the disk, not
from the page cache, which would hide the damage. A damaged record is marked faulty, to be fetched
from a peer; a damaged second copy is rewritten from memory.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from dledger.errors import CorruptRecord, DiskFull, StorageError
from dledger.files.files import Mode
from dledger.files.full import telling_full_disk
from dledger.store.format import SEGMENT_HEADER_BYTES
from dledger.store.log_scan import load_index
from dledger.store.log_state import LogState
from dledger.store.recovery import header_of, write_index
from dledger.store.segment import Segment, TermRuns, span
from dledger.store.segment_scan import to_index
from dledger.store.shadow_index import encode_rows, identities

_log = logging.getLogger(__name__)


class Scrubbed(NamedTuple):
    """One step of a pass over the log.

    Attributes:
        next_index: Where to continue; 0 at the end of the pass.
        size_bytes: The approximate number of bytes read from the disk.
    """

    next_index: int
    size_bytes: int
    records: int


_OVER = Scrubbed(0, 0, 0)


class LogScrubber:
    """Checks the files of one open log."""

    def __init__(self, state: LogState) -> None:
        self._state, self._index = state, state.index
        self._disk, self._watermark, self._identity = state.disk, state.watermark, state.identity

    def scrub(self, index: int, max_bytes: int) -> Scrubbed:
        """Check synced records of one segment from *index* on.

        At the start of a segment its header and second copies are checked as well.

        Args:
            index: The first record to check; 0 begins a pass.
            max_bytes: How many bytes of records to read; at least one record is read.

        Raises:
            CorruptRecord: A segment's file is missing.
            StorageError: The log has failed, earlier or now.
        """
        with self._state.lock:
            self._state.check_usable()
            index = max(index, self._index.first_index)
            if index > min(self._state.synced_index, self._index.last_index):
                return _OVER
            segment = self._index.segment_of(index)
        copies = 0
        if index == segment.first_index:
            with suppress(DiskFull):  # the next round finds the damage again
                copies = self._scrub_copies(segment)
        found = self._scrub_records(index, max_bytes)
        return found._replace(size_bytes=found.size_bytes + copies)

    def _scrub_records(self, index: int, max_bytes: int) -> Scrubbed:
        with self._state.lock:
            truncations = self._state.truncations
            damaged = next((each for each in self._index.faulty.ranges if index < each.stop), None)
            if damaged and index in damaged:
                return Scrubbed(damaged.stop, 0, 0)
            segment = self._index.segment_of(index)
            last = min(self._state.synced_index, self._index.last_index)
            if index > last:
                return _OVER
            last = min(last, damaged.start - 1) if damaged else last
            wanted = span(segment, index, min(last, segment.last_index), max_bytes)
        size_bytes = wanted.offsets[-1] - wanted.offsets[0]
        try:
            records = len(wanted.read(self._disk.files.open(segment.path, Mode.COLD)))
        except CorruptRecord as error:
            if error.index is None:
                return self._scrub_records(index, 0)
            if truncations == self._state.truncations:
                self._state.mark_faulty(error.index, error.index, str(error))
            return Scrubbed(index, size_bytes, 1)
        except FileNotFoundError as error:
            if truncations == self._state.truncations:
                raise CorruptRecord(segment.name, 0, "the segment is missing") from error
            return Scrubbed(index, 0, 0)
        except OSError as error:
            raise StorageError(f"cannot open segment {segment.name}: {error}") from error
        return Scrubbed(index + records, size_bytes, records)

    def _scrub_copies(self, segment: Segment) -> int:
        """Check a segment's header and its second copy of identities; return the bytes read."""
        sealed = self._is_sealed(segment)
        checks = [(self._header_is_good, self._write_header)]
        checks += [(self._index_is_good, self._write_index)] if sealed else []
        for is_good, write in checks:
            if not is_good(segment):
                with self._state.writing, self._state.poisoning():
                    if self._is_sealed(segment) == sealed and not is_good(segment):
                        write(segment)
        if not sealed and not self._watermark_is_good(segment):
            with self._state.writing, self._state.poisoning():
                if not self._is_sealed(segment) and not self._watermark_is_good(segment):
                    self._renew_watermark(segment)
        return SEGMENT_HEADER_BYTES + 8 * len(segment.positions)

    def _is_sealed(self, segment: Segment) -> bool:
        with self._state.lock:
            return any(each is segment for each in self._index.segments[:-1])

    def _header_is_good(self, segment: Segment) -> bool:
        try:
            file = self._disk.files.open(segment.path, Mode.COLD)
            page = file.pread(SEGMENT_HEADER_BYTES, 0)
        except OSError:
            return False
        return page == header_of(segment, self._identity)

    def _write_header(self, segment: Segment) -> None:
        _tell(f"header of {segment.name}")
        file = self._disk.open(segment)
        with telling_full_disk(f"write the header of segment {segment.name}"):
            file.pwritev([header_of(segment, self._identity)], 0)
        file.fdatasync()

    def _index_is_good(self, segment: Segment) -> bool:
        with self._state.lock:
            expected = to_index(segment, self._index.runs, self._index.special)
        return load_index(self._disk.files, segment.index_path, Mode.COLD) == expected

    def _write_index(self, segment: Segment) -> None:
        _tell(segment.index_path.name)
        write_index(self._disk.files, segment, self._index.runs, self._index.special)
        self._disk.files.fsync_dir(segment.directory)

    def _watermark_is_good(self, segment: Segment) -> bool:
        rows = self._durable_rows(segment)
        return self._watermark.is_good(self._disk.files, segment.directory, rows)

    def _renew_watermark(self, segment: Segment) -> None:
        _tell("watermark")
        self._watermark.renew(self._durable_rows(segment))

    def _durable_rows(self, segment: Segment) -> bytes:
        """Return the identity rows that should be on disk.

        They are encoded without the lock, so that the event loop never waits for it meanwhile.
        """
        first = segment.first_index
        with self._state.lock:
            last = min(self._state.rows_index, segment.last_index)
            runs = TermRuns(self._index.runs.within(first, last))
            special = {index for index in self._index.special if index >= first}
            copy = replace(segment, positions=segment.positions[:], chains=segment.chains[:])
        return encode_rows(identities(copy, runs, special, last=last))


def _tell(what: str) -> None:
    _log.error("rot: %s was damaged; it is rewritten from memory", what)
