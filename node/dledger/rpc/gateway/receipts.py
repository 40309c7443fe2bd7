"""Receipt handles: opaque to clients, readable by every node, checked before use.

::

    0   u8   version, 1
    1   u16  queue id
    3   u64  queue offset
    11  u64  receive id
    19  u32  CRC-32 of the above, the group's and the topic's name
    -- 23 bytes, in URL-safe base64

The checksum tells a handle of another group or topic, or a mangled one, from a stale one.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import crc32

from dledger.broker.commands import LeaseRef
from dledger.errors import InvalidReceiptHandle

_VERSION = 1
_FIELDS = struct.Struct("<BHQQ")
_CHECK = struct.Struct("<I")


def encode(lease: LeaseRef, *, group: str, topic: str) -> str:
    """Return the receipt handle of a message handed to *group*."""
    fields = _FIELDS.pack(_VERSION, lease.queue_id, lease.offset, lease.receive_id)
    check = _CHECK.pack(_checksum(fields, group, topic))
    return urlsafe_b64encode(fields + check).rstrip(b"=").decode()


def decode(handle: str, *, group: str, topic: str) -> LeaseRef:
    """Return what *handle* stands for.

    Raises:
        InvalidReceiptHandle: It is malformed, or was given to another group or for another topic.
    """
    try:
        raw = urlsafe_b64decode(handle + "=" * (-len(handle) % 4))
        version, queue_id, offset, receive_id = _FIELDS.unpack_from(raw)
        (check,) = _CHECK.unpack(raw[_FIELDS.size :])
    except (ValueError, struct.error):
        raise InvalidReceiptHandle(f"malformed receipt handle {handle[:80]!r}") from None
    if version != _VERSION or check != _checksum(raw[: _FIELDS.size], group, topic):
        raise InvalidReceiptHandle(
            f"receipt handle {handle[:80]!r} was not given to group {group!r} for topic {topic!r}"
        )
    return LeaseRef(queue_id, offset, receive_id)


def _checksum(fields: bytes, group: str, topic: str) -> int:
    return crc32(f"{group}\0{topic}".encode(), crc32(fields))
