"""Which messages were erased: what no view, export or restored log shows, whatever time is asked.

The log and its backups stay byte for byte as they were written, so a reader takes the ERASEs that
came later into account: all that the archive has, not only those below the entry that is asked for.
An ERASE means messages that were stored before it. One that names an offset which its queue had not
come to yet, as a restored log has it, means nothing that is stored there later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dledger.broker.erase import MAX_OFFSETS, Erase
from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.archive import ManifestRow
from dledger_pipeline.archive.entry_ranges import EntryRange
from dledger_pipeline.archive.erasures_objects import read_erasures
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.log.erase_rows import ERASE_SCHEMA, erase_rows
from dledger_pipeline.log.places import numbers
from dledger_pipeline.object_store.store import Store

_Ints = npt.NDArray[np.int64]

_READ_AT_ONCE: Final = 8
"""Objects of ERASEs, which are small: an object store takes some 20 ms for each."""


class OfQueue(NamedTuple):
    """What was erased of a queue: an item for each offset, ascending.

    Attributes:
        offsets: The queue offsets.
        entries: The newest ERASE of each.
        firsts: What ERASEs mean by the offset was not stored before this entry.
    """

    offsets: _Ints
    entries: _Ints
    firsts: _Ints

    def where(self, wanted: npt.NDArray[np.bool_]) -> OfQueue:
        """Return those items."""
        return OfQueue(*(column[wanted] for column in self))


@dataclass(frozen=True, slots=True)
class Erased:
    """What was erased, by generation and queue id; no queue without any. Pickles."""

    queues: Mapping[tuple[int, int], OfQueue]

    @classmethod
    def of(cls, rows: pa.RecordBatch | pa.Table) -> Erased:
        """Return what ERASEs (`erase_rows.ERASE_SCHEMA`) say."""
        names = ("index", "generation", "queue_id", "offset", "first_entry")
        return cls._of(*(numbers(rows.column(name)) for name in names))

    @classmethod
    def _of(
        cls, index: _Ints, generation: _Ints, queue_id: _Ints, offset: _Ints, first: _Ints
    ) -> Erased:
        order = np.lexsort((index, offset, queue_id, generation))
        columns = [each[order] for each in (generation, queue_id, offset, index, first)]
        if not len(order):
            return NOTHING_ERASED
        is_newest = np.append(_changes(*columns[:3]), True)
        first = np.minimum.reduceat(columns.pop(), np.append(0, np.flatnonzero(is_newest)[:-1] + 1))
        generation, queue_id, offset, index = (each[is_newest] for each in columns)
        ends = np.append(np.flatnonzero(_changes(generation, queue_id)) + 1, len(offset))
        starts = np.append(0, ends[:-1])
        return cls(
            {
                (int(generation[low]), int(queue_id[low])): OfQueue(
                    offset[low:high], index[low:high], first[low:high]
                )
                for low, high in zip(starts.tolist(), ends.tolist(), strict=True)
            }
        )

    def __len__(self) -> int:
        """Return how many messages are named."""
        return sum(len(each.offsets) for each in self.queues.values())

    def __or__(self, other: Erased) -> Erased:
        """Return what either says."""
        if not self.queues or not other.queues:
            return self if self.queues else other
        pairs = zip(self._columns(), other._columns(), strict=True)
        return Erased._of(*map(np.concatenate, pairs))

    def _columns(self) -> list[_Ints]:
        """Return what `_of` takes; of at least one queue."""
        columns = [
            (
                each.entries,
                np.full(len(each.offsets), generation),
                np.full(len(each.offsets), queue_id),
                each.offsets,
                each.firsts,
            )
            for (generation, queue_id), each in self.queues.items()
        ]
        return [np.concatenate(each) for each in zip(*columns, strict=True)]

    def since(self, index: int) -> Erased:
        """Return what ERASEs behind entry *index* say."""
        return self._where(lambda each: each.entries > index)

    def may_concern(self, index: int) -> Erased:
        """Return what may mean messages that were stored up to entry *index*."""
        return self._where(lambda each: each.firsts <= index)

    def _where(self, wanted: Callable[[OfQueue], npt.NDArray[np.bool_]]) -> Erased:
        found = {queue: each.where(wanted(each)) for queue, each in self.queues.items()}
        return Erased({queue: each for queue, each in found.items() if len(each.offsets)})

    def commands(self) -> list[Erase]:
        """Return ERASEs that say the same once more, by queue and offset."""
        return [
            Erase(
                generation=generation,
                queue_id=queue_id,
                first_entry=int(each.firsts[at : at + MAX_OFFSETS].min()),
                offsets=tuple(each.offsets[at : at + MAX_OFFSETS].tolist()),
            )
            for (generation, queue_id), each in sorted(self.queues.items())
            for at in range(0, len(each.offsets), MAX_OFFSETS)
        ]

    def left_of(self, slices: pa.RecordBatch) -> pa.RecordBatch:
        """Return what is left of *slices*, or of blocks, in order: cut around what was erased.

        Args:
            slices: `messages.QUEUE_SLICE_SCHEMA` or `kept_messages.BLOCK_SCHEMA`. Of a block, which
                says where the copy is: an ERASE behind it is one behind all that it holds, and of
                one before it the copy, if it was not refused, has nothing.
        """
        if not self.queues or not slices.num_rows:
            return slices
        first = numbers(slices.column("first_offset"))
        is_block = "end_offset" in slices.schema.names
        end = numbers(slices.column("end_offset")) if is_block else first + _rows(slices)
        of_hit, hit = self._hits(slices, first, end)
        if not len(hit):
            return slices
        every = np.arange(slices.num_rows)
        begins, of_begin = np.append(first, hit + 1), np.append(every, of_hit)
        stops, of_stop = np.append(end, hit), np.append(every, of_hit)
        order = np.lexsort((begins, of_begin))
        begin, owner = begins[order], of_begin[order]
        stop = stops[np.lexsort((stops, of_stop))]
        there = begin < stop
        begin, stop, owner = begin[there], stop[there], owner[there]
        pieces = slices.take(pa.array(owner))
        changed = {"first_offset": begin}
        if is_block:
            changed["end_offset"] = stop
        else:
            changed["rows"] = stop - begin
            changed["first_row"] = numbers(pieces.column("first_row")) + begin - first[owner]
        columns = [
            pa.array(changed[field.name], field.type)
            if field.name in changed
            else pieces.column(field.name)
            for field in slices.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=slices.schema)

    def _hits(self, slices: pa.RecordBatch, first: _Ints, end: _Ints) -> tuple[_Ints, _Ints]:
        """Return (slice, offset) of what was erased of *slices*."""
        index, generation, queue_id = (
            numbers(slices.column(name)) for name in ("index", "generation", "queue_id")
        )
        order = np.lexsort((queue_id, generation))
        ends = np.flatnonzero(_changes(generation[order], queue_id[order])) + 1
        owners, hits = [_NONE], [_NONE]
        for part in np.split(order, ends):
            each = self.queues.get((int(generation[part[0]]), int(queue_id[part[0]])))
            if each is None:
                continue
            low = np.searchsorted(each.offsets, first[part])
            counts = np.searchsorted(each.offsets, end[part]) - low
            owner = np.repeat(part, counts)
            within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
            at = np.repeat(low, counts) + within
            is_later = each.entries[at] > index[owner]
            owners.append(owner[is_later])
            hits.append(each.offsets[at][is_later])
        return np.concatenate(owners), np.concatenate(hits)


NOTHING_ERASED: Final = Erased({})
_NONE: Final = np.zeros(0, np.int64)


def _changes(*columns: _Ints) -> npt.NDArray[np.bool_]:
    """Return for each row but the last whether the next one differs."""
    found = np.zeros(max(len(columns[0]) - 1, 0), np.bool_)
    for column in columns:
        found |= np.diff(column) != 0
    return found


def _rows(slices: pa.RecordBatch) -> _Ints:
    return numbers(slices.column("rows"))


def read_erased(store: Store, manifest: Manifest) -> Erased:
    """Return all that was erased of a group, as far as its archive knows: from whatever backup.

    That is *manifest* and the newest one, which has all later entries; but where old entries have
    been trimmed since, also those between which have what came next.

    Raises:
        BackupError, ObjectMissing, StoreError: The store, or one of these backups, is at fault.
    """
    files = {row.name: row for row in manifest.files}
    chunks = {chunk.row: chunk for chunk in manifest.chunks if chunk.row is not None}
    for number in reversed(catalog.numbers(store, manifest.group_id)):
        if number <= manifest.number:
            break
        newer = catalog.load(store, manifest.group_id, number, chunks=chunks)
        files.update({row.name: row for row in newer.files})
        if newer.first_index <= manifest.last_index + 1:
            break
    return Erased.of(read_erases(store, manifest.group_id, files.values()))


def read_erases(store: Store, group_id: str, files: Iterable[ManifestRow]) -> pa.Table:
    """Return the ERASEs (`erase_rows.ERASE_SCHEMA`) among the entries of *files*.

    Raises like `read_erasures`.
    """
    rows = [row for row in files if row.erasures is not None]
    if not rows:
        return ERASE_SCHEMA.empty_table()
    with ThreadPoolExecutor(_READ_AT_ONCE, "erasures-reader") as readers:
        return pa.concat_tables(readers.map(partial(read_erasures, store, group_id), rows))


def find_erased_behind(ranges: Iterable[EntryRange], index: int) -> Erased:
    """Return what was erased behind entry *index* in *ranges*, which are read for that.

    Raises:
        NewerCommand: See `erase_rows`.
        CorruptRecord, PipelineError: The entries cannot be read.
    """
    found = [
        erase_rows(batch)
        for each in ranges
        if each.last_index > index
        for batch in each.read(columns=("index", "timestamp_ms", "type", "body"))
    ]
    return Erased.of(pa.Table.from_batches(found, ERASE_SCHEMA)).since(index)
