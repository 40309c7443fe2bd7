"""Counts the fields of a request in its bytes, before protobuf creates an object for each.

Two bytes on the wire, an empty message in a list, become 70 in memory. The request's type says
which fields are messages; those are descended into, all others are skipped. Used by `requests`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor

_VARINT, _FIXED64, _BYTES, _GROUP_BEGIN, _GROUP_END, _FIXED32 = range(6)
_MORE: Final = 0x80
"""The bit in a varint's byte that says that another follows. Most varints have one byte."""
_MAX_VARINT_BYTES: Final = 10


def count_elements(raw: bytes, kind: Descriptor, most: int) -> int:
    """Return the number of fields in the message *raw*, including those of nested messages.

    Each element of a list and each entry of a map counts as one, and so does a list of packed
    numbers. Malformed bytes give the count so far, or 0 if they end too early: protobuf refuses
    them anyway.

    Args:
        raw: The bytes of the message.
        kind: Its type.
        most: Counting stops at one more than this.
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
        elif wire == _GROUP_BEGIN:  # an unknown field: proto3 has no groups
            groups += 1
        elif wire == _GROUP_END and groups:
            groups -= 1
        else:
            return count


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the varint at *at* and the position after it. Raises IndexError if malformed."""
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
    """Return the types of the fields that are messages (as map entries are), by number."""
    return {
        field.number: field.message_type for field in kind.fields if field.message_type is not None
    }
