"""All entries in which a group keeps messages, as ranges to read keys from: `KeyRange`.

A backup has them, and nodes have what came later. Where the messages of PRODUCE lie is known by the
backup, else nodes are asked; they move meanwhile, when a REKEEP copies them. So places are asked
for first, and the log is read up to where the nodes were that told them: whoever was copied by then
is found in a REKEEP that is read, and nobody is missed. Used by the job `compact`;
`known_log` asks nodes in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.archive import ManifestRow
from dledger_pipeline.archive.entry_ranges import (
    EntryRange,
    ExportedRange,
    archived,
    exported,
)
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.archive.message_ranges import StoredPlaces, between
from dledger_pipeline.archive.places_objects import told_places
from dledger_pipeline.archive.selection import EVERYTHING
from dledger_pipeline.errors import BrokenBackup, GapInBackup, NodeUnavailable
from dledger_pipeline.log.export_client import (
    TARGET_BYTES,
    ExportClient,
    ExportedPlaces,
    ExportPlan,
    Nodes,
)
from dledger_pipeline.log.keys import key_rows
from dledger_pipeline.log.places import no_places
from dledger_pipeline.log.segments import last_chain
from dledger_pipeline.object_store.store import Store

_WHOLE: Final = 1 << 40
"""A target size that gives one range, where only the plan's other facts are wanted."""
_CATCH_UP_S: Final = 20.0
_LOOK_S: Final = 0.1
_READ: Final = ("index", "term", "type", "timestamp_ms", "body")
"""What rows of keys are made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """Some entries, and where their messages are. Pickles.

    Attributes:
        places: Of PRODUCE's messages; or the object that has them.
        generations: The topics that are asked for.
        size_bytes: What the entries take as records.
    """

    entries: EntryRange
    places: pa.RecordBatch | StoredPlaces
    generations: frozenset[int]
    size_bytes: int

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows (`keys.KEY_SCHEMA`) of the messages.

        Raises:
            MalformedMessage: See `keys.key_rows`.
            CorruptRecord, PipelineError: The entries, or their places, cannot be read.
        """
        stored = isinstance(self.places, StoredPlaces)
        places = self.places.read(EVERYTHING) if stored else self.places
        for entries in self.entries.read(columns=_READ):
            indexes = entries.column("index")
            inside = between(places, indexes[0].as_py(), indexes[-1].as_py())
            yield key_rows(entries, inside, self.generations)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLog:
    """What a group keeps.

    Attributes:
        ranges: All that it keeps of the messages up to *as_of_index* is in these; at least one.
        as_of_index, as_of_chain: An entry, and the chain CRC of its record.
    """

    ranges: tuple[KeyRange, ...]
    as_of_index: int
    as_of_chain: int

    @property
    def size_bytes(self) -> int:
        """What the entries take as records."""
        return sum(each.size_bytes for each in self.ranges)

    def with_pace(self, bytes_per_s: float) -> KeptLog:
        """Return it with ranges each of which reads nodes at so many bytes of records a second."""
        return replace(self, ranges=tuple(_with_pace(each, bytes_per_s) for each in self.ranges))


def _with_pace(each: KeyRange, bytes_per_s: float) -> KeyRange:
    if not isinstance(each.entries, ExportedRange):
        return each
    return replace(each, entries=replace(each.entries, bytes_per_s=bytes_per_s))


def kept_log(
    nodes: Nodes,
    store: Store | None,
    generations: Collection[int],
    *,
    target_bytes: int = TARGET_BYTES,
) -> KeptLog:
    """Return the log that a group keeps, from the newest backup as far as that reaches.

    Args:
        nodes: The group's.
        store: Where its backups are; None: nodes are read.
        generations: The topics that are asked for.
        target_bytes: Record bytes of a range that is read from nodes.

    Raises:
        GapInBackup: The backup does not have all that the group keeps.
        BrokenBackup: It is of another history than the nodes' logs.
        RangeNotAvailable: A node has dropped entries meanwhile: begin again.
        ExportError: No node tells what is asked.
        StoreError, BackupError: The store failed, or its backup is damaged.
    """
    if not nodes.leader:
        raise NodeUnavailable(f"none of {', '.join(nodes.addresses)} leads its group")
    with ExportClient(nodes.addresses[0]) as exporter:
        seen = caught_up(exporter, nodes.group_id, nodes.leader_commit_index)
        last, first = seen.commit_index, max(seen.kept_from, seen.first_available)
        manifest = catalog.load(store, nodes.group_id) if store is not None else None
        files: Sequence[ManifestRow] = ()
        if manifest is not None and manifest.last_index >= first:
            check_continues(exporter, manifest, last)
            files = _files_from(manifest, first)
        begin = files[-1].last_index + 1 if files else first
        plan = exporter.plan(
            group_id=nodes.group_id, first_index=begin, last_index=last, target_bytes=target_bytes
        )
        ranges, applied_index = list[KeyRange](), max(seen.applied_index, last)
        for entries, size_bytes, stored in _entries(store, nodes, files, plan):
            places: pa.RecordBatch | StoredPlaces
            if stored is not None and stored.places is not None and store is not None:
                places = StoredPlaces(
                    store=store,
                    group_id=nodes.group_id,
                    row=stored,
                    topics=frozenset(generations),
                )
            else:
                told = _ask_places(nodes, entries, first)
                applied_index = max(applied_index, told.applied_index)
                places = _of(told.places, generations)
            ranges.append(_range(entries, places, generations, size_bytes))
        ranges += _behind(exporter, nodes, (last + 1, applied_index), generations, target_bytes)
        chain = _chain_of(exporter, nodes.group_id, last)
    return KeptLog(ranges=tuple(ranges), as_of_index=last, as_of_chain=chain)


