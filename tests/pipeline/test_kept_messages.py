"""Messages that were copied forward: each is shown once, as it was stored, wherever it lies now."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dledger.broker.commands import CreateTopic
from dledger.broker.message import DELETES, TOMBSTONE, Message
from dledger.broker.state import BrokerState
from dledger.broker.topics import Compaction
from dledger.errors import InvalidArgument
from dledger.store.snapshot_file import Snapshot
from dledger_pipeline.archive import planning
from dledger_pipeline.archive.bases import read_base
from dledger_pipeline.archive.current import (
    Chosen,
    archived_current,
    current_ranges,
)
from dledger_pipeline.archive.manifest import BaseRow, Chunk, Manifest
from dledger_pipeline.archive.message_ranges import MessageRange
from dledger_pipeline.archive.places import PlacesRow
from dledger_pipeline.archive.planning import archived_messages, left_out
from dledger_pipeline.archive.queue_offsets import visible_ranges
from dledger_pipeline.archive.selection import MAX_INDEX, Selection
from dledger_pipeline.archive.topics import Topics
from dledger_pipeline.log.kept_messages import COPY_TERM
from dledger_pipeline.object_store.store import Store
from tests.broker.log import Log
from tests.pipeline.entry_batches import Held, entry_batch, produced
from tests.pipeline.kept_world import KeptWorld, Place, Stored
from tests.pipeline.placing import seen

_HISTORIES = int(os.environ.get("KEPT_HISTORIES", "30"))
_WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
"""A smaller seed is no smaller history."""
_STEPS = (
    *("create", "delete", "produce", "produce", "produce", "produce"),
    *("copy", "copy", "copy", "copy_late", "retain", "retain", "back_up", "back_up", "trim"),
)


def shown(world: KeptWorld, manifest: Manifest, selection: Selection) -> dict[Place, Any]:
    """Return the rows of view `messages` by place, after comparing each with its message."""
    found: dict[Place, Any] = {}
    topics = world.topics[manifest.last_index]
    for each in archived_messages(world.store, manifest, selection):
        for batch in each.read():
            for row in batch.to_pylist():
                place = (topics[row["topic"]], row["queue_id"], row["queue_offset"])
                assert place not in found, "a message is shown twice"
                found[place] = row
                assert as_stored(row) == world.stored[place]
                assert row["term"] in (1, COPY_TERM)
    return found


def as_stored(row: dict[str, Any]) -> Stored:
    """Return what a row says of its message."""
    return Stored(
        row["topic"],
        tuple(row["keys"]),
        row["body"],
        ("dledger.tombstone", "true") in row["properties"],
        row["index"],
        row["stored_at_ms"],
        row["born_host"],
    )


def to_be_shown(world: KeptWorld, manifest: Manifest) -> tuple[set[Place], set[Place]]:
    """Return what view `messages` has to show, and what it may show.

    All that was stored in entries whose places a node told, or behind the base of the newest run;
    and what the bases refer to. It may show no more than that, and what these entries stored.
    """
    first, last = manifest.run_up_to(manifest.last_index)
    base = manifest.stands_before(first, last)
    standing = [b for run in manifest.runs() if (b := manifest.stands_before(*run))]
    ranges = [(base.applied_index + 1 if base else first, last)]
    if are_topics_known(manifest):  # else all of it is replayed
        told = (row for row in manifest.files if row.places is not None)
        ranges += [(row.first_index, row.last_index) for row in told]
    visible = {place for each in standing for place in world.visible[each.applied_index]}
    must = stored_in(world, ranges) | visible - stored_in(world, left_out(manifest))
    may = visible | stored_in(world, manifest.runs())
    there = {*world.topics[manifest.last_index].values()}
    return {p for p in must if p[0] in there}, {p for p in may if p[0] in there}


def stored_in(world: KeptWorld, ranges: Sequence[tuple[int, int]]) -> set[Place]:
    """Return the messages that were stored in these ranges of entries."""
    return {
        place
        for place, one in world.stored.items()
        if any(low <= one.index <= high for low, high in ranges)
    }


def are_topics_known(manifest: Manifest) -> bool:
    """Whether a query up to the end needs no replay to know which topics exist."""
    return manifest.topics.existing(manifest.last_index) is not None


NAMED = Chosen(frozenset("ab"))
_SELECTIONS = st.builds(
    lambda first, low, high, topic, queue, offsets: (first, low, high, topic, queue, offsets),
    st.sampled_from((0.0, 0.0, 0.3, 0.9)),
    st.sampled_from((0.0, 0.0, 0.2, 0.6)),
    st.sampled_from((1.0, 1.0, 0.3, 0.8)),
    st.sampled_from((None, None, "a", "b")),
    st.sampled_from((None, None, 1)),
    st.sampled_from(((0, 10**6), (0, 10**6), (2, 5))),
)


def selection_of(world: KeptWorld, drawn: tuple[Any, ...]) -> Selection:
    """Return a selection by parts of the history."""
    first, low, high, topic, queue_id, offsets = drawn
    span = world.log.now_ms - 1_000_000
    return Selection(
        first_index=1 + int(first * len(world.log.entries)),
        first_ms=1_000_000 + int(low * span) if low else 0,
        last_ms=1_000_000 + int(high * span) if high < 1 else 1 << 62,
        topic=topic,
        queue_id=queue_id,
        first_offset=offsets[0],
        last_offset=offsets[1],
    )


def is_selected(selection: Selection, place: Place, one: Stored) -> bool:
    """Whether a message is asked for, by what it was stored with."""
    return (
        selection.first_index <= one.index
        and selection.first_ms <= one.stored_at_ms <= selection.last_ms
        and selection.topic in (None, one.topic)
        and selection.queue_id in (None, place[1])
        and selection.first_offset <= place[2] <= selection.last_offset
    )


def history(seed: int, steps: int, store: Store) -> KeptWorld:
    """Return a world after some random steps, with a backup."""
    world = KeptWorld(seed, store)
    world.create()
    for _ in range(steps):
        getattr(world, world.rng.choice(_STEPS))()
    while world.manifest is None:
        world.back_up()
    return world


@settings(max_examples=_HISTORIES, deadline=None, phases=_WITHOUT_SHRINKING)
@given(st.integers(0, 1 << 32), st.integers(10, 70), st.lists(_SELECTIONS, max_size=3))
def test_each_message_is_shown_once_as_it_was_stored(
    seed: int, steps: int, drawn: list[tuple[Any, ...]]
) -> None:
    """Whenever backups, copies, retention and gc came, and whatever is asked for."""
    with tempfile.TemporaryDirectory() as directory:
        world = history(seed, steps, Store.open(f"file://{directory}"))
        assert world.manifest is not None
        for manifest in (world.manifest, replace(world.manifest, topics=Topics())):
            if len(manifest.runs()) > 1 and not are_topics_known(manifest):
                continue  # before a gap only what nodes told is shown: see test_gaps
            everything = shown(world, manifest, Selection())
            must, may = to_be_shown(world, manifest)
            assert must <= everything.keys() <= may
            for selection in (selection_of(world, each) for each in drawn):
                assert shown(world, manifest, selection).keys() == {
                    place
                    for place in everything
                    if is_selected(selection, place, world.stored[place])
                }


def test_what_two_bases_keep_is_shown_once(tmp_path: Path) -> None:
    """Behind a gap there is another copy of what is older than the run before it."""
    world = KeptWorld(1, Store.open(f"file://{tmp_path}"))
    world.create()
    for step in ("produce", "produce", "move_on", "produce", "back_up") * 2:
        getattr(world, step)()
    assert world.manifest is not None

    found = shown(world, world.manifest, Selection())

    assert len([base for base in world.manifest.bases if base.kept]) == 2
    assert len(world.manifest.gaps()) == 1
    assert found.keys() == world.stored.keys()


def test_a_replay_of_what_no_node_told_brings_no_copies_of_what_one_told(tmp_path: Path) -> None:
    """It begins behind a base, and a copy of an older message lies in what it reads."""
    world = KeptWorld(1, Store.open(f"file://{tmp_path}"))
    world.create()
    world.produce()
    world.back_up(with_base=True)
    world.produce()
    world.copy_all()
    world.back_up(with_base=True)
    assert world.manifest is not None

    found = shown(world, world.manifest, Selection())

    assert [row.places is None for row in world.manifest.files] == [False, True]
    assert found.keys() == world.stored.keys()


def newest(world: KeptWorld, at: int) -> dict[tuple[str, str], Stored]:
    """Return the newest message of each key among what was visible after an entry."""
    found: dict[tuple[str, str], tuple[tuple[int, int, int], Stored]] = {}
    for place in world.visible[at]:
        one = world.stored[place]
        order = (one.index, place[1], place[2])
        for key in one.keys:
            found[one.topic, key] = max(
                found.get((one.topic, key), (order, one)), (order, one), key=lambda each: each[0]
            )
    return {key: one for key, (_, one) in found.items() if not one.is_tombstone}


def rows_of(visible: Sequence[MessageRange], **selected: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of view `current`."""
    for each in current_ranges(visible, Selection(**selected)):
        for batch in each.read():
            yield from batch.to_pylist()


