"""``spark.readStream.format("dledger")``: messages as they come into a backup, or into a group.

An offset is an entry of the log: a batch has the messages that the view shows of the entries behind
one offset up to the next, by their own entries. Where the group keeps messages longer than its log,
those whose own entries are gone lie in later ones. So a batch that would begin with an entry that
is gone goes to the end of what there is, whatever its limit: all that was kept then is in it.

Needs Spark 4.2, which the rest does not; imported by `source` when a stream is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.entry_ranges import ExportedRange, live
from dledger_pipeline.archive.manifest import Chunk, ChunkRow, Manifest
from dledger_pipeline.archive.message_ranges import MessageRange
from dledger_pipeline.archive.planning import archived_messages
from dledger_pipeline.archive.selection import MAX_INDEX, Selection
from dledger_pipeline.errors import RangeNotAvailable
from dledger_pipeline.spark.source import LedgerReader, Part, ReadOptions, node_messages

Offset: TypeAlias = dict[str, int]
"""What Spark keeps of a stream between its runs, by these names:"""
_INDEX: Final = "index"
"""The last entry whose messages were read."""
_FIRST: Final = "first"
"""The first entry that there was when the stream began."""


@dataclass(frozen=True, slots=True)
class _Backup:
    """The newest backup of a group in a store."""

    options: ReadOptions
    manifest: Manifest

    @property
    def entries(self) -> tuple[int, int]:
        return self.manifest.first_index, self.manifest.last_index

    def has(self, index: int) -> bool:
        return any(first <= index <= last for first, last in self.manifest.runs())

    def messages(self, selection: Selection) -> Iterator[MessageRange]:
        return archived_messages(self.options.opened(), self.manifest, selection)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """What running nodes have committed."""

    ranges: Sequence[ExportedRange]

    @property
    def entries(self) -> tuple[int, int]:
        if not self.ranges:
            return 1, 0
        return self.ranges[0].first_index, self.ranges[-1].last_index

    def has(self, index: int) -> bool:
        first, last = self.entries
        return first <= index <= last

    def messages(self, selection: Selection) -> Iterator[MessageRange]:
        return node_messages(self.ranges, selection)


class LedgerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, in a process of its own, and reads in the workers."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        """Yield rows of *schema*."""
        self._options, self._schema = options, schema
        self._chunks: dict[ChunkRow, Chunk] = {}
        self._last_wanted = MAX_INDEX

    def initialOffset(self) -> Offset:  # noqa: N802, Spark's name
        """Return the offset before all entries, or before the first that the options ask for."""
        first_there, _ = self._log().entries
        return {_INDEX: self._options.selection.first_index - 1, _FIRST: first_there}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802, Spark's name
        """Return the newest offset, or one that keeps to *limit*, whose rows are our entries."""
        log = self._log()
        _, last = log.entries
        end = max(min(last, self._last_wanted), start[_INDEX])
        if isinstance(limit, ReadMaxRows) and log.has(start[_INDEX] + 1):
            end = min(end, start[_INDEX] + limit.max_rows)
        return start | {_INDEX: end}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802, Spark's name
        """Return what option maxEntriesPerTrigger says."""
        most = self._options.max_entries
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802, Spark's name
        """Note where the log ends: this run of the query reads no further."""
        _, self._last_wanted = self._log().entries

    def partitions(self, start: Offset, end: Offset) -> Sequence[Part]:
        """Return a part for each range that may have messages of a batch.

        Raises:
            RangeNotAvailable: Entries were dropped before the stream had read them.
            PipelineError: See `planning.archived_messages`.
        """
        if start[_INDEX] >= end[_INDEX]:
            return []
        log = self._log()
        following, (first_there, last) = start[_INDEX] + 1, log.entries
        if max(following, start[_FIRST]) < first_there or end[_INDEX] > last:
            raise RangeNotAvailable(
                f"the stream goes on at entries [{following}, {end[_INDEX]}], and only "
                f"[{first_there}, {last}] are there: messages in between are lost to it; begin a "
                "new stream with a checkpoint of its own, or read them out of a backup"
            )
        selection = replace(self._options.selection, first_index=following, last_index=end[_INDEX])
        return [Part(each) for each in log.messages(selection) if each.may_have_rows]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the part's rows; raises what reading the entries does."""
        return LedgerReader(self._options, self._schema).read(partition)

    def _log(self) -> _Backup | _Nodes:
        """Return the log as it is now."""
        options = self._options
        if not options.store:
            return _Nodes(live(options.endpoint))
        manifest = catalog.load(options.opened(), options.group_id, chunks=self._chunks)
        return _Backup(options, manifest)
