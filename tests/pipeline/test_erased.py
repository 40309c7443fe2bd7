"""What was erased: no view and no restored log shows it, whatever backup and time is asked for."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dledger.broker.command_frame import CommandType, frame
from dledger.broker.erase import MAX_OFFSETS, Erase
from dledger.broker.state import BrokerState
from dledger.errors import NewerCommand
from dledger.types import Entry, EntryKind
from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.archive import ManifestRow
from dledger_pipeline.archive.bases import state_on_disk
from dledger_pipeline.archive.current import archived_current
from dledger_pipeline.archive.entry_ranges import on_disk
from dledger_pipeline.archive.erased import Erased, read_erased, read_erases
from dledger_pipeline.archive.erasing_entries import LastEntry, erasing_entries
from dledger_pipeline.archive.erasures_left import tell_erasures_left
from dledger_pipeline.archive.expiry import Retention, expire
from dledger_pipeline.archive.manifest import Manifest, RestorePoint, told_time
from dledger_pipeline.archive.repair import rebuilt
from dledger_pipeline.archive.restore import RestoreResult, restore
from dledger_pipeline.archive.selection import Selection
from dledger_pipeline.archive.verify import verify
from dledger_pipeline.errors import CorruptManifest
from dledger_pipeline.jobs.without_spark import list_erasures
from dledger_pipeline.log.erase_rows import erase_rows, rows_of
from dledger_pipeline.log.messages import QUEUE_SLICE_SCHEMA
from dledger_pipeline.object_store.store import Store
from tests.pipeline.entry_batches import entry_batch
from tests.pipeline.erasing_world import ErasingWorld, erasing_history
from tests.pipeline.kept_world import KeptWorld, Place
from tests.pipeline.logs import GROUP_ID
from tests.pipeline.placing import written
from tests.pipeline.test_kept_messages import (
    NAMED,
    as_stored,
    newest,
    shown,
    to_be_shown,
)
from tests.pipeline.test_kept_messages import (
    rows_of as rows_of_view,
)
from tests.pipeline.test_kept_restore import shown_on_disk

_HISTORIES = int(os.environ.get("ERASED_HISTORIES", "15"))
_WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
"""A smaller seed is no smaller history."""
NAME = "orders/orders-0"


def opened(directory: str | Path) -> Store:
    """Return a store in a directory."""
    return Store.open(f"file://{directory}")


def known_since(world: ErasingWorld, manifest: Manifest) -> list[Manifest]:
    """Return *manifest* and all later ones."""
    return [each for each in world.backups if each.number >= manifest.number]


@settings(max_examples=_HISTORIES, deadline=None, phases=_WITHOUT_SHRINKING)
@given(st.integers(0, 1 << 32), st.integers(20, 80))
def test_no_view_of_any_backup_shows_what_was_erased(seed: int, steps: int) -> None:
    """An older one neither, of what was erased since; all else is shown as before."""
    with tempfile.TemporaryDirectory() as directory:
        world = erasing_history(seed, steps, opened(directory))
        for manifest in random.Random(seed).sample(world.backups, min(3, len(world.backups))):
            must, may = to_be_shown(world, manifest)
            gone = world.erased_by(known_since(world, manifest))

            found = shown(world, manifest, Selection()).keys()

            assert must - world.erased.keys() <= found <= may - gone
            for at in ends_of(manifest, random.Random(seed), 2):
                check_current(world, manifest, at)


def check_current(world: ErasingWorld, manifest: Manifest, at: int) -> None:
    """Check view `current` as of an entry: a key whose newest message was erased has no row."""
    gone = world.erased_by(known_since(world, manifest), since=at)
    expected = {
        key: one
        for key, one in newest(world, at).items()
        if not any(world.stored[place] == one for place in gone)
    }
    visible = archived_current(world.store, manifest, NAMED, last_index=at)
    assert {(r["topic"], r["key"]): as_stored(r) for r in rows_of_view(visible)} == expected


def ends_of(manifest: Manifest, rng: random.Random, count: int) -> list[int]:
    """Return some entries that a restore may end at."""
    ends = [at for low, high in manifest.restorable() for at in range(low, high + 1)]
    return rng.sample(ends, min(count, len(ends)))


def restored(world: KeptWorld, directory: Path, at: int, number: int) -> RestoreResult:
    """Restore a backup up to an entry."""
    return restore(
        world.store, None, directory, name=NAME, number=number, target_index=at,
        segment_bytes=1 << 14,
    )  # fmt: skip


def entries_on(directory: Path) -> list[Entry]:
    """Return the entries of a data directory."""
    return [
        Entry(
            term=row["term"],
            index=row["index"],
            kind=EntryKind(row["type"]),
            timestamp_ms=row["timestamp_ms"],
            crc32c=row["body_crc32c"],
            data=row["body"],
        )
        for each in on_disk(directory)
        for batch in each.read()
        for row in batch.to_pylist()
    ]


def state_of(directory: Path) -> BrokerState:
    """Return the state that a node has when it has applied its log."""
    state = state_on_disk(directory) or BrokerState()
    for each in entries_on(directory):
        if each.index > state.applied_index:
            state.apply(each)
    return state


def places_in(state: BrokerState) -> set[Place]:
    """Return what consumers can get."""
    return {
        (topic.generation, queue_id, offset)
        for topic in state.topics.all()
        for queue_id, queue in enumerate(state.topics.queues(topic.name))
        for each in queue.stretches(queue.first)
        for offset in range(each.first, each.first + each.length)
    }


@pytest.mark.parametrize("seed", range(6))
def test_no_restored_log_shows_what_was_erased_since(tmp_path: Path, seed: int) -> None:
    """Out of any backup, to any entry; each node that restores by itself has the same bytes."""
    world = erasing_history(seed, 60, opened(tmp_path / "store"))
    rng = random.Random(seed)
    for number, manifest in enumerate(rng.sample(world.backups, min(2, len(world.backups)))):
        for at in ends_of(manifest, rng, 3):
            gone = world.erased_by(known_since(world, manifest), since=at)
            first, second = (tmp_path / f"{number}-{at}-{node}" for node in "ab")

            result = restored(world, first, at, manifest.number)
            restored(world, second, at, manifest.number)

            assert places_in(state_of(first)) == world.visible[at] - gone
            assert entries_on(first) == entries_on(second)
            log = entries_on(first)
            behind = [each for each in log if each.index > at]
            assert log[: len(log) - len(behind)] == known_entries(world, result.first_index, at)
            assert result.erasing_index == (behind[-1].index if behind else 0)
            assert behind or places_in(state_of(first)) == world.visible[at]
            before = {place for place, erases in world.erased.items() if min(erases) <= at}
            assert not shown_on_disk(world, first, at) & (gone | before)


def known_entries(world: KeptWorld, first: int, last: int) -> list[Entry]:
    """Return entries as they were written."""
    return list(world._entries()[first - 1 : last])


def a_world(store: Store) -> ErasingWorld:
    """Return one with three messages of a queue, in entries 2 to 4, and a backup."""
    world = ErasingWorld(1, store)
    world.create()
    for _ in range(3):
        world.produce()
    world.back_up()
    while world.backups[-1].last_index < len(world.log.entries):
        world.back_up()
    return world


def erase(offsets: Sequence[int], *, generation: int = 1, first_entry: int = 1) -> Erase:
    """Return an ERASE of queue 0."""
    return Erase(generation=generation, queue_id=0, first_entry=first_entry, offsets=tuple(offsets))


def test_erases_are_found_between_other_commands() -> None:
    """Behind others in an entry, up to a frame that is cut short; what nodes refuse is none."""
    other = frame(CommandType.RETAIN, b"a payload")
    first, second = erase([3, 5]), erase([7], generation=2)
    bad = frame(CommandType.ERASE, b"\1\0")
    data = [
        other,
        other + first.encode() + bad + second.encode() + other,
        second.encode()[:-1],
        first.encode() + b"\1",
    ]
    found = erase_rows(entry_batch([data_entry(1 + n, each) for n, each in enumerate(data)]))

    assert found.equals(rows_of([(2, 1, first), (2, 1, second), (4, 1, first)]))


def test_an_erase_of_a_newer_version_is_no_other_thing() -> None:
    """A backup that did not know what it means would show what was erased."""
    newer = frame(CommandType.ERASE, b"\2")

    with pytest.raises(NewerCommand, match="entry 9 is of a newer version"):
        erase_rows(entry_batch([data_entry(9, newer)]))


def data_entry(index: int, data: bytes) -> Entry:
    """Return an entry with this data."""
    return Entry(term=1, index=index, kind=EntryKind.DATA, timestamp_ms=1, crc32c=0, data=data)


def test_what_is_stored_at_an_erased_offset_later_is_there() -> None:
    """A restored log begins with ERASEs of what it has not come to: that means nothing later."""
    slices = pa.RecordBatch.from_pylist(
        [
            dict(zip(QUEUE_SLICE_SCHEMA.names, row, strict=True))
            for row in (
                (5, 0, 9, 2, 6, 0, 10, 1),
                (5, 9, 20, 0, 1, 1, 12, 1),
                (8, 0, 9, 0, 4, 0, 16, 1),
            )
        ],
        QUEUE_SLICE_SCHEMA,
    )
    erased = Erased.of(rows_of([(7, 1, erase([10, 12, 13, 17]))]))

    left = erased.left_of(slices)

    found = [(r["index"], r["first_row"], r["rows"], r["first_offset"]) for r in left.to_pylist()]
    assert found == [(5, 3, 1, 11), (5, 6, 2, 14), (5, 0, 1, 12), (8, 0, 4, 16)]


def test_an_older_backup_knows_what_was_erased_and_trimmed_since(tmp_path: Path) -> None:
    """The entry of the ERASE is in neither the one nor the newest, but in one between."""
    world = a_world(opened(tmp_path))
    world.erase_these(world.stored)
    world.back_up(with_base=True)
    world.move_on()
    world.produce()
    world.back_up(with_base=True)
    newest = world.backups[-1]
    trimmed = replace(newest.without_before(newest.as_of_ms), number=newest.number + 1)
    world.manifest = catalog.publish(world.store, trimmed)
    old = world.backups[0]
    assert world.manifest.first_index > old.last_index + 1
    assert not any(row.erasures for row in (*old.files, *world.manifest.files))

    assert shown(world, old, Selection()) == {}


def test_what_a_manifest_says_of_erasures_is_checked_and_repaired(tmp_path: Path) -> None:
    """A query that believed that there are none would show what was erased."""
    world = a_world(opened(tmp_path))
    world.erase_these(world.stored)
    world.back_up(with_base=True)
    whole = world.backups[-1]
    (name,) = [row.erasures.name for row in whole.files if row.erasures]
    assert name in whole.objects
    verify(world.store, GROUP_ID)

    files = tuple(replace(row, erasures=None) for row in whole.files)
    lying = replace(whole.followed_by(files, replacing=len(files)), topics=whole.topics)
    catalog.publish(world.store, lying)
    with pytest.raises(CorruptManifest, match="other ERASEs than its"):
        verify(world.store, GROUP_ID)
    catalog.publish(world.store, rebuilt(world.store, GROUP_ID, lambda _: None))
    verify(world.store, GROUP_ID)

    (again,) = [row.erasures for row in catalog.load(world.store).files if row.erasures]
    assert again.name == name
    assert len(read_erased(world.store, world.backups[0])) == len(world.erased)


def test_erasures_come_and_go_with_the_entries_that_they_are_of(tmp_path: Path) -> None:
    """A merged object has those of both; what no manifest names is deleted with its entries."""
    world = a_world(opened(tmp_path))
    chain, rows = world.backups[-1].last_chain, list[ManifestRow]()
    for place in sorted(world.stored)[:2]:
        world.erase_these([place])
        at = len(world.log.entries)
        rows.append(written(world.store, known_entries(world, at, at), chain, rows[-1:], None))
        chain = rows[-1].last_chain
    first, merged = (each.erasures for each in rows)
    assert first
    assert merged

    made = world.backups[-1].followed_by(rows[1:])
    catalog.publish(
        world.store, made.seen(RestorePoint(last_index=made.last_index, kept_from=1, as_of_ms=9))
    )
    assert len(read_erased(world.store, made)) == 2
    for path in tmp_path.rglob("*.parquet"):
        os.utime(path, (0, 0))
    kept = max(tmp_path.rglob("manifests/*"))
    os.utime(kept, (10 * 86_400, 10 * 86_400))
    expire(world.store, GROUP_ID, Retention(), dry_run=False, told=lambda _: None)

    assert [path.name for path in tmp_path.rglob("erasures/*")] == [merged.name.split("/")[1]]


def test_it_is_told_where_erased_bytes_lie_and_until_when(tmp_path: Path) -> None:
    """In all objects up to the ERASE's; until a day after the first base behind it expires."""
    world = a_world(opened(tmp_path))
    erase_entry, at_ms = len(world.log.entries) + 1, world.log.now_ms
    world.erase_these([min(world.stored)])
    world.back_up(with_base=True)
    made, objects = world.backups[-1], len(world.backups[-1].files)
    end, base = made.last_index, made.bases[-1]
    later = [replace(base, first_index=end + n, as_of_ms=base.as_of_ms + n) for n in (0, 1, 2)]
    rows = read_erases(world.store, GROUP_ID, made.files)

    (kept,) = tell_erasures_left(made, rows, keep_days=7)
    (found,) = tell_erasures_left(replace(made, bases=(base, *later)), rows, keep_days=7)
    (for_ever,) = tell_erasures_left(replace(made, bases=(base, *later)), rows, keep_days=0)

    assert kept == for_ever == replace(found, gone_ms=None)
    assert (found.entry, found.at_ms, found.topic) == (erase_entry, at_ms, rows_topic(world))
    assert (found.messages, found.objects) == (1, objects)
    assert found.gone_ms == later[1].as_of_ms + 8 * 86_400_000
    told = list_erasures(world.store, GROUP_ID, keep_days=7)
    assert told["objects"] == [row.name for row in made.files]
    assert told["erasures"] == [
        {
            "entry": erase_entry,
            "at": told_time(at_ms),
            "topic": found.topic,
            "messages": 1,
            "objects": objects,
            "gone": None,
        }
    ]