@settings(max_examples=_HISTORIES, deadline=None, phases=_WITHOUT_SHRINKING)
@given(st.integers(0, 1 << 32), st.integers(10, 70))
def test_current_is_the_newest_message_of_each_key(seed: int, steps: int) -> None:
    """As of any entry that can be restored, over all queues; a deleted key has no row."""
    with tempfile.TemporaryDirectory() as directory:
        world = history(seed, steps, Store.open(f"file://{directory}"))
        assert world.manifest is not None
        ends = [at for first, last in world.manifest.restorable() for at in range(first, last + 1)]
        for at in random.Random(seed).sample(ends, min(4, len(ends))):
            visible = archived_current(world.store, world.manifest, NAMED, last_index=at)
            found = list(rows_of(visible))
            by_key = {(row["topic"], row["key"]): as_stored(row) for row in found}
            assert len(by_key) == len(found), "a key has two rows"
            assert by_key == newest(world, at)


# -- view current, in particular -----------------------------------------------------------------


def a_table() -> Log:
    """Return a log in which keys come again: in another queue, in a later entry, as a tombstone."""
    log = Log(now_ms=1000)
    log.append(CreateTopic(name="t", type="NORMAL", queues=2).encode())
    for queue_id, keys, body in (
        (0, ("a", "b"), b"both"),
        (1, ("c",), b"old"),
        (0, ("c",), b"new"),
        (0, ("a",), b"a"),
        (1, ("d",), b"d"),
        (1, (), b"no key"),
    ):
        log.now_ms += 1000
        log.append(produced(Message(message_id="", body=body, keys=keys), queue_id=queue_id))
    log.now_ms += 1000
    gone = Message(message_id="", body=b"-", keys=("d",), properties={TOMBSTONE: DELETES})
    log.append(produced(gone, queue_id=0))
    return log


