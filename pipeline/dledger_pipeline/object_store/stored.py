"""What the kinds of object stores have in common: an object as it was read."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from dledger_pipeline.errors import CorruptObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An object as it was read: its bytes, and the version to give to `Store.replace`."""

    data: pa.Buffer
    version: str


def check_size(name: str, size_bytes: int, max_bytes: int) -> None:
    """Refuse an object that is larger than it may be, before it is read. Raises CorruptObject."""
    if size_bytes > max_bytes:
        raise CorruptObject(name, f"it has {size_bytes} bytes, {max_bytes} are the most it may")
