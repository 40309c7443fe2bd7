"""Receipt handles: nobody but the group can make one, and each is good for one thing."""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker.commands import NUMBER_BOUND, LeaseRef
from dledger.errors import InvalidReceiptHandle
from dledger.rocketmq.receipts import Receipts

pytestmark = pytest.mark.found
_SECRET = bytes(range(32))
_LEASE = LeaseRef(3, 77, 9)


def _receipts(**other: Any) -> Receipts:
    """Return those of one group and topic, or of others."""
    usual: dict[str, Any] = {"secret": _SECRET, "group": "g", "topic": "t", "generation": 1}
    return Receipts(**(usual | other))


@given(st.integers(0, 0xFFFF), st.integers(0, NUMBER_BOUND - 1), st.integers(0, NUMBER_BOUND - 1))
def test_a_handle_is_read_as_it_was_made(queue_id: int, offset: int, receive_id: int) -> None:
    """Any node of the group reads it: all have the secret."""
    lease = LeaseRef(queue_id, offset, receive_id)

    assert _receipts().decode(_receipts().encode(lease)) == lease


@pytest.mark.parametrize(
    "other",
    [{"group": "h"}, {"topic": "u"}, {"generation": 2}, {"secret": bytes(32)}, {"secret": b""}],
    ids=str,
)
def test_a_handle_is_good_for_one_group_and_one_topic(other: dict[str, Any]) -> None:
    """Nor for a topic that is made anew, nor where there is no secret: found S12."""
    with pytest.raises(InvalidReceiptHandle):
        _receipts(**other).decode(_receipts().encode(_LEASE))


@given(st.integers(0, 34), st.integers(1, 255))
def test_a_changed_handle_is_refused(at: int, change: int) -> None:
    """Neither place nor receive can be guessed from another handle."""
    handle = _receipts().encode(_LEASE)
    raw = bytearray(_decoded(handle))
    raw[at] ^= change

    with pytest.raises(InvalidReceiptHandle):
        _receipts().decode(urlsafe_b64encode(raw).rstrip(b"=").decode())


@pytest.mark.parametrize(("offset", "receive_id"), [(1 << 62, 1), ((1 << 64) - 1, 1), (1, 1 << 63)])
def test_a_number_that_no_command_can_hold_is_refused(offset: int, receive_id: int) -> None:
    """It would fail all the acks that share its command, were it signed ever so well."""
    with pytest.raises(InvalidReceiptHandle, match="no message is where"):
        _receipts().decode(_signed(_SECRET, offset, receive_id))


def test_without_a_secret_no_handle_is_good() -> None:
    """Nobody was given one yet; what is signed with nothing anybody can make."""
    assert _receipts().decode(_signed(_SECRET, 1, 1)) == LeaseRef(0, 1, 1)
    with pytest.raises(InvalidReceiptHandle, match="was not given"):
        _receipts(secret=b"").decode(_signed(b"", 1, 1))


def _signed(secret: bytes, offset: int, receive_id: int) -> str:
    """Return a handle as the format has it, made by hand."""
    fields = struct.pack("<BHQQ", 2, 0, offset, receive_id)
    mac = blake2b(b"g\0t\0" + b"1\0" + fields, key=secret, digest_size=16).digest()
    return urlsafe_b64encode(fields + mac).rstrip(b"=").decode()


def _decoded(handle: str) -> bytes:
    return urlsafe_b64decode(handle + "=" * (-len(handle) % 4))
