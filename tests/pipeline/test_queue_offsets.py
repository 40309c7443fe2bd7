"""Queue ids and offsets out of the log: those that the broker gave, and nothing stored twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker.command_frame import CommandType
from dledger.broker.commands import CreateTopic, DeleteTopic
from dledger.broker.message import Message
from dledger.broker.produce import VERSION, ProduceFrame
from dledger.types import EntryKind
from dledger_pipeline.archive.queue_offsets import QueueOffsets
from dledger_pipeline.errors import LogIncomplete
from dledger_pipeline.log.messages import decode
from tests.broker.log import Log
from tests.pipeline.entry_batches import data_entries, entry_batch, produced

_COMMAND = st.builds(
    lambda ids, topic, queue_id, client: produced(
        *(Message(message_id=i, body=b"body") for i in ids),
        topic=topic,
        queue_id=queue_id,
        client=client,
    ),
    st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=1, max_size=4),
    st.sampled_from(["t", "u", "unknown"]),
    st.integers(-1, 3),
    st.sampled_from(["c", "e"]),
)
# Broken in every version: what only a newer one could read stops a node.
_PRODUCE = bytes((5, 0, 0, 0, CommandType.PRODUCE, VERSION, 0)) + b"c"
_BROKEN = st.sampled_from([_PRODUCE, b"\x01\0\0\0\x02{", b"\x01\0\0\0\x09x"])
_DELETE = st.builds(
    lambda name, generation: DeleteTopic(name=name, generation=generation).encode(),
    st.sampled_from(["t", "u"]),
    st.integers(1, 4),
)
_CREATE = st.builds(
    lambda name: CreateTopic(name=name, type="NORMAL", queues=2).encode(),
    st.sampled_from(["t", "u"]),
)
_ENTRY = st.lists(_COMMAND | _BROKEN | _DELETE | _CREATE, max_size=4).map(b"".join)


def _log(entries: list[bytes]) -> Log:
    log = Log()
    log.append(kind=EntryKind.NOOP)
    log.create("t", queues=2)
    log.create("u", queues=3)
    for entry in entries:
        log.append(entry)
    return log


@given(st.lists(_ENTRY, max_size=6), st.integers(1, 5))
def test_every_message_of_every_queue_is_placed_once(entries: list[bytes], cut: int) -> None:
    """Messages are what the queues hold, whatever is repeated, refused, broken or deleted."""
    log = _log(entries)
    batch, offsets = entry_batch(log.entries), QueueOffsets()

    found = [
        (row["topic"], row["queue_id"], row["queue_offset"], row["index"], row["message_id"])
        for part, slices in [
            (part, offsets.add(part)) for part in (batch.slice(0, cut), batch.slice(cut))
        ]
        for row in decode(part, offsets.of_topics_left(slices)).to_pylist()
    ]

    assert found == sorted(found, key=lambda row: row[3])
    assert sorted(found) == _held(log)


def _held(log: Log) -> list[tuple[str, int, int, int, str]]:
    """Read every queue of the broker's state, message after message."""
    rows = []
    for topic in log.state.topics.all():
        for queue_id, queue in enumerate(log.state.topics.queues(topic.name)):
            for offset in range(queue.end):
                position = queue.locate(offset)
                payload = position.payload
                data = log.entries[payload.index - 1].data
                message = ProduceFrame(data, payload.start, payload.end).message(position.row)
                rows.append((topic.name, queue_id, offset, payload.index, message.message_id))
    return rows


def test_a_log_that_does_not_begin_at_entry_1_is_refused() -> None:
    """Offsets count from the first message ever, so no entry may be missing."""
    with pytest.raises(LogIncomplete, match="expected entry 1, found entry 5"):
        QueueOffsets().add(entry_batch(data_entries(b"", first_index=5)))
