"""Rows of keys: those of PRODUCE by their places, those of REKEEP by themselves."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker.message import Columns, Message
from dledger.broker.rekeep import Kept, Origin
from dledger.types import Entry
from dledger_pipeline.errors import MalformedMessage
from dledger_pipeline.log.keys import KEY_SCHEMA, key_rows
from dledger_pipeline.log.messages import QUEUE_SLICE_SCHEMA
from dledger_pipeline.log.places import no_places
from tests.pipeline.entry_batches import data_entries, entry_batch, produced

_TOMBSTONE = {"dledger.tombstone": "true"}
_MESSAGE = st.builds(
    Message,
    message_id=st.text(max_size=4),
    body=st.binary(min_size=1, max_size=9),
    keys=st.sampled_from([(), ("a",), ("",), ("ü",), ("a", "b")]),
    properties=st.sampled_from(
        [{}, {"x": "y"}, _TOMBSTONE, {**_TOMBSTONE, "x": "y"}, {"dledger.tombstone": "TRUE"}]
    ),
)
_MESSAGES = st.lists(_MESSAGE, min_size=1, max_size=5)
_FRAME = st.tuples(st.booleans(), _MESSAGES, st.sampled_from([3, 4]), st.integers(0, 1))
_Row = tuple[int, int, str, int, bool]
_Slice = tuple[int, int, int, int, int, int, int, int]


class _Made:
    """A log of PRODUCE and REKEEP, with what a reader should find of it."""

    def __init__(self, generations: set[int]) -> None:
        self.generations = generations
        self.bodies: list[bytes] = []
        self.places: list[_Slice] = []
        self.rows: list[_Row] = []

    def add(self, frames: list[tuple[bool, list[Message], int, int]]) -> None:
        """Append an entry of some frames, between which there are others."""
        index, body = len(self.bodies) + 1, b"\x02\x00\x00\x00\x05{}"
        for is_copied, messages, generation, queue_id in frames:
            offsets = [10 * index + 2 * row * is_copied + row for row in range(len(messages))]
            start = len(body) + 5
            if is_copied:
                body += _rekeep(messages, generation, queue_id, offsets)
            else:
                body += produced(*messages, queue_id=queue_id)
                span = (index, start, len(body), 0, len(messages), queue_id, offsets[0], generation)
                self.places.append(span)
            if generation in self.generations:
                self._expect(messages, generation, queue_id, offsets)
        self.bodies.append(body)

    def _expect(
        self,
        messages: list[Message],
        generation: int,
        queue_id: int,
        offsets: list[int],
    ) -> None:
        for message, offset in zip(messages, offsets, strict=True):
            if len(message.keys) == 1:
                is_tombstone = dict(message.properties).get("dledger.tombstone") == "true"
                row = (generation, queue_id, message.keys[0], offset, is_tombstone)
                self.rows.append(row)

    def entries(self) -> list[Entry]:
        return data_entries(*self.bodies)

    def slices(self) -> pa.RecordBatch:
        rows = [dict(zip(QUEUE_SLICE_SCHEMA.names, each, strict=True)) for each in self.places]
        return pa.RecordBatch.from_pylist(rows, QUEUE_SLICE_SCHEMA)


def _rekeep(messages: list[Message], generation: int, queue_id: int, offsets: list[int]) -> bytes:
    hosts = ["host" * (row % 2) for row in range(len(messages))]
    return Kept(
        topic="t",
        generation=generation,
        queue_id=queue_id,
        first=offsets[0],
        to=offsets[-1] + 3,
        offsets=offsets,
        origins=[Origin(1, 7 + row, host) for row, host in enumerate(hosts)],
        messages=Columns.of(messages),
        alone=dict.fromkeys(range(1, len(messages), 2), 7),
    ).encode()


def _found(rows: pa.RecordBatch) -> list[_Row]:
    return sorted(tuple(row.values()) for row in rows.to_pylist())


@given(st.lists(st.lists(_FRAME, max_size=4), min_size=1, max_size=4))
def test_rows_are_what_was_put_into_the_log(
    log: list[list[tuple[bool, list[Message], int, int]]],
) -> None:
    """Of the topics that are asked for: offsets, keys and tombstones."""
    made = _Made({3})
    for frames in log:
        made.add(frames)

    found = key_rows(entry_batch(made.entries()), made.slices(), {3})

    assert found.schema == KEY_SCHEMA
    assert _found(found) == sorted(made.rows)


def test_a_copied_message_counts_once_also_where_a_place_says_it_lies() -> None:
    """A node may tell where copies lie; which offset each row has, only the copy says."""
    made = _Made({3})
    made.add([(True, [Message(message_id="i", body=b"x", keys=("a",))], 3, 0)])
    data = made.bodies[0]
    inner = data.rindex(b"\x11\x01") + 1
    made.places.append((1, inner, len(data), 0, 1, 0, 10, 3))

    assert _found(key_rows(entry_batch(made.entries()), made.slices(), {3})) == made.rows


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_rekeep_that_every_node_refused_has_no_rows(cut: int) -> None:
    """Damaged by whoever sent it, it changed nothing; a newer version's is no such thing."""
    made = _Made({3})
    made.add([(True, [Message(message_id="i", body=b"x", keys=("a",))], 3, 0)])
    frame = made.bodies[0][7:]
    payload = frame[5 : len(frame) - cut]
    damaged = len(payload).to_bytes(4, "little") + frame[4:5] + payload
    newer = frame[:5] + b"\x02" + frame[6:]

    assert key_rows(entry_batch(data_entries(damaged)), no_places(), {3}).num_rows == 0
    with pytest.raises(MalformedMessage, match="entry 1: REKEEP of version 2, which a newer"):
        key_rows(entry_batch(data_entries(newer)), no_places(), {3})


@pytest.mark.parametrize(("index", "start", "end"), [(2, 5, 9), (1, 0, 9), (1, 5, 999)])
def test_a_place_outside_of_the_entries_is_refused(index: int, start: int, end: int) -> None:
    """Places and entries come from different objects, or nodes."""
    made = _Made({3})
    made.add([(False, [Message(message_id="i", body=b"x", keys=("a",))], 3, 0)])
    made.places[0] = (index, start, end, 0, 1, 0, 10, 3)

    with pytest.raises(MalformedMessage, match="outside of the entry"):
        key_rows(entry_batch(made.entries()), made.slices(), {3})
