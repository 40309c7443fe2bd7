"""Segment files on disk: creating, opening and removing them. Owned by `CommitLog`.

A segment file gets its name only when it is complete: preallocated, its header synced. A spare
file, preallocated ahead of time, makes that cheap.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from dledger.errors import DiskFull
from dledger.files.files import File, Files, Mode
from dledger.files.full import making
from dledger.store.format import SEGMENT_HEADER_BYTES, SegmentHeader, encode_segment_header
from dledger.store.identity import Identity
from dledger.store.segment import NEW_SUFFIX, Segment

_MAX_OPEN = 64


class SegmentFiles:
    """The segment files of one log directory.

    `open` may be called by any thread, `prepare` by one at a time, the rest by the writer only.

    Attributes:
        allocated_bytes: What was taken of the disk for segments so far; it only grows.
        spare_bytes: What the spare file takes.
    """

    def __init__(
        self, files: Files, directory: Path, *, segment_bytes: int, reserve_bytes: int
    ) -> None:
        self.files = files
        self._directory = directory
        self._segment_bytes = max(segment_bytes, SEGMENT_HEADER_BYTES)
        self._reserve_bytes = reserve_bytes
        self._makes_spares = True
        self.allocated_bytes = self.spare_bytes = 0
        self._handles: OrderedDict[int, File] = OrderedDict()
        self._lock = threading.Lock()
        self._spare: tuple[Path, File, int] | None = None
        self._spares_made = 0
        self._preparing = threading.Lock()

    def fit(self, *, segment_bytes: int, reserve_bytes: int, makes_spares: bool) -> None:
        """Make new segments of another size, leave other room free; from any thread."""
        self._segment_bytes = max(segment_bytes, SEGMENT_HEADER_BYTES)
        self._reserve_bytes, self._makes_spares = reserve_bytes, makes_spares

    def open(self, segment: Segment) -> File:
        """Return the segment's file; the most recently used ones stay open.

        A file evicted here stays open for as long as a reader still holds it.
        """
        with self._lock:
            file = self._handles.get(segment.first_index)
            if file is None:
                file = self.files.open(segment.path, Mode.UPDATE)
                self._handles[segment.first_index] = file
            self._handles.move_to_end(segment.first_index)
            if len(self._handles) > _MAX_OPEN:
                self._handles.popitem(last=False)
            return file

    def create(
        self, identity: Identity, *, first_index: int, previous_chain: int, room_bytes: int
    ) -> Segment:
        """Create a segment durably: preallocate, write and sync the header, rename, fsync.

        It has room for at least *room_bytes* after its header.

        Raises:
            DiskFull: The disk is full; nothing was created.
            OSError: Another failure.
        """
        capacity = max(self._segment_bytes, SEGMENT_HEADER_BYTES + room_bytes)
        segment = Segment(self._directory, first_index, previous_chain, capacity)
        header = encode_segment_header(
            SegmentHeader(
                group_id=identity.group_id,
                node_id=identity.node_id,
                first_index=first_index,
                previous_chain=previous_chain,
            )
        )
        temporary, file = self._take_spare(capacity) or self._preallocated(segment)
        with making(self.files, temporary, f"make segment {segment.name}"):
            try:
                file.pwritev([header], 0)
                file.fdatasync()
            finally:
                file.close()
            self.files.rename(temporary, segment.path)
        self.files.fsync_dir(self._directory)
        return segment

    def _take_spare(self, capacity: int) -> tuple[Path, File] | None:
        with self._lock:
            if self._spare is None or self._spare[2] != capacity:
                return None
            (path, file, _), self._spare, self.spare_bytes = self._spare, None, 0
        return path, file

    def _preallocated(self, segment: Segment) -> tuple[Path, File]:
        path = segment.path.with_name(segment.name + NEW_SUFFIX)
        return path, self._allocate(path, segment.capacity_bytes)

    def _allocate(self, path: Path, size: int) -> File:
        free = self.files.disk_usage(self._directory).free_bytes
        if free < size + self._reserve_bytes:
            raise DiskFull(
                f"no room for a segment of {size} bytes in {self._directory}: "
                f"{free} bytes are free, {self._reserve_bytes} stay reserved"
            )
        with making(self.files, path, f"preallocate a segment of {size} bytes"):
            file = self.files.open(path, Mode.CREATE)
            try:
                file.preallocate(size)
            except OSError:
                file.close()
                raise
        with self._lock:
            self.allocated_bytes += size
        return file

    def prepare(self) -> bool:
        """Preallocate a spare file; return False if there is no room for one.

        Raises:
            OSError: The disk failed.
        """
        with self._preparing:
            size = self._segment_bytes
            self._drop_spare_but(size)
            if self._spare is None and self._makes_spares:
                spare = self._new_spare(size)
                with self._lock:
                    self._spare, self.spare_bytes = spare, size if spare else 0
            return self._spare is not None

    def _drop_spare_but(self, size: int) -> None:
        """Remove a spare file of another size than segments have now."""
        with self._lock:
            spare = self._spare
            if spare is None or spare[2] == size:
                return
            self._spare, self.spare_bytes = None, 0
        spare[1].close()
        self.files.remove(spare[0])

    def _new_spare(self, size: int) -> tuple[Path, File, int] | None:
        self._spares_made += 1
        path = self._directory / f"spare-{self._spares_made}{NEW_SUFFIX}"
        try:
            file = self._allocate(path, size)
            with making(self.files, path, "sync a spare segment"):
                file.fdatasync()
        except DiskFull:
            return None
        return path, file, size

    def remove(self, segments: Iterable[Segment], unsealed: Iterable[Segment]) -> None:
        """Remove *segments*, newest first, and the index files of *unsealed* ones, durably."""
        removed = sorted(segments, key=lambda segment: -segment.first_index)
        for segment in removed:
            with self._lock:
                self._handles.pop(segment.first_index, None)
            self.files.remove(segment.path)
        present = set(self.files.list(self._directory)) if removed else set()
        for segment in (*removed, *unsealed):
            if segment.index_path.name in present:
                self.files.remove(segment.index_path)
        if removed:
            self.files.fsync_dir(self._directory)

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for file in self._handles.values():
                file.close()
            self._handles.clear()
        if self._spare:
            self._spare[1].close()
