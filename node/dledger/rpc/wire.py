"""The one piece of protobuf's wire format that is written by hand: what precedes a long field.

A message that carries megabytes is put together from its small fields, which protobuf encodes, and
the bytes themselves, which are copied once; protobuf would copy them at every level of nesting.
Source: protobuf.dev/programming-guides/encoding, "Length-Delimited Records".
"""

from __future__ import annotations

from typing import Final

_LENGTH_DELIMITED: Final = 2


def length_prefix(field_number: int, size_bytes: int) -> bytes:
    """Return tag and length of a field of *size_bytes* bytes (bytes, string, message)."""
    return _varint(field_number << 3 | _LENGTH_DELIMITED) + _varint(size_bytes)


def _varint(value: int) -> bytes:
    """Return a number of 0 or more as protobuf's varint: 7 bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
