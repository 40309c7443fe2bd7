"""Queue ids and offsets out of the log: those that the broker gave, and nothing stored twice."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker.command_frame import CommandType
from dledger.broker.commands import CreateTopic, DeleteTopic, LeaseRef, SetRetention
from dledger.broker.dead_letter import encode_dead_letter
from dledger.broker.message import Columns, Message
from dledger.broker.produce import VERSION, ProduceFrame
from dledger.broker.rekeep import Kept, Origin
from dledger.broker.state import BrokerState
from dledger.common.replay_mark import ReplayMark
from dledger.types import Entry, EntryKind, MovedFrom, Typed
from dledger_pipeline.archive.queue_offsets import QueueOffsets, message_ranges
from dledger_pipeline.archive.selection import EVERYTHING, Selection
from dledger_pipeline.errors import LogIncomplete
from dledger_pipeline.log.messages import decode
from tests.broker.log import Log
from tests.pipeline.entry_batches import Held, data_entries, entry_batch, produced

_COMMAND = st.builds(
    lambda ids, topic, queue_id, client, first: produced(
        *(Message(message_id=i, body=b"body") for i in ids),
        topic=topic,
        queue_id=queue_id,
        client=client,
        replay=ReplayMark(f"{client:8}{topic:8}".encode(), first) if first else None,
    ),
    st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=1, max_size=4),
    st.sampled_from(["t", "u", "unknown"]),
    st.integers(-1, 3),
    st.sampled_from(["c", "e"]),
    st.integers(0, 9),
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
        for row in decode(part, EVERYTHING.of_slices(slices, offsets.topics_left())).to_pylist()
    ]

    assert found == sorted(found, key=lambda row: row[3])
    assert sorted(found) == _held(log.state, log.entries)


@given(st.lists(_ENTRY, max_size=8), st.integers(3, 12), st.integers(1, 12), st.integers(1, 4))
def test_messages_behind_a_base_are_those_of_a_node_that_starts_from_it(
    entries: list[bytes], applied: int, kept_from: int, size: int
) -> None:
    """Those that its state refers to and later ones, at their places, repeats known."""
    log = _log(entries)
    applied = min(applied, len(log.entries))
    kept_from = min(kept_from, applied + 1)
    base = _state(log, applied, kept_from)
    first = min(kept_from, len(log.entries))
    ranges = [
        Held(entry_batch(log.entries[at : at + size]))
        for at in range(first - 1, len(log.entries), size)
    ]

    found = [
        (row["topic"], row["queue_id"], row["queue_offset"], row["index"], row["message_id"])
        for each in message_ranges(ranges, BrokerState.decode(base))
        for batch in each.read()
        for row in batch.to_pylist()
    ]

    node = BrokerState.decode(base)
    for entry in log.entries[applied:]:
        node.apply(entry)
    assert found == sorted(found, key=lambda row: row[3])
    assert sorted(found) == _held(node, log.entries)


def test_what_a_base_has_is_not_stored_again_behind_it() -> None:
    """A batch of one known and one new message has the new one only."""
    log = _log([])
    log.produce("body", ids=("known",))
    applied = len(log.entries)
    log.produce("body", "body", ids=("known", "new"))
    behind = Held(entry_batch(log.entries[applied:]))

    (found,) = message_ranges([behind], BrokerState.decode(_state(log, applied, 1)))

    rows = [row for batch in found.read() for row in batch.to_pylist()]
    assert [(row["message_id"], row["queue_offset"]) for row in rows] == [("new", 1)]


def test_a_base_with_very_many_messages_is_read_from_where_it_begins() -> None:
    """Old runs are sealed in the state, and retention may end in the middle of them."""
    log = _log([])
    for n in range(2500):
        log.produce(f"{n}", f"{n}", topic="t", queue_id=n % 2)
    kept_from = 300
    base = BrokerState.decode(_state(log, 2000, kept_from))
    part = Held(entry_batch(log.entries[kept_from - 1 :]))

    (found,) = message_ranges([part], base)

    rows = [row for batch in found.read() for row in batch.to_pylist()]
    places = [
        (row["topic"], row["queue_id"], row["queue_offset"], row["index"], row["message_id"])
        for row in rows
    ]
    assert sorted(places) == [row for row in _held(log.state, log.entries) if row[3] >= kept_from]


def test_entries_that_come_after_the_last_one_have_not_happened() -> None:
    """A topic that is deleted later in the same range still has its messages."""
    log = _log([])
    log.produce("a", topic="t")
    last = len(log.entries)
    log.append(DeleteTopic(name="t", generation=1).encode())

    whole = Held(entry_batch(log.entries))
    (found,) = message_ranges([whole], selection=Selection(last_index=last))

    assert isinstance(found.places, pa.RecordBatch)
    assert found.places.num_rows == 1


def _state(log: Log, applied: int, kept_from: int) -> bytes:
    """Return a node's state at an entry, without the messages below another."""
    state = BrokerState()
    for entry in log.entries[:applied]:
        state.apply(entry)
    state.forget_before(kept_from)
    return state.encode()


