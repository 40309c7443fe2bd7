"""Encodes the tag and length of a protobuf field, to build large messages without copies.

A message with megabytes of data is built from its small fields, which protobuf encodes, and the
data itself, which is copied once; protobuf would copy it at every level of nesting. Used by
`client` and `services`. Source: protobuf.dev/programming-guides/encoding, "Length-Delimited
Records".
"""

from __future__ import annotations

from typing import Final

_LENGTH_DELIMITED: Final = 2


def length_prefix(field_number: int, size_bytes: int) -> bytes:
    """Return the tag and length that precede a field of *size_bytes* (bytes, string, message)."""
    return _varint(field_number << 3 | _LENGTH_DELIMITED) + _varint(size_bytes)


def _varint(value: int) -> bytes:
    """Return a non-negative number as a varint: 7 bits in each byte, lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
