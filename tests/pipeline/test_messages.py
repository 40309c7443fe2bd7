"""Messages out of PRODUCE payloads: what the broker's own decoder says, for all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker.command_frame import CommandType, MalformedCommandError, frame, split
from dledger.broker.message import Message
from dledger.broker.produce import ProduceFrame
from dledger.common.replay_mark import ReplayMark
from dledger_pipeline.errors import MalformedMessage
from dledger_pipeline.log.messages import MESSAGE_SCHEMA, QUEUE_SLICE_SCHEMA, SetAside, decode
from tests.pipeline.entry_batches import (
    MESSAGES,
    TEXT,
    data_entries,
    entry_batch,
    message_row,
    produced,
)

_COMMANDS = st.builds(
    lambda messages, topic, queue_id, client, host, replay: produced(
        *messages, topic=topic, queue_id=queue_id, client=client, host=host, replay=replay
    ),
    MESSAGES,
    TEXT,
    st.integers(0, 1000),
    TEXT,
    TEXT,
    st.none() | st.builds(ReplayMark, st.just(bytes(16)), st.integers(1, 1 << 63)),
)
_ENTRIES = st.lists(
    st.lists(_COMMANDS | st.just(frame(CommandType.ACK, b"{}")), max_size=3).map(b"".join),
    min_size=1,
    max_size=4,
)
_TYPE_AT, _PAYLOAD_AT = 4, 5


def _places(entries: Sequence[bytes]) -> list[dict[str, int]]:
    """Place every row of every PRODUCE payload, in queue 7 from offset 100 on."""
    return [
        {
            "index": index,
            "start": start,
            "end": end,
            "first_row": 0,
            "rows": ProduceFrame(entry, start, end).count,
            "queue_id": 7,
            "first_offset": 100,
            "generation": 1,
        }
        for index, entry in enumerate(entries, 1)
        for kind, start, end in split(entry)
        if kind == CommandType.PRODUCE
    ]


def _slices(places: Sequence[dict[str, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(places), schema=QUEUE_SLICE_SCHEMA)


def _slow(entries: Sequence[bytes], places: Sequence[dict[str, int]]) -> list[dict[str, Any]]:
    """Read message after message with the broker's decoder."""
    rows = []
    for place in places:
        (entry,) = data_entries(entries[place["index"] - 1], first_index=place["index"])
        batch = ProduceFrame(entry.data, place["start"], place["end"])
        for nth in range(place["rows"]):
            at = {"queue_id": place["queue_id"], "queue_offset": place["first_offset"] + nth}
            rows.append(message_row(batch, place["first_row"] + nth, entry, **at))
    return rows


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return [row | {"properties": dict(row["properties"])} for row in batch.to_pylist()]


@given(_ENTRIES)
def test_all_messages_come_out_as_the_broker_reads_them(entries: list[bytes]) -> None:
    """Entries of any commands give the rows that the broker's decoder gives one by one."""
    places = _places(entries)

    found = decode(entry_batch(data_entries(*entries)), _slices(places))

    assert found.schema == MESSAGE_SCHEMA
    assert _rows(found) == _slow(entries, places)


@given(_ENTRIES, st.data())
def test_any_slices_of_a_payload_can_be_taken(entries: list[bytes], data: st.DataObject) -> None:
    """QueueOffsets may leave rows out, which were stored before: the others come out unchanged."""
    whole = _places(entries)
    places = [
        place | {"first_row": row, "rows": 1, "first_offset": data.draw(st.integers(0, 9))}
        for place in whole
        for row in range(place["rows"])
        if data.draw(st.booleans())
    ]

    found = decode(entry_batch(data_entries(*entries)), _slices(places))

    assert _rows(found) == _slow(entries, places)


@pytest.mark.found
@given(st.lists(_COMMANDS, min_size=1, max_size=3), st.data())
def test_damage_is_a_typed_error_or_read_as_the_broker_reads_it(
    entries: list[bytes], data: st.DataObject
) -> None:
    """Flipped bytes raise MalformedMessage just where the broker could not have stored the payload.

    Messages of which the broker cannot tell one are set aside, and no others; found: S7.
    """
    places = _places(entries)
    damaged = [bytearray(entry) for entry in entries]
    entry = data.draw(st.sampled_from(damaged))
    for _ in range(data.draw(st.integers(1, 4))):
        entry[data.draw(st.integers(_PAYLOAD_AT, len(entry) - 1))] = data.draw(st.integers(0, 255))
    broken = [bytes(each) for each in damaged]

    set_aside: list[SetAside] = []
    try:
        expected, untold = _told(broken, places)
    except MalformedCommandError:
        with pytest.raises(MalformedMessage, match=f"entry {damaged.index(entry) + 1}"):
            decode(entry_batch(data_entries(*broken)), _slices(places))
    else:
        batch = entry_batch(data_entries(*broken))
        found = decode(batch, _slices(places), report=set_aside.extend)
        assert _rows(found) == expected
        assert set_aside == untold


def _told(
    entries: Sequence[bytes], places: Sequence[dict[str, int]]
) -> tuple[list[dict[str, Any]], list[SetAside]]:
    """Read message after message with the broker's decoder; return those it cannot tell, too."""
    rows, untold = [], []
    for place in places:
        for nth in range(place["rows"]):
            row, offset = place["first_row"] + nth, place["first_offset"] + nth
            one = place | {"first_row": row, "rows": 1, "first_offset": offset}
            ProduceFrame(entries[place["index"] - 1], place["start"], place["end"])
            try:
                rows += _slow(entries, [one])
            except MalformedCommandError:
                untold.append(SetAside(place["index"], place["queue_id"], offset))
    return rows, untold


@pytest.mark.found
@pytest.mark.parametrize("columns", [(), ("topic", "queue_offset", "body"), ("message_id",)])
def test_an_id_that_is_no_text_costs_its_own_message_only(
    columns: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever columns are asked for, so that all readers see the same messages; found: S7."""
    command = produced(*(Message(message_id=each, body=b"x") for each in ("a", "bcd", "e")))
    entries = [command, command.replace(b"bcd", b"\xff\xfe\xfd"), command]

    found = decode(entry_batch(data_entries(*entries)), _slices(_places(entries)), columns)

    assert found.num_rows == 8
    assert "1 messages cannot be decoded" in caplog.text
    assert "offset 101 of queue 7, in entry 2" in caplog.text


def test_a_slice_of_a_batch_is_read_where_it_lies() -> None:
    """Entries may be a slice of a larger batch, whose offsets do not begin at 0."""
    messages = [Message(message_id=str(n), body=bytes([n]) * n) for n in range(1, 6)]
    entries = [produced(message) for message in messages]
    places = _places(entries)[2:]

    found = decode(entry_batch(data_entries(*entries)).slice(2), _slices(places))

    assert found.column("body").to_pylist() == [message.body for message in messages[2:]]


def test_only_the_columns_that_are_asked_for_are_cut_out() -> None:
    """A slim pass reads keys and places without a copy of the bodies, in the order asked for."""
    entries = [produced(Message(message_id="", body=b"x", keys=("k",)))]

    found = decode(
        entry_batch(data_entries(*entries)), _slices(_places(entries)), ("queue_offset", "keys")
    )

    assert found.to_pydict() == {"queue_offset": [100], "keys": [["k"]]}


def test_no_messages_are_an_empty_batch() -> None:
    """Entries without placed messages give no rows, with all columns."""
    found = decode(entry_batch(data_entries(b"")), _slices([]))

    assert (found.num_rows, found.schema) == (0, MESSAGE_SCHEMA)
