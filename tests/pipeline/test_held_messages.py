"""What was held is, to readers of a log, a message of its queue from its release on, and once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker.produce import ProduceFrame
from dledger.broker.state import BrokerState
from dledger.types import Entry
from dledger_pipeline.archive.bases import state_on_disk
from dledger_pipeline.archive.entry_ranges import on_disk
from dledger_pipeline.archive.queue_offsets import QueueOffsets, message_ranges
from dledger_pipeline.archive.restore import restore
from dledger_pipeline.archive.selection import EVERYTHING
from dledger_pipeline.log.messages import decode
from dledger_pipeline.object_store.store import Store
from tests.broker.held_model import STEP, Group, Step
from tests.pipeline.entry_batches import Held, entry_batch
from tests.pipeline.logs import based_backup
from tests.pipeline.placing import told


def _run(steps: list[Step]) -> Group:
    group = Group()
    for step in steps:
        step(group)
    return group


def _queue(group: Group) -> list[tuple[int, str]]:
    """Return the messages of the state's one queue."""
    queue, found = group.state.topics.queue("t", 0), []
    for offset in range(queue.first, queue.end):
        position = queue.locate(offset)
        payload = position.payload
        data = group.log[payload.index - 1].data
        message = ProduceFrame(data, payload.start, payload.end).message(position.row)
        found.append((offset, message.body.decode()))
    return found


def _rows(batch: pa.RecordBatch) -> list[tuple[int, str]]:
    rows = batch.to_pylist()
    return sorted((row["queue_offset"], row["body"].decode()) for row in rows)


@settings(max_examples=20)
@given(st.lists(STEP, min_size=5, max_size=30))
def test_replay_places_and_queue_agree(steps: list[Step]) -> None:
    """Whether the log is applied, the state of a base is asked, or a node tells its places."""
    group = _run(steps)
    entries, offsets = entry_batch(group.log), QueueOffsets()
    first = group.state.first_index

    slices = EVERYTHING.of_slices(offsets.add(entries), offsets.topics_left())
    replayed = _rows(decode(entries, slices))

    queue = _queue(group)
    assert [row for row in replayed if row[0] >= (queue[0][0] if queue else 1 << 60)] == queue
    kept = entry_batch(group.log[first - 1 :])
    held = QueueOffsets(BrokerState.decode(group.state.encode())).held()
    assert _rows(decode(kept, held)) == queue
    assert _rows(decode(kept, told(group.state, first, len(group.log)))) == queue


@settings(max_examples=20)
@given(st.lists(STEP, min_size=5, max_size=20), st.lists(STEP, min_size=5, max_size=20))
def test_what_a_base_holds_is_delivered_behind_it(before: list[Step], behind: list[Step]) -> None:
    """A base knows what is held, and what was; the entries behind it say what became of it."""
    group = _run(before)
    base, first = group.state.encode(), group.state.first_index
    for step in behind:
        step(group)
    part = Held(entry_batch(group.log[first - 1 :]))

    (found,) = message_ranges([part], BrokerState.decode(base))

    rows = [row for batch in found.read() for row in _rows(batch)]
    queue = _queue(group)
    assert [row for row in rows if row[0] >= (queue[0][0] if queue else 1 << 60)] == queue


@settings(max_examples=10, deadline=None)
@given(st.lists(STEP, min_size=10, max_size=30), st.lists(STEP, max_size=10))
def test_a_restored_log_holds_what_its_original_held(
    before: list[Step], behind: list[Step]
) -> None:
    """From a base on: nothing held lies in an entry that is not in the backup."""
    group = _run([*before, lambda group: group.retain(70, roll=True)])
    base = BrokerState.decode(group.state.encode())
    for step in behind:
        step(group)
    entries, first = [_checked(entry) for entry in group.log], base.first_index
    with TemporaryDirectory() as work:
        store = Store.open(f"file://{work}/store")
        based_backup(store, entries, [(first, len(entries))], [(base, first)], size=7)
        directory = Path(work) / "restored"

        restore(store, None, directory, name="orders/orders-0")

        state = state_on_disk(directory)
        there = {
            index: data
            for each in on_disk(directory)
            for batch in each.read()
            for index, data in zip(*map(pa.Array.to_pylist, _columns(batch)), strict=True)
        }
    assert state is not None
    assert [*there] == [*range(first, len(entries) + 1)]
    for entry in entries[state.applied_index :]:
        state.apply(entry)
    assert state.digest() == group.state.digest()
    for message in group.all_held():
        payload = message.payload
        frame = ProduceFrame(there[payload.index], payload.start, payload.end)
        body = frame.message(message.row).body
        assert body.decode() == group.messages[message.ref].body


def _columns(batch: pa.RecordBatch) -> list[pa.Array]:
    return [batch.column("index"), batch.column("body")]


def _checked(entry: Entry) -> Entry:
    return replace(entry, crc32c=crc32c(entry.data))
