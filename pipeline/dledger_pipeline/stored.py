"""What the kinds of object stores have in common: an object as it was read."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An object as it was read: its bytes, and the version to give to `Store.replace`."""

    data: pa.Buffer
    version: str