def _held(state: BrokerState, entries: list[Entry]) -> list[tuple[str, int, int, int, str]]:
    """Read every queue of the broker's state, message after message."""
    rows = []
    for topic in state.topics.all():
        for queue_id, queue in enumerate(state.topics.queues(topic.name)):
            for offset in range(queue.first, queue.end):
                position = queue.locate(offset)
                payload = position.payload
                data = entries[payload.index - 1].data
                message = ProduceFrame(data, payload.start, payload.end).message(position.row)
                rows.append((topic.name, queue_id, offset, payload.index, message.message_id))
    return rows


def test_a_log_that_does_not_begin_at_entry_1_is_refused() -> None:
    """Offsets count from the first message ever, so no entry may be missing."""
    with pytest.raises(LogIncomplete, match="expected entry 1, found entry 5"):
        QueueOffsets().add(entry_batch(data_entries(b"", first_index=5)))


def test_what_a_base_has_copied_is_held_where_it_lies_now() -> None:
    """With gaps, and each message once, though a later entry copies it again."""
    log = Log()
    log.create()
    log.append(SetRetention(name="t", hours=0).encode())
    log.produce("a", "b", "c", "d", ids=("1", "2", "3", "4"))
    log.append(_copy(log, (0, 2)))
    base = BrokerState.decode(log.state.encode())
    at = len(log.entries)
    log.append(_copy(log, (0, 2)))
    log.produce("e", ids=("5",))

    offsets = QueueOffsets(base)
    held, kept = offsets.held(), offsets.blocks()
    later = offsets.add(entry_batch(log.entries[at:]))

    columns = ("index", "rows", "first_offset", "end_offset")
    assert [tuple(row[name] for name in columns) for row in kept.to_pylist()] == [(at, 2, 0, 4)]
    assert held.num_rows == 0
    assert [row["first_offset"] for row in later.to_pylist()] == [4]


def _copy(log: Log, offsets: tuple[int, ...]) -> bytes:
    messages = [Message(message_id=str(offset), body=b"body") for offset in offsets]
    return Kept(
        topic="t",
        generation=log.state.topics.named("t").generation,
        queue_id=0,
        first=0,
        to=4,
        offsets=offsets,
        origins=[Origin(3, 0, "")] * len(offsets),
        messages=Columns.of(messages),
    ).encode()


def test_a_dead_letter_is_a_message_of_its_topic() -> None:
    """With where it was, as the queue of the broker has it; one that was moved twice is one."""
    log = _log([produced(Message(message_id="a", body=b"body"), topic="t", queue_id=1)])
    lease = LeaseRef(1, 0, log.receive(1, queue_id=1).receive_id)
    origin = MovedFrom(topic="t", generation=1, queue_id=1, offset=0, stored_at_ms=5, attempts=1)
    message = Message(message_id="a", body=b"body", tag="x", typed=Typed(moved_from=origin))
    command = encode_dead_letter("g", lease.receive_id, message, born_host="h")
    log.append(command)
    log.append(command, command)
    batch, offsets = entry_batch(log.entries), QueueOffsets()
    slices = offsets.add(batch)

    rows = decode(batch, EVERYTHING.of_slices(slices, offsets.topics_left())).to_pylist()

    found = [row for row in rows if row["topic"] == "%DLQ%g"]
    (row,) = found
    assert (row["queue_id"], row["queue_offset"], row["message_id"]) == (0, 0, "a")
    assert row["moved_from"]["topic"] == "t"
    assert row["moved_from"]["attempts"] == 1
