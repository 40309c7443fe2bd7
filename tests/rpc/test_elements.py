"""Fields counted over a request's bytes: as many as protobuf finds, and never fewer."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import InvalidArgument
from dledger.rpc.elements import count_elements
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.requests import MAX_ELEMENTS, SMALL_BYTES, parsed
from dledger.rpc.rocketmq_stubs import service
from dledger.rpc.status import Rejected

KINDS: tuple[Any, ...] = (
    service.SendMessageRequest,
    service.TelemetryCommand,
    service.AckMessageRequest,
    service.ReceiveMessageRequest,
    pb.AppendRequest,
    pb.ProduceBatches,
)
MANY = 1 << 30


def elements(message: Any) -> int:
    """Return how many fields *message* has, the slow and obvious way."""
    return sum(_elements(field, value) for field, value in message.ListFields())


def _elements(field: FieldDescriptor, value: Any) -> int:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return 3 * len(value)  # the entry, its key and its value
    if kind is None:
        return len(value) if field.is_repeated and not field.is_packed else 1
    many = value if field.is_repeated else [value]
    return sum(1 + elements(each) for each in many)


def filled(message: Any, rng: random.Random, depth: int = 3) -> Any:
    """Set some of a message's fields; strings and bytes at random, some of them like messages."""
    for field in message.DESCRIPTOR.fields:
        for _ in range(rng.choice((0, 1, 2)) if field.is_repeated else rng.choice((0, 1))):
            _set(message, field, rng, depth)
    return message


def _set(message: Any, field: FieldDescriptor, rng: random.Random, depth: int) -> None:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        getattr(message, field.name)[f"k{rng.random()}"] = "v" * rng.choice((1, 200))
        return
    if kind is not None:
        part = getattr(message, field.name)
        if depth:
            filled(part.add() if field.is_repeated else part, rng, depth - 1)
            if not field.is_repeated:
                part.SetInParent()
        return
    values: dict[int, Any] = {
        FieldDescriptor.TYPE_STRING: "é" * rng.choice((1, 100)),
        FieldDescriptor.TYPE_BYTES: rng.choice((b"\x0a\x00" * 70, rng.randbytes(20))),
        FieldDescriptor.TYPE_BOOL: True,
        FieldDescriptor.TYPE_FLOAT: 1.5,
        FieldDescriptor.TYPE_DOUBLE: 1.5,
    }
    value = values.get(field.type, rng.choice((1, 2)))
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


@given(st.integers(0, 2**32), st.sampled_from(KINDS))
def test_counts_what_protobuf_finds(seed: int, kind: Any) -> None:
    """Bodies that look like messages are one field; map entries are three."""
    message = filled(kind(), random.Random(seed))

    raw = message.SerializeToString()

    assert count_elements(raw, kind.DESCRIPTOR, MANY) == elements(kind.FromString(raw))


@given(st.binary(max_size=60), st.sampled_from(KINDS))
def test_of_bytes_that_protobuf_takes_none_is_overlooked(raw: bytes, kind: Any) -> None:
    """Whatever a client sends: groups, unknown fields, one field twice, tags of many bytes."""
    try:
        found = elements(kind.FromString(raw))
    except DecodeError:
        return

    assert count_elements(raw, kind.DESCRIPTOR, MANY) >= found


@given(st.lists(st.sampled_from([b"\x0a\x00", b"\x1a\x02\x0a\x00", b"\x0b", b"\x0c", b"\x78\x01"])))
def test_of_small_pieces_none_is_overlooked(pieces: list[bytes]) -> None:
    """Empty messages within groups and beside them."""
    raw = b"".join(pieces)
    try:
        found = elements(service.AckMessageRequest.FromString(raw))
    except DecodeError:
        return

    assert count_elements(raw, service.AckMessageRequest.DESCRIPTOR, MANY) >= found


@pytest.mark.found
@pytest.mark.parametrize("kind", [service.SendMessageRequest, pb.AppendRequest])
def test_a_request_of_many_small_fields_is_refused_before_it_is_parsed(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """found: S2. Two bytes on the wire were 70 in memory."""
    monkeypatch.setattr(kind, "FromString", lambda _: pytest.fail("it was parsed"), raising=False)
    number = next(f.number for f in kind.DESCRIPTOR.fields if f.is_repeated)

    with pytest.raises(Rejected, match=f"more than {MAX_ELEMENTS} fields"):
        parsed(kind, bytes((number << 3 | 2, 0)) * (1 << 20))


def test_the_largest_batch_of_small_messages_is_parsed() -> None:
    """As many as may be, each with what messages usually have."""
    record = pb.Record(message_id="x" * 34, body=b"x" * 100, tag="t", keys=["a"], born_at_ms=1)
    record.properties.update({"a": "1", "b": "2"})
    raw = pb.AppendRequest(topic="t", records=[record] * 4096).SerializeToString()

    assert len(raw) > SMALL_BYTES
    assert len(parsed(pb.AppendRequest, raw).records) == 4096


def test_what_is_no_message_is_refused() -> None:
    """With its type's name."""
    with pytest.raises(InvalidArgument, match="not a valid AppendRequest"):
        parsed(pb.AppendRequest, b"\x0a")
