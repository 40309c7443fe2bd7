"""The spool's bytes: what is written is read back, and nothing else is taken for it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.errors import InvalidArgument
from dledger.files.checked_json import VersionError
from dledger.spool.format import (
    FILE_HEADER_BYTES,
    FileHeader,
    State,
    decode_file_header,
    decode_state,
    encode_file_header,
    encode_record,
    encode_state,
    scan,
)
from dledger.spool.payload import Message, decode_message, encode_message, head_of
from dledger.types import Record, Typed
from tests.spool.spool_harness import STAMP, TOKEN, message, messages

TEXT = st.text(max_size=20)
MESSAGES = st.builds(
    Message,
    topic=TEXT,
    queue_id=st.integers(-1, 1023),
    reason=TEXT,
    client_id=TEXT,
    lane=st.integers(0, (1 << 32) - 1),
    lane_sequence=st.integers(0, (1 << 64) - 1),
    tried=st.booleans(),
    record=st.builds(
        Record,
        body=st.binary(max_size=100) | st.just(STAMP * 3),
        message_id=TEXT,
        tag=TEXT,
        keys=st.lists(TEXT, max_size=3).map(tuple),
        properties=st.dictionaries(TEXT, TEXT, max_size=3),
        born_at_ms=st.integers(0, 1 << 50),
        typed=st.none()
        | st.builds(
            Typed,
            message_group=TEXT,
            deliver_at_ms=st.integers(0, 1 << 50),
            priority=st.integers(-1, (1 << 31) - 1),
        ),
    ),
)


def records(batch: list[Message], first: int = 1) -> list[bytes]:
    """Return the records of messages from a sequence on."""
    return [
        encode_record(encode_message(one), sequence=first + number, stamp=STAMP)
        for number, one in enumerate(batch)
    ]


@given(batch=st.lists(MESSAGES, max_size=5), room=st.integers(0, 64))
def test_messages_are_read_back_as_they_were_spooled(batch: list[Message], room: int) -> None:
    """Every field, also non-ASCII text and bodies that contain the stamp; zeros follow."""
    data = b"".join(records(batch, first=7)) + bytes(room)

    found = scan(data, stamp=STAMP, first=7)

    assert [decode_message(record.payload) for record in found.records] == batch
    assert [head_of(record.payload) for record in found.records] == [
        (m.topic, m.record.born_at_ms, m.client_id, m.lane, m.lane_sequence, m.tried) for m in batch
    ]
    assert (found.gaps, found.fault) == ([], "")
    assert found.end == len(data) - room


@settings(max_examples=200)
@given(data=st.data())
def test_damage_costs_only_the_records_it_touches(data: st.DataObject) -> None:
    """Against an obvious model: a record is found unless one of its bytes was changed."""
    batch = [message(n, size=data.draw(st.integers(1, 80))) for n in range(1, 8)]
    parts = records(batch)
    content = bytearray(b"".join(parts))
    start = data.draw(st.integers(0, len(content) - 1))
    end = data.draw(st.integers(start + 1, min(len(content), start + 200)))
    content[start:end] = bytes(byte ^ 0x55 for byte in content[start:end])

    found = scan(bytes(content), stamp=STAMP, first=1)

    intact, position = [], 0
    for sequence, part in enumerate(parts, start=1):
        padding = 0 if part[-1] else len(part) - len(part.rstrip(b"\0"))
        if end <= position or start >= position + len(part) - padding:
            intact.append(sequence)
        position += len(part)
    assert [record.sequence for record in found.records] == intact
    lost = [n for gap in found.gaps for n in range(gap.first, gap.last + 1)]
    assert lost == [n for n in range(1, max(intact, default=0)) if n not in intact]
    assert all(gap.reason for gap in found.gaps)
    assert bool(found.fault) == (not intact or intact[-1] != 7)


@pytest.mark.parametrize("length", range(0, 200, 8))
def test_record_cut_short_is_no_record(length: int) -> None:
    """At any length: in the header, in the payload, in front of both."""
    (whole,) = records([message(1, size=200)])

    found = scan(whole[:length], stamp=STAMP, first=1)

    assert found.records == []
    assert bool(found.fault) == (length > 0)


def test_records_inside_a_body_are_not_found_when_their_record_is_damaged() -> None:
    """Somebody spools a copy of spool files: older sequences are not taken for newer ones."""
    inner = b"".join(records(messages(1, 3)))
    outer = Message(topic="backups", record=Record(body=inner, message_id="outer-one-one"))
    data = bytearray(b"".join(records([*messages(1, 3), outer, message(5)])))
    assert data.rindex(STAMP, 0, data.rindex(STAMP)) % 8 == 0, "copies are where records may be"
    data[data.index(b"backups")] ^= 1

    found = scan(bytes(data), stamp=STAMP, first=1)

    assert [record.sequence for record in found.records] == [1, 2, 3, 5]


def test_remains_of_another_write_end_at_the_next_file() -> None:
    """Sequences from the limit on belong to the next file, whatever is left behind here."""
    data = b"".join(records(messages(1, 6)))

    found = scan(data, stamp=STAMP, first=1, limit=4)

    assert [record.sequence for record in found.records] == [1, 2, 3]
    assert "message 4 is not expected" in found.fault


@given(data=st.binary(max_size=300))
def test_scan_of_any_bytes_ends_and_finds_nothing(data: bytes) -> None:
    """No bytes from a disk hang or raise."""
    assert scan(STAMP + data + STAMP, stamp=STAMP, first=1).records == []


@given(data=st.binary(max_size=100))
def test_payload_of_any_bytes_is_a_message_or_an_error(data: bytes) -> None:
    """A record that is whole but was written by somebody else raises nothing unexpected."""
    for decode in (decode_message, head_of):
        with suppress(ValueError):
            decode(data)


def test_file_header_is_read_back_and_no_byte_of_it_may_change() -> None:
    """Client id, stamp, token and first sequence are under a CRC."""
    header = FileHeader(client_id="kücken-1", stamp=STAMP, token=TOKEN, first_sequence=1 << 40)
    page = encode_file_header(header)

    assert len(page) == FILE_HEADER_BYTES
    assert decode_file_header(page) == header
    for position in range(308):
        torn = bytearray(page)
        torn[position] ^= 1
        with pytest.raises(ValueError, match="CRC32C"):
            decode_file_header(bytes(torn))


def test_state_is_read_back_and_a_torn_slot_is_refused() -> None:
    """Number, replayed and accepted."""
    state = State(number=3, replayed=10, accepted=12)
    slot = encode_state(state)

    assert decode_state(slot) == state
    with pytest.raises(ValueError, match="CRC32C"):
        decode_state(slot[:20] + b"\1" + slot[21:])


def test_later_format_is_told_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not quarantined by a version that cannot read it."""
    monkeypatch.setattr("dledger.spool.format.FORMAT_VERSION", 3)
    later = encode_state(State(number=1, replayed=0, accepted=0))
    monkeypatch.undo()

    with pytest.raises(VersionError, match="format version 3, this one reads 2"):
        decode_state(later)


@pytest.mark.parametrize(
    "record",
    [Record(body=b"x", message_id="\ud800"), Record(body=b"x", keys=("k",) * 70_000)],
    ids=["lone surrogate", "too many keys"],
)
def test_message_that_has_no_bytes_is_refused(record: Record) -> None:
    """With its reason, and before anything is written."""
    with pytest.raises(InvalidArgument, match="cannot be spooled"):
        encode_message(Message(topic="orders", record=record))
