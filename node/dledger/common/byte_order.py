"""Arrays of whole numbers as bytes: little endian on every machine."""

from __future__ import annotations

import sys
from array import array
from typing import Literal

TypeCode = Literal["I", "Q", "q"]


def little_endian(values: array[int]) -> bytes:
    """Return the bytes of an array's items."""
    if sys.byteorder != "little":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def from_little_endian(code: TypeCode, data: bytes | memoryview) -> array[int]:
    """Return the items whose bytes these are."""
    values = array(code)
    values.frombytes(data)
    if sys.byteorder != "little":
        values.byteswap()
    return values