def rows_topic(world: KeptWorld) -> str:
    """Return the name of the world's topic."""
    (name,) = world.topics[-1]
    return name


def test_many_erasures_are_some_entries_of_full_commands() -> None:
    """None has more than a command, and none than an entry that a node takes like any other."""
    offsets = range(MAX_OFFSETS * 33 + 1)
    erased = Erased.of(rows_of((9, 1, erase([n])) for n in offsets))
    last = LastEntry(index=5, term=3, chain=77, log_ms=1_000)

    entries = erasing_entries(erased, last)

    assert entries.column("index").to_pylist() == [6, 7]
    assert set(entries.column("term").to_pylist()) == {3}
    assert set(entries.column("timestamp_ms").to_pylist()) == {1_000}
    (batch,) = entries.to_batches()
    assert erase_rows(batch).column("offset").to_pylist() == [*offsets]


def test_to_a_time_between_two_erasures(tmp_path: Path) -> None:
    """What the first one erased is erased there already; what the second one does, by an entry."""
    world = a_world(opened(tmp_path / "store"))
    first, *_, last = sorted(world.stored)
    world.erase_these([first])
    between_ms = world.log.now_ms
    world.log.now_ms += 1000
    world.erase_these([last])
    world.back_up(with_base=True)

    result = restore(
        world.store, None, tmp_path / "n", name=NAME, target_time_ms=between_ms,
        segment_bytes=1 << 14,
    )  # fmt: skip

    assert (result.last_index, result.erased) == (len(world.log.entries) - 1, 1)
    assert places_in(state_of(tmp_path / "n")) == world.stored.keys() - {first, last}
    assert restore(
        world.store, None, tmp_path / "n", name=NAME, target_time_ms=between_ms,
        segment_bytes=1 << 14,
    ) == result  # fmt: skip
