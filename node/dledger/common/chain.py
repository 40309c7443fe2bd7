"""The chain CRC of the log: a checksum over an entry and all entries before it.

Each record on disk holds it (``store/format.py``), and so do the messages in which peers describe
their logs: equal values mean that the logs are equal up to that entry. It detects bugs, bad memory
and a forger that has not read the log, but not one that has: anyone can compute a CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from crc32c import crc32c

from dledger.types import Entry

_FIELDS: Final = struct.Struct("<IQQqIB3x")


def record_fields(entry: Entry) -> bytes:
    """Return the bytes that the chain CRC covers: a record's header without the CRC itself."""
    return _FIELDS.pack(
        len(entry.data), entry.term, entry.index, entry.timestamp_ms, entry.crc32c, entry.kind
    )


def chains_behind(chain: int, entries: Iterable[Entry]) -> list[int]:
    """Return the chain CRC of each of *entries*, the first of which follows *chain*."""
    chains: list[int] = []
    for entry in entries:
        chain = crc32c(record_fields(entry), chain)
        chains.append(chain)
    return chains