def table(log: Log, **as_of: int) -> list[MessageRange]:
    """Return what is visible of a log that a node has on its disk."""
    ranges = [Held(entry_batch(log.entries[:4])), Held(entry_batch(log.entries[4:]))]
    until = {"last_index": MAX_INDEX, "last_ms": MAX_INDEX} | as_of
    return visible_ranges(ranges, None, Chosen(frozenset("t")), **until)


def test_a_key_has_its_newest_message_over_all_queues() -> None:
    """A message of several keys has a row for each of which it is the newest."""
    found = {row["key"]: (row["body"], row["queue_id"]) for row in rows_of(table(a_table()))}

    assert found == {"a": (b"a", 0), "b": (b"both", 0), "c": (b"new", 0)}


@pytest.mark.parametrize(
    ("as_of", "keys"),
    [
        ({"last_ms": 1999}, ""),
        ({"last_ms": 3000}, "abc"),
        ({"last_ms": 7999}, "abcd"),
        ({"last_ms": 8000}, "abc"),
        ({"last_index": 2}, "ab"),
        ({"last_index": 7}, "abcd"),
    ],
)
def test_a_table_is_as_of_a_moment(as_of: dict[str, int], keys: str) -> None:
    """An entry of that moment is in it, a later one is not; a deleted key was there before."""
    assert sorted(row["key"] for row in rows_of(table(a_table(), **as_of))) == [*keys]


