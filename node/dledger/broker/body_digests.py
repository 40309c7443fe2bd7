"""What the dedupe window keeps of a message's body: its CRC32C and its length, 8 bytes.

A message is another one than its id says if either differs. The rule must be the same on every
node, and cost next to nothing where 150,000 messages a second are applied, so it is no
cryptographic hash: it tells mistakes and guesses apart, not a body that was made to collide. Where
ids can be guessed, at the gateway, a repetition is compared with what is stored (ADR 20).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TypeAlias

from crc32c import crc32c

from dledger.common.byte_order import from_little_endian, little_endian

Digests: TypeAlias = "array[int]"
"""An array of type ``Q``, an item a message: length << 32 | CRC32C."""
_Body = bytes | memoryview


def digest_of(body: _Body) -> int:
    """Return the digest of one body."""
    return len(body) << 32 | crc32c(body)


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
