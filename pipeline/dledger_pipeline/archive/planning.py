"""Which objects of a backup a query for messages reads; nothing but the manifest is read for that.

Where a manifest does not say where the messages of some entries are, or whether a topic still
existed at the last index, the log is replayed (`queue_offsets`). Called by the data source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from dledger_pipeline.archive.archive import ManifestRow
from dledger_pipeline.archive.bases import read_base, state_of
from dledger_pipeline.archive.entry_ranges import ArchivedRange, archived
from dledger_pipeline.archive.manifest import Manifest, stretches
from dledger_pipeline.archive.message_ranges import MessageRange, StoredPlaces
from dledger_pipeline.archive.queue_offsets import message_ranges
from dledger_pipeline.archive.selection import EVERYTHING, MAX_INDEX, Selection, overlap
from dledger_pipeline.object_store.store import Store


def archived_messages(
    store: Store, manifest: Manifest, selection: Selection = EVERYTHING
) -> Iterator[MessageRange]:
    """Yield the messages of a backup that are asked for, in ranges that may have none of them.

    They are all whose places the manifest knows, on both sides of a gap, and in the newest run that
    begins at or below the last index also the others, from the run's oldest base on. What that
    leaves out is `left_out`.

    Raises:
        LogIncomplete: No base stands for what is missing before a run.
        StoreError, BackupError: The store, or what it holds, is at fault.
    """
    in_time = (r.first_index for r in manifest.files if r.last_timestamp_ms >= selection.first_ms)
    first_index = max(selection.first_index, next(in_time, MAX_INDEX))
    if first_index > manifest.last_index:
        return
    last_index = min(selection.last_index, manifest.last_index)
    topics = manifest.topics.existing(last_index, selection.topic)
    if topics is None:
        yield from _replayed(store, manifest, selection, (first_index, last_index))
        return
    if not topics:
        return
    rows = [
        row
        for row in _shown(manifest, (first_index, last_index))
        if overlap(_range(store, manifest, row).bounds, selection.of_entries())
    ]
    unknown = [row for row in rows if row.places is None]
    replayed = _by_index(store, manifest, selection, unknown, topics) if unknown else {}
    for row in rows:
        if row.places is None:
            yield replayed[row.first_index]
        elif row.places.may_hold(selection, topics):
            places = StoredPlaces(
                store=store,
                group_id=manifest.group_id,
                row=row,
                topics=row.places.generations(topics),
            )
            yield MessageRange(_range(store, manifest, row), places, selection)


def left_out(manifest: Manifest, selection: Selection = EVERYTHING) -> list[tuple[int, int]]:
    """Return the entries before a gap whose messages `archived_messages` does not show.

    No node told where they are, or which topics exist, and a replay would need what is missing.
    """
    last_index = min(selection.last_index, manifest.last_index)
    topics = manifest.topics.existing(last_index, selection.topic)
    newest_first, _ = manifest.run_up_to(last_index)
    older = manifest.files_in(selection.first_index, newest_first - 1)
    if topics is None:
        return stretches(older)
    return stretches(row for row in older if row.places is None) if topics else []


def entries_left_out(manifest: Manifest) -> int:
    """Return how many entries `left_out` returns."""
    return sum(last - first + 1 for first, last in left_out(manifest))


def _shown(manifest: Manifest, entries: tuple[int, int]) -> list[ManifestRow]:
    newest_first, _ = manifest.run_up_to(entries[1])
    return [
        row
        for row in manifest.files_in(*entries)
        if row.places is not None or row.first_index >= newest_first
    ]


def gaps_told(manifest: Manifest, selection: Selection = EVERYTHING) -> Iterator[str]:
    """Yield what a reader of messages has to know of the gaps of a backup, for people."""
    for first, last in manifest.gaps():
        yield f"entries [{first}, {last}] are not in this backup: nodes had dropped them before it"
    for first, last in left_out(manifest, selection):
        yield (
            f"messages in entries [{first}, {last}] are not shown: no node told where they are, "
            "and that cannot be found out before a gap; view entries has the entries"
        )


def _range(store: Store, manifest: Manifest, row: ManifestRow) -> ArchivedRange:
    return ArchivedRange(store=store, group_id=manifest.group_id, row=row)


def _by_index(
    store: Store,
    manifest: Manifest,
    selection: Selection,
    rows: Sequence[ManifestRow],
    topics: Collection[int],
) -> dict[int, MessageRange]:
    """Return the messages of *rows*, and of what lies between, by first index."""
    first, last = rows[0].first_index, min(rows[-1].last_index, selection.last_index)
    found = _replayed(store, manifest, selection, (first, last), topics)
    return {each.first_index: each for each in found}


def _replayed(
    store: Store,
    manifest: Manifest,
    selection: Selection,
    entries: tuple[int, int],
    topics: Collection[int] | None = None,
) -> Iterator[MessageRange]:
    wanted = manifest.message_files(*entries)
    state = None
    if wanted.base is not None:
        snapshot = read_base(store, manifest.group_id, wanted.base)
        state = state_of(wanted.base.name, snapshot)
    ranges = archived(store, manifest.group_id, wanted.files)
    yield from message_ranges(ranges, state, selection, topics)
