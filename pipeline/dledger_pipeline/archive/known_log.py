"""All entries that a group's archive has, whatever backup names them, and those that came since.

`kept_log` is what the group still keeps. This is for who asks what ever was: also entries that
older backups have and the newest has not, since it was trimmed. Used by the job `erase`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.archive import ManifestRow
from dledger_pipeline.archive.bases import read_base, state_of
from dledger_pipeline.archive.entry_ranges import EntryRange, ExportedRange, archived, exported
from dledger_pipeline.archive.erased import Erased, find_erased_behind, read_erases
from dledger_pipeline.archive.extent import Extent
from dledger_pipeline.archive.kept_log import caught_up, check_continues
from dledger_pipeline.archive.manifest import (
    BaseRow,
    Chunk,
    ChunkRow,
    Manifest,
    manifest_name,
)
from dledger_pipeline.archive.places_objects import read_places
from dledger_pipeline.archive.queue_offsets import all_places
from dledger_pipeline.errors import BrokenBackup, NodeUnavailable, ObjectMissing
from dledger_pipeline.log.export_client import TARGET_BYTES, ExportClient, Nodes
from dledger_pipeline.log.key_hits import HIT_SCHEMA, NOT_PLACED, find_hits, place_hits
from dledger_pipeline.log.records import values
from dledger_pipeline.object_store.store import Store

_READ_AT_ONCE: Final = 16
"""Manifests at a time: an object store takes some 20 ms for each."""
_READ: Final = ("index", "type", "body")
"""What a key is looked for in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntries:
    """An object of the store, with the places of its messages if a node told them. Pickles."""

    store: Store
    group_id: str
    row: ManifestRow

    def place(self, hits: pa.Table) -> pa.Table:
        """Return *hits*, placed as far as nodes told. Raises like `read_places`."""
        if self.row.places is None or not _not_placed(hits).num_rows:
            return hits
        table = read_places(self.store, self.group_id, self.row).combine_chunks()
        for places in table.to_batches():
            hits = place_hits(hits, places)
        return hits


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRange:
    """Some entries in which a key is looked for. Pickles.

    Attributes:
        topic: The name of its topic.
        key: The key; never shown.
        stored: The object that they are of; None: nodes have them.
        size_bytes: What they take as records.
    """

    entries: EntryRange
    topic: str
    key: str = field(repr=False)
    stored: StoredEntries | None
    size_bytes: int

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the key (`key_hits.HIT_SCHEMA`).

        Raises:
            NewerCommand: See `find_hits`.
            CorruptRecord, PipelineError: The entries, or their places, cannot be read.
        """
        batches = self.entries.read(columns=_READ)
        found = [find_hits(each, self.topic, self.key) for each in batches]
        hits = pa.Table.from_batches(found, HIT_SCHEMA)
        yield from (hits if self.stored is None else self.stored.place(hits)).to_batches()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLog:
    """All that is known of a group's log.

    Attributes:
        newest: Its newest backup.
        files: Of all backups, ascending; several may have the same entry, which is the same then.
        bases: Of all backups, ascending.
        tail: What came behind the newest one, from nodes.
        tail_bytes: How large each range of that is.
    """

    store: Store
    newest: Manifest
    files: tuple[ManifestRow, ...]
    bases: tuple[BaseRow, ...]
    tail: tuple[ExportedRange, ...] = ()
    tail_bytes: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What the entries take as records."""
        return sum(row.record_bytes for row in self.files) + sum(self.tail_bytes)

    @property
    def last_index(self) -> int:
        """The last entry."""
        return self.tail[-1].last_index if self.tail else self.newest.last_index

    def ranges(self, topic: str, key: str, *, bytes_per_s: float) -> list[KnownRange]:
        """Return what to read for a key; each reads nodes at so many bytes a second."""
        group_id = self.newest.group_id
        found = [
            KnownRange(
                entries=entries,
                topic=topic,
                key=key,
                stored=StoredEntries(store=self.store, group_id=group_id, row=entries.row),
                size_bytes=entries.row.record_bytes,
            )
            for entries in archived(self.store, group_id, self.files)
        ]
        return found + [
            KnownRange(
                entries=replace(entries, bytes_per_s=bytes_per_s),
                topic=topic,
                key=key,
                stored=None,
                size_bytes=size_bytes,
            )
            for entries, size_bytes in zip(self.tail, self.tail_bytes, strict=True)
        ]

    def read_erased(self) -> Erased:
        """Return what was erased in any of these entries. Raises like `erased.read_erased`."""
        erased = Erased.of(read_erases(self.store, self.newest.group_id, self.files))
        return erased | find_erased_behind(self.tail, self.newest.last_index)

    def place(self, hits: pa.Table) -> pa.Table:
        """Return those of *hits* that were stored, all placed: where nobody told, by a replay.

        A send that was refused, or repeats another one, has stored nothing.

        Raises:
            BrokenBackup: There is nothing to begin a replay with.
            CorruptRecord, PipelineError: The entries cannot be read.
        """
        for first, last, ranges in self._runs():
            indexes = values(_not_placed(hits).column("index").combine_chunks())
            here = indexes[(first <= indexes) & (indexes <= last)]
            if len(here):
                low, high = int(here.min()), int(here.max())
                for places in self._replay((first, last), ranges, low, high):
                    hits = place_hits(hits, places)
        return hits.filter(pc.not_equal(hits.column("generation"), NOT_PLACED))

    def _runs(self) -> Iterator[tuple[int, int, list[EntryRange]]]:
        """Yield the stretches [first, last] of entries without a gap, each with its ranges."""
        run: list[EntryRange] = []
        last = 0
        stored: list[EntryRange] = [*archived(self.store, self.newest.group_id, self.files)]
        for each in [*stored, *self.tail]:
            if run and each.first_index > last + 1:
                yield run[0].first_index, last, run
                run, last = [], 0
            run.append(each)
            last = max(last, each.last_index)
        if run:
            yield run[0].first_index, last, run

    def _replay(
        self, run: tuple[int, int], ranges: Sequence[EntryRange], low: int, high: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the places of a run's messages; those in [*low*, *high*] are all among them.

        But for what had been let go before the run's oldest base: nothing shows that any more.
        """
        bases = [
            base for base in self.bases if base.begins_in(*run) and base.applied_index <= run[1]
        ]
        before = [base for base in bases if base.applied_index < low]
        base = next(iter([*reversed(before), *(() if run[0] == 1 else bases)]), None)
        if base is None and run[0] > 1:
            raise BrokenBackup(
                self.newest.name,
                f"nothing stands for what is before entry {run[0]}, which nodes have; make a "
                "backup first",
            )
        state = None
        if base is not None:
            snapshot = read_base(self.store, self.newest.group_id, base)
            state = state_of(base.name, snapshot)
        yield from all_places(ranges, state, high)


def _not_placed(hits: pa.Table) -> pa.Table:
    return hits.filter(pc.equal(hits.column("generation"), NOT_PLACED))


def known_log(nodes: Nodes, store: Store, *, target_bytes: int = TARGET_BYTES) -> KnownLog:
    """Return all that is known of a group's log.

    Args:
        nodes: The group's.
        store: Where its backups are.
        target_bytes: Record bytes of a range that is read from nodes.

    Raises:
        BrokenBackup: The newest backup is of another history than the nodes' logs.
        ExportError: No node tells what is asked.
        StoreError, BackupError: See `archived_log`.
    """
    if not nodes.leader:
        raise NodeUnavailable(f"none of {', '.join(nodes.addresses)} leads its group")
    log = archived_log(store, nodes.group_id)
    with ExportClient(nodes.addresses[0]) as exporter:
        seen = caught_up(exporter, nodes.group_id, nodes.leader_commit_index)
        check_continues(exporter, log.newest, seen.commit_index)
        first = max(log.newest.last_index + 1, seen.first_available)
        if first > seen.commit_index:
            return log
        plan = exporter.plan(
            group_id=nodes.group_id,
            first_index=first,
            last_index=seen.commit_index,
            target_bytes=target_bytes,
        )
    return replace(
        log,
        tail=tuple(exported(plan, nodes.addresses)),
        tail_bytes=tuple(each.size_bytes for each in plan.ranges),
    )


def archived_log(store: Store, group_id: str) -> KnownLog:
    """Return what the archive alone knows.

    Raises:
        StoreError, BackupError: The store failed, or a backup is damaged.
    """
    newest, older = _manifests(store, group_id)
    files = {row.name: row for row in newest.files}
    bases = {base.name: base for base in newest.bases}
    for each in older:
        files.update((row.name, row) for row in each.files if not _has(newest, row))
        bases.update((base.name, base) for base in each.bases)
    return KnownLog(
        store=store,
        newest=newest,
        files=tuple(sorted(files.values(), key=lambda row: (row.first_index, row.last_index))),
        bases=tuple(sorted(bases.values(), key=lambda base: base.applied_index)),
    )


def _has(manifest: Manifest, row: ManifestRow) -> bool:
    """Whether a backup has all entries of *row*: then other objects of them have nothing more."""
    return any(
        first <= row.first_index and row.last_index <= last for first, last in manifest.runs()
    )


def _manifests(store: Store, group_id: str) -> tuple[Manifest, list[Manifest]]:
    """Return the newest backup, and those older ones that have entries which it has not."""
    chunks: dict[ChunkRow, Chunk] = {}
    newest = catalog.load(store, group_id, chunks=chunks)
    numbers = [each for each in catalog.numbers(store, group_id) if each < newest.number]
    with ThreadPoolExecutor(_READ_AT_ONCE, "manifest-reader") as readers:
        extents = [*readers.map(partial(_extent, store, group_id), numbers)]
    wanted = [
        number
        for number, extent in zip(numbers, extents, strict=True)
        if extent is not None
        and (extent.first_index < newest.first_index or newest.last_index < extent.last_index)
    ]
    return newest, [catalog.load(store, group_id, each, chunks=chunks) for each in wanted]


def _extent(store: Store, group_id: str, number: int) -> Extent | None:
    """Return what a backup has; None if `gc` has deleted it meanwhile."""
    try:
        content = catalog.content_of(store, group_id, number)
    except ObjectMissing:
        return None
    return Extent.read(f"{group_id}/{manifest_name(number)}", content)
