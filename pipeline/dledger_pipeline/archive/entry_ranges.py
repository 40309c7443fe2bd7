"""Ranges of entries in a backup, on a node's disk, or in running nodes.

A range is a small value that is sent to a worker and read there, with each entry checked. The
ranges of one source follow each other without a gap. Used by the jobs and the data source.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from dledger.common.backoff import Backoff
from dledger.errors import CorruptRecord
from dledger.store.format import SEGMENT_HEADER_BYTES, decode_segment_header
from dledger_pipeline.archive.archive import ManifestRow, read_range
from dledger_pipeline.archive.selection import Bounds, MayHold, anything
from dledger_pipeline.errors import NodeUnavailable
from dledger_pipeline.log.export_client import TARGET_BYTES, ExportClient, ExportPlan, choose_nodes
from dledger_pipeline.log.pacing import Pace
from dledger_pipeline.log.records import parse
from dledger_pipeline.log.segments import read_segment, synced_segments
from dledger_pipeline.object_store.store import Store

_TRIES: Final = 12
_RETRY_S: Final = 0.5
_MAX_RETRY_S: Final = 2.0
"""Together some 20 s, ten times as long as a failover."""


class EntryRange(Protocol):
    """Entries [first_index, last_index]; pickles."""

    @property
    def first_index(self) -> int:
        """The first entry."""

    @property
    def last_index(self) -> int:
        """The last entry."""

    @property
    def bounds(self) -> Bounds:
        """What is known of the entries' columns without reading them."""

    def read(
        self, may_hold: MayHold = anything, columns: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the entries (`records.ENTRY_SCHEMA`), all checked.

        Args:
            may_hold: Entries may be left out where it says so of bounds that they are within.
            columns: Which are needed, all when empty; others may be left out.

        Raises:
            CorruptRecord, PipelineError: They cannot be read; names the segment or the object.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRange:
    """Entries of a backup: one object of the store."""

    store: Store
    group_id: str
    row: ManifestRow

    @property
    def first_index(self) -> int:
        """The first entry."""
        return self.row.first_index

    @property
    def last_index(self) -> int:
        """The last entry."""
        return self.row.last_index

    @property
    def bounds(self) -> Bounds:
        """Indexes and timestamps, as the manifest states them."""
        row = self.row
        times = (row.first_timestamp_ms, row.last_timestamp_ms)
        return {"index": (row.first_index, row.last_index), "timestamp_ms": times}

    def read(
        self, may_hold: MayHold = anything, columns: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the entries; raises ObjectMissing, CorruptObject, StoreError."""
        yield from read_range(self.store, self.group_id, self.row, may_hold, columns).to_batches()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRange:
    """Entries on a node's disk: one segment file.

    Attributes:
        last_chain: The chain CRC that the next segment continues; None for the last segment.
    """

    path: Path
    first_index: int
    last_index: int
    last_chain: int | None

    @property
    def bounds(self) -> Bounds:
        """The indexes."""
        return {"index": (self.first_index, self.last_index)}

    def read(
        self,
        may_hold: MayHold = anything,  # noqa: ARG002, a segment is read from its start
        columns: Sequence[str] = (),  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """Yield the entries; raises CorruptRecord."""
        chain = None
        for chunk in read_segment(self.path, last_index=self.last_index):
            batch = parse(chunk)
            chain = batch.column("chain_crc32c")[-1].as_py()
            yield batch
        if self.last_chain is not None and chain != self.last_chain:
            raise CorruptRecord(self.path.name, 0, "the next segment does not continue this one")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRange:
    """Entries of a running group, read from the first of *addresses* that gives them.

    Attributes:
        previous_chain: The chain CRC of the entry before the first one.
        bytes_per_s: How fast a node may be read, in bytes of records; 0: as fast as it can.
    """

    addresses: tuple[str, ...]
    group_id: str
    first_index: int
    last_index: int
    previous_chain: int
    bytes_per_s: float = 0.0

    @property
    def bounds(self) -> Bounds:
        """The indexes."""
        return {"index": (self.first_index, self.last_index)}

    def read(
        self,
        may_hold: MayHold = anything,  # noqa: ARG002, a node sends all that it is asked for
        columns: Sequence[str] = (),  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """Yield the entries, continuing at another node if one fails.

        Raises:
            NodeUnavailable: No node has sent more for 20 seconds.
            RangeNotAvailable, ForeignGroup, CorruptRecord: A node does not have the entries.
        """
        following, chain, pace = self.first_index, self.previous_chain, Pace(self.bytes_per_s)
        backoff = Backoff(_RETRY_S, _MAX_RETRY_S, at_once=True)
        for attempt in range(_TRIES):
            try:
                for batch in self._read_from(attempt, following, chain, pace):
                    following = batch.column("index")[-1].as_py() + 1
                    chain = batch.column("chain_crc32c")[-1].as_py()
                    yield batch
            except NodeUnavailable:
                if attempt + 1 == _TRIES:
                    raise
                time.sleep(backoff.next_s())
            else:
                return

    def _read_from(
        self, attempt: int, first_index: int, chain: int, pace: Pace
    ) -> Iterator[pa.RecordBatch]:
        address = self.addresses[attempt % len(self.addresses)]
        with ExportClient(address) as exporter:
            for chunk in exporter.read(self.group_id, first_index, self.last_index):
                if chunk.first_index == first_index and chunk.previous_chain != chain:
                    raise CorruptRecord(
                        chunk.segment, chunk.offset, f"{address} has another log before this record"
                    )
                yield parse(chunk)
                pace.has_read(len(chunk.data))


def archived(store: Store, group_id: str, files: Iterable[ManifestRow]) -> list[ArchivedRange]:
    """Return the ranges of some files of a group's backup."""
    return [ArchivedRange(store=store, group_id=group_id, row=row) for row in files]


def on_disk(directory: Path) -> list[SegmentRange]:
    """Return the ranges of the synced entries in a node's data directory, or a ``log`` alone.

    The newest of them may not be committed yet.

    Raises:
        CorruptFile: The watermark is damaged or missing: this is not a data directory.
        CorruptRecord: A segment is missing, or its header is damaged.
    """
    segments = synced_segments(directory)
    chains = [_previous_chain(path) for path, _, _ in segments[1:]]
    return [
        SegmentRange(path=path, first_index=first, last_index=last, last_chain=chain)
        for (path, first, last), chain in zip(segments, [*chains, None], strict=True)
    ]


def _previous_chain(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return decode_segment_header(file.read(SEGMENT_HEADER_BYTES)).previous_chain
    except ValueError as error:
        raise CorruptRecord(path.name, 0, str(error)) from error


def exported(plan: ExportPlan, addresses: Sequence[str]) -> list[ExportedRange]:
    """Return the ranges of *plan*, to be read from the first of *addresses* that can."""
    return [
        ExportedRange(
            addresses=tuple(addresses),
            group_id=plan.group_id,
            first_index=each.first_index,
            last_index=each.last_index,
            previous_chain=each.previous_chain,
        )
        for each in plan.ranges
    ]


def live(addresses: Sequence[str], *, target_bytes: int = TARGET_BYTES) -> list[ExportedRange]:
    """Return the ranges of what a running group has committed, from the oldest entry it keeps.

    Raises:
        NodeUnavailable, ForeignGroup: See `export_client.choose_nodes`.
    """
    nodes = choose_nodes(addresses)
    with ExportClient(nodes.addresses[0]) as exporter:
        plan = exporter.plan(target_bytes=target_bytes)
    return exported(plan, nodes.addresses)


def within(
    batches: Iterable[pa.RecordBatch], first_index: int, last_index: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *batches* whose index, which ascends, is in [first_index, last_index]."""
    for batch in batches:
        indexes = np.asarray(batch.column("index"))
        start = np.searchsorted(indexes, first_index)
        part = batch.slice(start, np.searchsorted(indexes, last_index, "right") - start)
        if part.num_rows:
            yield part
