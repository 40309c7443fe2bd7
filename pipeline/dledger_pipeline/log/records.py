"""Records of the commit log as Arrow batches and back, by columns. Pure: bytes in, batches out.

The bytes are those of `dledger.store.format`. A batch has a row for each record, with the schema
`ENTRY_SCHEMA`; header fields are gathered at the records' positions instead of parsed one by one,
and every CRC is checked. Loops run inside `map`, not as Python code, for speed. Used by whatever
reads or writes entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from dledger.errors import CorruptRecord
from dledger.store.format import (
    ALIGNMENT_BYTES,
    RECORD_HEADER_BYTES,
    decode_body,
    decode_record_header,
    record_size,
)
from dledger.types import EntryKind
from dledger_pipeline.errors import CorruptObject


def schema(**columns: pa.DataType) -> pa.Schema:
    """Return a schema of columns that are never null."""
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


ENTRY_SCHEMA: Final = schema(
    index=pa.int64(),
    term=pa.int64(),
    type=pa.uint8(),
    timestamp_ms=pa.int64(),
    body_crc32c=pa.uint32(),
    chain_crc32c=pa.uint32(),
    body=pa.large_binary(),
)
"""One row a record. *type* is an `EntryKind`; *chain_crc32c* is the record's own chain CRC."""

_HEADER: Final = np.dtype(
    [
        ("chain_crc32c", "<u4"),
        ("length", "<u4"),
        ("term", "<u8"),
        ("index", "<u8"),
        ("timestamp_ms", "<i8"),
        ("body_crc32c", "<u4"),
        ("type", "u1"),
        ("zeros", "u1", 3),
    ]
)
_WORDS: Final = np.arange(RECORD_HEADER_BYTES // ALIGNMENT_BYTES)
_CHAINED: Final = np.dtype(f"V{RECORD_HEADER_BYTES - 4}")
_LENGTH: Final = struct.Struct("<I")
_LAST_KIND: Final = max(EntryKind)


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

    Padding is not checked, because it holds nothing; all other bytes are in the batch.

    Raises:
        CorruptRecord: Names the segment and the byte of the first record that is not valid.
    """
    data = memoryview(chunk.data).cast("B")
    starts = _walk(data) if chunk.positions is None else chunk.positions.astype(np.int64)
    headers, inside = _gather(data, starts)
    lengths = headers["length"].astype(np.int64)
    begins = starts * ALIGNMENT_BYTES + RECORD_HEADER_BYTES
    stops = -(-(begins + lengths) // ALIGNMENT_BYTES)  # where the next record begins, in units
    whole = inside & _continuous(starts, stops) & (stops * ALIGNMENT_BYTES <= len(data))
    good = _leading(whole & _plausible(headers, chunk.first_index))
    bodies = list(_slices(data, begins[:good], begins[:good] + lengths[:good]))
    good = min(good, _leading(_crcs_hold(headers[:good], bodies, chunk.previous_chain)))
    if good < len(starts) or _end(stops) != len(data):
        raise _corrupt(chunk, data, headers[:good], _end(stops[:good]))
    return _batch(headers, lengths, b"".join(bodies))


def encode(batch: pa.RecordBatch) -> pa.Buffer:
    """Return the bytes that *batch* was parsed from; the inverse of `parse`. Checks nothing."""
    headers = _headers(batch)
    padding = np.concatenate(
        ([0], np.cumsum(-headers["length"].astype(np.int64) % ALIGNMENT_BYTES))
    )
    starts = np.arange(len(batch) + 1, dtype=np.int64) * RECORD_HEADER_BYTES
    joined = pc.binary_join_element_wise(
        _binary(starts, headers),
        batch.column("body"),
        _binary(padding, bytes(int(padding[-1]))),
        _binary(np.zeros(2, np.int64), b"")[0],  # between them; `pyarrow.scalar` imports pandas
    )
    return joined.buffers()[2].slice(0, int(record_sizes(batch).sum()))


def check(batch: pa.RecordBatch, *, name: str, previous_chain: int, first_index: int) -> int:
    """Check all CRCs of rows that did not come from `parse`; return the last chain CRC.

    Args:
        batch: Of `ENTRY_SCHEMA`.
        name: The object that the rows are from; for errors.
        previous_chain: The chain CRC of the record before the first row.
        first_index: The index of the first row.

    Raises:
        CorruptObject: Names *name* and the index of the first row that is not valid.
    """
    if len(batch) == 0:
        return previous_chain
    headers, bodies = _headers(batch), batch.column("body")
    offsets, joined = body_bounds(bodies), bodies.buffers()[2]
    slices = _slices(memoryview(b"" if joined is None else joined), offsets[:-1], offsets[1:])
    valid = _plausible(headers, first_index) & _crcs_hold(headers, slices, previous_chain)
    good = _leading(valid)
    if good < len(batch):
        raise CorruptObject(name, f"entry {first_index + good} does not have its index and CRCs")
    return int(headers["chain_crc32c"][-1])


def record_sizes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes that each row takes as a record, with header and padding."""
    lengths = np.diff(body_bounds(batch.column("body")))
    return np.asarray(RECORD_HEADER_BYTES + lengths + (-lengths % ALIGNMENT_BYTES))


def values(column: pa.Array) -> npt.NDArray[Any]:
    """Return a column of numbers without nulls; its own `to_numpy` imports pandas."""
    dtype = np.dtype(str(column.type))
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def array_of(column: npt.NDArray[Any] | Sequence[int], kind: pa.DataType) -> pa.Array:
    """Return whole numbers as an array; `pa.array` imports pandas, which takes a second."""
    data = np.ascontiguousarray(column, np.dtype(str(kind)))
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])


