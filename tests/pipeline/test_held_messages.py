"""What was held is, to readers of a log, a message of its queue from its release on, and once."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker.produce import ProduceFrame
from dledger.broker.state import BrokerState
from dledger_pipeline.archive.queue_offsets import QueueOffsets, message_ranges
from dledger_pipeline.archive.selection import EVERYTHING
from dledger_pipeline.log.messages import decode
from tests.broker.held_model import STEP, Group, Step
from tests.pipeline.entry_batches import Held, entry_batch
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


@settings(max_examples=40)
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


@settings(max_examples=40)
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
