"""Writes record batches as a log directory, with the node's own segments, indexes and watermark.

The records are encoded already, so many are written at once, where the commit log would encode each
one. Segments end where the commit log would end them, so that a restored segment file differs from
the original in its header only. Used by `restore`.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from dledger.files.files import Files
from dledger.files.full import telling_full_disk
from dledger.store.format import ALIGNMENT_BYTES, Base, EncodedRecords
from dledger.store.identity import Identity
from dledger.store.recovery import write_index
from dledger.store.segment import Segment, TermRuns
from dledger.store.segment_files import SegmentFiles
from dledger.store.watermark import Watermark
from dledger.types import EntryKind
from dledger_pipeline.log.records import encode, record_sizes, values

_NOTHING: Final = Base()
_PIECE_BYTES: Final = 1 << 20
"""Encoded and written at a time: a processor's own cache holds it."""
_RESERVE_BYTES: Final = 16 << 20
"""Left free on the disk, as a node leaves it (`reserve_bytes`), so that it can start there."""


class SegmentWriter:
    """Writes entries behind *base* into an empty, formatted log directory. For use by one thread.

    Nothing is durable before `finish`, which writes the watermark.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        identity: Identity,
        *,
        base: Base = _NOTHING,
        segment_bytes: int,
    ) -> None:
        self._base = base
        self._files = files
        self._directory = directory
        self._identity = identity
        self._disk = SegmentFiles(
            files, directory, segment_bytes=segment_bytes, reserve_bytes=_RESERVE_BYTES
        )
        self._segment: Segment | None = None
        self._runs = TermRuns()
        self._memberships: list[int] = []
        self._last_index, self._last_chain = base.index, base.chain
        self._sealer = ThreadPoolExecutor(1, "segment-sealer")
        self._sealing: Future[None] | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        """Append the rows of *batch*, which the caller has checked.

        Raises:
            DiskFull: There is no room.
            OSError: The disk failed.
        """
        ends = np.cumsum(record_sizes(batch))
        chains = values(batch.column("chain_crc32c"))
        self._note(batch)
        at = start = 0
        while at < len(batch):
            segment = self._segment_for(int(ends[at]) - start)
            room = start + segment.capacity_bytes - segment.end
            stop = int(np.searchsorted(ends, min(room, start + _PIECE_BYTES), "right"))
            stop = max(stop, at + 1)
            end = int(ends[stop - 1])
            with telling_full_disk(f"write segment {segment.name}"):
                piece = memoryview(encode(batch.slice(at, stop - at)))
                self._disk.open(segment).pwritev([piece], segment.end)
            starts = np.concatenate(([start], ends[at : stop - 1])) - start + segment.end
            segment.add(
                EncodedRecords(
                    buffers=[],
                    positions=(starts // ALIGNMENT_BYTES).tolist(),
                    chains=chains[at:stop].tolist(),
                    size_bytes=end - start,
                )
            )
            self._last_index, self._last_chain = segment.last_index, segment.last_chain
            at, start = stop, end

    def _note(self, batch: pa.RecordBatch) -> None:
        """Collect what index files hold besides positions and chains."""
        indexes, terms = values(batch.column("index")), values(batch.column("term"))
        for at in (0, *(np.flatnonzero(np.diff(terms)) + 1).tolist()):
            self._runs.append(int(indexes[at]), int(terms[at]))
        memberships = values(batch.column("type")) == EntryKind.MEMBERSHIP
        self._memberships += indexes[memberships].tolist()

    def _segment_for(self, size_bytes: int) -> Segment:
        """Return the last segment, or a new one if a record of this size does not fit."""
        segment = self._segment
        if segment is not None and segment.end + size_bytes <= segment.capacity_bytes:
            return segment
        self._seal()
        self._segment = self._disk.create(
            self._identity,
            first_index=self._last_index + 1,
            previous_chain=self._last_chain,
            room_bytes=size_bytes,
        )
        return self._segment

    def _seal(self) -> None:
        """Sync the last segment and write its index, while the next one is being written."""
        self._sealed()
        if self._segment is not None:
            self._sealing = self._sealer.submit(self._sync_and_index, self._segment)

    def _sealed(self) -> None:
        """Wait until at most the last segment is not synced."""
        if self._sealing is not None:
            self._sealing.result()

    def _sync_and_index(self, segment: Segment) -> None:
        self._disk.open(segment).fdatasync()
        write_index(self._files, segment, self._runs, self._memberships)

    def finish(self) -> None:
        """Make everything durable and say so in the watermark.

        Raises:
            OSError: The disk failed; its contents are unknown.
        """
        self._sealed()
        if self._segment is not None:
            self._disk.open(self._segment).fdatasync()
        self._files.fsync_dir(self._directory)
        watermark = Watermark.open(self._files, self._directory)
        try:
            if self._base.index:
                watermark.rebase(self._base, index=self._last_index, chain=self._last_chain)
            else:
                watermark.advance(index=self._last_index, chain=self._last_chain)
        finally:
            watermark.close()

    def close(self) -> None:
        """Close all files; without `finish` before, the directory is not a log."""
        self._sealer.shutdown()
        self._disk.close()
