"""A query's plan: with places it gives the same messages as replay, and reads nothing else."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker.commands import CreateTopic, DeleteTopic
from dledger.broker.message import Message
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.archive.places import MAX_SPANS, spans_of
from dledger_pipeline.archive.planning import archived_messages
from dledger_pipeline.archive.selection import Selection
from dledger_pipeline.archive.topics import Topics
from dledger_pipeline.errors import CorruptObject, ObjectMissing, PipelineError
from dledger_pipeline.log.messages import QUEUE_SLICE_SCHEMA
from dledger_pipeline.object_store.store import Store
from e2e.bench.planning import planned
from tests.broker.log import Log
from tests.pipeline.entry_batches import produced
from tests.pipeline.logs import GROUP_ID, based_backup, flip
from tests.pipeline.message_logs import checked_entries, consumed, message_log, rows
from tests.pipeline.placing import Run, placed_backup, seen, state_at

_NAMES = st.sampled_from(["t", "u", "v"])
_PRODUCE = st.builds(
    lambda ids, tags, topic, queue_id: produced(
        *(Message(message_id=i, body=b"body", tag=t) for i, t in zip(ids, tags, strict=True)),
        topic=topic,
        queue_id=queue_id,
        client="c",
    ),
    st.lists(st.sampled_from(["", *"abcdefgh"]), min_size=4, max_size=4),
    st.lists(st.sampled_from(["", "red"]), min_size=4, max_size=4),
    _NAMES,
    st.integers(-1, 2),
)
_CREATE = _NAMES.map(lambda name: CreateTopic(name=name, type="NORMAL", queues=2).encode())
_DELETE = st.builds(
    lambda name, generation: DeleteTopic(name=name, generation=generation).encode(),
    _NAMES,
    st.integers(1, 5),
)
_ENTRIES = st.lists(
    st.lists(_PRODUCE | _PRODUCE | _CREATE | _DELETE, min_size=1, max_size=3).map(b"".join),
    min_size=4,
    max_size=24,
)
_STEPS = st.lists(
    st.tuples(st.integers(1, 8), st.integers(0, 3), st.integers(0, 6), st.integers(0, 3)),
    min_size=1,
    max_size=5,
)
_SELECTIONS = st.builds(
    Selection,
    first_index=st.sampled_from([1, 3, 9]),
    last_index=st.sampled_from([6, 12, 20, 10**6]),
    first_ms=st.sampled_from([0, 0, 1_007_000]),
    topic=st.sampled_from([None, None, "t", "v", "unknown"]),
    queue_id=st.sampled_from([None, None, 1]),
    first_offset=st.sampled_from([0, 0, 3]),
    last_offset=st.sampled_from([4, 10**6]),
)


def by_replay(manifest: Manifest) -> Manifest:
    """Return the manifest as of a group whose nodes told nothing."""
    return replace(manifest, topics=Topics())


@contextmanager
def a_store() -> Iterator[Store]:
    """Return an empty store, for one example."""
    with tempfile.TemporaryDirectory() as directory:
        yield Store.open(f"file://{directory}/store")


def a_log(commands: list[bytes]) -> Log:
    """Return a log with a topic, and one entry a second."""
    log = Log()
    log.append(CreateTopic(name="t", type="NORMAL", queues=3).encode())
    for each in commands:
        log.now_ms += 1000
        log.append(each)
    return log


@settings(max_examples=60)
@given(_ENTRIES, _STEPS, st.integers(1, 6), st.lists(_SELECTIONS, min_size=1, max_size=4))
def test_messages_with_places_are_those_of_replay(
    commands: list[bytes],
    steps: list[tuple[int, int, int, int]],
    size: int,
    selections: list[Selection],
) -> None:
    """Whatever is created, deleted, repeated, dropped and merged, and whenever nodes were asked."""
    entries = checked_entries(a_log(commands))
    runs, last, kept = [], 0, 1
    for length, ahead, dropped, merged in steps:
        last = min(last + length, len(entries))
        applied = min(last + ahead, len(entries))
        kept = min(kept + dropped // 4, applied + 1)
        runs.append(Run(last_index=last, applied=applied, kept_from=kept, merged=merged))
    with a_store() as store:
        manifest = placed_backup(store, entries, runs, size=size)

        for selection in [Selection(), *selections]:
            found = rows(store, manifest, selection)
            assert found == rows(store, by_replay(manifest), selection)


def test_very_many_messages_are_told_from_sealed_and_open_pieces() -> None:
    """Ends of a range lie within pieces, and what is dropped is not told."""
    log = a_log([])
    for n in range(3000):
        log.produce(f"{n}", f"{n}", tag="ab"[n % 2], queue_id=n % 2)
    entries = checked_entries(log)
    with a_store() as store:
        runs = [Run(last_index=2000, applied=3001), Run(last_index=3001, applied=3001)]
        manifest = placed_backup(store, entries, runs, size=700)

        assert all(row.places for row in manifest.files)
        assert rows(store, manifest) == consumed(log)


# -- what is read --------------------------------------------------------------------------------


@dataclass
class Counting:
    """A store that notes which objects are read."""

    objects: Any
    got: list[str] = field(default_factory=list)

    def get(self, name: str, max_bytes: int) -> Any:
        self.got.append(name.split("/")[1])
        return self.objects.get(name, max_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objects, name)


@pytest.fixture
def log() -> Log:
    """Return a log of two topics, one second an entry, and one rare message in its middle."""
    log = message_log(60)
    log.append(CreateTopic(name="rare", type="NORMAL", queues=1).encode())
    log.produce("here", topic="rare")
    log.now_ms += 1000
    for n in range(60):
        log.now_ms += 1000
        log.produce(f"{n}", topic="orders", queue_id=n % 2)
    return log


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store.open(f"file://{tmp_path}/store")


def backup_of(store: Store, log: Log, size: int = 10) -> Manifest:
    """Back up the whole log."""
    last = len(log.entries)
    run = Run(last_index=last, applied=last)
    return placed_backup(store, checked_entries(log), [run], size=size)


@pytest.mark.parametrize(
    ("selection", "most"),
    [
        (Selection(topic="rare"), 1),
        (Selection(topic="no such"), 0),
        (Selection(topic="orders", queue_id=1, first_offset=5, last_offset=5), 2),
        (Selection(first_ms=1_061_000, last_ms=1_062_000), 2),
        (Selection(first_index=31, last_index=40), 2),
        (Selection(queue_id=7), 0),
    ],
)
def test_only_objects_that_may_have_such_messages_are_read(
    store: Store, log: Log, selection: Selection, most: int
) -> None:
    """Nothing while planning, and then each with its places, once."""
    manifest = backup_of(store, log)
    counting = Counting(store._objects)
    watched = Store("memory://", None, counting)

    planned = list(archived_messages(watched, manifest, selection))

    assert counting.got == []
    found = [row for each in planned for batch in each.read() for row in batch.to_pylist()]
    assert len(planned) <= most
    assert sorted(counting.got) == ["data"] * len(planned) + ["places"] * len(planned)
    assert len(found) == len(rows(store, by_replay(manifest), selection))
    assert len(manifest.files) > 10


def test_a_last_index_before_a_deletion_shows_the_topic_and_behind_it_does_not(
    store: Store, log: Log
) -> None:
    """Where a backup cannot know, the log is asked."""
    before = len(log.entries)
    log.append(DeleteTopic(name="rare", generation=3).encode())
    log.produce("late", topic="orders")
    last = len(log.entries)
    runs = [Run(last_index=before, applied=before), Run(last_index=last, applied=last)]
    manifest = placed_backup(store, checked_entries(log), runs, size=10)

    counts = {
        at: len(rows(store, manifest, Selection(topic="rare", last_index=at)))
        for at in (before - 1, before, before + 1, last)
    }

    assert counts == {before - 1: 1, before: 1, before + 1: 0, last: 0}
    assert manifest.topics.existing(before, "rare") is None
    assert manifest.topics.existing(before, "orders") == frozenset({1})


def test_a_topic_deleted_while_the_backup_ran_is_still_in_it(store: Store, log: Log) -> None:
    """The node had gone on, and forgot; the next backup knows without the log."""
    last = len(log.entries)
    log.append(DeleteTopic(name="rare", generation=3).encode())
    run = Run(last_index=last, applied=last + 1)
    entries = checked_entries(log)
    early = replace(
        placed_backup(store, entries, [run], size=10),
        topics=Topics().seen(seen_at(log, last)).seen(seen_at(log, last + 1)),
    )

    assert len(rows(store, early, Selection(topic="rare"))) == 1

    later = placed_backup(
        store, entries, [run, Run(last_index=last + 1, applied=last + 1)], size=10
    )
    assert rows(store, later, Selection(topic="rare")) == []
    assert later.topics.existing(last + 1, "rare") == frozenset()


def seen_at(log: Log, applied: int) -> Any:
    """Return the topics after an entry."""
    return seen(state_at(log.entries, applied), applied)


def test_objects_without_places_are_replayed_from_the_base_before_them(
    store: Store, log: Log
) -> None:
    """And only those: later bodies are not read while planning."""
    entries = checked_entries(log)
    last = len(entries)
    whole = backup_of(store, log)
    based = based_backup(store, entries, [(1, last)], [(state_at(log.entries, 40), 1)], size=10)
    files = tuple(
        replace(row, places=None) if row.first_index in {51, 61} else row for row in whole.files
    )
    chunk = replace(whole.chunks[0], files=files)
    mixed = replace(whole, chunks=(chunk,), bases=based.bases)
    counting = Counting(store._objects)

    planned = list(archived_messages(Store("memory://", None, counting), mixed))

    assert counting.got == ["bases", "data", "data", "data"]
    assert sum(batch.num_rows for each in planned for batch in each.read()) == len(consumed(log))
    assert rows(store, mixed) == consumed(log)


# -- damage --------------------------------------------------------------------------------------


def _missing(store: Store, name: str) -> None:
    store.delete(name)


def _flipped(store: Store, name: str) -> None:
    flip(store, name)


def _cut(store: Store, name: str) -> None:
    store.put(name, store.get(name).to_pybytes()[:-9])


@pytest.mark.parametrize(
    ("harm", "error"),
    [(_missing, ObjectMissing), (_flipped, CorruptObject), (_cut, CorruptObject)],
)
def test_a_damaged_places_object_is_named(
    store: Store, log: Log, harm: Callable[[Store, str], None], error: type[PipelineError]
) -> None:
    """Never other messages, or fewer."""
    manifest = backup_of(store, log)
    places = manifest.files[3].places
    assert places is not None
    harm(store, f"{GROUP_ID}/{places.name}")

    with pytest.raises(error, match=places.name):
        rows(store, manifest)


def test_places_of_other_entries_are_refused(store: Store, log: Log) -> None:
    """Even with the right hash, as who may write to the store can make it."""
    manifest = backup_of(store, log)
    first, second = manifest.files[2:4]
    forged = replace(second, places=first.places)
    swapped = replace(manifest.chunks[0], files=(forged, *manifest.files[4:]))

    with pytest.raises(CorruptObject, match="not the places of these entries"):
        rows(store, replace(manifest, chunks=(swapped,)))


# -- spans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topics", "queues", "spans"), [(2, 3, 6), (2, MAX_SPANS, 2), (MAX_SPANS + 1, 1, None)]
)
def test_spans_are_few(topics: int, queues: int, spans: int | None) -> None:
    """One a queue, else one a topic, else none."""
    found = [
        {"index": 1, "start": 0, "end": 9, "first_row": n, "rows": 2, "queue_id": n % queues,
         "first_offset": 5, "generation": 1 + n // queues}
        for n in range(topics * queues)
    ]  # fmt: skip

    made = spans_of(pa.RecordBatch.from_pylist(found, QUEUE_SLICE_SCHEMA))

    assert (None if made is None else len(made)) == spans
    if made is not None:
        assert {(span.first_offset, span.end_offset) for span in made} == {(5, 7)}


def test_a_plan_over_very_many_objects_opens_none_of_them(tmp_path: Path) -> None:
    """The bench's backup has no objects at all but its manifest and chunks."""
    found = {one.what: one.ranges for one in planned(tmp_path, 1001)}

    assert found["everything"] == 1001
    assert found["1 % of the time"] <= 12
    assert found["a rare topic"] == 1
    assert 0 < found["one queue"] < 1001