def body_bounds(bodies: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    """Return where each body begins in their buffer, and the end of the last."""
    if len(bodies) == 0:
        return np.zeros(1, np.int64)
    return np.frombuffer(bodies.buffers()[1], np.int64)[bodies.offset :][: len(bodies) + 1]


def follow(data: memoryview, limit: int | None = None) -> tuple[list[int], int]:
    """Return where the records of *data* begin, in bytes, by their lengths, and where they end.

    Nothing is checked. Ends at zeros, at a record that is not whole, or after *limit* records.
    """
    starts: list[int] = []
    at, last = 0, len(data) - RECORD_HEADER_BYTES
    while at <= last and (limit is None or len(starts) < limit):
        (length,) = _LENGTH.unpack_from(data, at + 4)
        after = at + record_size(length)
        if after > len(data) or (length == 0 and not any(data[at : at + RECORD_HEADER_BYTES])):
            break
        starts.append(at)
        at = after
    return starts, at


def _walk(data: memoryview) -> npt.NDArray[np.int64]:
    """Return the records' positions by their lengths; bytes that are left over count as one."""
    starts, end = follow(data)
    if end < len(data):
        starts.append(end)
    return np.array(starts, np.int64) // ALIGNMENT_BYTES


def _gather(data: memoryview, starts: npt.NDArray[np.int64]) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Return the headers at *starts*, and which of them lie within the data; the others are 0."""
    words = np.frombuffer(data, "<u8", len(data) // ALIGNMENT_BYTES)
    inside = starts <= len(words) - len(_WORDS)
    if inside.all():
        gathered = words[starts[:, None] + _WORDS]
    else:
        gathered = np.zeros((len(starts), len(_WORDS)), "<u8")
        gathered[inside] = words[starts[inside, None] + _WORDS]
    return gathered.view(_HEADER)[:, 0], inside


def _continuous(
    starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    return np.asarray(starts == np.concatenate((np.zeros(1, np.int64), stops[:-1]))[: len(starts)])


def _plausible(headers: Any, first_index: int) -> npt.NDArray[np.bool_]:
    indexes = np.arange(first_index, first_index + len(headers), dtype=np.uint64)
    plausible = (headers["index"] == indexes) & (headers["type"] <= _LAST_KIND)
    return np.asarray(plausible & (headers["zeros"] == 0).all(axis=1))


def _crcs_hold(
    headers: Any, bodies: Iterable[memoryview], previous_chain: int
) -> npt.NDArray[np.bool_]:
    """Return for which records both CRCs are right, given that the previous record's are."""
    if len(headers) == 0:
        return np.zeros(0, np.bool_)
    stored = headers["chain_crc32c"]
    before = [previous_chain, *stored[:-1].tolist()]
    raw = np.ascontiguousarray(headers).view("u1").reshape(-1, RECORD_HEADER_BYTES)
    chained = np.ascontiguousarray(raw[:, 4:]).view(_CHAINED)[:, 0].tolist()
    chains = np.fromiter(map(crc32c, chained, before), np.uint32, len(before))
    crcs = np.fromiter(map(crc32c, bodies), np.uint32, len(before))
    return np.asarray((chains == stored) & (crcs == headers["body_crc32c"]))


def _slices(
    data: memoryview, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Iterator[memoryview]:
    """Yield parts of *data*: views that live on are so many objects that it slows everything."""
    return map(data.__getitem__, map(slice, begins.tolist(), ends.tolist()))


def _leading(flags: npt.NDArray[np.bool_]) -> int:
    """Return how many of *flags* are set before the first that is not."""
    return len(flags) if flags.all() else int(flags.argmin())


def _end(stops: npt.NDArray[np.int64]) -> int:
    return int(stops[-1]) * ALIGNMENT_BYTES if len(stops) else 0


def _corrupt(chunk: RecordBytes, data: memoryview, valid: Any, at: int) -> CorruptRecord:
    """Return the error for the record at byte *at*, after the *valid* ones."""
    chain = int(valid["chain_crc32c"][-1]) if len(valid) else chunk.previous_chain
    reason = "its end, position or reserved bytes are not as expected"
    try:
        header = decode_record_header(data, at, chain=chain, index=chunk.first_index + len(valid))
        decode_body(data, at, header)
    except ValueError as error:
        reason = str(error)
    return CorruptRecord(chunk.segment, chunk.offset + at, reason)


def _batch(headers: Any, lengths: npt.NDArray[np.int64], bodies: bytes) -> pa.RecordBatch:
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    columns = [
        pa.Array.from_buffers(field.type, len(headers), [None, _column(headers, field.name)])
        for field in ENTRY_SCHEMA
        if field.name != "body"
    ]
    columns.append(_binary(offsets, bodies))
    return pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA)


def _column(headers: Any, name: str) -> pa.Buffer:
    """Return a field of all headers; `pyarrow.array` would do, but imports pandas for it."""
    found = headers[name]
    return pa.py_buffer(found.astype(found.dtype.newbyteorder("=")))


def _binary(offsets: npt.NDArray[np.int64], data: Any) -> pa.LargeBinaryArray:
    """Return the parts of *data* between *offsets*, not copied."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _headers(batch: pa.RecordBatch) -> Any:
    """Return the rows' headers, with the lengths that their bodies have."""
    headers = np.zeros(len(batch), _HEADER)
    headers["length"] = np.diff(body_bounds(batch.column("body")))
    for field in ENTRY_SCHEMA:
        if field.name != "body":
            headers[field.name] = values(batch.column(field.name))
    return headers
