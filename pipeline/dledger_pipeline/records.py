"""Records of the commit log as Arrow batches and back, by columns. Pure: bytes in, batches out.

The bytes are those of `dledger.store.format`. A batch has a row for each record, the schema is
`ENTRY_SCHEMA`; header fields are gathered at the records' positions instead of parsed one by one,
and every CRC is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ENTRY_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("term", pa.int64(), nullable=False),
        pa.field("type", pa.uint8(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("body_crc32c", pa.uint32(), nullable=False),
        pa.field("chain_crc32c", pa.uint32(), nullable=False),
        pa.field("body", pa.large_binary(), nullable=False),
    ]
)
"""One row a record. *type* is an `EntryKind`; *chain_crc32c* is the record's own chain CRC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBytes:
    """Whole records next to each other, as they are on a node's disk.

    Attributes:
        segment: The segment file they are from; for errors.
        offset: The byte of that file at which *data* begins; for errors.
        data: The records with their padding. May be cut short or damaged: that is an error.
        positions: Where each record begins in *data*, u32 in units of 8 bytes; None if unknown:
            then the lengths in the headers are followed.
        previous_chain: The chain CRC of the record before; 0 before entry 1.
        first_index: The index of the first record.
    """

    segment: str
    offset: int
    data: bytes | memoryview | pa.Buffer
    positions: npt.NDArray[np.uint32] | None
    previous_chain: int
    first_index: int


def parse(chunk: RecordBytes) -> pa.RecordBatch:
    """Return the records of *chunk*, every one checked: chain, index, type and body CRC.

    Raises:
        CorruptRecord: Names the segment and the byte of the first record that is not valid.
    """
    raise NotImplementedError(chunk)


def encode(batch: pa.RecordBatch) -> bytes:
    """Return the bytes that *batch* was parsed from; the inverse of `parse`. Checks nothing."""
    raise NotImplementedError(batch)


def check(batch: pa.RecordBatch, *, name: str, previous_chain: int, first_index: int) -> int:
    """Check all CRCs of rows that did not come from `parse`; return the last chain CRC.

    Raises:
        CorruptObject: Names *name* and the index of the first row that is not valid.
    """
    raise NotImplementedError(batch, name, previous_chain, first_index)


def read_segment(
    path: Path, *, last_index: int | None = None, chunk_bytes: int = 4 << 20
) -> Iterator[RecordBytes]:
    """Yield the records of a segment file in chunks of about *chunk_bytes*, unparsed.

    Uses the index file beside it if that is whole. Ends at *last_index*, or at the first zeros.

    Raises:
        CorruptRecord: The segment's header, or a record's length, is not valid.
    """
    raise NotImplementedError(path, last_index, chunk_bytes)


def read_log(directory: Path, *, chunk_bytes: int = 4 << 20) -> Iterator[RecordBytes]:
    """Yield the synced records of a node's data directory (or of its ``log`` alone).

    Raises:
        CorruptRecord: A segment is missing or does not continue the one before.
        CorruptFile: The watermark is damaged.
    """
    raise NotImplementedError(directory, chunk_bytes)
