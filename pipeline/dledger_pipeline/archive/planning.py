"""Which objects of a backup a query for messages reads; the manifest alone is read for that.

And a base, where it may refer to copies of older messages that are asked for. Where a manifest does
not say where the messages of some entries are, or whether a topic still existed at the last index,
the log is replayed (`queue_offsets`). Called by the data source, by exports and by view `current`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from dledger_pipeline.archive.archive import ManifestRow
from dledger_pipeline.archive.bases import read_base, state_of
from dledger_pipeline.archive.entry_ranges import ArchivedRange, archived
from dledger_pipeline.archive.erased import read_erased
from dledger_pipeline.archive.manifest import Manifest, stretches
from dledger_pipeline.archive.message_ranges import (
    NOTHING_KEPT,
    KeptRows,
    MessageRange,
    StoredPlaces,
)
from dledger_pipeline.archive.places import hold
from dledger_pipeline.archive.queue_offsets import QueueOffsets, message_ranges
from dledger_pipeline.archive.selection import EVERYTHING, MAX_INDEX, Selection, overlap
from dledger_pipeline.log.places import no_places
from dledger_pipeline.object_store.store import Store


def archived_messages(
    store: Store, manifest: Manifest, selection: Selection = EVERYTHING
) -> Iterator[MessageRange]:
    """Yield the messages of a backup that are asked for, in ranges that may have none of them.

    They are all whose places the manifest knows, on both sides of a gap, and in the newest run that
    begins at or below the last index also the others, from the run's oldest base on. What that
    leaves out is `left_out`. Of older messages that the group kept there are copies. What was
    erased at any time, as far as the store knows, is in none of them.

    Raises:
        LogIncomplete: No base stands for what is missing before a run.
        StoreError, BackupError: The store, or what it holds, is at fault.
    """
    erased = read_erased(store, manifest)
    for each in _find_archived(store, manifest, selection):
        yield each.without(erased)


def _find_archived(
    store: Store, manifest: Manifest, selection: Selection
) -> Iterator[MessageRange]:
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
    found = _by_index(store, manifest, selection, unknown, topics) if unknown else {}
    for row in rows:
        if row.places is not None and row.places.may_hold(selection, topics):
            places = StoredPlaces(
                store=store,
                group_id=manifest.group_id,
                row=row,
                topics=row.places.generations(topics),
            )
            found[row.first_index] = MessageRange(_range(store, manifest, row), places, selection)
    for row, copies in _copies(store, manifest, selection, topics):
        without = MessageRange(_range(store, manifest, row), no_places(), selection)
        found[row.first_index] = replace(found.get(row.first_index, without), kept=copies)
    yield from (found[index] for index in sorted(found))


def _copies(
    store: Store, manifest: Manifest, selection: Selection, topics: Collection[int]
) -> Iterator[tuple[ManifestRow, KeptRows]]:
    """Yield files with copies of messages that are not shown where they were stored.

    Those that the base refers to which stands for what is before a run: a message that is copied
    later was there then, or is in the run. It is shown by its copy if no node told its place: it is
    older than the run, or was copied before it was backed up.
    """
    told = stretches(row for row in manifest.files if row.places is not None)
    behind = 0
    for run in manifest.runs():
        base = manifest.stands_before(*run)
        if base is None:
            continue
        first, last = max(behind + 1, selection.first_index), selection.last_index
        behind = base.applied_index
        stored_in = _without((first, min(behind, last)), told)
        if not stored_in or _are_newer(manifest, stored_in[-1][1], selection):
            continue
        if base.kept is not None and not hold(base.kept, selection, topics):
            continue
        state = state_of(base.name, read_base(store, manifest.group_id, base))
        blocks = selection.of_blocks(QueueOffsets(state).blocks(), topics)
        copies = KeptRows(blocks=blocks, stored_in=stored_in)
        for row in manifest.files_in(*run):
            of_row = copies.within(row.first_index, row.last_index)
            if of_row.blocks.num_rows:
                yield row, of_row


def _without(
    entries: tuple[int, int], others: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """Return the stretches of *entries* that are in none of *others*, which ascend apart."""
    found, (low, last) = list[tuple[int, int]](), entries
    for first, end in [*others, (last + 1, last + 1)]:
        if low < first and low <= last:
            found.append((low, min(first - 1, last)))
        low = max(low, end + 1)
    return tuple(found)


def _are_newer(manifest: Manifest, index: int, selection: Selection) -> bool:
    """Whether only messages are asked for that were stored after entry *index*, by their times."""
    row = next((row for row in manifest.files if row.last_index >= index), None)
    return row is not None and 0 < row.last_timestamp_ms < selection.first_ms


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
        yield (
            f"entries [{first}, {last}] are not in this backup: nodes had dropped them before it; "
            "what was erased in one of them, and stored before, is shown"
        )
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
    """Return the messages that *rows* stored, by first index; what lies between is read, too."""
    first, last = rows[0].first_index, min(rows[-1].last_index, selection.last_index)
    found = _replayed(store, manifest, selection, (first, last), topics)
    asked = {row.first_index for row in rows}
    return {
        each.first_index: replace(each, kept=NOTHING_KEPT)
        for each in found
        if each.first_index in asked
    }


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