def caught_up(exporter: ExportClient, group_id: str, index: int) -> ExportPlan:
    """Return what the node has once it has all up to *index*, which is committed.

    Raises:
        NodeUnavailable: It does not come so far.
    """
    until_s = time.monotonic() + _CATCH_UP_S
    while True:
        seen = exporter.plan(group_id=group_id, target_bytes=_WHOLE)
        if seen.commit_index >= index:
            return seen
        if time.monotonic() >= until_s:
            raise NodeUnavailable(
                f"{exporter.address} has entry {seen.commit_index}, the group has {index}"
            )
        time.sleep(_LOOK_S)


def check_continues(exporter: ExportClient, manifest: Manifest, last: int) -> None:
    """Raise BrokenBackup if the node's log does not have the backup's last entry."""
    index = manifest.last_index
    if index > last or _chain_of(exporter, manifest.group_id, index) != manifest.last_chain:
        raise BrokenBackup(
            manifest.name, f"the log of {exporter.address} does not have its entry {index}"
        )


def _chain_of(exporter: ExportClient, group_id: str, index: int) -> int:
    (chunk,) = exporter.read(group_id, index, index)
    return last_chain(chunk)


def _files_from(manifest: Manifest, first: int) -> tuple[ManifestRow, ...]:
    """Return the files from entry *first* on; raises GapInBackup if entries are missing."""
    files = manifest.files_in(first, manifest.last_index)
    ends = [(0, first - 1), *((each.first_index, each.last_index) for each in files)]
    gaps = [
        (before[1] + 1, after[0] - 1)
        for before, after in pairwise(ends)
        if after[0] > before[1] + 1
    ]
    if gaps:
        raise GapInBackup(manifest.name, *gaps)
    return files


def _entries(
    store: Store | None, nodes: Nodes, files: Sequence[ManifestRow], plan: ExportPlan
) -> Iterator[tuple[EntryRange, int, ManifestRow | None]]:
    """Yield all ranges of entries, their size, and the row of those that are in the store."""
    if store is not None:
        for entries in archived(store, nodes.group_id, files):
            yield entries, entries.row.record_bytes, entries.row
    for live, each in zip(exported(plan, nodes.addresses), plan.ranges, strict=True):
        yield live, each.size_bytes, None


def _ask_places(nodes: Nodes, entries: EntryRange, first: int) -> ExportedPlaces:
    span = max(entries.first_index, first), entries.last_index
    return told_places(nodes.addresses, nodes.group_id, *span)


def _of(places: pa.RecordBatch, generations: Collection[int]) -> pa.RecordBatch:
    """Return the places of *generations*, which is all that a task is sent."""
    asked = pa.array(sorted(generations), pa.int64())
    return places.filter(pc.is_in(places.column("generation"), asked))


def _range(
    entries: EntryRange,
    places: pa.RecordBatch | StoredPlaces,
    generations: Collection[int],
    size_bytes: int,
) -> KeyRange:
    return KeyRange(
        entries=entries, places=places, generations=frozenset(generations), size_bytes=size_bytes
    )


def _behind(
    exporter: ExportClient,
    nodes: Nodes,
    span: tuple[int, int],
    generations: Collection[int],
    target_bytes: int,
) -> Iterator[KeyRange]:
    """Yield entries that came while places were told, for what they copied and nothing else."""
    first, last = span
    if last < first:
        return
    caught_up(exporter, nodes.group_id, last)
    plan = exporter.plan(
        group_id=nodes.group_id, first_index=first, last_index=last, target_bytes=target_bytes
    )
    for live, each in zip(exported(plan, nodes.addresses), plan.ranges, strict=True):
        yield _range(live, no_places(), generations, each.size_bytes)
