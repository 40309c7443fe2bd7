"""The chain CRC of the log: one number that stands for an entry and everything before it.

Each record on disk carries it (``store/format.py``), and what peers say of their logs does, too:
equal values mean equal logs up to there, whatever led to them. It is no proof against whoever
computes CRCs; it shows what a bug, a bad memory or a forger that has not read the log did.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from crc32c import crc32c

from dledger.types import Entry

_FIELDS: Final = struct.Struct("<IQQqIB3x")


def record_fields(entry: Entry) -> bytes:
    """Return what the chain covers of an entry: a record's header after the chain CRC itself."""
    return _FIELDS.pack(
        len(entry.data), entry.term, entry.index, entry.timestamp_ms, entry.crc32c, entry.kind
    )


def chain_behind(chain: int, entries: Iterable[Entry]) -> int:
    """Return the chain CRC of the last of *entries*, the first of which follows *chain*."""
    for entry in entries:
        chain = crc32c(record_fields(entry), chain)
    return chain


def chains_behind(chain: int, entries: Iterable[Entry]) -> list[int]:
    """Return the chain CRC of each of *entries*, the first of which follows *chain*."""
    chains: list[int] = []
    for entry in entries:
        chain = crc32c(record_fields(entry), chain)
        chains.append(chain)
    return chains
