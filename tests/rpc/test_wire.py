"""The bytes before a long field are those that protobuf writes."""

from __future__ import annotations

import pytest

from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.wire import length_prefix


@pytest.mark.parametrize("size_bytes", [1, 127, 128, 16_383, 16_384, 2_097_152])
def test_a_prefix_is_what_protobuf_writes(size_bytes: int) -> None:
    """Tag and length, at every length of the varint."""
    payload = bytes(size_bytes)
    prefix = length_prefix(pb.StoredBatch.PAYLOAD_FIELD_NUMBER, size_bytes)
    assert prefix + payload == pb.StoredBatch(payload=payload).SerializeToString()
