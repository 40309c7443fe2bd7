r"""The commit log's bytes as pure functions: values in, bytes out. No I/O here.

Called by the rest of `store` and by the pipeline. All integers are little endian; every
CRC is CRC32C. ``docs/internals/storage-format.md`` says for each write what a crash leaves.

Segment file ``<first index, 20 digits>.seg``: a header page, records, zeros up to the file's end::

    0     8    magic "DLGRSEG\0"
    8     4    format version (u32)
    12    4    previous chain (u32): the chain CRC of the record before this segment, 0 if none
    16    8    first index (u64)
    24    2    length of the group id in bytes (u16)
    26    2    length of the node id in bytes (u16)
    28    128  group id, UTF-8, zero padded
    156   64   node id, UTF-8, zero padded
    220   4    CRC of bytes [0, 220)
    224   3872 zeros; records begin at 4096, so that no later write touches the header's page

Record, at a multiple of 8 bytes::

    0     4    chain CRC (u32): CRC of bytes [4, 40), continued from the previous record's chain
    4     4    body length in bytes (u32), without padding
    8     8    term (u64)
    16    8    index (u64)
    24    8    timestamp in ms (i64)
    32    4    body CRC (u32): CRC of the body, computed by the proposer
    36    1    type (u8): `EntryKind`
    37    3    zeros
    40    n    body
    40+n  0-7  zeros up to the next multiple of 8

The chain does not cover the segment header, so the same log has the same record bytes and chain on
every node, wherever its segments begin. A CRC continued over the same bytes maps different starting
values to different results, so a record is valid after exactly one predecessor.

Index file ``<first index, 20 digits>.idx``, in columns, so that it is read without a loop::

    0     8    magic "DLGRIDX\0"
    8     4    format version (u32)
    12    4    previous chain (u32)
    16    8    first index (u64)
    24    8    end (u64): byte after the last record
    32    4    record count c (u32)
    36    4    term run count r (u32)
    40    4    membership count m (u32)
    44    4    CRC of the columns (u32)
    48    4    zeros
    52    4    CRC of bytes [0, 52)
    56    4c   positions (u32), in units of 8 bytes
          4c   chain CRCs (u32)
          16r  term runs: first index (u64), term (u64)
          8m   indexes of the MEMBERSHIP entries (u64)

Watermark slot, 512 bytes, two per file at bytes 0 and 4096; `shadow_index` follow from 8192 on::

    0     8    magic "DLGRWMK\0"
    8     4    format version (u32)
    12    4    chain CRC of the record at *index* (u32); 0 if the log is empty
    16    8    sequence (u64): the higher of two valid slots counts; slot = sequence mod 2
    24    8    first index of the log (u64)
    32    8    index (u64): every record up to here was synced
    40    8    term of the entry before the first index (u64); 0 if that is entry 1
    48    4    chain CRC of the record before the first index (u32); 0 if that is entry 1
    52    456  zeros
    508   4    CRC of bytes [0, 508)
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from dledger.common.chain import record_fields
from dledger.errors import InvalidArgument, NewerFormat, OlderFormat
from dledger.types import Entry, EntryKind

FORMAT_VERSION = 3
"""Of segments, their indexes and the watermark; nothing of the formats below was ever released."""
SEGMENT_HEADER_BYTES = 4096
RECORD_HEADER_BYTES = 40
ALIGNMENT_BYTES = 8
MAX_BODY_BYTES = (1 << 32) - 1
SLOT_BYTES = 512
SLOT_STRIDE_BYTES = 4096
WATERMARK_BYTES = 2 * SLOT_STRIDE_BYTES

_SEGMENT = struct.Struct("<8sIIQHH128s64s")
_SEGMENT_MAGIC = b"DLGRSEG\0"
_RECORD_WITH_CHAIN = struct.Struct("<IIQQqIB3x")
_INDEX = struct.Struct("<8sIIQQIIII4x")
_INDEX_MAGIC = b"DLGRIDX\0"
_SLOT = struct.Struct("<8sIIQQQQI456x")
_SLOT_MAGIC = b"DLGRWMK\0"
_U32 = struct.Struct("<I")
_ZEROS = bytes(ALIGNMENT_BYTES)
_KINDS = {kind.value: kind for kind in EntryKind}


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The owner of a segment and the position in the log at which it begins."""

    group_id: str
    node_id: str
    first_index: int
    previous_chain: int


class RecordHeader(NamedTuple):
    """A record without its body; a tuple, because recovery creates one per record."""

    chain: int
    length: int
    term: int
    timestamp_ms: int
    crc32c: int
    kind: EntryKind