def test_what_is_asked_for_does_not_decide_what_is_newest() -> None:
    """A condition that leaves out the newest message of a key does not show an older one."""
    visible = table(a_table())

    assert [row["key"] for row in rows_of(visible, last_ms=4000)] == ["b", "c"]
    assert list(rows_of(visible, queue_id=1)) == []


def test_the_state_knows_which_topics_are_compacted() -> None:
    """Where none is named, these are shown and no others."""
    log = a_table()
    ranges = [Held(entry_batch(log.entries))]
    until = {"last_index": MAX_INDEX, "last_ms": MAX_INDEX}
    compacted = replace(log.state.topics.named("t"), compaction=Compaction())

    assert Chosen()(compacted)
    assert not any(list(each.read()) for each in visible_ranges(ranges, None, Chosen(), **until))


def test_a_moment_before_the_oldest_state_is_refused() -> None:
    """What has been let go since then is not known any more."""
    log = a_table()
    state = BrokerState.decode(log.state.encode())

    with pytest.raises(InvalidArgument, match=f"of entry {len(log.entries)}"):
        visible_ranges([], state, NAMED, last_index=5, last_ms=MAX_INDEX)
    with pytest.raises(InvalidArgument, match=f"of entry {len(log.entries)}"):
        visible_ranges([], state, NAMED, last_index=MAX_INDEX, last_ms=5000)


# -- what is read --------------------------------------------------------------------------------


def test_a_base_is_read_only_for_messages_that_it_may_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for another topic, and not for what is newer than what it stands for."""
    world = KeptWorld(3, Store.open(f"file://{tmp_path}"))
    world.create()
    for step in ("produce", "produce", "produce", "copy", "retain", "back_up"):
        getattr(world, step)()
    while not (world.manifest and world.manifest.first_index > 1 and world.manifest.bases[0].kept):
        for step in ("produce", "copy", "retain", "back_up", "trim"):
            getattr(world, step)()
    manifest = with_all_places(replace(world.manifest, topics=seen_now(world)))
    (topic,) = world.state.topics.all()
    read: list[str] = []

    def noting(store: Store, group_id: str, row: BaseRow) -> Snapshot:
        read.append(row.name)
        return read_base(store, group_id, row)

    monkeypatch.setattr(planning, "read_base", noting)
    for selection, bases in (
        (Selection(topic=topic.name), 1),
        (Selection(topic="other"), 0),
        (Selection(queue_id=7), 0),
        (Selection(first_index=manifest.bases[0].applied_index + 1), 0),
        (Selection(first_ms=world.log.now_ms + 1), 0),
    ):
        read.clear()
        list(archived_messages(world.store, manifest, selection))
        assert len(read) == bases, selection


def with_all_places(manifest: Manifest) -> Manifest:
    """Return a manifest, to be planned with only, in which nothing needs to be replayed."""
    empty = PlacesRow(name="", object_bytes=1, sha256="", rows=0, spans=())
    files = [replace(row, places=row.places or empty) for row in manifest.files]
    return replace(manifest, chunks=(Chunk(tuple(files)),))


def seen_now(world: KeptWorld) -> Topics:
    """Return the topics as a node tells them now."""
    return Topics().seen(seen(world.state, len(world.log.entries)))
