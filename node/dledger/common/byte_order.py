"""Converts integer arrays to bytes and back, little endian on every machine.

Used by the formats in `broker` and `store`.
"""

from __future__ import annotations

import sys
from array import array
from typing import Literal

TypeCode = Literal["B", "H", "I", "Q", "q"]


def little_endian(values: array[int]) -> bytes:
    """Return the items of an array as little-endian bytes."""
    if sys.byteorder != "little":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def from_little_endian(code: TypeCode, data: bytes | memoryview) -> array[int]:
    """Return the items that `little_endian` encoded."""
    values = array(code)
    values.frombytes(data)
    if sys.byteorder != "little":
        values.byteswap()
    return values