class EncodedRecords(NamedTuple):
    """Records ready for one vectored write; bodies are passed through, not copied."""

    buffers: list[bytes]
    positions: list[int]
    chains: list[int]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentIndex:
    """The contents of a sealed segment's index file.

    Attributes:
        positions: Each record's byte offset, divided by 8.
        chains: Each record's chain CRC.
        runs: (first index, term) wherever the term changes, and at the first record.
        memberships: Indexes of the MEMBERSHIP entries.
        end: The byte after the last record.
    """

    first_index: int
    previous_chain: int
    end: int
    positions: array[int]
    chains: array[int]
    runs: tuple[tuple[int, int], ...]
    memberships: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The entry just before a log's first one: index 0, or the last entry that was dropped.

    Attributes:
        chain: The chain CRC of its record, which the first record kept continues.
    """

    index: int = 0
    term: int = 0
    chain: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The durable watermark: the records after *base* up to *index* were synced.

    Attributes:
        sequence: Of two valid marks, the one with the higher sequence counts.
        index: The last synced entry; at least the index of the base.
        chain: The chain CRC of the record at *index*.
    """

    sequence: int
    base: Base
    index: int
    chain: int

    @property
    def first_index(self) -> int:
        """The first entry that the log keeps."""
        return self.base.index + 1


def check_entry(entry: Entry) -> None:
    """Check a received entry once, so that `CommitLog.append` may trust its CRC.

    Raises:
        InvalidArgument: The CRC32C of the data differs from the one its proposer computed.
    """
    found = crc32c(entry.data)
    if found != entry.crc32c:
        raise InvalidArgument(
            f"entry {entry.index} of term {entry.term} has CRC32C {found:#010x}, "
            f"its proposer computed {entry.crc32c:#010x}"
        )


