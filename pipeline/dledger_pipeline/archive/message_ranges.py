"""Entries with the queue offsets of their messages: what a worker needs to read. Pickles.

The places come with the range if they were found by replay (`queue_offsets`), or they are an object
of the store that the worker reads (`StoredPlaces`). Used by the data source and
`kept_log`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dledger_pipeline.archive.archive import ManifestRow
from dledger_pipeline.archive.entry_ranges import EntryRange
from dledger_pipeline.archive.erased import NOTHING_ERASED, Erased
from dledger_pipeline.archive.places_objects import read_places
from dledger_pipeline.archive.selection import EVERYTHING, MAX_INDEX, Bounds, Selection, overlap
from dledger_pipeline.errors import CorruptObject
from dledger_pipeline.log.kept_messages import BLOCK_SCHEMA, decode_kept
from dledger_pipeline.log.messages import decode
from dledger_pipeline.log.produce_columns import Bools, Ints
from dledger_pipeline.object_store.store import Store

ANY_ENTRY: Final = ((1, MAX_INDEX),)
_DECODED: Final = ("index", "term", "timestamp_ms", "body")
"""What messages are made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlaces:
    """The places of an object's messages, in an object of their own.

    Attributes:
        row: The entries; it has places.
        topics: Generations of the topics that are asked for.
    """

    store: Store
    group_id: str
    row: ManifestRow
    topics: frozenset[int]

    def read(self, selection: Selection) -> pa.RecordBatch:
        """Return what is asked for, but for times. Raises like `read_places`."""
        table = read_places(self.store, self.group_id, self.row).combine_chunks()
        batches = table.to_batches()
        found = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
        return selection.of_slices(found, self.topics)

    def check_fits(self, slices: pa.RecordBatch, entries: pa.RecordBatch) -> None:
        """Check that *slices* lie in the bodies of *entries*: the two are different objects.

        Raises:
            CorruptObject: They do not.
        """
        ends = np.asarray(slices.column("end"))
        indexes, wanted = (np.asarray(each.column("index")) for each in (entries, slices))
        at = np.searchsorted(indexes, wanted)
        sizes = np.asarray(pc.binary_length(entries.column("body")))
        if not ((indexes[at] == wanted) & (ends <= sizes[at])).all() and self.row.places:
            name = f"{self.group_id}/{self.row.places.name}"
            raise CorruptObject(name, f"it has places outside of the entries of {self.row.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRows:
    """Copies of messages that are not shown where they were stored.

    Attributes:
        blocks: Where they are (`kept_messages.BLOCK_SCHEMA`), all in the entries of one range.
        stored_in: Ranges [first, last] of entries, ascending: a message that one of these stored is
            shown by its copy, any other one where it was stored.
    """

    blocks: pa.RecordBatch
    stored_in: tuple[tuple[int, int], ...] = ANY_ENTRY

    def within(self, first_index: int, last_index: int) -> KeptRows:
        """Return what lies in entries [*first_index*, *last_index*]."""
        return replace(self, blocks=between(self.blocks, first_index, last_index))

    def read(
        self, entries: pa.RecordBatch, selection: Selection, columns: Sequence[str]
    ) -> pa.RecordBatch:
        """Return the messages whose copies are in *entries*. Raises like `decode_kept`."""

        def is_wanted(offset: Ints, index: Ints, stored_at_ms: Ints) -> Bools:
            found = np.zeros(len(index), np.bool_)
            for first, last in self.stored_in:
                found |= (first <= index) & (index <= last)
            return found & selection.of_kept(offset, index, stored_at_ms)

        return decode_kept(entries, _within(entries, self.blocks), is_wanted, columns)


NOTHING_KEPT: Final = KeptRows(
    blocks=pa.RecordBatch.from_arrays(
        [pa.nulls(0, field.type) for field in BLOCK_SCHEMA],  # what takes no list imports no pandas
        schema=BLOCK_SCHEMA,
    )
)


@dataclass(frozen=True, slots=True)
class MessageRange:
    """The messages of some entries that are asked for.

    Attributes:
        entries: Where the messages are.
        places: The places of those that these entries stored, those of *selection* but for times;
            or where these are.
        selection: Which messages are asked for.
        kept: Copies of older messages.
        erased: Which of all these are shown to nobody.
    """

    entries: EntryRange
    places: pa.RecordBatch | StoredPlaces
    selection: Selection = EVERYTHING
    kept: KeptRows = NOTHING_KEPT
    erased: Erased = NOTHING_ERASED

    @property
    def first_index(self) -> int:
        """The first entry."""
        return self.entries.first_index

    @property
    def last_index(self) -> int:
        """The last entry."""
        return self.entries.last_index

    @property
    def may_have_rows(self) -> bool:
        """Whether there may be such messages."""
        has_places = isinstance(self.places, StoredPlaces) or self.places.num_rows > 0
        return has_places or self.kept.blocks.num_rows > 0

    def without(self, erased: Erased) -> MessageRange:
        """Return it without what is *erased*, too."""
        return replace(self, erased=self.erased | erased.since(self.first_index))

    def _read_places(self) -> pa.RecordBatch:
        stored = isinstance(self.places, StoredPlaces)
        places = self.places.read(self.selection) if stored else self.places
        return self.erased.left_of(places)

    def read(self, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the messages, of `MESSAGE_SCHEMA` or only these *columns* of it.

        Unreadable ones are left out, counted and logged (see `messages`).

        Raises:
            MalformedMessage: See `messages.decode`.
            CorruptRecord, PipelineError: The entries, or their places, cannot be read.
        """
        stored = self.places if isinstance(self.places, StoredPlaces) else None
        places = self._read_places()
        copies = replace(self.kept, blocks=self.erased.left_of(self.kept.blocks))
        if not places.num_rows and not copies.blocks.num_rows:
            return

        def may_hold(bounds: Bounds) -> bool:
            low, high = bounds.get("index", (1, MAX_INDEX))
            if copies.within(low, high).blocks.num_rows:
                return True  # whatever the copy's own time and index are
            is_there = between(places, low, high).num_rows > 0
            return is_there and overlap(bounds, self.selection.of_entries())

        for entries in self.entries.read(may_hold, _DECODED):
            kept = copies.read(entries, self.selection, columns)
            if kept.num_rows:
                yield kept
            slices = self.selection.at_times(_within(entries, places), entries)
            if slices.num_rows:
                if stored is not None:
                    stored.check_fits(slices, entries)
                yield decode(entries, slices, columns)


def between(slices: pa.RecordBatch, first_index: int, last_index: int) -> pa.RecordBatch:
    """Return those of *slices*, or blocks, that lie in entries [*first_index*, *last_index*]."""
    indexes = np.asarray(slices.column("index"))
    start = np.searchsorted(indexes, first_index)
    return slices.slice(start, np.searchsorted(indexes, last_index, "right") - start)


def _within(entries: pa.RecordBatch, slices: pa.RecordBatch) -> pa.RecordBatch:
    indexes = entries.column("index")
    return between(slices, indexes[0].as_py(), indexes[-1].as_py())
