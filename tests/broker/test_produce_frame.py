"""The PRODUCE payload: what goes in comes out, and broken bytes are refused, never believed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker.command_frame import (
    HEADER_BYTES,
    CommandType,
    MalformedCommandError,
    frame,
    split,
)
from dledger.broker.id_runs import IdRun
from dledger.broker.message import Columns, Encoding, Message
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.common.replay_mark import ReplayMark
from dledger.types import NO_PRIORITY, MovedFrom, Typed
from tests.typed_messages import TYPED

_TEXT = st.text(max_size=12)
_MESSAGES = st.lists(
    st.builds(
        Message,
        message_id=_TEXT,
        body=st.binary(max_size=40),
        tag=_TEXT,
        keys=st.lists(_TEXT, max_size=3).map(tuple),
        properties=st.dictionaries(_TEXT, _TEXT, max_size=3),
        born_at_ms=st.integers(-(2**63), 2**63 - 1),
        encoding=st.sampled_from(Encoding),
        trace_context=_TEXT,
        typed=TYPED,
    ),
    min_size=1,
    max_size=6,
)


def _decoded(command: bytes) -> ProduceFrame:
    ((kind, start, end),) = split(command)
    assert kind == CommandType.PRODUCE
    return ProduceFrame(command, start, end)


def _by_columns(found: ProduceFrame, rows: range) -> list[Message]:
    columns = found.columns(rows)
    return [
        Message(
            message_id=columns.message_ids[number],
            body=columns.bodies[number],
            born_at_ms=columns.born_at_ms[number],
            tag=columns.tags[number],
            keys=tuple(columns.keys[number]),
            properties=columns.properties[number],
            encoding=Encoding(columns.encodings[number]),
            trace_context=columns.trace_contexts[number],
            typed=columns.typed[number],
        )
        for number in range(len(rows))
    ]


_MARKS = st.one_of(
    st.none(),
    st.builds(ReplayMark, st.binary(min_size=16, max_size=16), st.integers(1, 2**64 - 9)),
)


@given(_MESSAGES, st.tuples(_TEXT, _TEXT, _TEXT), st.integers(-1, 1000), _MARKS)
def test_a_batch_comes_out_as_it_went_in(
    messages: list[Message],
    names: tuple[str, str, str],
    queue_id: int,
    mark: ReplayMark | None,
) -> None:
    """Every field of every message survives, whichever columns are present."""
    client, topic, host = names
    command = encode_produce(
        Columns.of(messages),
        client_id=client,
        topic=topic,
        queue_id=queue_id,
        born_host=host,
        replay=mark,
    )

    found = _decoded(command)

    assert (found.client_id, found.topic, found.queue_id) == (client, topic, queue_id)
    assert (found.born_host, found.replay) == (host, mark)
    assert [found.message(row) for row in range(found.count)] == messages
    assert _by_columns(found, range(found.count)) == messages
    assert _by_columns(found, range(1, found.count, 2)) == messages[1::2]
    assert found.message_ids() == tuple(message.message_id.encode() for message in messages)
    assert found.tags() in (None, [message.tag.encode() for message in messages])


@given(
    st.integers(0, 70).flatmap(
        lambda size: st.lists(st.text("01", min_size=size, max_size=size), min_size=1, max_size=9)
    ),
    st.lists(st.text("01", max_size=3), max_size=1),
)
def test_ids_come_out_alike_whether_they_have_one_size(ids: list[str], odd: list[str]) -> None:
    """The quick way, for ids of one size that are not long, finds what the other one finds."""
    ids += odd
    batch = Columns(message_ids=ids, bodies=[b"x"] * len(ids), born_at_ms=[0] * len(ids))

    found = _decoded(encode_produce(batch, client_id="c", topic="t"))

    assert found.message_ids() == tuple(message_id.encode() for message_id in ids)
    assert [found.message(row).message_id for row in range(len(ids))] == ids


@given(
    st.sampled_from(["", "p", "100%s%", "é"]),
    st.one_of(st.integers(0, 1000), st.integers(10**12 - 9, 10**12 - 1)),
    st.integers(1, 9),
    st.one_of(st.none(), st.tuples(st.integers(0, 8), st.text("01x", max_size=14))),
)
def test_ids_are_a_run_exactly_when_they_count_up(
    prefix: str, first: int, count: int, odd: tuple[int, str] | None
) -> None:
    """A run stands for the very ids that are there."""
    ids = [f"{prefix}{row:012d}" for row in range(first, first + count)]
    counts_up = first + count <= 10**12
    if odd is not None and odd[0] < count and odd[1] != ids[odd[0]]:
        ids[odd[0]] = odd[1]
        counts_up = count == 1 and len(odd[1]) >= 12 and odd[1][-12:].isdigit()
    batch = Columns(message_ids=ids, bodies=[b"x"] * count, born_at_ms=[0] * count)

    found = _decoded(encode_produce(batch, client_id="c", topic="t")).ids()

    spelled_out = tuple(message_id.encode() for message_id in ids)
    if counts_up:
        assert isinstance(found, IdRun)
        assert found.spelled_out() == spelled_out
    else:
        assert found == spelled_out
        assert not isinstance(found, IdRun)


@given(_MESSAGES, st.data())
def test_damaged_payloads_are_refused_or_read_but_never_crash(
    messages: list[Message], data: st.DataObject
) -> None:
    """Flipped bytes and cut ends raise MalformedCommandError; many rows at a time are the same."""
    raw = bytearray(encode_produce(Columns.of(messages), client_id="c", topic="t")[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))

    for payload in (bytes(raw), bytes(raw[:cut])):
        try:
            found = ProduceFrame(payload, 0, len(payload))
            found.message_ids()
            found.tags()
            rows = range(min(found.count, 10))
            assert [found.message(row) for row in rows] == _by_columns(found, rows)
        except MalformedCommandError:
            pass


def test_frames_follow_each_other() -> None:
    """Several commands in one entry are found one by one."""
    data = frame(CommandType.ACK, b"one") + frame(CommandType.PRODUCE, b"") + b""

    found = [(kind, data[start:end]) for kind, start, end in split(data)]

    assert found == [(CommandType.ACK, b"one"), (CommandType.PRODUCE, b"")]


@pytest.mark.parametrize("cut", [1, 4, 6])
def test_a_cut_frame_is_refused(cut: int) -> None:
    """A header or a payload that ends too early is an error."""
    data = frame(CommandType.ACK, b"one")[:cut]

    with pytest.raises(MalformedCommandError):
        list(split(data))


def test_columns_lie_where_the_diagram_says() -> None:
    """The pipeline reads these bytes with numpy; the layout is a promise."""
    command = encode_produce(
        Columns(message_ids=["ab"], bodies=[b"xyz"], born_at_ms=[7]),
        client_id="c",
        topic="t",
        queue_id=3,
    )

    expected = (
        struct.pack("<IB", 46, 1)
        + struct.pack("<BBHHHiI", 1, 0, 1, 1, 0, 3, 1)
        + b"ct"
        + struct.pack("<q", 7)
        + struct.pack("<II", 0, 2)
        + b"ab"
        + struct.pack("<II", 0, 3)
        + b"xyz"
    )
    assert command == struct.pack("<IB", len(expected) - 5, 1) + expected[5:]


_MOVED_FROM = MovedFrom(
    topic="o", generation=2, queue_id=3, offset=4, stored_at_ms=5, born_host="h", attempts=6
)
_MOVES = (
    struct.pack("<III", 0, 0, 1) + b"o" + struct.pack("<2q", 0, 2) + struct.pack("<2q", 0, 4)
    + struct.pack("<2q", 0, 5) + struct.pack("<2i", 0, 3) + struct.pack("<2I", 0, 6)
    + struct.pack("<III", 0, 0, 1) + b"h"
)  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "further", "columns"),
    [
        (Typed(message_group="g"), 1, struct.pack("<III", 0, 0, 1) + b"g"),
        (Typed(deliver_at_ms=7), 2, struct.pack("<2q", 0, 7)),
        (Typed(priority=0), 4, struct.pack("<2i", -1, 0)),
        (Typed(moved_from=_MOVED_FROM), 8, _MOVES),
        (
            Typed(message_group="g", deliver_at_ms=7, priority=0, moved_from=_MOVED_FROM),
            15,
            struct.pack("<III", 0, 0, 1) + b"g" + struct.pack("<2q", 0, 7)
            + struct.pack("<2i", -1, 0) + _MOVES,
        ),
    ],
    ids=["group", "time", "priority", "moved", "all"],
)  # fmt: skip
def test_a_batch_pays_for_the_columns_that_it_has_and_for_no_others(
    typed: Typed, further: int, columns: bytes
) -> None:
    """Without any it has the very bytes that it had before there were such columns."""

    def encoded(*both: Typed | None) -> bytes:
        messages = [Message(message_id="", body=b"b", typed=each) for each in both]
        return encode_produce(Columns.of(messages), client_id="c", topic="t", queue_id=3)

    plain = encoded(None, None)
    with_it = encoded(None, typed)

    bodies = struct.pack("<III", 0, 1, 2) + b"bb"
    assert plain[5:] == (
        struct.pack("<BBHHHiI", 1, 0, 1, 1, 0, 3, 2) + b"ct" + bytes(16) + bytes(12) + bodies
    )
    assert with_it[5:] == (
        plain[5:10] + bytes([further]) + plain[11 : -len(bodies)] + columns + bodies
    )
    assert encoded(Typed(), Typed()) == plain
    found = _decoded(with_it)
    assert [found.message(row).typed for row in (0, 1)] == [None, typed]
    assert found.typed is not None
    assert found.typed.groups() == [b"", typed.message_group.encode()]
    assert found.typed.deliver_at_ms() == (0, typed.deliver_at_ms)
    assert found.typed.priorities() == (NO_PRIORITY, typed.priority)


@pytest.mark.parametrize("cut", [1, 9, 30, 60, 90])
def test_columns_of_a_type_that_are_cut_short_are_refused(cut: int) -> None:
    """Wherever they end, and whatever the bodies behind them would say."""
    typed = Typed(message_group="g", deliver_at_ms=7, priority=0, moved_from=_MOVED_FROM)
    batch = Columns.of([Message(message_id="", body=b"b", typed=typed)])
    payload = encode_produce(batch, client_id="c", topic="t")[HEADER_BYTES:-cut]

    with pytest.raises(MalformedCommandError):
        ProduceFrame(payload, 0, len(payload))


def test_a_priority_below_none_breaks_its_own_message_alone() -> None:
    """There is no such one; the message beside it has its own."""
    both = (Typed(priority=-2), Typed(priority=5))
    batch = Columns.of([Message(message_id="", body=b"b", typed=each) for each in both])
    found = _decoded(encode_produce(batch, client_id="c", topic="t"))

    with pytest.raises(MalformedCommandError, match=r"^row 0: a priority of -2$"):
        found.message(0)
    assert found.message(1).typed == both[1]