def record_size(body_length: int) -> int:
    """Return the bytes of a record with its header and padding."""
    return RECORD_HEADER_BYTES + body_length + (-body_length % ALIGNMENT_BYTES)


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the header's page.

    Raises:
        InvalidArgument: An id does not fit its field.
    """
    group = _fitting("group id", header.group_id, 128)
    node = _fitting("node id", header.node_id, 64)
    fields = _SEGMENT.pack(
        _SEGMENT_MAGIC,
        FORMAT_VERSION,
        header.previous_chain,
        header.first_index,
        len(group),
        len(node),
        group,
        node,
    )
    return (fields + _U32.pack(crc32c(fields))).ljust(SEGMENT_HEADER_BYTES, b"\0")


def _fitting(what: str, text: str, limit: int) -> bytes:
    encoded = text.encode()
    if len(encoded) > limit:
        raise InvalidArgument(f"{what} {text!r} has {len(encoded)} bytes, at most {limit} fit")
    return encoded


def decode_segment_header(page: bytes) -> SegmentHeader:
    """Parse a header page.

    Raises:
        ValueError: It is torn or corrupt.
        NewerFormat, OlderFormat: Another version wrote it.
    """
    _check_crc("segment header", page, _SEGMENT.size)
    magic, version, chain, first, group_len, node_len, group, node = _SEGMENT.unpack_from(page)
    _check_kind("segment", magic, _SEGMENT_MAGIC, version)
    return SegmentHeader(
        group_id=group[:group_len].decode(),
        node_id=node[:node_len].decode(),
        first_index=first,
        previous_chain=chain,
    )


def encode_records(entries: Sequence[Entry], *, chain: int, position: int) -> EncodedRecords:
    """Encode *entries* to be written at byte *position*, after a record with this *chain*."""
    buffers: list[bytes] = []
    positions: list[int] = []
    chains: list[int] = []
    at, padding = position, b""
    for entry in entries:
        data, fields = entry.data, record_fields(entry)
        chain = crc32c(fields, chain)
        buffers += (padding + _U32.pack(chain) + fields, data)
        positions.append(at // ALIGNMENT_BYTES)
        chains.append(chain)
        padding = _ZEROS[: -len(data) % ALIGNMENT_BYTES]
        at += RECORD_HEADER_BYTES + len(data) + len(padding)
    if padding:
        buffers.append(padding)
    return EncodedRecords(buffers, positions, chains, at - position)


def decode_record_header(
    buffer: bytes | memoryview, offset: int, *, chain: int, index: int
) -> RecordHeader:
    """Parse the record header at *offset*, expected to follow *chain* and to be entry *index*.

    Raises:
        ValueError: It is not that record's header; the message says what differs.
        NewerFormat: It is that record's header, but of a type that only a newer version knows.
    """
    fields = buffer[offset + 4 : offset + RECORD_HEADER_BYTES]
    if len(fields) < RECORD_HEADER_BYTES - 4:
        raise ValueError("the file ends within a record header")
    found, length, term, found_index, timestamp, crc, kind = _RECORD_WITH_CHAIN.unpack_from(
        buffer, offset
    )
    expected = crc32c(fields, chain)
    if found != expected:
        raise ValueError(f"chain CRC is {found:#010x}, expected {expected:#010x}")
    if found_index != index:
        raise ValueError(f"index is {found_index}, expected {index}")
    if kind not in _KINDS:  # the chain CRC is valid, so this is not damage
        raise NewerFormat(
            f"the record of entry {index}", found=f"type {kind}", known=f"type {max(_KINDS)}"
        )
    return RecordHeader(found, length, term, timestamp, crc, _KINDS[kind])


def decode_body(buffer: memoryview, offset: int, header: RecordHeader) -> memoryview:
    """Return the body of the record at *offset*, checked.

    Raises:
        ValueError: It is cut short, or its CRC differs from the one in its header.
    """
    start = offset + RECORD_HEADER_BYTES
    body = buffer[start : start + header.length]
    if len(body) < header.length:
        raise ValueError(f"body has {len(body)} of {header.length} bytes")
    found = crc32c(body)
    if found != header.crc32c:
        raise ValueError(f"body CRC32C is {found:#010x}, expected {header.crc32c:#010x}")
    return body


def encode_index(index: SegmentIndex) -> bytes:
    """Return the index file of a sealed segment."""
    runs = array("Q", [value for run in index.runs for value in run])
    memberships = array("Q", index.memberships)
    columns = b"".join(
        _little_endian(column).tobytes()
        for column in (index.positions, index.chains, runs, memberships)
    )
    header = _INDEX.pack(
        _INDEX_MAGIC,
        FORMAT_VERSION,
        index.previous_chain,
        index.first_index,
        index.end,
        len(index.positions),
        len(index.runs),
        len(index.memberships),
        crc32c(columns),
    )
    return header + _U32.pack(crc32c(header)) + columns


def decode_index(data: bytes) -> SegmentIndex:
    """Parse an index file.

    Raises:
        ValueError: It is torn or corrupt; it can be rebuilt.
        NewerFormat, OlderFormat: Another version wrote it.
    """
    _check_crc("index header", data, _INDEX.size)
    magic, version, chain, first, end, count, runs, memberships, crc = _INDEX.unpack_from(data)
    _check_kind("index", magic, _INDEX_MAGIC, version)
    columns = memoryview(data)[_INDEX.size + 4 :]
    ends = [4 * count, 8 * count, 8 * count + 16 * runs, 8 * count + 16 * runs + 8 * memberships]
    if len(columns) != ends[-1] or crc32c(columns) != crc:
        raise ValueError("index columns do not have the CRC32C their header states")
    run_values = _column("Q", columns[ends[1] : ends[2]])
    return SegmentIndex(
        first_index=first,
        previous_chain=chain,
        end=end,
        positions=_column("I", columns[: ends[0]]),
        chains=_column("I", columns[ends[0] : ends[1]]),
        runs=tuple(zip(run_values[::2], run_values[1::2], strict=True)),
        memberships=tuple(_column("Q", columns[ends[2] : ends[3]])),
    )


def _column(typecode: str, data: memoryview) -> array[int]:
    column: array[int] = array(typecode)
    column.frombytes(data)
    return _little_endian(column)


def _little_endian(column: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped


def encode_mark(mark: Mark) -> bytes:
    """Return the watermark slot of *mark*."""
    fields = _SLOT.pack(
        _SLOT_MAGIC,
        FORMAT_VERSION,
        mark.chain,
        mark.sequence,
        mark.first_index,
        mark.index,
        mark.base.term,
        mark.base.chain,
    )
    return fields + _U32.pack(crc32c(fields))


def decode_mark(slot: bytes) -> Mark:
    """Parse a watermark slot.

    Raises:
        ValueError: It was never written, or is torn or corrupt.
        NewerFormat, OlderFormat: Another version wrote it.
    """
    _check_crc("watermark slot", slot, _SLOT.size)
    magic, version, chain, sequence, first, index, term, base = _SLOT.unpack_from(slot)
    _check_kind("watermark", magic, _SLOT_MAGIC, version)
    return Mark(
        sequence=sequence,
        base=Base(index=first - 1, term=term, chain=base),
        index=index,
        chain=chain,
    )


def _check_crc(what: str, data: bytes, size: int) -> None:
    if len(data) < size + 4:
        raise ValueError(f"{what} has {len(data)} of {size + 4} bytes")
    expected = crc32c(memoryview(data)[:size])
    (found,) = _U32.unpack_from(data, size)
    if found != expected:
        raise ValueError(f"{what} CRC32C is {found:#010x}, expected {expected:#010x}")


def _check_kind(what: str, magic: bytes, expected: bytes, version: int) -> None:
    if magic != expected:
        raise ValueError(f"not a {what}: magic is {magic!r}, expected {expected!r}")
    if version > FORMAT_VERSION:
        raise NewerFormat.number(what, found=version, known=FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise OlderFormat(f"the {what}", found=version, known=FORMAT_VERSION)
