"""The bytes around a long field are those that protobuf writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.wire import length_prefix, taken_out


@pytest.mark.parametrize("size_bytes", [1, 127, 128, 16_383, 16_384, 2_097_152])
def test_a_prefix_is_what_protobuf_writes(size_bytes: int) -> None:
    """Tag and length, at every length of the varint."""
    payload = bytes(size_bytes)
    prefix = length_prefix(pb.StoredBatch.PAYLOAD_FIELD_NUMBER, size_bytes)
    assert prefix + payload == pb.StoredBatch(payload=payload).SerializeToString()


@given(
    first=st.integers(-(2**63), 2**63 - 1),
    chain=st.integers(0, 2**32 - 1),
    segment=st.text(max_size=200),
    records=st.binary(max_size=300),
)
def test_what_is_taken_out_is_what_protobuf_reads(
    first: int, chain: int, segment: str, records: bytes
) -> None:
    """The data, and a message that has everything else."""
    others = pb.ExportChunk(first_index=first, previous_chain=chain, segment=segment)
    whole = pb.ExportChunk(records=records)
    whole.MergeFrom(others)

    data, rest = taken_out(whole.SerializeToString(), pb.ExportChunk.RECORDS_FIELD_NUMBER)

    assert bytes(data) == records
    assert pb.ExportChunk.FromString(rest) == others


def test_a_message_of_fixed_numbers_keeps_them() -> None:
    """Fields of 4 and 8 bytes are passed over by their length; the last of two counts."""
    message = b"\x0d1234" + b"\x11" + b"12345678" + b"\x2a\x01a" + b"\x2a\x01b"
    data, rest = taken_out(message, 5)
    assert (bytes(data), rest) == (b"b", message[:14])


@pytest.mark.parametrize(
    "message",
    [
        b"\x2a",
        b"\x2a\x05abc",
        b"\x0d123",
        b"\x08\x80",
        b"\x0b",
        b"\xff" * 11,
        b"\x08" + b"\x80" * 10,
    ],
)
def test_a_message_that_is_cut_short_is_refused(message: bytes) -> None:
    """As are groups, which are not used, and numbers that do not end."""
    with pytest.raises(ValueError, match=r"cut short|wire type"):
        taken_out(message, 5)
