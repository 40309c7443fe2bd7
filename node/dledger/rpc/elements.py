"""How many fields a request has, told from its bytes before protobuf makes an object of each.

Two bytes on the wire are 70 in memory as an empty message within a list. A request's type says
which fields are messages; these are looked into, all else is stepped over.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor

_VARINT, _FIXED64, _BYTES, _GROUP_BEGIN, _GROUP_END, _FIXED32 = range(6)
_MORE: Final = 0x80
"""In a byte of a varint: another follows. Varints below it, most tags and lengths, are one byte."""
_MAX_VARINT_BYTES: Final = 10


def count_elements(raw: bytes, kind: Descriptor, most: int) -> int:
    """Return how many fields the message *raw* has, those of all messages within it included.

    Each element of a list and each entry of a map is one; so is a list of packed numbers. Bytes
    that are no message are counted up to where that shows, at the end as 0: protobuf refuses them.

    Args:
        raw: What came.
        kind: The type that it is said to have.
        most: Counting ends at one more than this.
    """
    try:
        return _count(raw, kind, most)
    except IndexError:
        return 0


def _count(raw: bytes, kind: Descriptor, most: int) -> int:  # noqa: C901, PLR0912 - one loop
    nested, end = _nested(kind), len(raw)
    outer: list[tuple[int, Mapping[int, Descriptor]]] = []
    at = count = groups = 0
    while True:
        if at >= end:
            if at > end or not outer:
                return count
            end, nested = outer.pop()
            continue
        count += 1
        if count > most:
            return count
        tag = raw[at]
        at += 1
        if tag >= _MORE:
            tag, at = _varint(raw, at - 1)
        wire = tag & 7
        if wire == _BYTES:
            length = raw[at]
            at += 1
            if length >= _MORE:
                length, at = _varint(raw, at - 1)
            inner = None if groups else nested.get(tag >> 3)
            if inner is None:
                at += length
            elif at + length > end:
                return count
            else:
                outer.append((end, nested))
                end, nested = at + length, _nested(inner)
        elif wire == _VARINT:
            while raw[at] >= _MORE:
                at += 1
            at += 1
        elif wire == _FIXED64:
            at += 8
        elif wire == _FIXED32:
            at += 4
        elif wire == _GROUP_BEGIN:  # of a field that nobody knows: proto3 has no groups
            groups += 1
        elif wire == _GROUP_END and groups:
            groups -= 1
        else:
            return count


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the varint at *at*, and what is behind it; IndexError where none ends in time."""
    value = 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value, at
    raise IndexError


@cache
def _nested(kind: Descriptor) -> Mapping[int, Descriptor]:
    """Return the fields of *kind* that are messages, by number: map entries are, too."""
    return {
        field.number: field.message_type for field in kind.fields if field.message_type is not None
    }
