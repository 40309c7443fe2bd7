"""The digest that the deduplication window keeps of a message's body: CRC32C and length, 8 bytes.

Where a message is not to be delivered before a time, the CRC32C goes on over that time.

A known id with a different digest belongs to a different message. The rule must be the same on
every node and cost next to nothing at 150,000 messages a second, and the window holds a digest for
every id, so it is 8 bytes and not a cryptographic hash. It detects mistakes and guessed ids, not a
body crafted to collide. Where ids can be guessed, in the RocketMQ service, a repeated message is
compared with the stored one (ADR 20).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import TypeAlias

from crc32c import crc32c

from dledger.common.byte_order import from_little_endian, little_endian

Digests: TypeAlias = "array[int]"
"""An array of type ``Q``, one item for each message: length << 32 | CRC32C."""
_Body = bytes | memoryview
_U32 = 0xFFFF_FFFF
_I64 = struct.Struct("<q")


def digest_of(body: _Body) -> int:
    """Return the digest of one body."""
    return len(body) << 32 | crc32c(body)


def with_times(digests: Digests, due_ms: Sequence[int]) -> Digests:
    """Return the digests of messages that are not to be delivered before these times, Unix ms.

    One without a time, 0, keeps its own. A message with another time is another message.
    """
    return array(
        "Q",
        [
            digest & ~_U32 | crc32c(_I64.pack(due), digest & _U32) if due else digest
            for digest, due in zip(digests, due_ms, strict=True)
        ],
    )


def digests_of(bodies: Sequence[_Body]) -> Digests:
    """Return the digest of each body."""
    return _joined(bodies, array("I", map(len, bodies)))


def digests_of_one_size(bodies: Sequence[_Body], size: int) -> Digests:
    """Return the digest of each body, all of which have *size* bytes."""
    return _joined(bodies, array("I", (size,)) * len(bodies))


def _joined(bodies: Sequence[_Body], lengths: array[int]) -> Digests:
    halves = array("I", bytes(8 * len(bodies)))
    halves[::2] = array("I", map(crc32c, bodies))
    halves[1::2] = lengths
    return from_little_endian("Q", little_endian(halves))
