"""Puts megabytes of data into a protobuf message, or takes them out, without copies by protobuf.

Such a message is built from its small fields, which protobuf encodes, and the data itself, which is
copied once; protobuf would copy it at every level of nesting, and again to read it. Used by
`client`, `services` and the pipeline. Source: protobuf.dev/programming-guides/encoding,
"Length-Delimited Records".
"""

from __future__ import annotations

from typing import Final

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES: Final = 10


def length_prefix(field_number: int, size_bytes: int) -> bytes:
    """Return the tag and length that precede a field of *size_bytes* (bytes, string, message)."""
    return _varint(field_number << 3 | _LENGTH_DELIMITED) + _varint(size_bytes)


def taken_out(message: bytes, field_number: int) -> tuple[memoryview, bytes]:
    """Return the data of a length-delimited field, as a view, and the message without the field.

    The data is empty if the field is absent; the last one counts if it is there twice.

    Raises:
        ValueError: *message* is cut short, or no protobuf message.
    """
    whole, found, rest = memoryview(message), memoryview(b""), bytearray()
    at = 0
    while at < len(whole):
        start = at
        tag, at = _read_varint(whole, at)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            size_bytes, at = _read_varint(whole, at)
            end = at + size_bytes
        elif kind == _VARINT:
            end = _read_varint(whole, at)[1]
        elif kind in _FIXED_BYTES:
            end = at + _FIXED_BYTES[kind]
        else:
            raise ValueError(f"a field of wire type {kind}")
        if end > len(whole):
            raise ValueError("a field is cut short")
        if tag == field_number << 3 | _LENGTH_DELIMITED:
            found = whole[at:end]
        else:
            rest += whole[start:end]
        at = end
    return found, bytes(rest)


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the varint at byte *at*, and where it ends."""
    value = 0
    for number, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * number
        if byte <= 0x7F:
            return value, at + number + 1
    raise ValueError("a number is cut short or has more than 10 bytes")


def _varint(value: int) -> bytes:
    """Return a non-negative number as a varint: 7 bits in each byte, lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
